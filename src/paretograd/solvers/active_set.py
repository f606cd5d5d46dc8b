"""Solve ``min a'Ha/2 + q'a  subject to  a >= 0`` for a singular or nearly singular H, with small multipliers.

Gradients that cancel up to the rounding of their rows leave a wedge of directions, 1e-8 wide in float32, between
half-spaces that should share their boundary. The exact answer for the rounded rows lies in that wedge. It needs
multipliers of 1e8, which are noise: another rounding of the rows opens another wedge. So if the distance of a gradient
from the span of the active ones is below the resolution of the Gramian, it counts as a combination of them and adds no
half-space of its own. The remaining problem has multipliers of ordinary size and is solved exactly.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from paretograd.geometry.cones import FLOAT32_ROWS
from paretograd.geometry.gramian import Array
from paretograd.solvers.lapack import is_regular, pivoted_cholesky, solve_triangular

#: Rounding of a slope, per unit of the multipliers that it sums.
_ROUNDING = 4e-15

#: Rounding of a squared distance from a span, per unit of the squared coefficients: forty times the largest observed.
_LEFT = 1e-15

#: Twice the rounding of float64.
_EPS = 4e-16

#: A gradient this many times shorter than others on the same face gets no weight if the others suffice.
_SHORTER = 1e3

#: How often a dropped vector may return, and how often a vector whose slope may be noise may replace others.
_TIMES = 3

#: How much larger than the others a multiplier may become to remove a slope that may be noise.
_FAR = 10.0

#: A residual above this is more than rounding. These multiples of the given resolution are then tried.
_POOR, _COARSER = 1e-8, (10.0, 100.0)


class NonnegSolution(NamedTuple):
    """``a``, its slope ``H a + q``, and the largest violation of the optimality conditions, in the units of q."""

    a: Array
    slope: Array
    residual: float
    steps: int


def active_set(
    H: Array, q: Array, resolution: float, guess: NDArray[np.bool_] | None = None, *, bounded: bool = True
) -> NonnegSolution:
    """Lawson and Hanson's method on a factor that reveals the rank of the active gradients.

    Every step lowers the objective, except for a limited number of steps that drop a vector, so the method ends. It
    takes at most ten steps per objective plus fifty. Its path depends on the slopes alone, not on the order of the
    objectives (up to ties by rounding). If many vectors in few dimensions are closer to each other's spans than any two
    of them are to each other, it may get lost; it then tries a coarser resolution.

    Args:
        H: inner products of vectors of norm about one, shape ``(m, m)``.
        q: shape ``(m,)``, of order one.
        resolution: distance from the span of the active vectors below which a vector counts as lying in it.
        guess: the entries that start as positive.
        bounded: the problem is known to be bounded below, as every projection is.

    Returns:
        the solution; its residual is infinite if the problem is unbounded below.
    """
    found = _solve(H, q, resolution, guess, bounded)
    for coarser in _COARSER:
        if found.residual <= _POOR or found.residual == math.inf:
            break
        other = _solve(H, q, coarser * resolution, guess, bounded, forgiven=resolution)
        found = min(found, other, key=lambda one: one.residual)
    return found


def _solve(
    H: Array,
    q: Array,
    resolution: float,
    guess: NDArray[np.bool_] | None,
    bounded: bool,
    forgiven: float | None = None,
) -> NonnegSolution:
    """One attempt. The residual ignores errors that the resolution ``forgiven`` (by default its own) cannot see."""
    noise = 4.0 * resolution * float(np.abs(q).max(initial=0.0))
    m = len(q)
    active, a, refused = _Active(H, resolution), np.zeros(m), np.zeros(m, dtype=bool)
    exchanged = np.zeros(m, dtype=int)
    if guess is not None and guess.any():
        active.begin(guess.nonzero()[0])
        _settle(active, q, a)
    for steps in range(10 * m + 50):
        slope = H.dot(a)
        slope += q
        waiting = np.where(refused | active.is_out(slope, noise), np.inf, slope)
        waiting[active.rows] = np.inf
        entering = int(waiting.argmin())
        if not waiting[entering] < -_ROUNDING * (1.0 + float(a.max())):
            break
        if not active.append(entering, a):
            # Slopes inherit the rounding of the multipliers, which small distances between active vectors magnify.
            small = slope[entering] >= -max(noise, _EPS * float(a.max()) / resolution)
            exchanged[entering] += small
            if exchanged[entering] > _TIMES or not _exchange(active, entering, a, _FAR if small else math.inf):
                if not (bounded or small):
                    return NonnegSolution(a, slope, math.inf, steps)
                refused[entering] = True
                continue
        if active.has_dropped(a):
            a[:] = 0.0
            _settle(active, q, a)
            refused[:] = False
        elif _walk(active, q, a):
            refused[:] = False
        else:
            refused[entering] = True
    else:  # the last step moved a: recompute the slope
        slope = H.dot(a) + q
    wrong = np.where(a > 0.0, np.abs(slope), np.maximum(-slope, 0.0))
    refused |= active.dropped > 0
    wrong[refused & (wrong <= noise * (1.0 if forgiven is None else forgiven / resolution))] = 0.0
    # The objective is at most 0, its value at a = 0: a projection is never longer than what it projects.
    excess = float(a.dot(slope + q))
    return NonnegSolution(a, slope, max(float(wrong.max()), excess), steps)


def smallest(
    H: Array, found: NonnegSolution, norms: Array, resolution: float, *, independent: bool = True
) -> NonnegSolution:
    """Return the smallest of all solutions, given one. It does not depend on the order of the objectives.

    Solutions differ by null vectors of H on the face where slopes vanish. Long gradients come first, because they need
    small weights. Let N project onto the null vectors. The solutions are then ``x0 + N z`` with ``x0 = a - N a``, and
    the shortest non-negative one has z from the same kind of problem, ``min z'Nz/2 + x0'z, z >= 0``.

    Args:
        H: as for `active_set`.
        found: a solution.
        norms: of the gradients.
        resolution: as for `active_set`.
        independent: the vectors of the support are known to be independent.
    """
    a, slope = found.a, found.slope
    rounding = max(FLOAT32_ROWS, 4.0 * resolution**2)  # of a slope, from cosines and float32 rows
    if independent:
        larger = np.maximum(a, slope)
        if larger[larger.argmin()] > rounding:  # slopes vanish on the support only: the solution is unique
            return found
    face = ((a > 0.0) | (slope <= rounding)).nonzero()[0]
    if len(face) < 2 or is_regular(H.take(face, 0).take(face, 1), resolution):
        return found
    face, part = _longest(H, found, face, norms, resolution)
    values, vectors = np.linalg.eigh(H.take(face, 0).take(face, 1))
    # Well below the eigenvalues of resolved angles, and above the rounding of the cosines.
    null = vectors[:, values <= resolution**2 / (16.0 if resolution < 1e-5 else 4.0)]
    if null.shape[1]:
        N = null @ null.T
        x0 = part - N @ part
        moved = active_set(N, x0, resolution)
        if moved.residual > rounding:  # x0 + N z stays negative: the large weights are needed
            return found
        part = np.maximum(x0 + N @ moved.a, 0.0)
    shortest = np.zeros_like(a)
    shortest[face] = part
    return found._replace(a=shortest)


def _longest(
    H: Array, found: NonnegSolution, face: NDArray[np.intp], norms: Array, resolution: float
) -> tuple[NDArray[np.intp], Array]:
    """Remove gradients from a face that are much shorter than others that can replace them."""
    least = float(norms[face].max()) / _SHORTER
    while least > norms[face].min():
        kept = face[norms[face] >= least]
        q = (found.slope - H.dot(found.a))[kept]
        part = active_set(H.take(kept, 0).take(kept, 1), q, resolution).a
        move = -found.a
        move[kept] += part
        if np.abs(H.dot(move)).max() <= 4.0 * _ROUNDING * (1.0 + float(np.abs(move).max())):  # the same direction
            return kept, part
        least = float(norms[face][norms[face] < least].max()) / _SHORTER
    return face, found.a[face]


class _Active:
    """The active vectors, kept independent: their row numbers and a Cholesky factor of their inner products."""

    def __init__(self, H: Array, resolution: float) -> None:
        self._H, self._least = H, resolution**2
        self._factor = np.empty_like(H)
        self.rows: list[int] = []
        #: How often each vector was dropped.
        self.dropped = np.zeros(len(H), dtype=int)

    def begin(self, rows: NDArray[np.intp]) -> None:
        """Activate a maximal independent subset of these vectors, the most distant ones first."""
        factor, order, rank = pivoted_cholesky(self._H.take(rows, 0).take(rows, 1), self._least)
        self._factor[:rank, :rank] = factor[:rank, :rank]
        self.rows = rows[order[:rank]].tolist()

    def _basis(self, k: int) -> tuple[Array, Array]:
        """Vector k in the orthonormal basis of the factor, and as a combination of the active vectors."""
        R = self._upper
        along = solve_triangular(R, self._H[self.rows, k], transposed=True)
        return along, solve_triangular(R, along)

    def combination(self, k: int) -> Array:
        """Coefficients of the combination of the active vectors nearest to vector k."""
        return self._basis(k)[1]

    def append(self, k: int, a: Array) -> bool:
        """Activate vector k and return True, unless it lies in the span of the active ones.

        Two nearly opposite active vectors may lie in the span of each other and k. Then the one with the smaller
        multiplier is dropped: their difference is below the resolution.
        """
        while True:
            along, combination = self._basis(k)
            squares = combination**2
            # The squared distance of k from the span of the others; that of active vector j is left / squares[j].
            left = float(self._H[k, k] - along.dot(along))
            if not left >= max(self._least, _LEFT * float(squares.max(initial=0.0))):
                return False
            # Active vectors count as lying in that span only if ten times closer: later ones bring them closer still.
            near = left < 0.01 * self._least * squares
            if not near.any():
                break
            gone = int(np.where(near, a[self.rows], np.inf).argmin())
            self.dropped[self.rows[gone]] += 1
            self.remove(np.arange(len(near)) == gone)
        p = len(self.rows)
        self._factor[p, :p], self._factor[p, p] = along, math.sqrt(left)
        self.rows.append(k)
        return True

    def is_out(self, slope: Array, noise: float) -> NDArray[np.bool_]:
        """Return True for dropped vectors that stay out: their slope is noise, or they were dropped too often."""
        return (self.dropped > 0) & ((slope >= -noise) | (self.dropped > _TIMES))

    def has_dropped(self, a: Array) -> bool:
        """Return True if a positive entry is no longer active."""
        return int(np.count_nonzero(a)) > int(np.count_nonzero(a[self.rows]))

    def remove(self, gone: NDArray[np.bool_]) -> None:
        """Deactivate some of the active vectors."""
        self.rows = [k for k, leaves in zip(self.rows, gone, strict=True) if not leaves]
        p = len(self.rows)
        self._factor[:p, :p] = np.linalg.cholesky(self._H[np.ix_(self.rows, self.rows)])

    def minimiser(self, q: Array) -> Array:
        """The minimiser over the active entries, of any sign."""
        R = self._upper
        return solve_triangular(R, solve_triangular(R, -q[self.rows], transposed=True))

    @property
    def _upper(self) -> Array:
        p = len(self.rows)
        return self._factor[:p, :p].T


def _settle(active: _Active, q: Array, a: Array) -> None:
    """Set ``a``, which is zero, to a minimiser over a subset of the active entries, positive on all of them."""
    while active.rows:
        goal = active.minimiser(q)
        if goal.min() > 0.0:
            a[active.rows] = goal
            return
        active.remove(goal <= 0.0)


def _walk(active: _Active, q: Array, a: Array) -> bool:
    """Move ``a`` to the minimiser over the active entries; entries that reach zero leave. Return True if it moved."""
    moved = False
    while active.rows:
        rows, goal = active.rows, active.minimiser(q)
        now = a[rows]
        blocked = goal <= 0.0
        if not blocked.any():
            a[rows] = goal
            return True
        room = np.where(blocked, now / np.where(now > goal, now - goal, 1.0), np.inf)
        step = float(room.min())
        moved = moved or step > 0.0
        gone = room <= step
        now += step * (goal - now)
        a[rows] = np.where(gone, 0.0, now)
        active.remove(gone)
        if not moved:  # the entry that has just entered leaves at once: its slope was rounding
            return False
    return moved


def _exchange(active: _Active, entering: int, a: Array, reach: float) -> bool:
    """Let a vector replace active ones of which it is a combination, by moving ``a`` along the null vector.

    The combination ``J.T a`` stays the same and the linear term decreases. Returns False if nothing stops the decrease,
    or if a multiplier would become ``reach`` times larger than the present ones.
    """
    while not active.append(entering, a):
        combination = active.combination(entering)
        falling = combination > 1e-9 * np.abs(combination).max(initial=0.0)
        if not falling.any():
            return False
        rows = active.rows
        room = np.where(falling, a[rows] / np.where(falling, combination, 1.0), np.inf)
        step = float(room.min())
        if step * max(1.0, float(np.abs(combination).max())) > reach * (1.0 + float(a.max())):
            return False
        gone = room <= step
        a[rows] = np.where(gone, 0.0, np.maximum(a[rows] - step * combination, 0.0))
        a[entering] += step
        active.remove(gone)
    return True
