"""Convex quadratics on R^n with a prescribed spectrum and a prescribed angle between the gradients."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from paretograd.checks import as_number, whole_number
from paretograd.errors import ParameterError
from paretograd.problems.base import Problem
from paretograd.problems.gradients import Constants
from paretograd.problems.spread import simplex


def quadratic(
    n: int = 4,
    m: int = 2,
    spectrum: Sequence[float] | Sequence[Sequence[float]] | None = None,
    angle: float = 120.0,
    seed: int = 0,
) -> Problem:
    """f_k(x) = (x - c_k)' H_k (x - c_k) / 2 with prescribed eigenvalues of every H_k and conflict at the origin.

    At the origin each gradient has norm one, and the gradients form a fan in a plane: evenly spaced, with ``angle``
    between the first and the last. Each H_k has its own eigenvectors, a random rotation drawn with ``seed``. L is the
    largest eigenvalue, and the Pareto set is the image of the simplex under
    w -> (sum_k w_k H_k)^-1 sum_k w_k H_k c_k, the minimiser of the weighted sum.

    Args:
        n: number of variables.
        m: number of objectives.
        spectrum: n positive eigenvalues that all Hessians share, or m rows of them; by default from 1 to 0.1, evenly
            spaced on a logarithmic scale.
        angle: in degrees, from 0 (no conflict) to 180 (the origin is Pareto stationary). With n = 1, either 0 or 180.
        seed: seed of the rotations.
    """
    n, m = whole_number("quadratic", "n", n), whole_number("quadratic", "m", m)
    eigenvalues = _eigenvalues(spectrum, n, m)
    gradients = _fan(as_number(angle, "angle"), n, m)
    generator = torch.Generator().manual_seed(whole_number("quadratic", "seed", seed, least=None))
    rotations = torch.linalg.qr(torch.randn(m, n, n, generator=generator, dtype=torch.float64, device="cpu")).Q
    hessians = (rotations * eigenvalues.unsqueeze(-2)) @ rotations.mT
    hessians = 0.5 * (hessians + hessians.mT)
    centres = -torch.linalg.solve(hessians, gradients)
    constants = Constants(centres, hessians, gradients)

    def closed_jacobian(points: Tensor) -> tuple[Tensor, Tensor]:
        middle, curved, origin = constants.like(points)
        # One sum per entry: the rounding of a matrix product would depend on the number of points.
        rows = torch.linalg.vecdot(points[..., None, None, :], curved) + origin
        return 0.5 * torch.linalg.vecdot(points.unsqueeze(-2) - middle, rows), rows

    def pareto_set(count: int) -> Tensor:
        weights = simplex(count, m)
        sums = (weights @ hessians.flatten(1)).view(-1, n, n)
        points: Tensor = -torch.linalg.solve(sums, weights @ gradients)
        return points

    return Problem(
        name="quadratic",
        label="Quadratic",
        objectives=lambda points: closed_jacobian(points)[0],
        m=m,
        lower=torch.full((n,), -math.inf, device="cpu"),
        upper=torch.full((n,), math.inf, device="cpu"),
        least=(0.0,) * m,
        smoothness=float(eigenvalues.max()),
        convex=True,
        pareto_set=pareto_set,
        closed_jacobian=closed_jacobian,
        formula="f_k = (x - c_k)' H_k (x - c_k) / 2, with given eigenvalues of H_k and a given angle between the "
        "gradients at 0",
        note="On all of R^n; starts are drawn from [-1/2, 1/2]^n. spectrum=[...] sets the eigenvalues, by default from "
        "1 to 0.1; the eigenvectors come from the seed.",
        source="this library",
    )


def _eigenvalues(spectrum: Sequence[float] | Sequence[Sequence[float]] | None, n: int, m: int) -> Tensor:
    """Validate the spectrum and return it with shape ``(m, n)``."""
    if spectrum is None:
        return torch.logspace(0.0, -1.0, n, dtype=torch.float64, device="cpu").expand(m, n)
    try:
        values = torch.as_tensor(spectrum, dtype=torch.float64, device="cpu")
    except (TypeError, ValueError, RuntimeError):
        raise ParameterError(f"quadratic: spectrum={spectrum!r} must be n numbers, or m rows of them") from None
    if values.shape not in ((n,), (m, n)):
        raise ParameterError(
            f"quadratic: the spectrum has shape {tuple(values.shape)}; give n = {n} eigenvalues, or {m} rows of {n}"
        )
    if not bool((values.isfinite() & (values > 0.0)).all()):
        raise ParameterError(f"quadratic: eigenvalues must be finite and above 0; got {values.tolist()}")
    return values.expand(m, n)


def _fan(angle: float, n: int, m: int) -> Tensor:
    """Return m unit vectors ``(m, n)`` in the plane of the first two axes, evenly spaced over ``angle`` degrees."""
    if not 0.0 <= angle <= 180.0:
        raise ParameterError(f"quadratic: angle={angle:g} must lie between 0 and 180 degrees")
    if n == 1:
        if m > 1 and angle not in (0.0, 180.0):
            raise ParameterError(
                f"quadratic: with n = 1 the angle is 0 or 180 degrees; got angle={angle:g}. Use one of these, or n >= 2"
            )
        return torch.linspace(1.0, 1.0 - angle / 90.0, m, dtype=torch.float64, device="cpu").sign().unsqueeze(-1)
    turns = torch.linspace(0.0, math.radians(angle), m, dtype=torch.float64, device="cpu")
    fan = torch.zeros(m, n, dtype=torch.float64, device="cpu")
    fan[:, 0], fan[:, 1] = turns.cos(), turns.sin()
    return fan
