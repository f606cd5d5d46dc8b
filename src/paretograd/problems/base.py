"""`Problem`: a test problem as declared data, from objectives and box to Pareto set and source."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import Tensor

from paretograd.checks import whole_number
from paretograd.errors import DTypeError, ParameterError, ShapeError
from paretograd.problems.gradients import by_autograd

Points = Callable[[int], Tensor]


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class Problem:
    """m objectives of n variables on a box, with their known properties.

    `problem` returns the built-in problems. To define your own, pass the fields by name.

    Args:
        name: name for `problem` and the command line.
        label: name in figures.
        objectives: function from points ``(..., n)`` to losses ``(..., m)``, in torch, for any float dtype and leading
            dimensions.
        m: number of objectives.
        lower: lower corner of the box, shape ``(n,)``, float64; ``-inf`` for no bound.
        upper: upper corner of the box; ``inf`` for no bound.
        least: a lower bound of each objective on the box. Theorem 1 requires F >= 0: subtract their sum from F.
        smoothness: a number L such that every objective's gradient is L-Lipschitz on the box; None if there is no such
            number or none is known.
        convex: True if every objective is convex on the box.
        pareto_set: function from a number of points to Pareto optimal points ``(count, n)``, spread over the whole set.
        pareto_front: function from a number of points to their losses ``(count, m)``; computed from the Pareto set by
            default.
        closed_jacobian: function from points to losses and Jacobian ``(..., m, n)``, if a formula is faster than
            autograd.
        formula: the objectives in plain text.
        note: remarks for users, such as the points where an objective is not differentiable.
        source: reference for the problem.
        parameters: the arguments of `problem`, including defaults: ``problem(p.name, **p.parameters)`` is the same
            problem.
    """

    name: str
    label: str
    objectives: Callable[[Tensor], Tensor]
    m: int
    lower: Tensor
    upper: Tensor
    least: tuple[float, ...]
    smoothness: float | None = None
    convex: bool = False
    pareto_set: Points | None = None
    pareto_front: Points | None = None
    closed_jacobian: Callable[[Tensor], tuple[Tensor, Tensor]] | None = None
    formula: str = ""
    note: str = ""
    source: str = ""
    parameters: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        whole_number(self.name, "m", self.m)
        for bound in ("lower", "upper"):
            object.__setattr__(self, bound, torch.as_tensor(getattr(self, bound), dtype=torch.float64, device="cpu"))
        if self.lower.ndim != 1 or self.lower.shape != self.upper.shape or not bool((self.lower < self.upper).all()):
            raise ParameterError(
                f"{self.name}: lower and upper are vectors of one length n, lower below upper; got "
                f"{self.lower.tolist()} and {self.upper.tolist()}"
            )
        if len(self.least) != self.m:
            raise ParameterError(f"{self.name}: least has {len(self.least)} numbers for m = {self.m} objectives")
        if self.smoothness is not None and not self.smoothness > 0.0:
            raise ParameterError(f"{self.name}: smoothness={self.smoothness!r} must be above 0, or None if unknown")
        if self.pareto_front is None and self.pareto_set is not None:
            object.__setattr__(self, "pareto_front", partial(_front, self.objectives, self.pareto_set))

    @property
    def n(self) -> int:
        """Number of variables."""
        return self.lower.shape[0]

    def __call__(self, points: Tensor) -> Tensor:
        """Return the losses ``(..., m)`` of points ``(..., n)``; differentiable."""
        self._check(points)
        losses = self.objectives(points)
        if losses.shape != (*points.shape[:-1], self.m):
            raise ShapeError(
                f"{self.name}: the objectives returned losses of shape {tuple(losses.shape)} for points of shape "
                f"{tuple(points.shape)}; (..., n) must become (..., m) with m = {self.m}"
            )
        return losses

    def jacobian(self, points: Tensor) -> tuple[Tensor, Tensor]:
        """Return losses ``(..., m)`` and Jacobian ``(..., m, n)`` of points ``(..., n)``, detached from autograd.

        They come from the problem's closed form, or from one backward pass per objective over all points at once.
        """
        self._check(points)
        if self.closed_jacobian is not None:
            return self.closed_jacobian(points.detach())
        return by_autograd(self, points)

    def start(self, seed: int, dtype: torch.dtype = torch.float32) -> Tensor:
        """Draw a start ``(n,)``, uniform on the central half of the box: the protocol of the paper's synthetic study.

        The result equals ``torch.manual_seed(seed); lo + (hi - lo) / 4 + (hi - lo) / 2 * torch.rand(n)`` bit for bit in
        float32, converted to ``dtype`` at the end, so that a seed gives the same point in every precision. The global
        generator is left unchanged. A variable without bounds uses [-1, 1]; one with a single bound uses the interval
        of length 2 that ends there.
        """
        low = torch.where(self.lower.isfinite(), self.lower, (self.upper - 2.0).nan_to_num(posinf=-1.0))
        high = torch.where(self.upper.isfinite(), self.upper, low + 2.0)
        quarter, half = (low + (high - low) / 4.0).float(), ((high - low) / 2.0).float()
        generator = torch.Generator().manual_seed(whole_number(self.name, "seed", seed, least=None))
        return (quarter + half * torch.rand(self.n, generator=generator, device="cpu")).to(dtype)

    def starts(self, seeds: Iterable[int], dtype: torch.dtype = torch.float32) -> Tensor:
        """Return the starts of several seeds, shape ``(B, n)``."""
        rows = [self.start(seed, dtype) for seed in seeds]
        return torch.stack(rows) if rows else torch.empty(0, self.n, dtype=dtype, device="cpu")

    def inside(self, points: Tensor) -> Tensor:
        """Return True for each point in the box (boundary included), shape ``(...)``, bool; NaN lies outside."""
        self._check(points)
        lower, upper = self.lower.to(points.device), self.upper.to(points.device)
        return ((points >= lower) & (points <= upper)).all(-1)

    def __repr__(self) -> str:
        given = "".join(f", {key}={value!r}" for key, value in self.parameters.items())
        return f"problem({self.name!r}{given})"

    def _check(self, points: Tensor) -> None:
        if not isinstance(points, Tensor):
            raise DTypeError(f"{self.name} takes points as a torch tensor; got {type(points).__name__}")
        if not points.is_floating_point():
            raise DTypeError(f"{self.name} takes points of a floating-point dtype; got {points.dtype}")
        if points.ndim == 0 or points.shape[-1] != self.n:
            raise ShapeError(
                f"{self.name} has n = {self.n} variables, so points have shape (..., {self.n}); "
                f"got {tuple(points.shape)}"
            )


def _front(objectives: Callable[[Tensor], Tensor], pareto_set: Points, count: int) -> Tensor:
    return objectives(pareto_set(count))
