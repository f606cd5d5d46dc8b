"""Losses and Jacobians of batches of points, and constants in the dtype of the points."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from paretograd.errors import InputError


def by_autograd(objectives: Callable[[Tensor], Tensor], points: Tensor) -> tuple[Tensor, Tensor]:
    """Return losses ``(..., m)`` and Jacobian ``(..., m, n)`` by one backward pass per objective over the whole batch.

    The gradient of an objective summed over the batch contains every point's gradient, because each loss depends only
    on its own point.
    """
    with torch.inference_mode(False), torch.enable_grad():
        leaf = points.detach().clone().requires_grad_()
        losses = objectives(leaf)
        if not losses.requires_grad:
            raise InputError("the losses have no graph; compute them from the points in torch, without detach")
        m = losses.shape[-1]
        rows = [
            torch.autograd.grad(losses[..., k].sum(), leaf, retain_graph=k + 1 < m, materialize_grads=True)[0]
            for k in range(m)
        ]
    return losses.detach(), torch.stack(rows, -2)


#: Dtypes in which numpy can compute, too.
_NUMPY = (torch.float32, torch.float64)


def by_numpy(form: Callable[..., tuple[Any, Any]], points: Tensor, constants: Constants) -> tuple[Tensor, Tensor]:
    """Evaluate a closed form in numpy if numpy can read the points, otherwise in torch.

    A numpy call costs less than a torch call, which is what matters for few points. The choice does not depend on the
    number of points, so that a batch is rounded like each of its points alone.

    Args:
        form: function from a module (numpy or torch), points and constants, all of that module's type, to losses and
            Jacobian.
        points: shape ``(..., n)``.
        constants: the constants of the problem.
    """
    if points.dtype not in _NUMPY or not points.is_cpu:
        return form(torch, points, *constants.like(points))
    with np.errstate(all="ignore"):  # torch does not warn either
        losses, rows = form(np, points.numpy(), *constants.arrays_like(points))
    return torch.from_numpy(losses), torch.from_numpy(rows)


class Constants:
    """float64 constants of a problem, converted once for each dtype and device of the points."""

    def __init__(self, *values: Tensor) -> None:
        self._values = values
        self._made: dict[tuple[torch.dtype, torch.device], tuple[Tensor, ...]] = {}
        self._arrays: dict[torch.dtype, tuple[NDArray[Any], ...]] = {}

    def like(self, points: Tensor) -> tuple[Tensor, ...]:
        """Return the constants in the dtype and on the device of the points."""
        key = (points.dtype, points.device)
        made = self._made.get(key)
        if made is None:
            # Tensors created in inference mode cannot take part in a later backward pass.
            with torch.inference_mode(False):
                made = tuple(value.to(dtype=points.dtype, device=points.device) for value in self._values)
            self._made[key] = made
        return made

    def arrays_like(self, points: Tensor) -> tuple[NDArray[Any], ...]:
        """Return the constants as arrays in the dtype of the points, which must be on the CPU."""
        made = self._arrays.get(points.dtype)
        if made is None:
            made = self._arrays[points.dtype] = tuple(value.numpy() for value in self.like(points))
        return made
