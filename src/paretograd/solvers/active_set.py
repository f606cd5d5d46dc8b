"""``min a'Ha/2 + q'a  subject to  a >= 0`` where H is singular, or close to it: the smallest multipliers win.

Gradients that cancel but for the rounding of their rows leave a wedge of directions, 1e-8 wide in float32, between
half-spaces that ought to share their boundary. The exact answer for the rounded rows lies in that wedge. It needs
multipliers of 1e8, which are noise: the next rounding of the rows opens another wedge. So a gradient whose distance
from the span of the active ones is below the resolution of the Gramian counts as a combination of them, and adds no
half-space of its own. All that is left has multipliers of ordinary size, and is solved exactly.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from paretograd.geometry.cones import FLOAT32_ROWS
from paretograd.geometry.gramian import Array
from paretograd.solvers.lapack import is_regular, pivoted_cholesky, solve_triangular

#: Rounding of a slope, for each unit of the multipliers that it sums.
_ROUNDING = 4e-15

#: Rounding of a squared distance from a span, for each unit of the squared coefficients: forty times what was seen.
_LEFT = 1e-15

#: Rounding of float64, twice.
_EPS = 4e-16

#: Gradients so many times shorter than others on the same face get no weight if the others do without them.
_SHORTER = 1e3

#: How often a vector that was dropped may come back, or one whose slope may be noise replace others.
_TIMES = 3

#: How much larger than the others a multiplier may become for the sake of a slope that may be noise.
_FAR = 10.0

#: A residual above this is no rounding, and the resolutions that are tried then, relative to the one given.
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

    The objective falls with every step but those that drop a vector, whose number is limited, so that the method ends;
    ten steps for each objective, and fifty, are the most in any case. Its path depends on slopes alone, not on the
    order of the objectives (ties to rounding apart). Where many vectors in few dimensions come closer to each other's
    spans than any two of them, it may get lost; then a coarser resolution is tried.

    Args:
        H: inner products of vectors of norm about one, shape ``(m, m)``.
        q: shape ``(m,)``, of order one.
        resolution: distance from the span of the active vectors below which a vector counts as lying in it.
        guess: entries that may be positive, to begin with.
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
    """One attempt. The residual leaves out what the resolution ``forgiven`` (by default its own) does not tell."""
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
            # Slopes inherit the rounding of the multipliers, which the distances between active vectors magnify.
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
    else:  # the last step moved a: the residual is that of the answer
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
    """The smallest of all solutions, given one: unlike that one, it does not depend on the order of the objectives.

    Solutions differ by null vectors of H on the face where slopes vanish. Long gradients come first, as they need
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
        if larger[larger.argmin()] > rounding:  # no slope vanishes but on the support: the solution is unique
            return found
    face = ((a > 0.0) | (slope <= rounding)).nonzero()[0]
    if len(face) < 2 or is_regular(H.take(face, 0).take(face, 1), resolution):
        return found
    face, part = _longest(H, found, face, norms, resolution)
    values, vectors = np.linalg.eigh(H.take(face, 0).take(face, 1))
    # Well below what angles that are resolved make of them, and above the rounding of the cosines.
    null = vectors[:, values <= resolution**2 / (16.0 if resolution < 1e-5 else 4.0)]
    N = null @ null.T
    x0 = part - N @ part
    shortest = np.zeros_like(a)
    shortest[face] = np.maximum(x0 + N @ active_set(N, x0, resolution).a, 0.0) if null.shape[1] else part
    return found._replace(a=shortest)


def _longest(
    H: Array, found: NonnegSolution, face: NDArray[np.intp], norms: Array, resolution: float
) -> tuple[NDArray[np.intp], Array]:
    """The part of a face that is left if gradients go that are much shorter than others that replace them."""
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
    """The active vectors, kept independent: their numbers, and a Cholesky factor of their inner products."""

    def __init__(self, H: Array, resolution: float) -> None:
        self._H, self._least = H, resolution**2
        self._factor = np.empty_like(H)
        self.rows: list[int] = []
        #: How often each vector was dropped.
        self.dropped = np.zeros(len(H), dtype=int)

    def begin(self, rows: NDArray[np.intp]) -> None:
        """Make as many of these vectors active as are independent, those first that are farthest from each other."""
        factor, order, rank = pivoted_cholesky(self._H.take(rows, 0).take(rows, 1), self._least)
        self._factor[:rank, :rank] = factor[:rank, :rank]
        self.rows = rows[order[:rank]].tolist()

    def _basis(self, k: int) -> tuple[Array, Array]:
        """Vector k in the orthonormal basis that the factor stands for, and as a combination of the active vectors."""
        R = self._upper
        along = solve_triangular(R, self._H[self.rows, k], transposed=True)
        return along, solve_triangular(R, along)

    def combination(self, k: int) -> Array:
        """Coefficients of the combination of the active vectors nearest to vector k."""
        return self._basis(k)[1]

    def append(self, k: int, a: Array) -> bool:
        """Make vector k active, unless it lies in the span of those that are.

        Two active vectors that are nearly opposite may come to lie in the span of each other and k. Then the one with
        the smaller multiplier is dropped: what tells them apart is below the resolution.
        """
        while True:
            along, combination = self._basis(k)
            squares = combination**2
            # The squared distance of k from the span of the others; that of active vector j is left / squares[j].
            left = float(self._H[k, k] - along.dot(along))
            if not left >= max(self._least, _LEFT * float(squares.max(initial=0.0))):
                return False
            # Active vectors lie in that span if they are ten times closer, as others in turn make them closer.
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
        """Vectors that were dropped and stay out: those whose slopes are noise, and those dropped time and again."""
        return (self.dropped > 0) & ((slope >= -noise) | (self.dropped > _TIMES))

    def has_dropped(self, a: Array) -> bool:
        """Return True if a positive entry is no longer active."""
        return int(np.count_nonzero(a)) > int(np.count_nonzero(a[self.rows]))

    def remove(self, gone: NDArray[np.bool_]) -> None:
        """Make some of the active vectors inactive."""
        self.rows = [k for k, leaves in zip(self.rows, gone, strict=True) if not leaves]
        p = len(self.rows)
        self._factor[:p, :p] = np.linalg.cholesky(self._H[np.ix_(self.rows, self.rows)])

    def minimiser(self, q: Array) -> Array:
        """The minimiser over the active entries without regard to signs."""
        R = self._upper
        return solve_triangular(R, solve_triangular(R, -q[self.rows], transposed=True))

    @property
    def _upper(self) -> Array:
        p = len(self.rows)
        return self._factor[:p, :p].T


def _settle(active: _Active, q: Array, a: Array) -> None:
    """Set ``a``, which is zero, to a minimiser over some of the active entries that is positive on all of them."""
    while active.rows:
        goal = active.minimiser(q)
        if goal.min() > 0.0:
            a[active.rows] = goal
            return
        active.remove(goal <= 0.0)


def _walk(active: _Active, q: Array, a: Array) -> bool:
    """Move ``a`` to the minimiser over the active entries, those that reach zero leaving; True if it moved."""
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
        if not moved:  # the entry that has just come leaves at once: its slope was rounding
            return False
    return moved


def _exchange(active: _Active, entering: int, a: Array, reach: float) -> bool:
    """Let a vector replace active ones of which it is a combination, moving ``a`` along the null vector.

    The combination ``J.T a`` stays the same, the linear term falls. Returns False if nothing stops the fall, or only a
    multiplier that is ``reach`` times larger than those there are.
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
