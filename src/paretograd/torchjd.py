"""Rules of this library as aggregators of TorchJD, and TorchJD's as rules of this library (extra ``torchjd``).

Each library differentiates in its own way and then calls a rule. A rule is the same thing in both: a function of the
Gramian, or of the rows of the Jacobian. So our rules work with TorchJD's gradients, and TorchJD's rules with ours.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from paretograd.aggregators.base import Aggregator, AggregatorModule, Description
from paretograd.aggregators.rows import Found, RowAggregator, RowSource
from paretograd.errors import InputError, MissingExtraError, NonFiniteGradientError, ParameterError
from paretograd.geometry.gramian import Array, as_array, check_jacobian, combine, gramian, nonfinite_rows
from paretograd.geometry.unit_gramian import check_finite
from paretograd.guarantees import Guarantee
from paretograd.scalarizations.base import Weighting as LossWeighting
from paretograd.solution import Outcome, Status

try:
    from torchjd import Stateful
    from torchjd.aggregation import Aggregator as TheirAggregator
    from torchjd.aggregation import (
        ConstantWeighting,
        CRMOGMWeighting,
        ExcessMTLWeighting,
        GradDrop,
        GramianWeightedAggregator,
        MeanWeighting,
        NashMTL,
        PCGradWeighting,
        RandomWeighting,
        SumWeighting,
        WeightedAggregator,
        Weighting,
    )
except ImportError as missing:
    raise MissingExtraError(
        "paretograd.torchjd needs TorchJD, 0.18 or later: pip install 'paretograd[torchjd]'"
    ) from missing

__all__ = ["TorchJDRowRule", "TorchJDRule", "from_torchjd", "to_torchjd", "to_weighting"]

#: A function from the Gramian, or from the Jacobian, to weights, or from the Jacobian to a direction.
_Function = Callable[[Tensor], Tensor]

#: Weightings that read nothing of their input but the number of its rows.
_READ_NOTHING = (ConstantWeighting, MeanWeighting, RandomWeighting, SumWeighting)

#: TorchJD's rules that draw from torch's global generator.
_RANDOM = (GradDrop, PCGradWeighting, RandomWeighting)


def to_torchjd(rule: Aggregator | AggregatorModule | _Function) -> TheirAggregator:
    """Return a rule as an aggregator of TorchJD, for `jac_to_grad` or for a Jacobian.

    The direction is ``rule(J)``: the Gramian, the weights and the sum are computed in float64. `jac_to_grad` returns
    the weights, and accepts ``optimize_gramian_computation=True``. The Gramian is then TorchJD's, in the dtype of the
    parameters.

    Args:
        rule: a rule of this library, or a function from a Jacobian ``(m, n)`` to a direction ``(n,)``, such as those of
            `paretograd.federated`.

    Returns:
        an aggregator whose ``gramian_weighting`` is `to_weighting`; for a function, one without weights.
    """
    rule = _plain(rule)
    if isinstance(rule, LossWeighting):
        raise ParameterError(
            f"rule={rule!r} sees the losses, not the gradients, so it needs no aggregator of TorchJD: pass it to "
            "paretograd.backward, or differentiate rule.weights(losses) @ losses"
        )
    if isinstance(rule, TorchJDRule) and isinstance(rule.theirs, TheirAggregator):
        return rule.theirs
    if isinstance(rule, Aggregator):
        return _RuleAsTheirs(rule) if _is_of_gramian(rule) else _FunctionAsTheirs(rule)
    if not callable(rule) or isinstance(rule, type | Weighting):
        raise ParameterError(f"rule={rule!r}: give a rule, such as pg.UPGrad(), or a function of the Jacobian")
    return rule if isinstance(rule, TheirAggregator) else _FunctionAsTheirs(rule)


def to_weighting(rule: Aggregator | AggregatorModule) -> Weighting:
    """Return a rule as a weighting of TorchJD, from a Gramian to weights, for `torchjd.autogram.Engine`.

    Args:
        rule: a rule of this library.
    """
    rule = _plain(rule)
    if not isinstance(rule, Aggregator):
        raise ParameterError(f"rule={rule!r}: give a rule, such as pg.UPGrad(); only a rule has weights")
    if not _is_of_gramian(rule):
        raise ParameterError(
            f"{rule.label} needs more than the Gramian: its rows, losses or batches. Use to_torchjd, or "
            "paretograd.backward"
        )
    return _WeightsAsTheirs(rule)


def from_torchjd(theirs: TheirAggregator | Weighting) -> Aggregator:
    """Return an aggregator or a weighting of TorchJD as a rule of this library.

    `pg.backward` and `pg.certify` accept it, and `Mixed` and the starred variant if it needs the Gramian only. It
    declares no guarantee, so a certificate says which theorems apply to a step, but not what the rule promised.

    Args:
        theirs: such as ``torchjd.aggregation.UPGrad()`` or ``UPGradWeighting()``. A weighting of your own is taken for
            one of the Gramian; wrap it with TorchJD's ``WeightedAggregator`` if it reads the Jacobian. `MoDoWeighting`
            and `SDMGradWeighting` expect the inner products of two batches, and get the Gramian of one.
    """
    if isinstance(theirs, _RuleAsTheirs | _WeightsAsTheirs):
        ours: Aggregator = theirs.rule.aggregator
        return ours
    if isinstance(theirs, _FunctionAsTheirs) and isinstance(theirs.function, AggregatorModule):
        return theirs.function.aggregator
    rule = TorchJDRule(theirs)
    return TorchJDRowRule(theirs) if "rows" in rule.needs else rule


class TorchJDRule(Aggregator):
    """A rule of TorchJD. `from_torchjd` creates it.

    Most of TorchJD's rules compute weights from the Gramian; they get it in float64 on the CPU. The others need the
    Jacobian itself, see `TorchJDRowRule`.

    How exact the weights are is unknown: the status is APPROXIMATE, and the residual NaN. NaN or infinity from TorchJD
    raises an error. `state_dict` does so, too, for a rule that changes from call to call: TorchJD cannot restore the
    state of one, and others draw from torch's global generator.

    Args:
        theirs: an aggregator or a weighting of TorchJD.
    """

    def __init__(self, theirs: TheirAggregator | Weighting) -> None:
        if not isinstance(theirs, TheirAggregator | Weighting):
            raise ParameterError(
                f"theirs={theirs!r}: give an aggregator or a weighting of TorchJD, such as torchjd.aggregation.UPGrad()"
            )
        self.theirs = theirs
        self._weights = _weights_of(theirs)
        self.needs = frozenset({"rows" if self._weights is None else "gramian"})
        kind = type(theirs).__name__
        self.name = f"torchjd-{kind.lower()}"  # type: ignore[misc]
        self.label = f"TorchJD's {kind}"  # type: ignore[misc]
        self.description = Description(  # type: ignore[misc]
            formula=repr(theirs),
            reference="TorchJD, https://torchjd.org",
            paper="-",
            when="You want TorchJD's own answer, or a rule that only TorchJD has.",
        )

    @property
    def guarantee(self) -> Guarantee:
        """No guarantee: TorchJD declares none, and regularization breaks those of its papers."""
        return Guarantee(degree=None, equivariant=False, note="A rule of TorchJD, which declares no guarantee.")

    def _refuse(self) -> ParameterError:
        """Return the error of a rule that needs rows and has only a Gramian."""
        return ParameterError(
            f"{self.label} reads the rows of the Jacobian, not only their inner products, so a Gramian is not enough. "
            "Call rule(J) with the Jacobian, or paretograd.backward(losses, rule); it cannot be a part of another rule"
        )

    def _answer(self, G: Array, eps: float) -> Outcome:
        if self._weights is None:
            raise self._refuse()
        check_finite(G)
        with torch.no_grad():
            found = self._weights(torch.from_numpy(G.copy()))
        return Outcome(as_array(self._checked(found, len(G))), Status.APPROXIMATE, math.nan)

    def _checked(self, found: Tensor, size: int) -> Tensor:
        """Return what TorchJD returned, if it is a finite vector of this size."""
        if found.shape != (size,) or not bool(torch.isfinite(found).all()):
            what = f"shape {tuple(found.shape)}" if found.shape != (size,) else "NaN or infinity"
            raise InputError(f"{self.label} returned {what} instead of {size} finite numbers. Nothing was changed")
        return found

    def state_dict(self) -> dict[str, Any]:
        for module in self.theirs.modules():
            if isinstance(module, (Stateful, *_RANDOM)):
                raise ParameterError(
                    f"{self.label} changes from call to call, and what it would need to continue cannot be saved, nor "
                    "shared between processes. Use this library's own rule instead; docs/from-torchjd.md lists them"
                )
        return {}

    def __repr__(self) -> str:
        return f"from_torchjd({self.theirs!r})"


class TorchJDRowRule(TorchJDRule, RowAggregator):
    """A rule of TorchJD that needs the Jacobian: `GradDrop`, `TrimmedMean`, `ConFIG` or `ExcessMTL`.

    It gets all rows in one matrix, on the device of the first parameter. `pg.backward` therefore holds them twice.
    """

    def __call__(self, jacobian: Tensor) -> Tensor:
        """Return the direction, shape ``(..., n)``, for a Jacobian ``(..., m, n)``, in its dtype and on its device."""
        check_jacobian(jacobian)
        J = jacobian.detach()
        bad = nonfinite_rows(J)
        if bad:
            raise NonFiniteGradientError(bad)
        with torch.no_grad():
            found = [self._checked(self._direction(one), J.shape[-1]) for one in J.reshape(-1, *J.shape[-2:])]
        return torch.stack(found).reshape(*J.shape[:-2], J.shape[-1]) if found else J.new_empty(J[..., 0, :].shape)

    def _direction(self, J: Tensor) -> Tensor:
        """Return TorchJD's direction for one Jacobian."""
        found: Tensor = self.theirs(J)
        return combine(found, J) if isinstance(self.theirs, Weighting) else found

    def _combine(self, rows: RowSource) -> Found:
        if rows.process is not None:
            raise ParameterError(f"{self.label} needs whole rows, and the parameters are sharded over processes")
        blocks = [rows.block(key) for key in rows.keys]
        J = torch.cat([block.reshape(rows.m, -1).to(blocks[0].device) for block in blocks], dim=1)
        weighting = self.theirs.weighting if isinstance(self.theirs, WeightedAggregator) else self.theirs
        with torch.no_grad():
            if isinstance(weighting, Weighting):
                return Found(as_array(self._checked(weighting(J), rows.m)), None)
            found = self._checked(weighting(J), J.shape[1])
        parts = torch.split(found, [block[0].numel() for block in blocks])
        direction = {
            id(key): part.reshape(block.shape[1:]).to(block)
            for key, part, block in zip(rows.keys, parts, blocks, strict=True)
        }
        return Found(None, direction)


