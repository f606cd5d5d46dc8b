"""Losses and Jacobians of many points at once, and constants in the points' dtype."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from paretograd.errors import InputError


def by_autograd(objectives: Callable[[Tensor], Tensor], points: Tensor) -> tuple[Tensor, Tensor]:
    """Losses ``(..., m)`` and Jacobian ``(..., m, n)`` by one backward pass per objective over the whole batch.

    The sum of an objective over the batch has every point's gradient at once, because each loss depends on its own
    point only.
    """
    with torch.inference_mode(False), torch.enable_grad():
        leaf = points.detach().clone().requires_grad_()
        losses = objectives(leaf)
        if not losses.requires_grad:
            raise InputError("the objectives cut the graph; compute losses from the points in torch, without detach")
        m = losses.shape[-1]
        rows = [
            torch.autograd.grad(losses[..., k].sum(), leaf, retain_graph=k + 1 < m, materialize_grads=True)[0]
            for k in range(m)
        ]
    return losses.detach(), torch.stack(rows, -2)


class Constants:
    """float64 constants of a problem in the dtype and on the device of the points, converted once for each."""

    def __init__(self, *values: Tensor) -> None:
        self._values = values
        self._made: dict[tuple[torch.dtype, torch.device], tuple[Tensor, ...]] = {}

    def like(self, points: Tensor) -> tuple[Tensor, ...]:
        """The constants for these points."""
        key = (points.dtype, points.device)
        made = self._made.get(key)
        if made is None:
            # Made in inference mode they could not take part in a backward pass later.
            with torch.inference_mode(False):
                made = tuple(value.to(dtype=points.dtype, device=points.device) for value in self._values)
            self._made[key] = made
        return made
