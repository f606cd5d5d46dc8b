"""The point of least norm in the hull of the gradients, over weights in a chi-square ball around the uniform ones.

Minimise ``|J.T w|`` over ``{w in the simplex, m |w|^2 - 1 <= radius}``. If MGDA's point is outside the ball, the answer
is ``w(mu) = argmin w'(G + mu I)w`` over the simplex for the mu > 0 that puts it on the boundary. ``G + mu I`` is a
Gramian too, so each w(mu) is a min-norm point, found exactly. ``|w(mu)|`` decreases with mu. On a support of k entries,
let v be the distance of w from the uniform weights. Then ``1 / |v(mu)|`` is concave and nearly linear in mu (the
secular equation of trust-region methods), and Newton's method takes a handful of steps.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from paretograd.geometry.gramian import Array
from paretograd.geometry.unit_gramian import UnitGramian
from paretograd.solution import Point
from paretograd.solvers.lapack import solve_spd
from paretograd.solvers.min_norm import is_stationary, min_norm_point
from paretograd.solvers.nonneg_qp import relative_residual, solve_on_hull

#: A small mu, in the problem's units. If the point is inside the ball even there, it is usually a shortest one:
#: gradients are dependent, and mu -> 0 picks the most uniform weights.
_SMALL = 1e-10
#: The least mu that a Gramian resolves.
_LEAST = 1e-15
#: Gradients longer than this, in the problem's units, have almost no weight and do not enter the first guess.
_LONG = 100.0
#: Rounding of a cosine.
_ROUNDING = 4e-16
#: A distance from the uniform weights below this is rounding: the answer is the mean.
_NOTHING = 1e-15


class _Rows(NamedTuple):
    """Cosines and norms of gradients, zero ones included (orthogonal to the rest)."""

    C: Array
    norms: Array

    def shifted(self, mu: float) -> tuple[Array, Array]:
        """Norms and cosines of the Gramian ``G + mu I``."""
        lengths = np.hypot(self.norms, math.sqrt(mu))  # squares may overflow
        ratio = self.norms / lengths
        H = self.C * ratio
        H *= ratio[:, None]
        H.ravel()[:: len(H) + 1] = 1.0
        return lengths, H

    def only(self, free: NDArray[np.bool_]) -> _Rows:
        rows = free.nonzero()[0]
        return self if len(rows) == len(free) else _Rows(self.C.take(rows, 0).take(rows, 1), self.norms[rows])


def chi_square_min_norm_point(unit: UnitGramian, radius: float) -> Point:
    """Minimise ``|J.T w|`` over ``{w in the simplex, m |w|^2 - 1 <= radius}`` (the dual of the chi-square risk).

    Args:
        unit: the Gramian.
        radius: at least 0; 0 is the mean, m - 1 and more is MGDA.
    """
    m = unit.m
    plain = min_norm_point(unit) if len(unit.norms) else Point(np.full(m, 1.0 / m), 0.0, 0, stationary=True)
    if _excess(plain.weights) <= radius + 16.0 * _rounding(radius):
        return plain
    w, residual, steps = _on_boundary(unit, radius, plain)
    return Point(w, residual, plain.steps + steps, stationary=is_stationary(unit, w))


def _excess(w: Array) -> float:
    """The chi-square divergence ``m |w|^2 - 1`` from the uniform weights, as a sum of squares."""
    u = w - 1.0 / len(w)
    return len(w) * float(u.dot(u))


def _rounding(radius: float) -> float:
    """Rounding of a divergence of about the radius, from that of the weights."""
    return 8e-16 * math.sqrt(radius * (1.0 + radius))


def _on_boundary(unit: UnitGramian, radius: float, plain: Point) -> tuple[Array, float, int]:
    """Return weights, residual and steps if the weights of MGDA's point, ``plain``, are outside the ball."""
    m, reach = unit.m, math.sqrt(radius / unit.m)
    best = np.full(m, 1.0 / m)
    if reach <= _NOTHING:
        return best, 0.0, 0
    rows = _all_rows(unit, radius)
    norms = rows.norms
    # |w(mu) - uniform| is at most |pull| / mu, with pull the slope of |J.T w|^2 / 2 along the simplex.
    pull = np.minimum(norms, _LONG)
    pull *= rows.C.dot(pull) / m
    pull -= pull.mean()
    strength = math.sqrt(pull.dot(pull))
    if not strength > _SMALL * reach:
        return best, 0.0, 0
    bracket = _Bracket(0.0, _excess(plain.weights) ** -0.5, math.inf, math.inf)
    mu, last, free, steps, misses = strength / reach, math.inf, norms <= _LONG, 0, 0
    settled, inside, outside, error, residual = False, best, plain.weights, math.inf, math.inf
    rounding = _rounding(radius)
    goal, enough = radius + 16.0 * rounding, 1e-15 * (8 + m)
    for _ in range(100):
        w, violation, used = _regularised(rows, mu, free)
        free, steps, excess = w > 0.0, steps + used, _excess(w)
        if excess <= goal:
            found = plain.stationary and is_stationary(unit, w)
            if found or mu <= _SMALL:
                shortest, left = _shortest(rows, mu, w, free, goal)
                if found or left <= enough or mu <= _LEAST:
                    return shortest, left, steps
        off = abs(excess - goal)
        settled = off <= rounding or (off > 0.5 * error and error < 1e-9 * radius and abs(mu - last) < 1e-6 * mu)
        if off < error:
            best, error, residual = w, off, max(violation, off / (1.0 + radius) * _share(mu, norms, w))
        if excess > goal:
            outside = w
        else:
            inside = w
        bracket, last = bracket.narrowed(mu, excess, goal), mu
        if settled or bracket.high * (1.0 - 1e-12) <= bracket.low:
            break
        candidate = _newton(rows, mu, w, free, goal)
        if not bracket.low < candidate < bracket.high:
            # There may be no root below the first two guesses.
            candidate = 1e-3 * mu if bracket.low == 0.0 and misses else bracket.inside(goal, misses)
            misses += 1
        mu = max(candidate, _SMALL if mu > _SMALL else _LEAST)
    if not settled and bracket.low > 0.0 and bracket.high < math.inf:
        # w(mu) jumps within the rounding of mu: the answer lies between the two ends of the jump.
        best = _between(inside, outside, goal)
        residual = _residual(rows, bracket.high, best, rows.shifted(bracket.high)[0])
    return best, residual, steps


