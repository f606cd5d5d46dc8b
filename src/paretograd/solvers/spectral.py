"""The point of least norm in the hull of the gradients whose weights lie in the permutahedron of a spectrum.

In terms of ``y = w / a``, the weights of the unit gradients, the matrix of the objective ``y'Cy/2`` has a unit diagonal
at any scale of the rows. The solver guesses the face of the answer and checks the guess by the optimality conditions:

1. Newton's method on ``y = P(y - Cy)``, with P the projection onto the set: minimise on the affine hull of the face
   that contains the projection, and project again. Like block principal pivoting it takes a handful of steps at any m;
2. if that cycles, as it may for an ill-conditioned C, start again from points that ADMM reaches;
3. if that fails too, use a primal active-set method, which lowers the objective from face to face.
"""

from __future__ import annotations

from itertools import chain
from typing import NamedTuple

import numpy as np

from paretograd.geometry.gramian import Array
from paretograd.geometry.unit_gramian import UnitGramian
from paretograd.solution import Point
from paretograd.solvers.lapack import solve_spd
from paretograd.solvers.min_norm import is_stationary, min_norm_point
from paretograd.solvers.nonneg_qp import TOL, largest
from paretograd.solvers.permutahedron import Face, Indices, contains, exact_sums, join, pairs, project, step_inside

#: A point, its face, the violation of the optimality conditions, and the number of steps that led to it.
Found = tuple[Array, Face, float, int]

#: Added to the diagonal of a matrix that may be singular. It is well above rounding; repeated solves remove the bias.
_DELTA = 1e-9

#: Gradients this much shorter than the terms of every feasible sum add nothing to it. They are treated as no shorter,
#: so that squares stay within float64.
_SHORTEST = 1e-100
#: Weights of gradients longer than this many times those terms are below float64.
_LONGEST = 1e300

#: Well above any weight. Larger moves have the same effect and cost digits.
_FAR = 100.0

#: Number of starts from ADMM, ADMM steps for each, its penalty and over-relaxation.
_ROUNDS, _STEPS, _RHO, _RELAX = 4, 8, 0.3, 1.9


class Problem(NamedTuple):
    """``min y'Cy/2`` subject to ``w = a * y`` in the permutahedron of mu, whose tail sums are ``tails``."""

    C: Array
    a: Array
    mu: list[float]
    tails: Array
    enough: float  #: a residual that is rounding


def spectral_min_norm_point(unit: UnitGramian, spectrum: Array, plain: Point | None = None) -> Point:
    """Minimise ``|J.T w|`` over the convex hull of all permutations of the spectrum mu.

    It is ``{w in the simplex : the j largest entries sum to at most mu_1 + ... + mu_j, for every j}``, and the
    problem is the dual of the spectral risk ``sum_i mu_i (i-th largest of -x)``. ``mu = (1, 0, ..., 0)`` is MGDA,
    ``mu = (1/k, ..., 1/k, 0, ..., 0)`` is MGDA with weights of at most 1/k, and equal entries are the mean.

    Args:
        unit: the Gramian.
        spectrum: mu, shape ``(m,)``, non-increasing, non-negative, of sum one (the caller checks).
        plain: the min-norm point over the whole simplex, if the caller has it.
    """
    mu = spectrum / spectrum.sum()
    if mu[0] == mu[-1]:
        return Point(mu, 0.0, 0, stationary=is_stationary(unit, mu))
    plain = plain or min_norm_point(unit)
    tails = mu[::-1].cumsum()[::-1]
    if contains(plain.weights, tails):
        return plain
    weights, residual, steps = _solve(unit, mu, tails)
    return Point(weights, residual, plain.steps + steps, stationary=is_stationary(unit, weights))


def capped_min_norm_point(unit: UnitGramian, cap: float) -> Point:
    """Minimise ``|J.T w|`` over ``{w in the simplex, w <= cap}`` (the dual of the CVaR subproblem).

    The capped simplex is the permutahedron of ``(cap, ..., cap, rest, 0, ..., 0)``.

    Args:
        unit: the Gramian.
        cap: C in the paper, at least 1/m (the caller checks).
    """
    plain = min_norm_point(unit)
    if plain.weights.max() <= cap:
        return plain
    full = min(int(1.0 / cap * (1.0 + 1e-14)), unit.m)
    spectrum = np.zeros(unit.m)
    spectrum[:full] = cap
    if full < unit.m:
        spectrum[full] = max(1.0 - full * cap, 0.0)
    return spectral_min_norm_point(unit, spectrum, plain)


