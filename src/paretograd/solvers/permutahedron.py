"""The permutahedron of a spectrum, the convex hull of all its permutations: faces, projection, way to the boundary.

A point w is in it if its sum is that of the spectrum mu (non-increasing) and, for every j, the entries of w without
the j largest sum to at least the same of mu. These *tails* say it without cancellation where mu ends in small numbers.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from paretograd.geometry.gramian import Array

Indices = NDArray[np.intp]
Mask = NDArray[np.bool_]

#: Rounding allowed in a sum of weights, relative to its terms.
_SLACK = 4e-15

#: Well above any weight.
_FAR = 100.0


class Face(NamedTuple):
    """An ordered partition of the entries of w: those in a block share the block's part of the spectrum.

    Attributes:
        order: the entries by position, shape ``(m,)``, those of the first block (the largest) first.
        cut: whether a block begins at a position, shape ``(m,)``.
        starts: the positions where blocks begin.
        rigid: whether the block at a position has equal entries of mu only, so that nothing in it can move.
    """

    order: Indices
    cut: Mask
    starts: Indices
    rigid: Mask

    def sorted(self, values: Array) -> Indices:
        """The order with the entries of every block by decreasing value."""
        return np.asarray(self.order[np.lexsort((-values[self.order], self.cut.cumsum()))])


def make_face(order: Indices, cut: Mask, mu: Array) -> Face:
    """The face of an ordered partition; neighbouring rigid blocks with equal entries count as one."""
    starts = cut.nonzero()[0]
    ends = np.append(starts[1:], len(mu))
    stiff = mu[starts] == mu[ends - 1]
    rigid = np.repeat(stiff, ends - starts)
    level = mu[starts]
    same = stiff[1:] & stiff[:-1] & (level[1:] == level[:-1])
    if same.any():
        cut = cut.copy()
        cut[starts[1:][same]] = False
        starts = cut.nonzero()[0]
    return Face(order, cut, starts, rigid)


def tail_sums(values: Array) -> Array:
    """The sums of all entries from each position on, added from the end."""
    return np.asarray(values[::-1].cumsum()[::-1])


def contains(w: Array, tails: Array) -> bool:
    """Whether w, of the right sum, is in the permutahedron but for rounding."""
    return bool((np.sort(w).cumsum()[::-1] >= tails * (1.0 - _SLACK)).all())


def project(z: Array, a: Array, mu: Array, tails: Array, face: Face) -> tuple[Array, Face]:
    """The y nearest to z with ``a * y`` in a face of the permutahedron, and the smaller face that it lies in.

    The decomposition algorithm (Fujishige 1980, Groenevelt 1991): with nothing but the blocks' sums to keep, the
    nearest point has a closed form; where it leaves the permutahedron, the most violated sum of each block splits
    the block, and no split is ever undone.
    """
    # Weights are at most one: a target far beyond says no more than that, and costs digits.
    target, square = np.clip(a * z, -_FAR, _FAR), a * a
    while True:
        order, starts = face.order, face.starts
        part, weight = target[order], square[order]
        level = (np.add.reduceat(part, starts) - np.add.reduceat(mu, starts)) / np.add.reduceat(weight, starts)
        block = face.cut.cumsum() - 1
        w = np.where(face.rigid, mu, part - weight * level[block])
        rank = np.lexsort((-w, block))
        order, w = order[rank], w[rank]
        slack = tail_sums(w) - tails
        inside = ~(face.cut | face.rigid)
        wrong = inside & (slack < -_SLACK * (tails + tail_sums(np.abs(w))))
        if not wrong.any():
            break
        least = np.minimum.reduceat(np.where(wrong, slack, 0.0), starts)
        # Entries far smaller than the others change no sum: of the sets that tie, the smallest is what is meant.
        tied = (wrong & (slack <= least[block] * (1.0 - _SLACK))).nonzero()[0]
        cut = face.cut.copy()
        cut[tied[np.append(block[tied[1:]] != block[tied[:-1]], True)]] = True
        face = make_face(order, cut, mu)
    y = np.empty(len(mu))
    y[order] = exact_sums(w, mu, face)
    return y / a, face._replace(order=order)


def exact_sums(w: Array, mu: Array, face: Face) -> Array:
    """Weights by position without the rounding in the sums of the blocks."""
    w = np.maximum(w, 0.0)
    ratio = np.add.reduceat(mu, face.starts) / np.maximum(np.add.reduceat(w, face.starts), 1e-300)
    return np.where(face.rigid, mu, w * ratio[face.cut.cumsum() - 1])


def step_inside(w: Array, move: Array, face: Face, mu: Array, tails: Array) -> tuple[float, Face | None]:
    """The largest step in [0, 1] from a point of a face along it, and the smaller face that stops it, if any.

    The least sum of so many weights is a concave, piecewise linear function of the step: Newton's method from the
    right ends.
    """
    inside = ~(face.cut | face.rigid)
    step, order, where = 1.0, face.order, -1
    for _ in range(100):
        ranked = face.sorted(w + step * move)
        moved = move[ranked]
        start, change = tail_sums(w[ranked]), tail_sums(moved)
        rounding = _SLACK * (tails + step * tail_sums(np.abs(moved)))
        wrong = (inside & (start + step * change < tails - rounding)).nonzero()[0]
        if not len(wrong):
            break
        room = np.maximum(start[wrong] - tails[wrong], 0.0) / np.maximum(-change[wrong], 1e-300)
        least = float(room[room.argmin()])
        order, where = ranked, int(wrong[room <= least * (1.0 + _SLACK)][-1])  # ties: as in `project`
        step = min(step, least)
        if step == 0.0:
            break
    if where < 0:
        return step, None
    cut = face.cut.copy()
    cut[where] = True
    return step, make_face(order, cut, mu)
