"""GradVac, which turns gradients towards each other until their cosines are those of the past."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Literal

import numpy as np
import torch

from paretograd.aggregators.base import Description, GramianAggregator
from paretograd.aggregators.memory import Memory, check_count, check_keys
from paretograd.aggregators.pcgrad import check_sweep, gather
from paretograd.checks import as_number, make_rng
from paretograd.errors import ParameterError
from paretograd.geometry.gramian import Array
from paretograd.geometry.unit_gramian import UnitGramian
from paretograd.guarantees import Guarantee
from paretograd.solution import Outcome
from paretograd.solvers.sweeps import sweep_to_targets


class GradVac(GramianAggregator):
    r"""Gradient vaccine: PCGrad with a moving average of the cosine of each pair as its target, instead of zero.

    For every k, and the others i in turn, with $\phi$ the cosine of $g'_k$ (at first $g_k$) and $g_i$:

    $$ g'_k \leftarrow g'_k + \|g'_k\| \frac{\hat\phi_{ki} \sqrt{1 - \phi^2} - \phi \sqrt{1 - \hat\phi_{ki}^2}}
       {\|g_i\| \sqrt{1 - \hat\phi_{ki}^2}}\, g_i \quad\text{if } \phi < \hat\phi_{ki} $$

    $$ \hat\phi_{ki} \leftarrow (1 - \beta)\, \hat\phi_{ki} + \beta \phi, \qquad d = \sum_k g'_k $$

    The new cosine is the target. Targets start at zero, where this is PCGrad. Gradients are only ever added, so the
    weights are at least one each. But a positive target makes conflicts more likely, not less: a turned gradient has
    gained length along another.

    Each call is a step, which changes the targets. A batch is one step, and so is a call of `backward`. Each Gramian of
    a batch and each parameter group has targets of its own, as in the paper, where a group may be a layer. A cosine
    with a zero gradient changes no target. `state_dict` saves the targets.

    The default beta is that of the paper's experiments; LibMTL and TorchJD have 0.5. LibMTL updates a target only if
    the cosine is below it.

    Args:
        beta: share of the new cosine in the average, from 0 to 1. With 0 the targets stay where they start.
        target: the targets at the start, from -1 to 1; the paper starts at 0.
        order: ``"shuffled"`` (the paper) or ``"given"``: how a gradient meets the others.
        reduction: ``"sum"`` (the paper) or ``"mean"``.
        seed: seed for shuffling; None draws one from torch's global generator.
        generator: a torch generator from which to draw the seed instead.
    """

    name = "gradvac"
    label = "GradVac"
    description = Description(
        formula="g_k <- g_k + a g_i for every i, a >= 0 raising their cosine to its moving average; d = sum_k g_k",
        reference="Wang et al. 2021, arXiv:2010.05874",
        paper="not discussed",
        when="For comparison, or if the cosines of your gradients are known to be positive. It may conflict.",
    )

    def __init__(
        self,
        beta: float = 0.01,
        target: float = 0.0,
        order: Literal["given", "shuffled"] = "shuffled",
        reduction: Literal["mean", "sum"] = "sum",
        seed: int | None = None,
        generator: torch.Generator | None = None,
    ) -> None:
        if not 0.0 <= as_number(beta, "beta") <= 1.0:
            raise ParameterError(f"beta={beta:g}: the share of the new cosine is between 0 and 1")
        if not -1.0 <= as_number(target, "target") <= 1.0:
            raise ParameterError(f"target={target:g}: a cosine is between -1 and 1")
        check_sweep(order, reduction)
        self.beta, self.target = float(beta), float(target)
        self.order, self.reduction, self.seed = order, reduction, seed
        self._rng = make_rng(seed, generator) if order == "shuffled" else None
        self._memory: Memory[list[list[float]]] = Memory()

    @property
    def guarantee(self) -> Guarantee:
        """No guarantee: as PCGrad it may conflict, and for positive targets it does for m = 2, too."""
        return Guarantee(
            None,
            in_cone=True,
            beyond_hull=True,
            equivariant=False,
            continuous_inside=True,  # what is added is zero at its threshold, and no projected gradient vanishes
            note="It may conflict even for m = 2.",
        )

    def targets(self, part: int = 0) -> Array | None:
        """Return the target cosines ``(m, m)`` for the next step; None before the first one.

        Args:
            part: number of the parameter group, or of the Gramian in a batch.
        """
        found = self._memory.state_dict().get(str(part))
        return None if found is None else np.array(found)

    @contextmanager
    def one_step(self) -> Iterator[None]:
        before = self._random_state()
        try:
            with self._memory.step():
                yield
        except BaseException:
            if self._rng is not None and before is not None:
                self._rng.bit_generator.state = before
            raise

    def _random_state(self) -> Mapping[str, Any] | None:
        return None if self._rng is None else self._rng.bit_generator.state

    def _turn_to(self, part: int) -> None:
        self._memory.turn_to(part)

    def _solve(self, unit: UnitGramian) -> Outcome:
        with self.one_step():
            found = self._memory.recall()
            targets = np.full((unit.m, unit.m), self.target) if found is None else np.array(found)
            check_count(self.label, len(targets), unit.m)
            count = len(unit.norms)
            orders = np.tile(np.arange(count), (count, 1))
            if self._rng is not None:
                orders = self._rng.random((count, count)).argsort(axis=1)
            block = np.ix_(range(unit.m), range(unit.m)) if unit.live is None else np.ix_(unit.live, unit.live)
            coefficients, met = sweep_to_targets(unit.C, targets[block], orders, unit.resolution)
            targets[block] += np.where(np.isnan(met), 0.0, self.beta * (met - targets[block]))
            self._memory.keep(targets.tolist())
            return Outcome(gather(unit, coefficients, self.reduction == "mean"), steps=1)

    def state_dict(self) -> dict[str, Any]:
        """Return the targets of every part of a step, and the state of the random generator."""
        return {"targets": self._memory.state_dict(), "rng": self._random_state()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore what `state_dict` returned. Raise for the state of another rule, and change nothing."""
        check_keys(self.label, state, {"targets", "rng"})
        if (state["rng"] is None) is not (self._rng is None):
            raise ParameterError(f"the state belongs to a GradVac with another order than {self.order!r}")
        targets = {part: _square(values) for part, values in state["targets"].items()}
        if self._rng is not None:
            self._rng.bit_generator.state = state["rng"]
        self._memory.load(targets)


def _square(values: list[list[float]]) -> list[list[float]]:
    """Validate the targets of one part."""
    array = np.array(values, dtype=np.float64)
    if array.ndim != 2 or array.shape[0] != array.shape[1] or not (np.abs(array) <= 1.0).all():
        raise ParameterError(f"GradVac's targets are a matrix of cosines, shape (m, m); got shape {array.shape}")
    found: list[list[float]] = array.tolist()
    return found
