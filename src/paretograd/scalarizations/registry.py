"""Rules that see the losses, by name."""

from __future__ import annotations

import difflib
import re
from typing import Any

from paretograd.aggregators.registry import Written, read_rule
from paretograd.errors import ParameterError, UnknownNameError
from paretograd.scalarizations.base import Weighting
from paretograd.scalarizations.famo import FAMO
from paretograd.scalarizations.history import DWA, RLW
from paretograd.scalarizations.learned import IMTLL, UncertaintyWeighting
from paretograd.scalarizations.preferences import COSMOS, PBI, STCH, Tchebycheff
from paretograd.scalarizations.sums import GLS, LogSum, PNorm, WeightedSum

_CLASSES: tuple[type[Weighting], ...] = (
    WeightedSum,
    GLS,
    LogSum,
    PNorm,
    Tchebycheff,
    STCH,
    PBI,
    COSMOS,
    UncertaintyWeighting,
    IMTLL,
    DWA,
    RLW,
    FAMO,
)

SCALARIZERS: dict[str, type[Weighting]] = {cls.name: cls for cls in _CLASSES}


def _folded(name: str) -> str:
    return re.sub(r"[-_\s]", "", name).lower()


_SPELLINGS = {_folded(spelling): cls for cls in _CLASSES for spelling in (cls.__name__, cls.name, cls.label)}


def scalarizer_names() -> list[str]:
    """Return the names of all rules that see the losses, for `scalarizer`."""
    return list(SCALARIZERS)


def scalarizer(name: str, **parameters: Any) -> Weighting:
    """Return a rule that sees the losses by name: ``scalarizer("stch", mu=0.1)`` or ``scalarizer("stch(mu=0.1)")``.

    Args:
        name: one of `scalarizer_names`. Parameters may follow in parentheses. Case, hyphens, underscores and spaces are
            ignored.
        **parameters: passed to the class.
    """
    plain, opened, _ = str(name).partition("(")
    cls = _SPELLINGS.get(_folded(plain))
    if cls is None:
        near = difflib.get_close_matches(plain, SCALARIZERS, n=1)
        hint = f" Did you mean {near[0]!r}?" if near else ""
        raise UnknownNameError(
            f"no scalarization is called {name!r}.{hint} Known names: {', '.join(SCALARIZERS)}. Rules that need "
            "gradients are in paretograd.names()"
        )
    written = read_rule(str(name)) if opened else Written(cls.name)
    if written.starred:
        raise ParameterError(f"{name!r}: a rule that sees the losses has no starred variant; leave out the star")
    try:
        return cls(*written.values, **dict(written.keywords), **parameters)
    except TypeError as error:
        raise ParameterError(f"{cls.name}: {error}. See help(paretograd.{cls.__name__})") from None