def _solve(unit: UnitGramian, mu: Array, tails: Array) -> tuple[Array, float, int]:
    m, C, norms = unit.m, unit.C, unit.norms
    if unit.live is not None:
        # A zero gradient is a row of zero cosines, with a slope of exactly zero. Errors of a slope count in proportion
        # to the norm, so its norm is set well below the others.
        C = np.zeros((m, m))
        C[np.ix_(unit.live, unit.live)] = unit.C
        norms = unit.expand(norms, fill=1e-3 * float(norms.min()))
    order = norms.argsort(kind="stable")
    # In units of the largest term of the vertex with the largest weights on the shortest gradients, y stays of order
    # one at any scale. That vertex is the start.
    size = max(float((norms[order] * mu).max()), float(norms[order[-1]]) / _LONGEST)
    a = 1.0 / np.maximum(norms / size, _SHORTEST)
    y = np.empty(m)
    y[order] = mu / a[order]
    problem = Problem(C, a, mu.tolist(), tails, 1e-15 * (8 + m))
    answer, face, residual, steps = _newton(problem, *_descend(problem, y))
    if residual > problem.enough:
        answer, face, residual, steps = _insist(problem, y, steps)
    return exact_sums((a * answer).tolist(), face), residual, steps


def _descend(problem: Problem, y: Array) -> tuple[Array, Face]:
    """The projection of ``y - Cy``, and its face.

    The answer is a fixed point in any diagonal metric. In the metric of y, short gradients would move very far. Theirs
    is reduced, which keeps the order of the slopes.
    """
    a, change = problem.a, problem.a * problem.C.dot(y)
    metric = _FAR / np.maximum(np.abs(change), _FAR)
    w, face = project((a * y - metric * change).tolist(), (metric * a * a).tolist(), problem.mu)
    return w / a, face


