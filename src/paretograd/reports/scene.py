"""A comparison in the form in which it is drawn: gradients, directions, and the cones they span."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from paretograd.errors import ShapeError
from paretograd.geometry.gramian import Array
from paretograd.reports.compare import Comparison, Row

_TURN = 2.0 * np.pi
#: Arrows longer than this many times the shortest would hide it: all are then drawn with length one.
_SPREAD = 4.0
#: Directions closer than this, relative to their length, coincide in a picture.
_SAME = 1e-3


@dataclass(frozen=True)
class Sector:
    """Angles from ``start`` to ``start + width``; width 0 is a ray and 2 pi the whole plane."""

    start: float
    width: float


def cone_sectors(gradients: Array) -> list[Sector]:
    """The cone that the gradients (rows in the plane) span: one sector, or two rays for opposite gradients."""
    angles = _angles(gradients)
    if not len(angles):
        return []
    gaps = np.diff(np.append(angles, angles[0] + _TURN))
    last = int(gaps.argmax())
    start, width = float(angles[(last + 1) % len(angles)]), _TURN - float(gaps[last])
    if width <= np.pi + 1e-9:
        opposite = len(angles) == 2 and abs(width - np.pi) < 1e-9
        return [Sector(start, 0.0), Sector(start + np.pi, 0.0)] if opposite else [Sector(start, width)]
    return [Sector(0.0, _TURN)]


def dual_sectors(gradients: Array) -> list[Sector]:
    """The directions that no gradient (row in the plane) conflicts with; empty if there is none but zero."""
    cone = cone_sectors(gradients)
    if not cone:
        return [Sector(0.0, _TURN)]
    if len(cone) == 2:  # opposite gradients: what is orthogonal to both
        return [Sector(sector.start + np.pi / 2.0, 0.0) for sector in cone]
    start, width = cone[0].start, cone[0].width
    if width > np.pi + 1e-9:
        return []
    return [Sector(start + width - np.pi / 2.0, max(np.pi - width, 0.0))]


def _angles(vectors: Array) -> Array:
    """Distinct angles of the non-zero vectors, ascending, in [0, 2 pi)."""
    live = vectors[np.linalg.norm(vectors, axis=1) > 0.0]
    angles = np.sort(np.arctan2(live[:, 1], live[:, 0]) % _TURN)
    keep = np.diff(angles, prepend=-1.0) > 1e-9
    kept = angles[keep]
    if len(kept) > 1 and kept[0] + _TURN - kept[-1] <= 1e-9:
        kept = kept[:-1]
    return kept


@dataclass(frozen=True)
class Arrow:
    """One direction, or several that coincide.

    Attributes:
        tip: in the picture's coordinates.
        labels: the paper's names of the rules that share it.
        conflicts: objectives that go up along it (the same for all that share it).
    """

    tip: Array
    labels: tuple[str, ...]
    conflicts: tuple[int, ...]


@dataclass(frozen=True)
class Scene:
    """Gradients and directions in the coordinates of the picture.

    Attributes:
        gradients: tips, shape ``(m, 2)`` or ``(m, 3)``; a zero gradient is a zero row.
        arrows: the non-zero directions.
        zero: labels of the rules whose direction is zero.
        unit: whether every arrow has length one (before it is projected).
        axes: label of each axis.
        title: says what is seen, and of a projection how much is lost.
        projected: whether some of the space is lost.
    """

    gradients: Array
    arrows: tuple[Arrow, ...]
    zero: tuple[str, ...]
    unit: bool
    axes: tuple[str, ...]
    title: str
    projected: bool


def compose(comparison: Comparison) -> Scene:
    """Lay out a comparison: as it is for n = 2 or 3, else in the two principal directions of the gradients."""
    J, norms, n = comparison.jacobian, comparison.norms, comparison.n
    moving = [row for row in comparison.rows if row.worst_cosine is not None]
    zero = tuple(row.label for row in comparison.rows if row.worst_cosine is None)
    lengths = np.array([*norms[norms > 0.0], *(row.norm for row in moving)])
    # In space, lengths cannot be judged by eye; on the unit sphere at least the angles can.
    unit = n == 3 or bool(len(lengths) and lengths.max() > _SPREAD * lengths.min())
    units = J / np.where(norms > 0.0, norms, 1.0)[:, None]
    drawn = units if unit else J
    basis, axes, title, projected = _frame(units, n)
    arrows = tuple(_merge(moving, unit, basis))
    return Scene(drawn @ basis.T, arrows, zero, unit, axes, f"{comparison.m} gradients {title}", projected)


def _frame(units: Array, n: int) -> tuple[Array, tuple[str, ...], str, bool]:
    """Basis of the picture (rows), its axes' labels, the end of the title, and whether it loses anything."""
    if n == 1:
        raise ShapeError("a picture needs two or more parameters; with one, a gradient is only up or down")
    if n <= 3:
        names = tuple(rf"parameter $\theta_{i}$" if n == 2 else rf"$\theta_{i}$" for i in range(n))
        return np.eye(n), names, rf"in {n} parameters $\theta$", False
    # Unit gradients: otherwise the longest alone would choose the plane.
    _, singular, right = np.linalg.svd(units, full_matrices=False)
    basis = np.zeros((2, n))
    basis[: min(2, len(right))] = right[:2]
    basis *= np.where(units.sum(axis=0) @ basis.T < 0.0, -1.0, 1.0)[:, None]  # the same picture on every machine
    share = float((singular[:2] ** 2).sum() / max((singular**2).sum(), np.finfo(float).tiny))
    exact = share > 1.0 - 1e-9
    kept = "all of them" if exact else f"{100.0 * share:.0f} % of squared length"
    axes = ("first principal direction", "second principal direction")
    title = f"in {n} parameters, projected onto\ntheir first two principal directions ({kept})"
    return basis, axes, title, not exact


def _merge(rows: list[Row], unit: bool, basis: Array) -> list[Arrow]:
    """One arrow for all directions that coincide."""
    groups: list[tuple[Array, list[Row]]] = []
    for row in rows:
        vector = row.direction / row.norm if unit else row.direction
        size = float(np.linalg.norm(vector))
        for other, members in groups:
            if row.conflicts == members[0].conflicts and np.linalg.norm(vector - other) <= _SAME * size:
                members.append(row)
                break
        else:
            groups.append((vector, [row]))
    return [
        Arrow(basis @ vector, tuple(row.label for row in members), members[0].conflicts) for vector, members in groups
    ]
