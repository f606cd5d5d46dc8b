"""The permutahedron of a spectrum, the convex hull of all its permutations: faces, projection, steps to the boundary.

Let mu be the spectrum, non-increasing. A point w lies in the permutahedron if its sum is that of mu and if, for every
j, all but the j largest entries of w sum to at least the same of mu. These *tails* avoid cancellation if mu ends in
small numbers.

Blocks are small, often a single entry, so this file works on lists: a numpy call costs as much as a dozen loop steps.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from paretograd.geometry.gramian import Array

Indices = NDArray[np.intp]

#: Rounding allowed in a sum of weights, relative to its terms.
_SLACK = 4e-15
#: Replaces squares that underflow.
_LEAST = 1e-300


class Face(NamedTuple):
    """An ordered partition of the entries of w. The entries of a block share one part of the spectrum.

    Attributes:
        blocks: the entries of every block, the block with the largest weights first.
        parts: the part of the spectrum of each block. If its numbers are equal, nothing in the block can move: the
            block is *rigid*.
    """

    blocks: list[list[int]]
    parts: list[list[float]]


def make_face(blocks: list[list[int]], mu: list[float]) -> Face:
    """The face of an ordered partition. Neighbouring rigid blocks with equal weights are merged."""
    joined: list[list[int]] = []
    parts: list[list[float]] = []
    begin = 0
    for rows in blocks:
        part = mu[begin : begin + len(rows)]
        begin += len(rows)
        if joined and part[0] == part[-1] == parts[-1][0] == parts[-1][-1]:
            joined[-1] = joined[-1] + rows
            parts[-1] = parts[-1] + part
        else:
            joined.append(rows)
            parts.append(part)
    return Face(joined, parts)


def join(face: Face, number: int, last: int, first: int, mu: list[float]) -> Face:
    """Join a block with the next one. A rigid block gives one entry only: ``last`` here, ``first`` of the next."""
    one, two = face.blocks[number : number + 2]
    giving = [last] if is_rigid(face.parts[number]) else one
    taking = [first] if is_rigid(face.parts[number + 1]) else two
    middle = [[k for k in one if k not in giving], giving + taking, [k for k in two if k not in taking]]
    return make_face([*face.blocks[:number], *filter(None, middle), *face.blocks[number + 2 :]], mu)


def pairs(face: Face, a: list[float]) -> tuple[Indices, Indices]:
    """The entries that can move freely, and the pivot that balances each of them, for weights ``a * y``.

    The pivot keeps the sum of its block constant. It is the entry with the largest ``a``, of the shortest gradient, so
    that no coefficient exceeds one.
    """
    rows: list[int] = []
    pivots: list[int] = []
    for block, part in zip(*face, strict=True):
        if not is_rigid(part):
            pivot = max(block, key=a.__getitem__)
            rows += [k for k in block if k != pivot]
            pivots += [pivot] * (len(block) - 1)
    return np.array(rows, dtype=np.intp), np.array(pivots, dtype=np.intp)


def is_rigid(part: list[float]) -> bool:
    """Return True if a block with this part of the spectrum has only one point."""
    return part[0] == part[-1]


def contains(w: Array, tails: Array) -> bool:
    """Return True if w, of the right sum, is in the permutahedron up to rounding.

    Args:
        w: shape ``(m,)``.
        tails: the sums of the spectrum's entries from each position on, added from the end.
    """
    return bool((np.sort(w).cumsum()[::-1] >= tails * (1.0 - _SLACK)).all())


def project(w: list[float], square: list[float], mu: list[float]) -> tuple[Array, Face]:
    """Return the point v of the permutahedron with the least ``sum (v - w)^2 / square``, and its face.

    This is the decomposition algorithm (Fujishige 1980, Groenevelt 1991). If only the sum of a block is fixed, the
    nearest point has a closed form. If that point leaves the permutahedron, its most violated sum splits the block. No
    split is ever undone.
    """
    w = w.copy()
    done: list[list[int]] = []
    todo = [(list(range(len(w))), mu)]
    while todo:
        rows, part = todo.pop()
        if not is_rigid(part):
            level = (sum([w[k] for k in rows]) - sum(part)) / max(sum([square[k] for k in rows]), _LEAST)
            ranked = sorted([(w[k] - square[k] * level, k) for k in rows], reverse=True)
            rows = [k for _, k in ranked]
            split = _most_violated(ranked, part)
            if split:
                todo += [(rows[split:], part[split:]), (rows[:split], part[:split])]
                continue
            for value, k in ranked:
                w[k] = value
        done.append(rows)
    face = make_face(done, mu)
    return exact_sums(w, face), face


def _most_violated(ranked: list[tuple[float, int]], part: list[float]) -> int:
    """Return where the tail of decreasing values is furthest below that of the spectrum; 0 if no tail is."""
    tail = bound = size = least = 0.0
    where = 0
    for position in range(len(ranked) - 1, 0, -1):
        value = ranked[position][0]
        tail += value
        size += abs(value)
        bound += part[position]
        gap = tail - bound
        # Entries far smaller than the others change no sum. Among sets that tie, take the smallest.
        if gap < least * (1.0 + _SLACK) and gap < -_SLACK * (bound + size):
            least, where = gap, position
    return where


def exact_sums(w: list[float], face: Face) -> Array:
    """Return the weights, shape ``(m,)``, with the sums of the blocks corrected for rounding."""
    exact = w.copy()
    for rows, part in zip(*face, strict=True):
        if not is_rigid(part):
            values = [max(w[k], 0.0) for k in rows]
            ratio = sum(part) / max(sum(values), 1e-300)
            part = [ratio * value for value in values]
        for k, value in zip(rows, part, strict=True):
            exact[k] = value
    return np.array(exact)


def step_inside(w: list[float], move: list[float], face: Face, mu: list[float]) -> tuple[float, Face | None]:
    """Return the largest step in [0, 1] along a face, and the smaller face that stops it, if any.

    The least sum of a given number of weights is a concave, piecewise linear function of the step, so Newton's method
    from the right ends after finitely many steps.
    """
    step, stop = 1.0, None
    for number, (rows, part) in enumerate(zip(*face, strict=True)):
        if is_rigid(part) or not any(move[k] for k in rows):
            continue
        for _ in range(100):
            value = {k: w[k] + step * move[k] for k in rows}
            ranked = sorted(rows, key=value.__getitem__, reverse=True)
            least, where = _first_hit(w, move, ranked, part, step)
            if not where:
                break
            stop = number, ranked, where
            if least >= step:
                break
            step = least
            if step == 0.0:
                break
    if stop is None:
        return step, None
    number, ranked, where = stop
    blocks = [*face.blocks[:number], ranked[:where], ranked[where:], *face.blocks[number + 1 :]]
    return step, make_face(blocks, mu)


def _first_hit(
    w: list[float], move: list[float], ranked: list[int], part: list[float], step: float
) -> tuple[float, int]:
    """Return the step at which the first tail reaches its bound, and the position of that tail."""
    start = change = size = bound = 0.0
    least, where = np.inf, 0
    for position in range(len(ranked) - 1, 0, -1):
        k = ranked[position]
        start += w[k]
        change += move[k]
        size += abs(move[k])
        bound += part[position]
        if start + step * change < bound - _SLACK * (bound + step * size):
            room = max(start - bound, 0.0) / max(-change, 1e-300)
            if room < least * (1.0 - _SLACK):  # ties: as in `_most_violated`
                least, where = room, position
    return least, where
