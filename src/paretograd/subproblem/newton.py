"""Newton's method on ``min over p of s(x0 + L p) + |p|^2 / (2 beta)``, for an s that can only be evaluated.

A step solves ``(L' S L + I / beta) dp = -(L' grad s + p / beta)``, where S is the Hessian of s. Then
``p + dp = beta L' lambda`` with ``lambda = -(grad s + S L dp)``. Two things make the method exact at any scale of the
gradients:

1. It returns this lambda, and ``dp`` is the remaining error. If the entries of x are large, their rounding alone moves
   ``grad s`` by more than the error of the direction. The linear model is not affected by it.
2. If Newton's method fails, s is replaced by ``t s(x / t)``, which is less curved for larger t. t starts at a value at
   which the problem is easy, and decreases. It may stop above 1, once x / t no longer resolves the curvature of s: to
   float64, s is then piecewise linear. The residual includes the change of the direction that smaller t would cause.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from paretograd.geometry.gramian import Array

#: Residual per unknown that counts as rounding: Newton's method stops there.
_GOAL = 1e-16
#: Residual per unknown up to which a problem counts as solved, without stages in t.
_SOLVED = 2e-14
#: Factor by which t decreases from stage to stage.
_FACTOR = 8.0


class Jet(NamedTuple):
    """Value, gradient and Hessian of s at a point."""

    value: float
    slope: Array
    curvature: Array


class Function(NamedTuple):
    """The function ``t s(x / t)``.

    Attributes:
        s: returns the value of s at a point.
        derivatives: returns the value, gradient and Hessian of s at a point, or None if one of them does not exist.
        t: the scale; 1 for s itself.
        centred: True if s is a risk measure, ``s(x) = s(x - c) - c``. x is then shifted so that its smallest entry is
            zero before s is evaluated.
    """

    s: Callable[[Array], float]
    derivatives: Callable[[Array], Jet | None]
    t: float = 1.0
    centred: bool = False

    def value(self, x: Array) -> float:
        least = float(x.min()) if self.centred else 0.0
        return self.t * self.s((x - least) / self.t) - least

    def jet(self, x: Array) -> Jet | None:
        least = float(x.min()) if self.centred else 0.0
        found = self.derivatives((x - least) / self.t)
        return None if found is None else Jet(self.t * found.value - least, found.slope, found.curvature / self.t)

    def rounding(self, x: Array, slope: Array) -> float:
        """Return the relative rounding error of the derivatives, if s takes exponentials of the entries of x."""
        weights, least = np.abs(slope), float(x.min()) if self.centred else 0.0
        total = float(weights.sum())
        size = float(weights @ np.abs(x - least)) / (self.t * total) if total > 0.0 else 0.0
        return float(np.finfo(np.float64).eps) * (4.0 + size)


class Problem(NamedTuple):
    """The problem ``min over p of s(x0 + L p) + |p|^2 / (2 beta)``, without s."""

    L: Array
    x0: Array
    beta: float

    def x(self, p: Array) -> Array:
        return np.asarray(self.x0 + self.L @ p)


class Point(NamedTuple):
    """An approximate minimiser.

    Attributes:
        p: the unknowns.
        multipliers: lambda, shape ``(m,)``.
        conjugate: ``s*(-lambda)``.
        residual: the remaining error of p, relative to the terms whose sum p is.
        steps: number of linear systems solved.
    """

    p: Array
    multipliers: Array
    conjugate: float
    residual: float
    steps: int


def minimise(s: Function, problem: Problem, start: Array, jet: Jet, is_risk: Callable[[], bool]) -> Point:
    """Return the best minimiser that can be found.

    Args:
        s: the function.
        problem: the other terms of the problem.
        start: a point p at which s has derivatives.
        jet: the derivatives at ``start``.
        is_risk: returns True if ``s(x + c) = s(x) - c``. It is called only if the answer helps.
    """
    point = _newton(s, problem, start, jet)
    solved = _SOLVED * len(problem.x0)
    rough = s.rounding(problem.x(point.p), point.multipliers) > solved
    if point.residual <= solved and not (rough and is_risk()):
        return point
    steps = point.steps
    if is_risk():
        s = s._replace(centred=True)
        centred = s.jet(problem.x(start))
        assert centred is not None
        point = _newton(s, problem, start, centred)
        steps += point.steps
    if point.residual > solved:
        again = _stages(s, problem, start)
        steps += again.steps
        point = again if again.residual < point.residual else point
    return point._replace(steps=steps)


def _stages(s: Function, problem: Problem, start: Array) -> Point:
    """Minimise for t from the size of x down to one, or as long as float64 resolves s."""
    size = problem.beta * float(np.square(problem.L).sum(axis=1).max(initial=0.0)) + float(np.abs(problem.x0).max())
    t, p, steps = max(1.0, size), start, 0
    best, previous = Point(start, np.zeros(len(problem.x0)), 0.0, math.inf, 0), start
    for stage in itertools.count():
        here = s._replace(t=t)
        jet = here.jet(problem.x(p))
        if jet is None:
            p = previous
            jet = here.jet(problem.x(p))
            if jet is None:
                break
        found = _newton(here, problem, p, jet)
        steps += found.steps
        unsolved = found.residual > 1e-6
        if t > 1.0:
            # The change of p is proportional to that of t, so less than a quarter of the last change remains.
            change = float(np.abs(previous - found.p).max(initial=0.0)) / problem.beta if stage else math.inf
            moved = 0.25 * _relative(change, problem, found.multipliers, found.p)
            found = found._replace(residual=max(found.residual, moved), conjugate=found.conjugate / t)
        if found.residual < best.residual:
            best = found
        if t == 1.0 or unsolved:
            break
        following = max(1.0, t / _FACTOR)
        change = (t - following) / (t * (_FACTOR - 1.0)) if stage else 0.0
        previous, p, t = found.p, found.p + change * (found.p - previous), following
    return best._replace(steps=steps)


def _newton(s: Function, problem: Problem, p: Array, jet: Jet) -> Point:
    """Take damped Newton steps from p, where s has the given derivatives, until only rounding remains."""
    L, x0, beta = problem
    best, stalled, steps = Point(p, -jet.slope, 0.0, math.inf, 0), 0, 0
    goal, last = _GOAL * (4 + len(x0)), math.inf
    while steps < 200:
        steps += 1
        gradient = L.T @ jet.slope + p / beta
        hessian = L.T @ jet.curvature @ L
        hessian.ravel()[:: len(p) + 1] += 1.0 / beta
        step = _solve(hessian, -gradient)
        if step is None:
            break
        x = problem.x(p)
        # s + |p|^2 / (2 beta) is strongly convex: p is off by at most beta times the gradient.
        multipliers = -jet.slope
        residual = _relative(float(np.abs(gradient).max(initial=0.0)), problem, multipliers, p)
        slow, last = residual > max(goal, 0.1 * last), residual  # while the gradient falls, it suffices
        if slow and _is_linear(s, L, x, jet, L @ step):
            linear = -(jet.slope + jet.curvature @ (L @ step))
            multipliers = np.where((linear <= 0.0) & (jet.slope <= 0.0), 0.0, linear)  # keep the sign of every slope
            left = _error(hessian, gradient, beta, s.rounding(x, jet.slope)) / beta
            left += float(np.abs(L.T @ (multipliers - linear)).max(initial=0.0))
            residual = _relative(left, problem, multipliers, p + step)
        if residual < best.residual:
            conjugate = -float(multipliers @ x) - jet.value
            best, stalled = Point(beta * (L.T @ multipliers), multipliers, conjugate, residual, 0), 0
        else:
            stalled += 1
        if residual <= goal or (stalled >= 3 and best.residual < 1e-10) or stalled >= 20:
            break
        moved = _line_search(s, problem, p, step, jet, float(gradient @ step))
        if moved is None:
            break
        p, jet = moved
    return best._replace(steps=steps)


def _relative(left: float, problem: Problem, multipliers: Array, p: Array) -> float:
    """Return a remainder of ``L' lambda - p / beta`` relative to its terms."""
    terms = float((np.abs(problem.L.T) @ np.abs(multipliers) + np.abs(p) / problem.beta).max(initial=0.0))
    return left / terms if terms > 0.0 else 0.0 if left == 0.0 else math.inf