class _WeightsAsTheirs(Weighting):
    """A rule as a TorchJD `Weighting`. Its `state_dict` holds the state of the rule."""

    def __init__(self, rule: Aggregator) -> None:
        super().__init__()
        self.rule = rule.as_module()

    def forward(self, gramian: Tensor, /) -> Tensor:
        return self.rule.aggregator.weights(gramian)


class _WeightsFromRows(Weighting):
    """The weights for the Jacobian, from its Gramian in float64. TorchJD's own composition computes it in J's dtype."""

    def __init__(self, weighting: _WeightsAsTheirs) -> None:
        super().__init__()
        self.of_gramian = weighting

    def forward(self, matrix: Tensor, /) -> Tensor:
        weights: Tensor = self.of_gramian(gramian(matrix))
        return weights


class _RuleAsTheirs(GramianWeightedAggregator):
    """A rule as a TorchJD aggregator that is known to need only the Gramian."""

    def __init__(self, rule: Aggregator) -> None:
        weighting = _WeightsAsTheirs(rule)
        super().__init__(weighting)
        self.rule = weighting.rule
        self.weighting = _WeightsFromRows(weighting)

    def forward(self, matrix: Tensor, /) -> Tensor:
        return combine(self.weighting(matrix), matrix)

    def __repr__(self) -> str:
        return f"to_torchjd({self.rule.aggregator!r})"

    def __str__(self) -> str:
        return self.rule.aggregator.label


