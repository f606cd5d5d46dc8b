"""Cones in three dimensions: their facets, and the patches and borders that they cut out of the unit sphere."""

from __future__ import annotations

from functools import cache
from itertools import combinations

import numpy as np

from paretograd.geometry.gramian import Array
from paretograd.reports.scene import cone_sectors

_TOL = 1e-9


def screen(elevation: float, azimuth: float) -> Array:
    """The two unit vectors, to the right and up, of the screen that an eye there (in degrees) looks at."""
    e, a = np.radians(elevation), np.radians(azimuth)
    right = [-np.sin(a), np.cos(a), 0.0]
    return np.array([right, [-np.sin(e) * np.cos(a), -np.sin(e) * np.sin(a), np.cos(e)]])


def viewpoint(gradients: Array, tips: Array) -> tuple[float, float]:
    """Elevation and azimuth from where tips stand apart, no gradient points at the eye, and most come towards it."""
    best, chosen = -np.inf, (25.0, 35.0)
    points = np.concatenate([gradients, tips])
    if not len(points):
        return chosen
    for elevation in np.arange(10.0, 61.0, 10.0):
        for azimuth in np.arange(-180.0, 180.0, 10.0):
            view = screen(elevation, azimuth)
            flat, near = points @ view.T, points @ np.cross(view[0], view[1])
            apart = np.linalg.norm(flat[:, None] - flat[None], axis=2) + 9.0 * np.eye(len(points))
            shortest = float(np.linalg.norm(flat[: len(gradients)], axis=1).min(initial=1.0))
            score = float(apart.min(axis=1).mean()) + 0.3 * min(shortest, 0.7) + 0.1 * float((near > 0.0).mean())
            if score > best:
                best, chosen = score, (float(elevation), float(azimuth))
    return chosen


def facet_normals(gradients: Array) -> Array:
    """Inward normals of the cone that the gradients (rows, in space) span; shape ``(f, 3)``.

    They are the extreme rays of the dual cone. Empty where the cone is the whole space or is flat.
    """
    units = _units(gradients)
    found: list[Array] = []
    for i, j in combinations(range(len(units)), 2):
        normal = np.cross(units[i], units[j])
        length = float(np.linalg.norm(normal))
        if length < _TOL:
            continue
        normal /= length
        slopes = units @ normal
        if np.abs(slopes).max() < _TOL:
            continue  # all gradients lie in one plane: the cone is flat
        for sign in (1.0, -1.0):
            new = not any(float(sign * normal @ other) > 1.0 - _TOL for other in found)
            if (sign * slopes >= -_TOL).all() and new:
                found.append(sign * normal)
    return np.array(found).reshape(-1, 3)


def flat_sector(gradients: Array) -> Array | None:
    """The cone of gradients that lie in one plane, as a polygon; None if it is not flat."""
    _, singular, right = np.linalg.svd(gradients, full_matrices=False)
    rank = int((singular > _TOL * singular.max(initial=0.0)).sum())
    sectors = cone_sectors(gradients @ right[:2].T) if rank == 2 else []
    if not sectors or sectors[0].width == 0.0:
        return None
    turns = sectors[0].start + np.linspace(0.0, sectors[0].width, 61)
    arc = np.outer(np.cos(turns), right[0]) + np.outer(np.sin(turns), right[1])
    return np.concatenate([np.zeros((1, 3)), arc])


def patch(normals: Array, fineness: int = 4) -> list[Array]:
    """Triangles (and pieces of them) that cover the part of the unit sphere where ``normals @ x >= 0``."""
    triangles = _sphere(fineness)
    heights = triangles @ normals.T  # of each corner over each plane
    inside, outside = heights.min(axis=(1, 2)) >= 0.0, heights.max(axis=1).min(axis=1) < 0.0
    pieces = []
    for i in np.flatnonzero(~outside):
        piece = triangles[i]
        for normal in () if inside[i] else normals:
            if (piece @ normal).min() < 0.0:
                piece = _clip(piece, normal)
            if len(piece) < 3:
                break
        else:
            pieces.append(piece)
    return pieces


def border(normals: Array, count: int = 361) -> list[Array]:
    """The edges of that region: arcs of the great circles orthogonal to each normal, shape ``(k, 3)`` each."""
    arcs = []
    turns = np.linspace(0.0, 2.0 * np.pi, count)
    for normal in normals:
        u = np.linalg.svd(normal[None])[2][1:]
        circle = np.cos(turns)[:, None] * u[0] + np.sin(turns)[:, None] * u[1]
        inside = (circle @ normals.T >= -1e-6).all(axis=1)
        # Where the circle leaves and enters the region it is cut into runs; start outside to keep runs whole.
        if not inside.all() and inside.any():
            shift = int(np.flatnonzero(~inside)[0])
            circle, inside = np.roll(circle[:-1], -shift, axis=0), np.roll(inside[:-1], -shift)
        cuts = np.flatnonzero(np.diff(inside.astype(int))) + 1
        runs = np.split(np.arange(len(circle)), cuts)
        arcs += [circle[run] for run in runs if inside[run[0]] and len(run) > 1]
    return arcs


def _units(vectors: Array) -> Array:
    lengths = np.linalg.norm(vectors, axis=1, keepdims=True)
    units: Array = vectors[lengths[:, 0] > 0.0] / lengths[lengths[:, 0] > 0.0]
    return units


def _clip(polygon: Array, normal: Array) -> Array:
    """The part of a convex polygon on the side of a plane through the origin that its normal points to."""
    heights = polygon @ normal
    kept: list[Array] = []
    for k in range(len(polygon)):
        a, b, ha, hb = polygon[k - 1], polygon[k], heights[k - 1], heights[k]
        if (ha < 0.0) != (hb < 0.0):
            kept.append(a + (b - a) * (ha / (ha - hb)))
        if hb >= 0.0:
            kept.append(b)
    return np.array(kept).reshape(-1, 3)


@cache
def _sphere(fineness: int) -> Array:
    """An octahedron whose faces are divided in four, and pushed out to the sphere, ``fineness`` times."""
    corners = np.concatenate([np.eye(3), -np.eye(3)])
    faces = [(0, 1, 2), (1, 3, 2), (3, 4, 2), (4, 0, 2), (1, 0, 5), (3, 1, 5), (4, 3, 5), (0, 4, 5)]
    triangles = np.array([[corners[i] for i in face] for face in faces])
    for _ in range(fineness):
        a, b, c = triangles[:, 0], triangles[:, 1], triangles[:, 2]
        ab, bc, ca = (_unit_rows(x + y) for x, y in ((a, b), (b, c), (c, a)))
        parts = [(a, ab, ca), (ab, b, bc), (ca, bc, c), (ab, bc, ca)]
        triangles = np.concatenate([np.stack(part, axis=1) for part in parts])
    triangles.setflags(write=False)  # every caller gets the same one
    return triangles


def _unit_rows(vectors: Array) -> Array:
    rows: Array = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
    return rows
