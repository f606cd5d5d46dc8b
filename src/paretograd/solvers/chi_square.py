"""The point of least norm in the hull of the gradients, over weights in a chi-square ball around the uniform ones.

``min |J.T w|`` over ``{w in the simplex, m |w|^2 - 1 <= radius}``. Where MGDA's point is outside the ball, the answer
is ``w(mu) = argmin w'(G + mu I)w`` over the simplex for the mu > 0 that puts it on the boundary. ``G + mu I`` is a
Gramian too, so each w(mu) is a min-norm point, found exactly; ``|w(mu)|`` falls with mu. On a support of k entries,
with v the distance of w from the uniform weights there, ``1 / |v(mu)|`` is concave and nearly linear in mu (the
secular equation of trust-region methods): Newton's method on it takes a handful of steps.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from paretograd.geometry.gramian import Array, UnitGramian
from paretograd.solvers.lapack import add_square, solve_spd
from paretograd.solvers.min_norm import MinNorm, is_zero, min_norm_point
from paretograd.solvers.nonneg_qp import relative_residual, solve_nonneg_qp

#: The least mu, relative to the smallest squared norm: what a Gramian resolves. Where the point is inside the ball
#: even there, it is a shortest one: gradients are dependent, and mu -> 0 picks the most uniform of its weights.
_LEAST = 1e-10
#: Distances from the uniform weights below this are rounding: the answer is the mean.
_NOTHING = 1e-15


class _Rows(NamedTuple):
    """Cosines and norms of gradients, zero ones included (orthogonal to the rest), the largest norm being one."""

    C: Array
    norms: Array

    def shifted(self, mu: float) -> tuple[Array, Array]:
        """Norms and cosines of the Gramian ``G + mu I``."""
        lengths = np.sqrt(self.norms * self.norms + mu)
        ratio = self.norms / lengths
        H = self.C * ratio
        H *= ratio[:, None]
        H.ravel()[:: len(H) + 1] = 1.0
        return lengths, H

    def only(self, free: NDArray[np.bool_]) -> _Rows:
        rows = free.nonzero()[0]
        return self if len(rows) == len(free) else _Rows(self.C.take(rows, 0).take(rows, 1), self.norms[rows])


def chi_square_min_norm_point(unit: UnitGramian, radius: float) -> MinNorm:
    """Minimise ``|J.T w|`` over ``{w in the simplex, m |w|^2 - 1 <= radius}`` (the dual of the chi-square risk).

    Args:
        unit: the Gramian.
        radius: not negative; 0 is the mean, m - 1 and more is MGDA.
    """
    m = unit.m
    plain = min_norm_point(unit) if len(unit.norms) else MinNorm(np.full(m, 1.0 / m), 0.0, 0, stationary=True)
    if _excess(plain.weights) <= radius:
        return plain
    w, residual, steps = _on_boundary(unit, radius, plain)
    part = unit.restrict(w) * unit.norms
    return MinNorm(w, residual, plain.steps + steps, is_zero(unit, part))


def _excess(w: Array) -> float:
    """The chi-square divergence ``m |w|^2 - 1`` from the uniform weights, as a sum of squares."""
    u = w - 1.0 / len(w)
    return len(w) * float(u.dot(u))


def _on_boundary(unit: UnitGramian, radius: float, plain: MinNorm) -> tuple[Array, float, int]:
    """Weights, residual and steps where those of MGDA's point, ``plain``, are outside the ball."""
    m, rows = unit.m, _all_rows(unit)
    norms = rows.norms
    # |w(mu) - uniform| is at most |pull| / mu, with pull the slope of |J.T w|^2 / 2 along the simplex.
    pull = norms * rows.C.dot(norms) / m
    pull -= pull.mean()
    strength, reach = math.sqrt(pull.dot(pull)), math.sqrt(radius / m)
    least = _LEAST * float(norms[norms > 0.0].min()) ** 2
    best = np.full(m, 1.0 / m)
    if reach <= _NOTHING or not strength > least * reach:
        return best, 0.0, 0
    bracket = _Bracket(0.0, _excess(plain.weights) ** -0.5, math.inf, math.inf)
    mu, free, steps, misses = strength / reach, np.ones(m, dtype=bool), 0, 0
    error = residual = math.inf
    rounding = 8e-16 * math.sqrt(radius * (1.0 + radius))  # of the divergence, from the rounding of w
    for _ in range(100):
        w, violation, used = _regularised(rows, mu, free)
        free, steps, excess = w > 0.0, steps + used, _excess(w)
        if excess <= radius:
            if plain.stationary and is_zero(unit, unit.restrict(w) * unit.norms):
                return w, violation, steps
            if mu <= least:
                return *_shortest(rows, mu, w, free), steps
        off = abs(excess - radius)
        settled = off <= rounding or (off > 0.5 * error and error < 1e-9 * radius)
        if off < error:
            best, error, residual = w, off, max(violation, off / (1.0 + radius) * _share(mu, norms, w))
        bracket = bracket.narrowed(mu, excess, radius)
        if settled or bracket.high - bracket.low <= 4e-16 * bracket.high:
            break
        candidate = _newton(rows, mu, w, free, radius)
        if not bracket.low < candidate < bracket.high:
            # Below the first two guesses there may be no root at all.
            candidate = 1e-9 * mu if bracket.low == 0.0 and misses else bracket.inside(radius, misses)
            misses += 1
        mu = max(candidate, least)
    return best, residual, steps