class _FunctionAsTheirs(TheirAggregator):
    """A function from the Jacobian to a direction as a TorchJD aggregator. A rule's state is in its `state_dict`."""

    def __init__(self, function: Aggregator | _Function) -> None:
        super().__init__()
        self.function: _Function = function.as_module() if isinstance(function, Aggregator) else function

    def forward(self, matrix: Tensor, /) -> Tensor:
        return self.function(matrix.detach())

    def __repr__(self) -> str:
        return f"to_torchjd({_plain(self.function)!r})"


def _plain(rule: Any) -> Any:
    """Return the rule of a module from `as_module`. Anything else is left as it is."""
    return rule.aggregator if isinstance(rule, AggregatorModule) else rule


def _is_of_gramian(rule: Aggregator) -> bool:
    """Return True if a rule needs only the Gramian."""
    return rule.needs == {"gramian"}


def _weights_of(theirs: TheirAggregator | Weighting) -> _Function | None:
    """Return TorchJD's function from a Gramian to weights, or None if it needs the Jacobian."""
    if isinstance(theirs, GramianWeightedAggregator):
        weights: _Function = theirs.gramian_weighting
        return weights
    if isinstance(theirs, NashMTL):  # reads the Jacobian J only through J @ J.T, which its root has in common
        return lambda G: theirs.weighting(_root(G))
    weighting = theirs.weighting if isinstance(theirs, WeightedAggregator) else theirs
    inner = weighting
    while isinstance(inner, CRMOGMWeighting):
        inner = inner.weighting
    if isinstance(inner, _READ_NOTHING):
        reads_rows = False
    elif isinstance(theirs, Weighting):
        # A composition, `weighting << function`, computes its Gramian itself.
        reads_rows = isinstance(inner, ExcessMTLWeighting) or hasattr(inner, "fn")
    else:
        reads_rows = True
    return None if reads_rows else weighting


def _root(G: Tensor) -> Tensor:
    """Return the symmetric square root of a Gramian."""
    values, vectors = torch.linalg.eigh(G)
    root: Tensor = (vectors * values.clamp(min=0.0).sqrt()) @ vectors.mT
    return root
