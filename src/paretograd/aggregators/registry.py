"""Aggregators by name. A new rule is one file, one row here and one row in the tests' table."""

from __future__ import annotations

import difflib
from typing import Any

from paretograd.aggregators.base import Aggregator
from paretograd.aggregators.cagrad import CAGrad
from paretograd.aggregators.dual_cone import DualProj, GreedyDCP, UPGrad
from paretograd.aggregators.equal_angle import IMTLG, ConFIG
from paretograd.aggregators.mean import Mean
from paretograd.aggregators.mgda import MGDA, CappedMGDA, ClippedMGDA
from paretograd.aggregators.pcgrad import PCGrad, PCGradPlus
from paretograd.aggregators.power import PIVRG, FairGrad, NashMTL, PowerMean
from paretograd.aggregators.rgw import RGW
from paretograd.aggregators.risk_mgda import ChiSquareMGDA, EntropicMGDA, SpectralMGDA
from paretograd.errors import ParameterError, UnknownNameError

_CLASSES: tuple[type[Aggregator], ...] = (
    Mean,
    MGDA,
    CappedMGDA,
    ClippedMGDA,
    EntropicMGDA,
    SpectralMGDA,
    ChiSquareMGDA,
    PowerMean,
    NashMTL,
    FairGrad,
    PIVRG,
    UPGrad,
    DualProj,
    CAGrad,
    PCGrad,
    PCGradPlus,
    IMTLG,
    ConFIG,
    RGW,
    GreedyDCP,
)

REGISTRY: dict[str, type[Aggregator]] = {cls.name: cls for cls in _CLASSES}


def names() -> list[str]:
    """Names of all aggregators; a trailing ``*`` on any of them asks for its normalized variant."""
    return list(REGISTRY)


def get(name: str, **parameters: Any) -> Aggregator:
    """An aggregator by name, such as ``get("capped-mgda", cap=0.2)`` or ``get("upgrad*")``.

    Args:
        name: one of `names`, with a trailing ``*`` for the normalized variant.
        **parameters: passed to the class.
    """
    key = str(name).strip().lower()
    plain = key.removesuffix("*")
    if plain not in REGISTRY:
        near = difflib.get_close_matches(plain, REGISTRY, n=1)
        hint = f" Did you mean {near[0]!r}?" if near else ""
        raise UnknownNameError(f"no aggregator is called {name!r}.{hint} Known names: {', '.join(REGISTRY)}")
    try:
        aggregator = REGISTRY[plain](**parameters)
    except TypeError as error:
        raise ParameterError(f"{plain}: {error}. See help(paretograd.{REGISTRY[plain].__name__})") from None
    return aggregator.normalized() if key.endswith("*") else aggregator
