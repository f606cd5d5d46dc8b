"""Losses and Jacobians of many points at once, and constants in the points' dtype."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
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


#: What numpy, too, computes in.
_NUMPY = (torch.float32, torch.float64)


def by_numpy(form: Callable[..., tuple[Any, Any]], points: Tensor, constants: Constants) -> tuple[Tensor, Tensor]:
    """A closed form in numpy, whose calls cost less than torch's, for points that numpy can read; in torch for others.

    For few points the calls are all that it costs. Their number decides nothing all the same, so that a batch is
    rounded as each of its points alone.

    Args:
        form: the module, numpy or torch, with points and constants of its kind, to losses and Jacobian.
    """
    if points.dtype not in _NUMPY or not points.is_cpu:
        return form(torch, points, *constants.like(points))
    with np.errstate(all="ignore"):  # as silent as torch
        losses, rows = form(np, points.numpy(), *constants.arrays_like(points))
    return torch.from_numpy(losses), torch.from_numpy(rows)


class Constants:
    """float64 constants of a problem in the dtype and on the device of the points, converted once for each."""

    def __init__(self, *values: Tensor) -> None:
        self._values = values
        self._made: dict[tuple[torch.dtype, torch.device], tuple[Tensor, ...]] = {}
        self._arrays: dict[torch.dtype, tuple[NDArray[Any], ...]] = {}

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

    def arrays_like(self, points: Tensor) -> tuple[NDArray[Any], ...]:
        """The constants for these points, which are in main memory, as arrays."""
        made = self._arrays.get(points.dtype)
        if made is None:
            made = self._arrays[points.dtype] = tuple(value.numpy() for value in self.like(points))
        return made
