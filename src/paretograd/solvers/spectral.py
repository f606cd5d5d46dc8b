"""The point of least norm in the hull of the gradients whose weights lie in the permutahedron of a spectrum."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from paretograd.geometry.gramian import Array, UnitGramian
from paretograd.solvers.lapack import solve_spd
from paretograd.solvers.min_norm import MinNorm, is_zero, min_norm_point
from paretograd.solvers.nonneg_qp import TOL, largest
from paretograd.solvers.permutahedron import (
    Face,
    Indices,
    contains,
    exact_sums,
    make_face,
    project,
    step_inside,
    tail_sums,
)

#: Added to the diagonal of a matrix that may be singular, see `capped`; repeating the solve removes the bias.
_DELTA = 1e-9

#: Penalty of ADMM, for an objective whose matrix has a unit diagonal.
_RHO = 0.6


class Problem(NamedTuple):
    """``min y'Hy/2 + q'y`` where ``w = a * y`` is in the permutahedron of mu, whose tail sums are ``tails``."""

    H: Array
    q: Array
    a: Array
    mu: Array
    tails: Array

    def slope(self, y: Array) -> Array:
        """The gradient at y; ``slope / a`` is that by the weights."""
        return np.asarray(self.H.dot(y) + self.q)

    def value(self, y: Array) -> float:
        """The objective at y."""
        return float(y.dot(0.5 * self.H.dot(y) + self.q))


def spectral_min_norm_point(unit: UnitGramian, spectrum: Array) -> MinNorm:
    """Minimise ``|J.T w|`` over the convex hull of all permutations of the spectrum mu.

    It is ``{w in the simplex : the j largest entries sum to at most mu_1 + ... + mu_j, for every j}``, and the
    problem is the dual of the spectral risk ``sum_i mu_i (i-th largest of -x)``. ``mu = (1, 0, ..., 0)`` is MGDA,
    ``mu = (1/k, ..., 1/k, 0, ..., 0)`` is MGDA with weights of at most 1/k, and equal entries are the mean.

    Args:
        unit: the Gramian.
        spectrum: mu, shape ``(m,)``, non-increasing, non-negative, of sum one (the caller checks).
    """
    mu = spectrum / spectrum.sum()
    if mu[0] == mu[-1]:
        return MinNorm(mu, 0.0, 0, _is_stationary(unit, mu))
    plain = min_norm_point(unit)
    tails = tail_sums(mu)
    if contains(plain.weights, tails):
        return plain
    weights, residual, steps = _solve(unit, mu, tails)
    return MinNorm(weights, residual, plain.steps + steps, _is_stationary(unit, weights))


def _is_stationary(unit: UnitGramian, weights: Array) -> bool:
    y = unit.restrict(weights) * unit.norms
    return not y.any() or is_zero(unit, y / y.max())


def _solve(unit: UnitGramian, mu: Array, tails: Array) -> tuple[Array, float, int]:
    m, C, norms = unit.m, unit.C, unit.norms
    if unit.live is not None:
        # A zero gradient is a row without cosines, whose slope is exactly zero. Errors of a slope count in proportion
        # to the norm, so that a norm below the others stands for that.
        C = np.zeros((m, m))
        C[np.ix_(unit.live, unit.live)] = unit.C
        norms = unit.expand(norms, fill=1e-3 * float(norms.min()))
    y, a, face = _start(C, norms, mu, tails)
    steps, best, best_face, best_residual, delta = 0, y, face, np.inf, 0.0
    shifted = C + _DELTA * np.eye(m)
    for _ in range(30):
        problem = Problem(shifted if delta else C, -delta * y, a, mu, tails)
        y, face, used = active_set(problem, y, face)
        steps += used
        residual = _residual(C.dot(y), y, a, face)
        if residual < best_residual:
            best, best_face, best_residual = y, face, residual
        if residual <= 1e-15 * (8 + m):
            break
        delta = _DELTA  # C may be singular on the face: the proximal point method
    weights = np.empty(m)
    weights[best_face.order] = exact_sums((best * a)[best_face.order], mu, best_face)
    return weights, best_residual, steps


def _start(C: Array, norms: Array, mu: Array, tails: Array) -> tuple[Array, Array, Face]:
    """A point y to start from, the scale ``a = w / y``, and the face of y: a few steps of ADMM.

    Their projection is in terms of y, like the objective, so that they do not mind rows of very different norms; mostly
    they find the face of the answer.
    """
    m = len(mu)
    order = np.argsort(norms, kind="stable")
    # In units of the largest term of the vertex with the largest weights on the shortest gradients, y stays of order
    # one at any scale.
    a = float((norms[order] * mu).max()) / norms
    whole = np.zeros(m, dtype=bool)
    whole[0] = True
    everything = make_face(order, whole, mu)
    y = np.empty(m)
    y[order] = mu
    y /= a
    inverse = np.linalg.inv(C / _RHO + np.eye(m))
    dual = np.zeros(m)
    face = make_face(order, np.ones(m, dtype=bool), mu)
    for _ in range(ITS if m <= 16 else 3 * ITS):
        point = 1.6 * inverse.dot(y - dual) - 0.6 * y + dual  # over-relaxed
        y, face = project(point, a, mu, tails, everything)
        dual = point - y
    return y, a, face


RHO, ITS = 0.3, 8


def active_set(problem: Problem, y: Array, face: Face) -> tuple[Array, Face, int]:
    """A primal active-set method over the faces, from a point y of a face; also the face of the answer.

    Every step that moves lowers the objective. In the beginning it is bold: many blocks may be split or joined at
    once. Where that does not settle, one at a time does. It ends early where H is singular on a face.
    """
    a, mu = problem.a, problem.mu
    m, steps, stuck = len(mu), 0, False
    while steps < 20 * m + 40:
        steps += 1
        bold = steps <= 2 * m + 20
        move = _move(problem, y, face)
        if move is None:
            break
        step, smaller = step_inside(a * y, a * move, face, mu, problem.tails)
        stuck = step == 0.0
        target = y + move
        y = y + step * move
        if smaller is not None:
            if bold:
                nearest, other = project(target, a, mu, problem.tails, face)
                if problem.value(nearest) < problem.value(y):
                    y, smaller, stuck = nearest, other, False
            face = smaller
            rows = face.order[face.rigid]
            y[rows] = mu[face.rigid] / a[rows]
            continue
        larger = _release(problem.slope(y), y, a, mu, face, bold and not stuck)
        if larger is None:
            break
        face = larger
    return y, face, steps


def _move(problem: Problem, y: Array, face: Face) -> Array | None:
    """The move to the minimum of the face's affine hull; None where H is singular on it.

    In every block the row of the shortest gradient takes what the others give, so that the sums keep their values
    and no coefficient exceeds one.
    """
    a, H = problem.a, problem.H
    move = np.zeros(len(a))
    if face.rigid.all():
        return move
    ranked = face.sorted(a)
    others = ~(face.cut | face.rigid)
    rows, pivots = ranked[others], ranked[face.starts][face.cut.cumsum()[others] - 1]
    ratio = a[rows] / a[pivots]
    slope = problem.slope(y)
    B = H.take(rows, 1)
    B -= H.take(pivots, 1) * ratio
    M = B.take(rows, 0)
    M -= B.take(pivots, 0) * ratio[:, None]
    part = solve_spd(M, ratio * slope[pivots] - slope[rows])
    if part is None:
        return None
    part[np.abs(part) <= 1e-15 * y[rows]] = 0.0  # rounding, which must not push an entry against its bound
    move[rows] = part
    move -= np.bincount(pivots, ratio * part, len(a))
    return move


def _release(slope: Array, y: Array, a: Array, mu: Array, face: Face, many: bool) -> Face | None:
    """Join neighbouring blocks whose slopes are out of order, all of them or the worst; None at the optimum."""
    error = TOL * (1.0 + largest(y))
    order, starts = face.order, face.starts
    scale = a[order]
    high, low = (slope[order] - error) / scale, (slope[order] + error) / scale
    gaps = np.maximum.reduceat(high, starts)[:-1] - np.minimum.reduceat(low, starts)[1:]
    wrong = (gaps > 0.0).nonzero()[0]
    if not len(wrong):
        return None
    if not many:
        shortest = 1.0 / np.maximum.reduceat(scale, starts)
        wrong = wrong[[(gaps / (shortest[:-1] + shortest[1:]))[wrong].argmax()]]
    return _join(face, wrong, high, low, mu)


def _join(face: Face, blocks: Indices, high: Array, low: Array, mu: Array) -> Face:
    """Join each of these blocks with the next; a rigid block gives only the row that is most out of order."""
    order, cut = face.order.copy(), face.cut.copy()
    bounds = [*face.starts.tolist(), len(order)]
    taken = -1  # the last position of a rigid block that the one before it has taken
    for j in blocks.tolist():
        begin, middle, end = bounds[j : j + 3]
        if middle - begin > 1 and face.rigid[begin]:
            if taken == begin:
                continue
            k = begin + int(high[begin:middle].argmax())
            order[[k, middle - 1]] = order[[middle - 1, k]]
            cut[middle - 1] = True
        cut[middle] = False
        if end - middle > 1 and face.rigid[middle]:
            k = middle + int(low[middle:end].argmin())
            order[[k, middle]] = order[[middle, k]]
            cut[middle + 1] = True
            taken = middle
    return make_face(order, cut, mu)


def _residual(slope: Array, y: Array, a: Array, face: Face) -> float:
    """Violation of the optimality conditions, relative to ``1 + |y|``.

    Slopes by the weights are equal in a flexible block, and those of a block do not exceed those of the next. A pair
    out of order counts with the least error of its two slopes that would explain it.
    """
    block, scale = face.cut.cumsum(), a[face.order]
    rate = slope[face.order] / scale
    later = block - block[:, None]
    ordered = (later == 1) | ((later == 0) & ~face.rigid)
    excess = (rate[:, None] - rate) / (1.0 / scale[:, None] + 1.0 / scale)
    return max(float(excess[ordered].max(initial=0.0)), 0.0) / (1.0 + largest(y))
