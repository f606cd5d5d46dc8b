"""The quadratic problems behind the rules, solved by one active-set method in fixed point, for any m.

The method is the textbook one: solve on the free variables with the others held at a bound; step until a
bound blocks; free the variable whose multiplier has the wrong sign most. It stops only where all optimality
conditions hold to 1e-100, and these are sufficient for a convex problem: the answer certifies itself, however
it was found. What a caller sees is the exact answer for the float64 matrix given, rounded once to float64.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from . import float64
from .fixed import NOTHING, ONE, Fixed, answer, dot, gram, lift, over, root, solve, times, to_float

Array = NDArray[np.float64]


class Point(NamedTuple):
    """Weights, shape (m,), and the direction J.T w, shape (n,), both float64."""

    weights: Array
    direction: Array

    @property
    def norm(self) -> float:
        """|direction|, safe from underflow."""
        return float(np.hypot.reduce(self.direction)) if len(self.direction) else 0.0


class Problem(NamedTuple):
    """Minimise w'Hw/2 + c'w over 0 <= w <= cap, and sum(w) = 1 where `on_simplex`. All in fixed point.

    On the simplex H must be positive definite on every affinely independent set of rows, see
    `simplex_problem`.
    """

    H: Fixed
    c: Fixed
    on_simplex: bool = False
    cap: int | None = None


class DependentRowsError(ArithmeticError):
    """The free set holds dependent rows: the start was a bad one."""


class Start(NamedTuple):
    """A feasible point: `upper` at the cap, `free` anywhere, the rest at 0; rows of `free` independent."""

    w: Fixed
    free: list[int]
    upper: list[int]


def minimise(problem: Problem, start: Start) -> Fixed:
    """The minimiser of a `Problem`.

    The rows of the free set stay independent: one joins only if its multiplier is not zero, and the
    multiplier is a linear function that vanishes on the span of the free rows.
    """
    H, c, _, cap = problem
    m = len(H)
    w, free, upper = start.w.copy(), list(start.free), list(start.upper)
    sizes = np.array([root(h) or ONE for h in np.diag(H)], dtype=object)
    for _ in range(200 + 100 * m):
        target, price = _on_face(problem, free, upper)
        step, blocking = _step(w[free], target, cap)
        w[free] = w[free] + times(step, target - w[free])
        if blocking is not None:
            k = free.pop(blocking)
            above = target[blocking] > w[k]
            w[k] = cap if above else 0
            if above:
                upper.append(k)
            continue
        multiplier = over(dot(H, w) + c - price, sizes)
        multiplier[upper] *= -1
        multiplier[free] = 0
        worst = int(np.argmin(multiplier))
        if multiplier[worst] >= -times(NOTHING, sizes.max()):
            return w
        free.append(worst)
        if worst in upper:
            upper.remove(worst)
    raise ArithmeticError(f"the active-set method did not finish for m={m}: it cycles")


def minimise_from(problem: Problem, guess: Array | None, cold: Start) -> Fixed:
    """As `minimise`, from a guess in float64 if there is one (much faster for many objectives)."""
    if guess is not None:
        try:
            return minimise(problem, _warm(problem, guess))
        except DependentRowsError:
            pass  # a solver in float64 may give weight to dependent rows; the cold start never does
    return minimise(problem, cold)


def _warm(problem: Problem, guess: Array) -> Start:
    top = np.inf if problem.cap is None else to_float(problem.cap)
    small = 1e-12 * np.abs(guess).max()
    upper = [int(k) for k in np.flatnonzero(guess > top - small)]
    free = [int(k) for k in np.flatnonzero((guess > small) & (guess <= top - small))]
    w = np.zeros(len(guess), dtype=object)
    w[free] = lift(guess[free])
    if upper:
        w[upper] = problem.cap
    if problem.on_simplex:
        if not free:
            raise DependentRowsError("the guess has no free weight")
        largest = max(free, key=lambda k: min(guess[k], top - guess[k]))
        w[largest] += ONE - w.sum()
    return Start(w, free, upper)


def _on_face(problem: Problem, free: list[int], upper: list[int]) -> tuple[Fixed, int]:
    """The minimiser over the free variables, and the multiplier (price) of sum(w) = 1."""
    H, c, on_simplex, cap = problem
    pull = -c[free]
    if upper:
        pull = pull - times(H[np.ix_(free, upper)].sum(axis=1), cap)
    face = H[np.ix_(free, free)]
    x = solve(face, pull)
    if not on_simplex:
        if x is None:
            raise DependentRowsError("dependent rows in the free set")
        return x, 0
    y = solve(face, np.array([ONE] * len(free), dtype=object))
    if x is None or y is None:
        raise DependentRowsError("dependent rows in the free set")
    rest = ONE - len(upper) * (cap or 0)
    price = over(rest - x.sum(), y.sum())
    return x + times(price, y), price


def _step(w: Fixed, target: Fixed, cap: int | None) -> tuple[int, int | None]:
    """The largest step towards the target (at most ONE) and the position of the variable that blocks it."""
    step, blocking = ONE, None
    for i, (here, there) in enumerate(zip(w, target, strict=True)):
        bound = 0 if there < 0 else cap if cap is not None and there > cap else None
        if bound is not None:
            length = over(here - bound, here - there)
            if blocking is None or length < step:
                step, blocking = length, i
    return step, blocking


def simplex_problem(J: Array, cap: float | None = None) -> Problem:
    """The min-norm point as a `Problem`: tau * ones is added to the Gramian, a constant on the simplex.

    With it the rows act as (g_k, sqrt(tau)): linearly independent if and only if the g_k are affinely
    independent. tau is the least squared norm of a non-zero row, so that the angles of badly scaled rows stay
    visible.
    """
    G = gram(lift(J))
    squares = [g for g in np.diag(G) if g > 0]
    m = len(G)
    # A cap of 1/m in float64 may be a little less than 1/m; the smallest feasible cap is what is meant.
    bound = None if cap is None or cap >= 1 else max(int(lift(cap)), -(-ONE // m))
    return Problem(G + (min(squares) if squares else ONE), np.zeros(m, dtype=object), True, bound)


def min_norm_point(J: Array, cap: float | None = None) -> Point:
    """The point of least norm in {J.T w : w in the simplex, w <= cap} (eq. PS-quant; capped: CVaR's dual).

    The direction is unique. The weights are where the gradients are affinely independent, and one valid
    choice otherwise.
    """
    m = len(J)
    problem = simplex_problem(J, cap)
    order = [int(k) for k in np.argsort(np.hypot.reduce(J, axis=1), kind="stable")]
    full = 0 if problem.cap is None else min((ONE - 1) // problem.cap, m - 1)
    vertex = np.zeros(m, dtype=object)
    vertex[order[:full]] = problem.cap
    vertex[order[full]] = ONE - vertex.sum()
    guess = float64.min_norm_guess(J, cap) if m > 10 else None
    w = minimise_from(problem, guess, Start(vertex, [order[full]], order[:full]))
    return Point(answer(w), answer(dot(lift(J).T, w)))


def gamma(J: Array) -> float:
    """The paper's degree of stationarity (eq. PS-quant): the norm of the min-norm point."""
    return min_norm_point(J).norm


def is_stationary(J: Array) -> bool:
    """Whether 0 is in the hull of the rows, exactly (the only zero is one below any rounding of the data)."""
    return gamma(J) == 0.0