def _between(inside: Array, outside: Array, radius: float) -> Array:
    """The point of the segment between two weights on the boundary of the ball."""
    move = outside - inside
    a, b = float(move.dot(move)), float(inside.dot(move))
    c = float(inside.dot(inside)) - (1.0 + radius) / len(move)
    root = math.sqrt(max(b * b - a * c, 0.0))
    step = -c / (b + root) if b > 0.0 else (root - b) / a
    return inside + min(max(step, 0.0), 1.0) * move


def _residual(rows: _Rows, mu: float, w: Array, lengths: Array) -> float:
    """The violation of w(mu)'s optimality conditions, as an error of the direction relative to its terms."""
    share = rows.norms * w
    slope = rows.norms * rows.C.dot(share) + mu * w
    force = w.dot(slope) - slope
    wrong = np.where(w > 0.0, np.abs(force), force) / (rows.norms + lengths)
    np.minimum(wrong, np.where(force < 0.0, share, np.inf), out=wrong)  # weights stay non-negative
    return max(float(wrong.max()), 0.0) / float(np.add.reduce(share) or 1.0)


def _share(mu: float, norms: Array, w: Array) -> float:
    """Weight of an error of ``|w|^2`` in the residual: the share of ``mu |w|^2`` next to the terms of ``|J.T w|^2``.

    If gradients almost cancel, mu is small. Rounding is then magnified in ``|w|^2``, but not in the direction. The
    weight is at least a millionth.
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
        """A guess without derivatives: where the chord meets the radius, or every other time the geometric mean."""
        if self.high == math.inf:
            return 1e4 * self.low
        if self.high > 100.0 * self.low > 0.0 or (misses % 2 and self.low > 0.0):
            return math.sqrt(self.low * self.high)
        rise = self.high_value - self.low_value
        share = (radius**-0.5 - self.low_value) / rise if rise > 0.0 else 0.5
        return self.low + (self.high - self.low) * (share if 0.0 < share < (1.0 if self.low > 0.0 else 0.9) else 0.5)


def _shortest(rows: _Rows, mu: float, w: Array, free: NDArray[np.bool_], goal: float) -> tuple[Array, float]:
    """Return the shortest point near w(mu) on its support, and its residual, by removing mu (iterated Tikhonov).

    The iteration stops if it leaves the ball of radius ``goal``.
    """
    rows, part = rows.only(free), w[free]
    lengths, H = rows.shifted(mu)
    best, least = w, math.inf
    for _ in range(4):
        slope = rows.norms * rows.C.dot(rows.norms * part)
        force = part.dot(slope) - slope
        residual = _residual(rows, 0.0, part, lengths)
        point = np.zeros_like(w)
        point[free] = part
        if residual >= 0.5 * least or _excess(point) > goal:
            break
        best, least = point, residual
        x = solve_spd(H.copy(), np.stack([force / lengths, 1.0 / lengths], axis=1))
        if x is None:
            break
        x /= lengths[:, None]
        total = np.add.reduce(x)
        part = np.maximum(part + x[:, 0] - (total[0] / total[1]) * x[:, 1], 0.0)
        part /= np.add.reduce(part)
    return best, least


def _all_rows(unit: UnitGramian, radius: float) -> _Rows:
    """The rows, in units of the least weighted sum of lengths that weights in the ball can have, up to a factor.

    With ``k - 1 < m / (1 + radius) <= k``, every sum has at least k terms. Up to a factor, it is least if the k - 1
    shortest gradients have equal weights and the next one has the rest.
    """
    m, norms = unit.m, unit.expand(unit.norms)
    ordered = np.sort(norms)
    square = (1.0 + radius) / m
    k = min(math.ceil((1.0 - 1e-14) / square), m)
    size = float(ordered[k - 1])
    if k > 1:
        equal = (1.0 + math.sqrt(max(k * square - 1.0, 0.0) / (k - 1))) / k
        size = k * max(equal * float(ordered[k - 2]), max(1.0 - (k - 1) * equal, 1e-16) * size)
    norms = norms / max(size, 1e-300 * float(ordered[-1]))
    if unit.live is None:
        return _Rows(unit.C, norms)
    C = np.eye(m)
    C[np.ix_(unit.live, unit.live)] = unit.C
    return _Rows(C, norms)


def _regularised(rows: _Rows, mu: float, free: NDArray[np.bool_]) -> tuple[Array, float, int]:
    """The min-norm point of ``G + mu I``, as in `min_norm_point`, from a guess of its support."""
    lengths, H = rows.shifted(mu)
    a = lengths[lengths.argmin()] / lengths
    # Long gradients that cancel up to rounding would cost nothing, because mu is below the rounding of their squares.
    # So the rounding replaces mu.
    solution = solve_on_hull(H, a, free, noise=_ROUNDING)
    w = solution.a * a
    w /= np.add.reduce(w)
    return w, relative_residual(solution), solution.steps


def _newton(rows: _Rows, mu: float, w: Array, free: NDArray[np.bool_], radius: float) -> float:
    """Return the mu that puts w(mu) on the boundary if its support stays the same; NaN if there is none."""
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