def _newton(problem: Problem, y: Array, face: Face) -> Found:
    """Newton's method from a point of a face. If it does not settle, the residual is infinite."""
    C, H, a = problem.C, problem.C, problem.a
    seen = {_key(face)}
    for steps in range(1, 6 + min(len(y) // 16, 8)):
        move = _move(H, C.dot(y), y, a, face)
        if move is None:  # singular: a small shift leads to one of the minima, and the next step removes the bias
            H = C + _DELTA * np.eye(len(y))
            continue
        y = y + move
        if contains(a * y, problem.tails):
            residual = _residual(problem, y, face)
            if residual <= problem.enough:
                return y, face, residual, steps
        y, face = _descend(problem, y)
        key = _key(face)
        if key in seen and H is C:  # the minimum on a face does not depend on the path: a cycle
            break
        seen.add(key)
    return y, face, np.inf, steps


def _key(face: Face) -> tuple[tuple[int, ...], ...]:
    return tuple(map(tuple, face.blocks))


def _insist(problem: Problem, y: Array, steps: int) -> Found:
    """Newton's method from points of ADMM, then the active-set method from the last of them, and from y."""
    C, a, eye, start = problem.C, problem.a, np.eye(len(y)), y
    inverse, square, dual = np.linalg.inv(C / _RHO + eye), (a * a).tolist(), np.zeros(len(a))
    for _ in range(_ROUNDS):
        for _ in range(_STEPS):
            point = _RELAX * inverse.dot(y - dual) + (1.0 - _RELAX) * y + dual
            w, face = project(np.clip(a * point, -_FAR, _FAR).tolist(), square, problem.mu)
            y = w / a
            dual = point - y
        answer, place, residual, used = _newton(problem, y, face)
        steps += _STEPS + used
        if residual <= problem.enough:
            return answer, place, residual, steps
    best = answer, place, np.inf, steps
    for begin in ((y, face), _descend(problem, start)):
        y, face, used = active_set(problem, *begin)
        residual, steps = _residual(problem, y, face), steps + used
        if residual < best[2]:
            best = y, face, residual, steps
        if residual <= problem.enough:
            break
    return best


def active_set(problem: Problem, y: Array, face: Face) -> tuple[Array, Face, int]:
    """Minimise ``y'Cy/2`` from a point y of a face, face by face. Return the answer, its face and the steps.

    Every step that moves lowers the objective, up to rounding.
    """
    C, a, mu, steps = problem.C, problem.a, problem.mu, 0
    while steps < 20 * len(mu) + 40:
        steps += 1
        move = _singular_move(problem, y, face)
        step, other = step_inside((a * y).tolist(), (a * move).tolist(), face, mu)
        y = y + step * move
        other = other or _release(C.dot(y), y, a, mu, face)
        if other is None:
            if step * largest(move) > _FAR * (1.0 + largest(y)):
                continue  # the rounding of a long move moved the point: repeat
            break
        face = other
        y = exact_sums((a * y).tolist(), face) / a
    return y, face, steps


class _Reduced(NamedTuple):
    """The objective on the affine hull of a face: ``x'Mx/2 - x'force`` for moves x of the entries ``rows``."""

    rows: Indices
    pivots: Indices
    ratio: Array
    M: Array
    force: Array

    def expand(self, x: Array, y: Array) -> Array:
        """The move of all entries."""
        x[np.abs(x) <= 1e-15 * y[self.rows]] = 0.0  # rounding must not push an entry against its bound
        move = np.zeros(len(y))
        move[self.rows] = x
        move -= np.bincount(self.pivots, self.ratio * x, len(y))
        return move


def _reduce(H: Array, slope: Array, a: Array, face: Face) -> _Reduced | None:
    """Return the objective on the affine hull of a face; None if nothing can move."""
    rows, pivots = pairs(face, a.tolist())
    if not len(rows):
        return None
    ratio = a[rows] / a[pivots]
    B = H.take(rows, 0) - H.take(pivots, 0) * ratio[:, None]
    return _Reduced(
        rows, pivots, ratio, B.take(rows, 1) - B.take(pivots, 1) * ratio, ratio * slope[pivots] - slope[rows]
    )


def _move(H: Array, slope: Array, y: Array, a: Array, face: Face) -> Array | None:
    """The move to the minimum on the affine hull of a face; None if H is singular there."""
    reduced = _reduce(H, slope, a, face)
    if reduced is None:
        return np.zeros(len(y))
    x = solve_spd(reduced.M, reduced.force)
    return None if x is None else reduced.expand(x, y)


def _singular_move(problem: Problem, y: Array, face: Face) -> Array:
    """The same for a C that may be singular. Along directions without curvature, move beyond the boundary of the set.

    Curvatures and forces, which are differences of slopes, count as zero if they are below rounding.
    """
    reduced = _reduce(problem.C, problem.C.dot(y), problem.a, face)
    if reduced is None:
        return np.zeros(len(y))
    values, vectors = np.linalg.eigh(reduced.M)
    force = vectors.T @ reduced.force
    force[np.abs(force) <= 0.25 * problem.enough * (1.0 + largest(y))] = 0.0
    flat = values <= 1e-15 * len(values)
    if force[flat].any():
        move = reduced.expand(vectors[:, flat] @ force[flat], y)
        return move * (_FAR / largest(problem.a * move))  # no weight exceeds one, so this leaves the set
    return reduced.expand(vectors[:, ~flat] @ (force[~flat] / values[~flat]), y)


def _release(slope: Array, y: Array, a: Array, mu: list[float], face: Face) -> Face | None:
    """Join the two neighbouring blocks whose slopes are most out of order; None at the optimum."""
    error = TOL * (1.0 + largest(y))
    norms = _SHORTEST / a  # only ratios matter: stay in the middle of float64's range
    high, low, norm = ((slope - error) * norms).tolist(), ((slope + error) * norms).tolist(), norms.tolist()
    tops = [max(rows, key=high.__getitem__) for rows in face.blocks]
    bottoms = [min(rows, key=low.__getitem__) for rows in face.blocks]
    shortest = [min([norm[k] for k in rows]) for rows in face.blocks]
    places = range(len(tops) - 1)
    gaps = [(high[tops[j]] - low[bottoms[j + 1]]) / (shortest[j] + shortest[j + 1]) for j in places]
    if max(gaps, default=0.0) <= 0.0:
        return None
    worst = max(places, key=gaps.__getitem__)
    return join(face, worst, tops[worst], bottoms[worst + 1], mu)


def _residual(problem: Problem, y: Array, face: Face) -> float:
    """The violation of the optimality conditions, relative to ``1 + |y|``.

    Slopes with respect to the weights are equal within a flexible block, and those of a block do not exceed those of
    the next. A pair out of order counts as the least error of its two slopes that would explain it.
    """
    order, sizes = list(chain(*face.blocks)), [len(rows) for rows in face.blocks]
    block = np.arange(len(sizes)).repeat(sizes)
    flexible = np.array([part[0] != part[-1] for part in face.parts]).repeat(sizes)
    norm = _SHORTEST / problem.a[order]  # only ratios matter: stay in the middle of float64's range
    later = block - block[:, None]
    ordered = (later == 1) | ((later == 0) & flexible)
    with np.errstate(over="ignore", invalid="ignore"):  # intermediate points may be far off
        rate = problem.C.dot(y)[order] * norm
        excess = float(((rate[:, None] - rate) / (norm[:, None] + norm))[ordered].max(initial=0.0))
    return max(excess, 0.0) / (1.0 + largest(y)) if np.isfinite(excess) else np.inf
