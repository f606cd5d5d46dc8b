"""Rules that treat each coordinate by itself: GradDrop and the trimmed mean."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from paretograd.aggregators.base import Description
from paretograd.aggregators.rows import Found, RowAggregator, RowSource
from paretograd.checks import as_count, make_rng
from paretograd.errors import ParameterError
from paretograd.guarantees import Guarantee

#: Number of coordinates sorted at a time by torch, which needs three times the memory of its input.
_COLUMNS = 1 << 20

#: Numbers sorted at a time by numpy: as many as the cache of a processor holds.
_ENTRIES = 1 << 17


class GradDrop(RowAggregator):
    r"""Gradient sign dropout: each coordinate keeps only its positive or only its negative entries, at random.

    $$ P = \tfrac12 \Big(1 + \frac{\sum_k g_k}{\sum_k |g_k|}\Big), \qquad
       d = \sum_k \big(\ell_k + (1 - \ell_k) M_k\big) g_k $$

    $$ M_k = [P > U] [g_k > 0] + [P < U] [g_k < 0] $$

    for each coordinate, with a uniform random number U. The purity P is the share of the positive entries. So the
    expectation of d is the sum, if all leaks are equal, and coordinates on which all objectives agree lose nothing. The
    paper applies it to the gradients of one layer of activations, and computes P from these gradients times the signs
    of the activations; here it acts on the gradients of all shared parameters. The paper also allows any increasing
    function of P instead of P itself.

    Args:
        leak: the share of each gradient that is never dropped, between 0 and 1: one number, or one per objective.
        seed: seed of the random numbers; None draws one from torch's global generator.
        generator: a torch generator from which to draw the seed instead.
    """

    name = "graddrop"
    label = "GradDrop"
    description = Description(
        formula="d = sum_k (l_k + (1 - l_k) M_k) g_k,  M_k a random mask that keeps one sign in each coordinate",
        reference="Chen et al. 2020, arXiv:2010.06808",
        paper="not discussed",
        when="As a baseline. No theorem covers it: d is not a combination of the gradients.",
    )

    def __init__(
        self,
        leak: float | Sequence[float] | Tensor = 0.0,
        seed: int | None = None,
        generator: torch.Generator | None = None,
    ) -> None:
        try:
            given = torch.as_tensor(leak, dtype=torch.float64, device="cpu")
        except (TypeError, ValueError):
            given = torch.empty(0, device="cpu")
        if given.ndim > 1 or not given.numel() or not bool(((given >= 0.0) & (given <= 1.0)).all()):
            raise ParameterError(f"leak={leak!r}: give a number between 0 and 1, or one for each objective")
        self.leak, self.seed = given.tolist(), seed
        self._leak, self._rng = given, make_rng(seed, generator)

    @property
    def guarantee(self) -> Guarantee:
        """No guarantee: a coordinate-wise mask can turn the direction against every gradient."""
        note = "No combination of the gradients, so no theorem applies."
        return Guarantee(None, equivariant=not self._leak.ndim, note=note)

    def _combine(self, rows: RowSource) -> Found:
        if self._leak.ndim and len(self._leak) != rows.m:
            raise ParameterError(f"leak has {len(self._leak)} numbers, but there are m = {rows.m} objectives")
        step = int(self._rng.integers(2**62))
        found = {}
        for k, key in enumerate(rows.keys):
            like, seed = rows.like(key), (step + k) % 2**63
            numbers = rows.of_whole(key, partial(_uniform, like=like, seed=seed))
            found[id(key)] = self._masked(rows.block(key), numbers)
        return Found(None, found)

    def _masked(self, rows: Tensor, numbers: Tensor) -> Tensor:
        """Return the direction of a block."""
        part = rows / len(rows)  # so that no sum overflows
        total, size = part.sum(dim=0), part.abs().sum(dim=0)
        purity = torch.where(size > 0.0, 0.5 + 0.5 * total / size, 0.5)
        kept = torch.where(purity > numbers, rows.clamp(min=0.0), rows.clamp(max=0.0))
        leak = self._leak.to(rows).reshape(-1, *(1 for _ in purity.shape))
        return torch.lerp(kept, rows, leak.expand(rows.shape)).sum(dim=0)

    def state_dict(self) -> dict[str, Any]:
        return {"rng": self._rng.bit_generator.state}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._rng.bit_generator.state = state["rng"]


def _uniform(shape: Sequence[int], like: Tensor, seed: int) -> Tensor:
    """Return random numbers between 0 and 1, in the dtype and on the device of a tensor."""
    generator = torch.Generator(like.device).manual_seed(seed)
    return torch.rand(tuple(shape), dtype=like.dtype, device=like.device, generator=generator)


class TrimmedMean(RowAggregator):
    r"""The mean of each coordinate without its largest and its smallest values.

    $$ d_i = \frac{1}{m - 2b} \sum_{k = b + 1}^{m - b} g_{(k), i}, \qquad g_{(1), i} \le \dots \le g_{(m), i} $$

    It bounds the influence of b objectives whose gradients cannot be trusted, on each coordinate.

    Args:
        trim: number b of values to drop at either end; ``m > 2 trim``.
    """

    name = "trimmed-mean"
    label = "Trimmed mean"
    description = Description(
        formula="d_i = mean of g_1i ... g_mi without the b largest and the b smallest",
        reference="Yin et al. 2018, arXiv:1803.01498",
        paper="not discussed",
        when="Some gradients may be corrupted. For federated learning see paretograd.federated.",
    )

    def __init__(self, trim: int = 1) -> None:
        self.trim = as_count(trim, "trim", 0)

    @property
    def guarantee(self) -> Guarantee:
        """No guarantee: the coordinates come from different gradients."""
        return Guarantee(None, continuous=True, note="No combination of the gradients, so no theorem applies.")

    def _combine(self, rows: RowSource) -> Found:
        if 2 * self.trim >= rows.m:
            raise ParameterError(
                f"trim={self.trim} at either end leaves none of m = {rows.m} gradients; use at most {(rows.m - 1) // 2}"
            )
        found = {}
        for key in rows.keys:
            block = rows.block(key)
            found[id(key)] = trimmed_mean(block.flatten(1), self.trim).reshape(block.shape[1:])
        return Found(None, found)


def trimmed_mean(rows: Tensor, cut: int) -> Tensor:
    """Return the mean of each column of ``(m, n)`` without ``cut`` values at either end, sorting some at a time."""
    if not rows.is_cpu or rows.requires_grad or rows.dtype is torch.bfloat16:  # which numpy does not have
        parts = [part.sort(dim=0).values[cut : len(part) - cut] for part in torch.split(rows, _COLUMNS, dim=1)]
        return torch.cat([part.double().mean(dim=0).to(rows.dtype) for part in parts])
    # Numpy takes a third of torch's time, and less for many rows.
    columns = max(1, min(_COLUMNS, _ENTRIES // len(rows)))
    arrays = (np.sort(part.numpy(), axis=0) for part in torch.split(rows, columns, dim=1))
    sums = [np.add.reduce(array[cut : len(array) - cut], axis=0, dtype=np.float64) for array in arrays]
    return torch.from_numpy(np.concatenate(sums) / (len(rows) - 2 * cut)).to(rows.dtype)