def _error(hessian: Array, gradient: Array, beta: float, rounding: float) -> float:
    """Return the length of the Newton step, with eigenvalues reduced by their rounding error, but at least 1 / beta."""
    values, vectors = np.linalg.eigh(hessian)
    trusted = np.maximum(values - rounding * np.abs(values).max(initial=0.0), 1.0 / beta)
    return float(np.linalg.norm((vectors.T @ gradient) / trusted))


def _is_linear(s: Function, L: Array, x: Array, jet: Jet, change: Array) -> bool:
    """Return True if the gradient of s is linear near x, over both the next change and the rounding of x."""
    least = 4.0 * float(np.finfo(np.float64).eps) * float(np.abs(x).max())
    change = np.where(np.abs(change) > least, change, np.where(np.arange(len(x)) % 2, -least, least))
    there = s.jet(x + change)
    if there is None:
        return False
    expected = jet.curvature @ change
    missed = np.abs(L.T @ (there.slope - jet.slope - expected)).max(initial=0.0)
    rounding = _GOAL * (np.abs(L.T) @ np.abs(jet.slope)).max(initial=0.0)
    return bool(missed <= 0.25 * np.abs(L.T @ expected).max(initial=0.0) + rounding)


def _solve(A: Array, b: Array) -> Array | None:
    """Solve ``A x = b`` for a positive definite A; otherwise replace its eigenvalues by their magnitudes."""
    sizes = np.abs(A.diagonal())
    scale = 1.0 / np.sqrt(np.maximum(sizes, 1e-30 * sizes.max(initial=1e-270)))
    S = A * scale
    S *= scale[:, None]
    if not (np.isfinite(S).all() and np.isfinite(b).all()):
        return None
    try:
        half = np.linalg.cholesky(S)
        y = np.linalg.solve(half.T, np.linalg.solve(half, b * scale))
    except np.linalg.LinAlgError:
        values, vectors = np.linalg.eigh(0.5 * (S + S.T))
        values = np.maximum(np.abs(values), 1e-15 * len(values) * np.abs(values).max())
        y = vectors @ ((vectors.T @ (b * scale)) / values)
    return np.asarray(y * scale)


def _line_search(
    s: Function, problem: Problem, p: Array, step: Array, jet: Jet, descent: float
) -> tuple[Array, Jet] | None:
    """Return the point and derivatives for the first step length 1, 1/2, ... that makes progress, or None.

    Progress is a lower value. If values differ only by rounding, it is a smaller slope along the step: along a line, a
    convex function decreases until its slope is zero.
    """
    beta = problem.beta
    here = jet.value + 0.5 * float(p @ p) / beta
    t = 1.0
    for _ in range(60):
        trial = p + t * step
        x = problem.x(trial)
        value = s.value(x) + 0.5 * float(trial @ trial) / beta
        lower = value <= here + 1e-4 * t * descent
        if lower or value <= here + 1e-6 * (1.0 + abs(here)):
            found = s.jet(x)
            if found is not None and (lower or (found.slope @ problem.L + trial / beta) @ step <= -0.5 * descent):
                return trial, found
        t *= 0.5
    return None
