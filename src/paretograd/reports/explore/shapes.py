"""Cone, dual cone and convex hull of gradients in two or three dimensions, as polygons and lines."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy.spatial import ConvexHull

from paretograd.geometry.gramian import Array
from paretograd.reports.scene import Sector, cone_sectors, dual_sectors
from paretograd.reports.sphere import border, facet_normals, flat_sector, patch

_TURN = 2.0 * np.pi
#: Relative size below which gradients count as lying in a line or in a plane.
_FLAT = 1e-9
#: Triangles on the sphere are divided this often: 512 of them, so that an answer stays small.
_FINENESS = 3


@dataclass(frozen=True)
class Region:
    """A cone, cut off at distance one from the origin. In space, the cut is a patch of the unit sphere.

    Attributes:
        polygons: cover it, shape ``(k, n)`` each.
        lines: its border and its extreme rays, shape ``(k, n)`` each.
        whole: whether it is everything.
    """

    polygons: tuple[Array, ...] = ()
    lines: tuple[Array, ...] = ()
    whole: bool = False

    @property
    def only_zero(self) -> bool:
        """Return True if it holds nothing but zero."""
        return not self.whole and not self.polygons and not self.lines


@dataclass(frozen=True)
class Hull:
    """The convex hull of some gradients, by their numbers.

    Attributes:
        faces: polygons that cover it (n = 2) or its surface (n = 3).
        edges: pairs of corners.
    """

    faces: tuple[tuple[int, ...], ...] = ()
    edges: tuple[tuple[int, int], ...] = ()


def cone(gradients: Array) -> Region:
    """Return the cone that the gradients (rows) span."""
    if gradients.shape[1] == 2:
        return _of_sectors(cone_sectors(gradients))
    units = _units(gradients)
    rank = _rank(units)
    if rank <= 1:
        return Region(lines=_rays(units))
    if rank == 2:
        sector = flat_sector(units)
        return Region() if sector is None else Region((sector,), (np.concatenate([sector, sector[:1]]),))
    normals = facet_normals(units)
    if not len(normals):
        return Region(whole=True)
    extreme = units[(units @ normals.T).min(axis=1) < _FLAT]
    return Region(tuple(patch(normals, _FINENESS)), (*border(normals), *_rays(extreme)))


def dual_cone(gradients: Array) -> Region:
    """Return the directions that no gradient (row) conflicts with."""
    if gradients.shape[1] == 2:
        return _of_sectors(dual_sectors(gradients))
    units = _units(gradients)
    if not len(units):
        return Region(whole=True)
    return Region(tuple(patch(units, _FINENESS)), (*border(units), *_rays(facet_normals(units))))


def hull(gradients: Array) -> Hull:
    """Return the convex hull of the gradients (rows): all their weighted averages."""
    centred = gradients - gradients.mean(axis=0)
    _, singular, right = np.linalg.svd(centred, full_matrices=False)
    rank = int((singular > _FLAT * max(float(np.abs(gradients).max()), np.finfo(float).tiny)).sum())
    inside = centred @ right[:rank].T
    if rank == 0:
        return Hull()
    if rank == 1:
        return Hull(edges=((int(inside.argmin()), int(inside.argmax())),))
    found = ConvexHull(inside)
    if rank == 2:
        corners = [int(k) for k in found.vertices]
        return Hull((tuple(corners),), tuple(zip(corners, corners[1:] + corners[:1], strict=True)))
    edges = set()
    for facet, (corners, neighbours) in enumerate(zip(found.simplices.tolist(), found.neighbors.tolist(), strict=True)):
        for k, other in enumerate(neighbours):
            bent = np.abs(found.equations[facet] - found.equations[other]).max() > _FLAT
            if bent and facet < other:
                first, second = sorted(corners[:k] + corners[k + 1 :])
                edges.add((first, second))
    return Hull(tuple(tuple(corners) for corners in found.simplices.tolist()), tuple(sorted(edges)))


def _of_sectors(sectors: list[Sector]) -> Region:
    polygons: list[Array] = []
    lines: list[Array] = []
    for sector in sectors:
        if sector.width >= _TURN:
            return Region(whole=True)
        turns = sector.start + np.linspace(0.0, sector.width, 61 if sector.width > 0.0 else 2)
        arc = np.stack([np.cos(turns), np.sin(turns)], axis=1)
        lines += _rays(arc[[0, -1]])
        if sector.width > 0.0:
            polygons.append(np.concatenate([np.zeros((1, 2)), arc]))
    return Region(tuple(polygons), tuple(lines))


def _rays(ends: Array) -> tuple[Array, ...]:
    return tuple(np.stack([np.zeros(len(end)), end]) for end in ends)


def _units(gradients: Array) -> Array:
    norms = np.linalg.norm(gradients, axis=1, keepdims=True)
    live = norms[:, 0] > 0.0
    units: Array = gradients[live] / norms[live]
    return units


def _rank(units: Array) -> int:
    return int(np.linalg.matrix_rank(units, _FLAT)) if len(units) else 0
