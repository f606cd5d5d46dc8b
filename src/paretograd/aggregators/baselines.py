"""Baselines without a guarantee: random gradient weighting, and MGDA with clipped weights."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from paretograd.aggregators.base import Aggregator, Description, GramianAggregator
from paretograd.checks import as_number, make_rng
from paretograd.errors import ParameterError
from paretograd.geometry.gramian import Array
from paretograd.geometry.unit_gramian import UnitGramian, check_finite, plain_size
from paretograd.guarantees import Guarantee
from paretograd.solution import Outcome, Status, outcome_of
from paretograd.solvers.min_norm import min_norm_point

#: Number of calls for which random weights are drawn at once.
_BLOCK = 64


class RGW(Aggregator):
    r"""Random gradient weighting: random weights on the simplex, drawn independently at every call.

    $$ d = J^\top\, \mathrm{softmax}(\xi), \qquad \xi \sim \mathcal N(0, I) $$

    Args:
        seed: seed of the rule's own generator; None draws one from torch's global generator.
        generator: a torch generator from which to draw the seed instead.
    """

    name = "rgw"
    label = "RGW"
    description = Description(
        formula="d = J.T softmax(xi),  xi ~ N(0, I)",
        reference="Lin et al. 2022, arXiv:2111.10603",
        paper="appendix RGW",
        when="As a baseline: a random walk around the mean that never settles, and so has no guarantee.",
    )

    def __init__(self, seed: int | None = None, generator: torch.Generator | None = None) -> None:
        self.seed = seed
        self._generator = torch.Generator().manual_seed(int(make_rng(seed, generator).integers(2**62)))
        self._normals, self._used = torch.empty(0, 0, device="cpu"), 0
        self._singles: tuple[Tensor, ...] = ()
        self._state_before = self._generator.get_state()

    @property
    def guarantee(self) -> Guarantee:
        """No guarantee: RGW has no fixed point unless every gradient vanishes."""
        return Guarantee(
            None,
            in_hull=True,
            equivariant=False,
            continuous=True,  # for given random numbers
            note="No fixed point: no guarantee is possible.",
        )

    def weights(self, gramian: Tensor) -> Tensor:
        m = plain_size(gramian)
        if not m:
            return super().weights(gramian)
        row = self._next(m)
        return self._singles[row]

    def _answer(self, G: Array, eps: float) -> Outcome:
        check_finite(G)
        row = self._next(len(G))
        return Outcome(torch.softmax(self._normals[row].double(), dim=0).numpy())

    def _next(self, m: int) -> int:
        """Return the next row of the block. Drawing a block takes a fraction of the time of single draws."""
        if self._used == len(self._normals) or self._normals.shape[1] != m:
            self._draw_block(m)
        self._used += 1
        return self._used - 1

    def _draw_block(self, m: int) -> None:
        self._state_before, self._used = self._generator.get_state(), 0
        self._normals = torch.randn(_BLOCK, m, generator=self._generator, dtype=torch.float32, device="cpu")
        self._singles = torch.softmax(self._normals, dim=1).unbind()

    def state_dict(self) -> dict[str, Any]:
        return {"rng": self._state_before.numpy().tobytes(), "m": self._normals.shape[1], "used": self._used}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._generator.set_state(torch.frombuffer(bytearray(state["rng"]), dtype=torch.uint8))
        self._draw_block(state["m"])
        self._used = state["used"]


class ClippedMGDA(GramianAggregator):
    r"""MGDA with its weights clipped at C after solving: the naive baseline for capped MGDA.

    $$ w_k = \min(w^{\mathrm{MGDA}}_k, C), \qquad\text{then, if renormalised,}\quad w \leftarrow w / \|w\|_1 $$

    Args:
        cap: the largest weight C, above 0.
        renormalize: if True, divide by the sum after clipping. Weights may then exceed the cap again.
    """

    name = "clipped-mgda"
    label = "MGDA + clipping"
    description = Description(
        formula="w_k = min(w_k of MGDA, C), then w <- w / |w|_1 if renormalised",
        reference="Hu, Ho and Yu 2026 (the paper), figure cap_vs_clip",
        paper="appendix, figure cap_vs_clip",
        when="As a baseline for capped MGDA only: clipping after solving keeps the attacker's share of the direction.",
    )

    def __init__(self, cap: float = 0.2, renormalize: bool = True) -> None:
        if not as_number(cap, "cap") > 0.0:
            raise ParameterError(f"cap={cap:g}: the largest weight must be above 0")
        self.cap, self.renormalize = cap, renormalize

    @property
    def guarantee(self) -> Guarantee:
        """No guarantee: clipped weights do not satisfy the variational inequality."""
        return Guarantee(
            None,
            in_cone=True,
            in_hull=self.renormalize,
            equivariant=False,
            note="A baseline without a guarantee. Where MGDA's weights are not unique, the order decides.",
        )

    def _solve(self, unit: UnitGramian) -> Outcome:
        found = outcome_of(min_norm_point(unit))
        clipped = np.minimum(found.weights, self.cap)
        status = Status.OPTIMAL if found.status is Status.STATIONARY else found.status
        return found._replace(weights=clipped / clipped.sum() if self.renormalize else clipped, status=status)