def _share(mu: float, norms: Array, w: Array) -> float:
    """How much an error of ``|w|^2`` counts: as mu times it does among the terms of ``|J.T w|^2``.

    Where gradients almost cancel, mu is small, ``|w|^2`` is rounding times a large number, and the direction is
    not. Feasibility counts a millionth in any case.
    """
    price, terms = mu * float(w.dot(w)), float(norms.dot(w)) ** 2
    return max(1e-6, price / (price + terms))


class _Bracket(NamedTuple):
    """mu outside the ball (low) and inside it (high), each with 1 / sqrt(divergence), which grows with mu."""

    low: float
    low_value: float
    high: float
    high_value: float

    def narrowed(self, mu: float, excess: float, radius: float) -> _Bracket:
        value = excess**-0.5 if excess > 0.0 else math.inf
        if excess > radius:
            return self._replace(low=mu, low_value=value)
        return self._replace(high=mu, high_value=value)

    def inside(self, radius: float, misses: int) -> float:
        """A guess without derivatives: where the chord meets the radius, and every other time the middle decade."""
        if self.high > 100.0 * self.low > 0.0 or (misses % 2 and self.low > 0.0):
            return math.sqrt(self.low * self.high)
        share = (radius**-0.5 - self.low_value) / (self.high_value - self.low_value)
        return self.low + (self.high - self.low) * (share if 0.0 < share < 1.0 else 0.5)


def _shortest(rows: _Rows, mu: float, w: Array, free: NDArray[np.bool_]) -> tuple[Array, float]:
    """The shortest point near w(mu) on its support, and its residual: mu is taken back out (iterated Tikhonov)."""
    rows, part = rows.only(free), w[free]
    lengths, H = rows.shifted(mu)
    best, least = w, math.inf
    for _ in range(4):
        share = rows.norms * part
        slope = rows.norms * rows.C.dot(share)
        force = part.dot(slope) - slope
        wrong = np.where(part > 0.0, np.abs(force), force) / (rows.norms + lengths)
        residual = max(float(wrong.max()), 0.0) / float(np.add.reduce(share) or 1.0)
        if residual >= 0.5 * least:
            break
        best, least = np.zeros_like(w), residual
        best[free] = part
        x = solve_spd(H.copy(), np.stack([force / lengths, 1.0 / lengths], axis=1))
        if x is None:
            break
        x /= lengths[:, None]
        total = np.add.reduce(x)
        part = np.maximum(part + x[:, 0] - (total[0] / total[1]) * x[:, 1], 0.0)
        part /= np.add.reduce(part)
    return best, least


def _all_rows(unit: UnitGramian) -> _Rows:
    norms = unit.norms / unit.norms[unit.norms.argmax()]
    if unit.live is None:
        return _Rows(unit.C, norms)
    C = np.eye(unit.m)
    C[np.ix_(unit.live, unit.live)] = unit.C
    return _Rows(C, unit.expand(norms))


def _regularised(rows: _Rows, mu: float, free: NDArray[np.bool_]) -> tuple[Array, float, int]:
    """The min-norm point of ``G + mu I``, as in `min_norm_point`, from a guess of its support."""
    lengths, H = rows.shifted(mu)
    a = lengths[lengths.argmin()] / lengths
    solution = solve_nonneg_qp(add_square(H, a), -a, 1e-7, free=free)
    w = solution.a * a
    w /= np.add.reduce(w)
    return w, relative_residual(solution), solution.steps


def _newton(rows: _Rows, mu: float, w: Array, free: NDArray[np.bool_], radius: float) -> float:
    """The mu that puts w(mu) on the boundary if its support stays the same; NaN where there is none."""
    rows, part, m = rows.only(free), w[free], len(w)
    k = len(part)
    wanted = (1.0 + radius) / m - 1.0 / k if k < m else radius / m
    if not wanted > 0.0:
        return math.nan
    for _ in range(6):
        v = part - 1.0 / k
        square = float(v.dot(v))
        lengths, H = rows.shifted(mu)
        q = solve_spd(H, part / lengths)
        if q is None or square == 0.0:
            return math.nan
        q /= lengths
        decline = float(v.dot(q - np.add.reduce(q) * part))  # -d(|v|^2 / 2) / d(mu)
        if not decline > 0.0:
            return math.nan
        change = (math.sqrt(square / wanted) - 1.0) * square / decline
        mu += change
        if not mu > 0.0 or abs(change) < 1e-5 * mu:
            break
        lengths, H = rows.shifted(mu)
        p = solve_spd(H, 1.0 / lengths)
        if p is None:
            return math.nan
        p /= lengths
        part = p / np.add.reduce(p)
    return mu
