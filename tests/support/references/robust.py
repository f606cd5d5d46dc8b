"""The duals of two risks other than the worst case, in fixed point, for any m.

Entropic: minimise tau sum_k w_k log(m w_k) + |J.T w|^2 / 2 over the simplex, by Newton's method with a line search;
it stops where tau log w_k + (G w)_k is the same for all k to 1e-40 of tau.

Chi-square: minimise |J.T w| over the simplex and m |w|^2 - 1 <= radius. Either a shortest point of the hull has such
weights, or w minimises w'(G + mu I)w over the simplex for some mu > 0 and |w|^2 is at its bound. The mu comes from
bisection until the support is the right one, and from Newton's method on it; the optimality conditions, which are
sufficient, are then checked to 1e-60.
"""

from __future__ import annotations

import math

import mpmath
import numpy as np

from . import qp
from .fixed import BITS, NOTHING, ONE, Fixed, answer, dot, gram, lift, over, root, solve, times
from .qp import Array, Point, Problem, Start

_mp = mpmath.MPContext()
_mp.prec = BITS
_FLOOR = ONE >> 600  # weights below it are not needed for the direction, and float64 would hardly hold them


def _log(values: Fixed) -> Fixed:
    logs = (_mp.log(_mp.ldexp(v, -BITS)) for v in values.tolist())
    return np.array([int(_mp.ldexp(v, BITS)) for v in logs], dtype=object)


def _ones(size: int) -> Fixed:
    return np.array([ONE] * size, dtype=object)


def entropic(J: Array, temperature: float) -> Point:
    """The minimiser of temperature * KL(w || uniform) + |J.T w|^2 / 2 over the simplex."""
    rows = lift(J)
    w = _entropic(over(gram(rows), int(lift(temperature))))
    return Point(answer(w), answer(dot(rows.T, w)))


def _entropic(H: Fixed) -> Fixed:
    """The minimiser of sum_k w_k log w_k + w'Hw/2 over the simplex."""
    m = len(H)
    w = np.array([ONE // m] * m, dtype=object)
    for _ in range(2000):
        # A weight that was pushed below the floor is out, until its equation asks for it again.
        live = np.flatnonzero(w > _FLOOR)
        w = np.where(w > _FLOOR, w, 0)
        w[live[np.argmax(w[live])]] += ONE - w.sum()
        here, face = w[live], H[np.ix_(live, live)]
        value = _log(here) + dot(face, here)
        level = int(dot(here, value))
        if (abs(value - level) * 10**40 < ONE).all():
            wanted = (w == 0) & (dot(H, w) + int(_log(np.array([_FLOOR]))[0]) < level)
            if not wanted.any():
                return w
            w[wanted] = 2 * _FLOOR
            continue
        hessian = face + np.diag(over(ONE, here))
        x, y = solve(hessian, level - value), solve(hessian, _ones(len(live)))
        assert x is not None, "the entropy makes the Hessian definite"
        assert y is not None, "and so it is for the other side"
        move = x - times(over(x.sum(), y.sum()), y)
        # Not quite to the boundary; then back until the slope along the step is not clearly positive again: the
        # function is convex, so it has decreased.
        length = min([ONE] + [over((here[i] >> 40) - here[i], move[i]) for i in range(len(live)) if move[i] < 0])
        start = int(dot(level - value, move))
        while True:
            trial = here + times(length, move)
            if int(dot(_log(trial) + dot(face, trial), move)) * 10 <= start:
                break
            length >>= 1
        w[live] = trial
    raise ArithmeticError(f"Newton's method did not converge (m={m})")


def chi_square(J: Array, radius: float) -> Point:
    """The point of least norm in {J.T w : w in the simplex, m |w|^2 - 1 <= radius}.

    Where dependent gradients leave a choice, the weights are those of least |w|, but for 1e-45.
    """
    rows, m = lift(J), len(J)
    G = gram(rows)
    bound = (ONE + int(lift(radius))) // m
    squares = [g for g in np.diag(G) if g > 0]
    w = np.array([ONE // m] * m, dtype=object)
    if squares and radius > 0:
        w = _in_ball(G, bound, low=min(squares) >> 150, high=max(squares))
    return Point(answer(w), answer(dot(rows.T, w)))


def _in_ball(G: Fixed, bound: int, low: int, high: int) -> Fixed:
    w = _regularised(G, low)
    if dot(w, w) <= bound:
        return w
    while dot(w := _regularised(G, high), w) > bound:
        high <<= 8
    for _ in range(1000):
        found = _on_support(G, bound, high, [int(k) for k in np.flatnonzero(w > NOTHING)])
        if found is not None:
            return found
        middle = math.isqrt(low * high)
        w = _regularised(G, middle)
        if dot(w, w) > bound:
            low = middle
        else:
            high = middle
    raise ArithmeticError("no support satisfies the optimality conditions")


def _regularised(G: Fixed, mu: int) -> Fixed:
    """The minimiser of w'(G + mu I)w over the simplex."""
    m = len(G)
    first = int(np.argmin(np.diag(G)))
    vertex = np.zeros(m, dtype=object)
    vertex[first] = ONE
    problem = Problem(G + np.diag([mu] * m), np.zeros(m, dtype=object), on_simplex=True)
    return qp.minimise(problem, Start(vertex, [first], []))


def _on_support(G: Fixed, bound: int, mu: int, A: list[int]) -> Fixed | None:
    """The solution if its support is A, or else None: Newton on 1 / |w - uniform|, the secular equation."""
    k, face = len(A), G[np.ix_(A, A)]
    wanted = bound - ONE // k
    if wanted <= 0:
        return None
    for _ in range(40):
        H = face + np.diag([mu] * k)
        p = solve(H, _ones(k))
        if p is None or p.sum() <= 0:
            return None
        w = over(p, p.sum())
        v = w - ONE // k
        square = int(dot(v, v))
        if abs(square - wanted) * 10**60 < wanted:
            return _checked(G, mu, A, w)
        q = solve(H, w)
        assert q is not None, "it has just been solved"
        decline = int(dot(v, q - times(int(q.sum()), w)))
        if decline <= 0:
            return None
        mu += over(times(root(over(square, wanted)) - ONE, square), decline)
        if mu <= 0:
            return None
    return None


def _checked(G: Fixed, mu: int, A: list[int], part: Fixed) -> Fixed | None:
    """All weights, where the optimality conditions hold: no negative weight, no slope below the common level."""
    w = np.zeros(len(G), dtype=object)
    w[A] = part
    slope = dot(G, w) + times(mu, w)
    level = int(dot(w, slope))
    sizes = np.array([root(int(g)) for g in np.diag(G)], dtype=object)
    slack = (times(sizes, root(level)) + level) // 10**60
    return w if part.min() >= -NOTHING and (slope >= level - slack).all() else None
