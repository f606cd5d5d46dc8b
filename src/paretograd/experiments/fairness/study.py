"""The fairness study as data: rules, seeds, steps, two choices of the benchmark, and the paper's protocol and table."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Self, get_args

import numpy as np
import torch

from paretograd.aggregators.base import Aggregator
from paretograd.checks import as_number, whole_number
from paretograd.errors import InputError, ParameterError, ParetogradError, ShapeError
from paretograd.experiments.fairness.training import Setting
from paretograd.experiments.study import (
    METHODS_OPTION,
    SEEDS_OPTION,
    TF32_OPTION,
    BaseStudy,
    Method,
    Option,
    checked_rules,
    checked_seeds,
    fingerprint,
    labels_of,
    settle,
    written,
)
from paretograd.problems.fairness import Adult, Rows
from paretograd.problems.fairness.adult import Scaling
from paretograd.problems.fairness.objectives import Gaps, check_binary

#: Rows of the paper's table, in its order.
TABLE = (
    *("mgda", "nash-mtl*", "dualproj", "dualproj*", "upgrad", "upgrad*"),
    *("mas-rand", "mas-rr(1000)", "mas-rr(2500)"),
)
#: Not in the table, since its steps do not shrink; in the figure that shows it.
UNSTABLE = ("nash-mtl",)
#: Rules that the paper does not train here.
BEYOND = ("mean", "cagrad", "fairgrad", "power-mean", "capped-mgda(cap=0.5)", "greedy-dcp", "pcgrad+")

SEEDS = (24, 42, 64, 100)
STEPS = 40_000
LR = 0.005
STOP = 1e-3
#: The seed of the paper's figure of mixed schedules.
FIGURE_SEED = 100
#: Methods of the paper's figures, by label: the non-conflicting rules, and the schedules with their pool; ``{seed}`` is
#: the one that is shown.
FIGURES = {
    # Nash-MTL, whose losses jump, lies behind the others.
    "fairness_two_1": ("Nash-MTL", "Nash-MTL*", "MGDA", "UPGrad", "UPGrad*", "DualProj", "DualProj*"),
    "fairness_mixed_seed{seed}": (
        *("MGDA", "Nash-MTL*", "UPGrad*", "DualProj*"),
        *("MAS-Rand", "MAS-RR(1k)", "MAS-RR(2.5k)"),
    ),
}
_PARTS = ("train", "validation", "test")
_PRECISIONS = (torch.float32, torch.float64)
#: Gradients of three objectives for a rehearsal, in conflict.
_TRIAL = ((2.0, -1.0, 0.5), (-1.0, 1.0, 0.1), (0.5, 0.1, 3.0))
#: Step sizes that float32, the precision of Adult, can represent.
_SMALLEST, _LARGEST = (float(limit) for limit in (np.finfo(np.float32).smallest_subnormal, np.finfo(np.float32).max))


class Published(NamedTuple):
    """Means and sample standard deviations over four seeds, in percent."""

    accuracy: tuple[float, float]
    deo1: tuple[float, float]
    deo2: tuple[float, float]


#: By the labels of the methods.
PUBLISHED = {
    "MGDA": Published((75.70, 0.06), (61.04, 0.59), (7.56, 0.28)),
    "Nash-MTL*": Published((76.19, 0.11), (58.96, 0.96), (7.08, 0.41)),
    "DualProj": Published((79.02, 0.11), (53.97, 0.37), (6.20, 0.06)),
    "DualProj*": Published((78.55, 0.05), (53.69, 0.30), (6.63, 0.08)),
    "UPGrad": Published((77.66, 0.11), (62.36, 0.58), (6.97, 0.06)),
    "UPGrad*": Published((76.75, 0.08), (60.18, 0.70), (7.37, 0.06)),
    "MAS-Rand": Published((76.42, 0.07), (60.90, 0.48), (7.45, 0.10)),
    "MAS-RR(1k)": Published((76.41, 0.09), (60.94, 0.57), (7.48, 0.12)),
    "MAS-RR(2.5k)": Published((76.25, 0.07), (60.56, 0.63), (7.69, 0.12)),
}


@dataclass(frozen=True)
class OwnData:
    """Description of user-supplied data.

    Attributes:
        features: columns.
        rows: to train on, to validate, to test.
        sha256: of shapes, types and bytes of all nine tensors.
    """

    features: int
    rows: tuple[int, int, int]
    sha256: str

    @classmethod
    def of(cls, data: Adult) -> OwnData:
        """Validate and describe the data."""
        parts = {name: getattr(data, name) for name in _PARTS}
        for name, rows in parts.items():
            _check(name, rows, data.train)
        counts = len(data.train.labels), len(data.validation.labels), len(data.test.labels)
        known_by = fingerprint(values for rows in parts.values() for values in rows)
        return cls(data.train.features.shape[1], counts, known_by)

    @classmethod
    def from_plain(cls, found: Any) -> OwnData:
        """Read a description from JSON; raises `InputError` if it is not one."""
        try:
            train, validation, test = map(int, found["rows"])
            return cls(int(found["features"]), (train, validation, test), str(found["sha256"]))
        except (LookupError, TypeError, ValueError):
            raise InputError(
                f"this is not the configuration of a fairness study: its data are described as {found!r}"
            ) from None


def _check(name: str, rows: Rows, train: Rows) -> None:
    features, labels, groups = rows
    if features.ndim != 2 or not features.shape[:1] == labels.shape == groups.shape or not features.numel():
        raise ShapeError(
            f"{name}: features have shape (N, F), labels and groups (N,), with at least one row and column; got "
            f"{tuple(features.shape)}, {tuple(labels.shape)} and {tuple(groups.shape)}"
        )
    if features.dtype not in _PRECISIONS:
        raise InputError(
            f"{name} features: {features.dtype}; training is in torch.float32 or torch.float64. Convert them, for "
            "instance with torch.as_tensor(features, dtype=torch.float32)"
        )
    for what, here, there in (
        ("of one type", features.dtype, train.features.dtype),
        ("with as many columns", features.shape[1], train.features.shape[1]),
    ):
        if here != there:
            raise InputError(f"all features are {what}; {name} features have {here}, train features {there}")
    if not features.isfinite().all():
        raise InputError(f"{name} features: {int((~features.isfinite()).sum())} entries are not finite; all must be")
    check_binary(**{f"{name} labels": labels, f"{name} groups": groups})


@dataclass(frozen=True, kw_only=True)
class FairnessStudy(BaseStudy):
    """Several rules that train the same classifier on Adult; the defaults are the paper's protocol.

    Attributes:
        methods: rules as a person writes them: ``upgrad*``, ``mas-rr(1000)``, ``capped-mgda(cap=0.5)``.
        seeds: of the classifier's initialisation, one run for each.
        steps: at most this many.
        lr: their size.
        stop: a run is done where gamma or the length of the direction is below it; 0 for no such rule.
        gaps: ``sums`` as the benchmark has them, or ``means``: equalized odds, smoothed.
        scaling: standardise by ``all`` rows as the benchmark does, or by the ``train`` rows.
        tf32: whether matrix products on a GPU may round to TF32; of no meaning on a CPU.
        width: of the hidden layers.
        own_data: what is known of data that are not Adult; `run_fairness` sets it.
    """

    experiment = "fairness"
    function = "fairness.run_fairness"

    methods: tuple[str, ...] = field(default=(*TABLE, *UNSTABLE, *BEYOND), metadata=METHODS_OPTION.metadata)
    seeds: tuple[int, ...] = field(default=SEEDS, metadata=SEEDS_OPTION.metadata)
    steps: int = field(
        default=STEPS, metadata=Option(f"At most this many: {STEPS} if not given.", type=int, least=1).metadata
    )
    lr: float = LR
    stop: float = STOP
    gaps: Gaps = field(
        default="sums", metadata=Option("Gaps of sums as in the benchmark, or of group means.", "sums|means").metadata
    )
    scaling: Scaling = field(
        default="all", metadata=Option("Standardise over all rows as in the benchmark, or train.", "all|train").metadata
    )
    tf32: bool = field(default=True, metadata=TF32_OPTION.metadata)
    width: int = 256
    own_data: OwnData | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        lr, stop = as_number(self.lr, "lr"), as_number(self.stop, "stop")
        if not _SMALLEST <= lr <= _LARGEST:
            raise ParameterError(f"lr={lr:g}: a number above 0 that float32 holds, from {_SMALLEST:g} to {_LARGEST:g}")
        if not 0.0 <= stop < math.inf:
            raise ParameterError(f"stop={stop:g}: a finite number, at least 0")
        if not isinstance(self.tf32, (bool, np.bool_)):
            raise ParameterError(f"tf32={self.tf32!r}: use True or False")
        values = {
            "methods": checked_rules(self.methods),
            "seeds": tuple(checked_seeds(self.seeds)),
            "steps": whole_number("study", "steps", self.steps),
            "lr": lr,
            "stop": stop,
            "tf32": bool(self.tf32),
            "width": whole_number("study", "width", self.width),
        }
        settle(self, values)
        for name, choices in (("gaps", get_args(Gaps)), ("scaling", get_args(Scaling))):
            if getattr(self, name) not in choices:
                raise ParameterError(f"{name}={getattr(self, name)!r}: use {' or '.join(choices)}")

    @property
    def shown_seed(self) -> int:
        """The seed that figures show: the paper's, or the first."""
        return FIGURE_SEED if FIGURE_SEED in self.seeds else self.seeds[0]

    def aggregator(self, rule: str) -> Aggregator:
        """Return a new instance of the rule, with its initial random state."""
        return Method(rule).aggregator()

    def labels(self) -> tuple[str, ...]:
        """Return the labels of the methods in tables and figures."""
        return labels_of([Method(rule, "") for rule in self.methods], "")

    def setting(self) -> Setting:
        """Return the constant settings of a training."""
        return Setting(self.seeds, self.lr, self.steps, self.stop, self.gaps, self.tf32, self.width)

    def rehearse(self) -> None:
        """Let every rule weigh three gradients, so that mistakes show before anything is written."""
        for label, rule in zip(self.labels(), self.methods, strict=True):
            try:
                self.aggregator(rule).weights(torch.tensor(_TRIAL, dtype=torch.float64, device="cpu"))
            except ParetogradError as error:
                raise ParameterError(f"{label} cannot weigh three objectives: {error}") from None

    @classmethod
    def from_plain(cls, found: Mapping[str, Any]) -> Self:
        """Rebuild a study from the result of `plain`."""
        own = {"own_data": OwnData.from_plain(found["own_data"])} if "own_data" in found else {}
        return super().from_plain({**found, **own})

    def changes(self) -> dict[str, str]:
        """Return the settings that differ from the paper's protocol, except the methods: name to value."""
        names = [name for name in self.differing() if name not in ("methods", "tf32", "own_data")]
        return {name: written(getattr(self, name)) for name in names}
