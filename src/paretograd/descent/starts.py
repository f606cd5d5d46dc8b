"""Where runs start."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch
from torch import Tensor

from paretograd.errors import DTypeError, InputError, ParameterError, ShapeError
from paretograd.problems.base import Problem

_DTYPES = (torch.float32, torch.float64)


def starting_points(
    problem: Problem,
    seeds: Iterable[int] | None,
    starts: Tensor | Sequence[Sequence[float]] | None,
    dtype: torch.dtype,
) -> tuple[Tensor, tuple[int, ...]]:
    """Starts ``(B, n)`` in the dtype of the runs, and the seeds that name them (none where only points were given)."""
    if dtype not in _DTYPES:
        raise DTypeError(f"dtype={dtype}: runs are computed in torch.float32 or torch.float64")
    names = _seeds(seeds) if seeds is not None else (0,) if starts is None else ()
    if starts is None:
        return problem.starts(names).to(dtype), names
    try:
        points = torch.as_tensor(starts, device="cpu").detach().to(dtype=dtype, copy=True)
    except (TypeError, ValueError, RuntimeError):
        raise InputError(f"starts are points of shape (B, n) as a tensor or a list of lists; got {starts!r}") from None
    if points.ndim == 1:
        points = points.unsqueeze(0)
    if points.ndim != 2 or points.shape[1] != problem.n or not len(points):
        raise ShapeError(
            f"{problem.name} has n = {problem.n} variables, so starts have shape (B, {problem.n}), one row for each "
            f"run; got {tuple(points.shape)}"
        )
    if not bool(torch.isfinite(points).all()):
        raise InputError("starts hold NaN or infinity; every run starts at a finite point")
    if names and len(names) != len(points):
        raise ShapeError(f"there are {len(points)} starts, but {len(names)} seeds to name them; give one for each")
    return points, names


def _seeds(seeds: Iterable[int]) -> tuple[int, ...]:
    listed = (seeds,) if isinstance(seeds, int) else tuple(seeds)
    if not listed:
        raise ParameterError("seeds is empty; give at least one, such as seeds=(0,)")
    if any(isinstance(seed, bool) or not isinstance(seed, int) for seed in listed):
        raise ParameterError(f"seeds={listed!r}: whole numbers, one for each run")
    return listed
