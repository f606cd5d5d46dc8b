"""Random gradient weighting."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from paretograd.aggregators.base import Aggregator, Description, Outcome
from paretograd.aggregators.checks import make_generator
from paretograd.geometry.gramian import Array, UnitGramian, check_finite, check_finite_gramian
from paretograd.guarantees import Guarantee


class RGW(Aggregator):
    r"""Random weights on the simplex, drawn anew at every call.

    $$ d = J^\top\, \mathrm{softmax}(\xi), \qquad \xi \sim \mathcal N(0, I) $$

    Args:
        seed: of the rule's own generator; None takes one from torch's global generator.
        generator: a CPU generator to use instead.
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
        self.generator = make_generator(seed, generator)

    @property
    def guarantee(self) -> Guarantee:
        """None: RGW has no fixed point unless every gradient vanishes."""
        return Guarantee(None, in_hull=True, equivariant=False, note="No fixed point: no guarantee is possible.")

    def weights(self, gramian: Tensor) -> Tensor:
        array = check_finite_gramian(gramian)  # no copy to float64, no geometry: a call costs microseconds
        if gramian.dtype is torch.float32 and array.ndim == 2 and gramian.is_cpu:
            return self._draw(len(array), torch.float32)
        return super().weights(gramian)

    def _outcome(self, G: Array, eps: float) -> Outcome:
        check_finite(G)
        return Outcome(self._draw(len(G), torch.float64).numpy())

    def _draw(self, m: int, dtype: torch.dtype) -> Tensor:
        return torch.randn(m, generator=self.generator, dtype=dtype).softmax(0)

    def _solve(self, unit: UnitGramian) -> Outcome:
        raise AssertionError("unreachable: _outcome answers")

    def state_dict(self) -> dict[str, Any]:
        return {"generator": self.generator.get_state()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.generator.set_state(state["generator"])

    def __repr__(self) -> str:
        return "RGW()"
