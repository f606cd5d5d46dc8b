"""The picture in three dimensions: unit arrows that end on a sphere, on which the cones are patches."""

from __future__ import annotations

from itertools import combinations
from typing import Any

import numpy as np
from matplotlib.patches import FancyArrowPatch
from mpl_toolkits.mplot3d import proj3d  # type: ignore[import-untyped]
from mpl_toolkits.mplot3d.art3d import Poly3DCollection  # type: ignore[import-untyped]

from paretograd.geometry.gramian import Array
from paretograd.reports.palette import BEHIND, CONE, DUAL, GRADIENT, LABELLED, Area, Stroke, gradient_width
from paretograd.reports.scene import Scene, cone_sectors

_TOL = 1e-9


def draw_space(axes: Any, scene: Scene, strokes: list[Stroke]) -> tuple[bool, bool]:
    """Draw a scene with three coordinates on 3-D axes; one stroke for each of its arrows.

    Returns:
        whether the cone is the whole space, and whether the dual cone holds more than zero.
    """
    axes.computed_zorder = False  # by meaning, not by depth: gradients over areas, directions over gradients
    live = scene.gradients[np.linalg.norm(scene.gradients, axis=1) > 0.0]
    tips = np.array([arrow.tip for arrow in scene.arrows]).reshape(-1, 3)
    elevation, azimuth = viewpoint(live, tips)
    axes.view_init(elevation, azimuth)
    _globe(axes)
    normals, flat = facet_normals(live), flat_sector(live)
    if flat is not None:
        axes.add_collection3d(_filled([flat], CONE))
    _region(axes, normals, CONE)
    open_dual = _region(axes, live, DUAL)
    for tip in live:
        axes.add_artist(_Arrow(tip, gradient_width(len(live))))
    for arrow, stroke in zip(scene.arrows, strokes, strict=True):
        axes.plot(*np.stack([np.zeros(3), arrow.tip]).T, **stroke.line(), zorder=4)
        axes.plot(*arrow.tip[:, None], **stroke.marker(), zorder=5)
    axes.plot([0.0], [0.0], [0.0], "o", color=GRADIENT, markersize=4, zorder=6)
    names = _label_gradients(axes, scene.gradients)
    _name_axes(axes, scene.axes, screen(elevation, azimuth), names)
    limits = (-0.8, 0.8)
    axes.set(xlim=limits, ylim=limits, zlim=limits)
    axes.set_box_aspect((1, 1, 1), zoom=1.0)
    axes.set_proj_type("ortho")
    axes.set_axis_off()  # the box of 3-D axes, seen through the cones, says nothing that the three lines do not
    whole = not len(normals) and len(live) > 3 and bool(np.linalg.matrix_rank(live) == 3)
    return whole, open_dual


class _Arrow(FancyArrowPatch):
    """An arrow from the origin whose head keeps its shape however the axes are turned."""

    def __init__(self, tip: Array, width: float) -> None:
        look = "-|>,head_width=4,head_length=8"
        super().__init__((0, 0), (0, 0), arrowstyle=look, color=GRADIENT, lw=width, shrinkA=0, shrinkB=0, zorder=3)
        self._tip = tip

    def do_3d_projection(self, renderer: Any = None) -> float:
        ends = np.stack([np.zeros(3), self._tip])
        x, y, z = proj3d.proj_transform(*ends.T, self.axes.M)  # type: ignore[union-attr]
        self.set_positions((x[0], y[0]), (x[1], y[1]))
        return float(np.min(z))


def _globe(axes: Any) -> None:
    """A faint sphere of radius one, on which all arrows end."""
    turns = np.linspace(0.0, 2.0 * np.pi, 91)
    flat = np.zeros_like(turns)
    for i in range(3):
        circle = [np.cos(turns), np.sin(turns)]
        circle.insert(i, flat)
        axes.plot(*circle, color="0.8", linewidth=0.7, zorder=0.2)


def _name_axes(axes: Any, names: tuple[str, ...], view: Array, taken: Array) -> None:
    """Three lines through the origin, named at their positive ends, outside the sphere as the eye sees it."""
    axes.set(xlabel=names[0], ylabel=names[1], zlabel=names[2])
    for direction, name in zip(np.eye(3), names, strict=True):
        across, up = view @ direction
        length = min(1.12 / max(float(np.hypot(across, up)), 0.4), 2.5)
        while len(taken) and np.linalg.norm(taken @ view.T - length * view @ direction, axis=1).min() < 0.17:
            length += 0.1
        line = np.stack([-1.1 * direction, length * direction])
        axes.plot(*line.T, color="0.6", linewidth=0.8, zorder=1.0)
        side = "center" if abs(across) < 0.3 * abs(up) else "left" if across > 0.0 else "right"
        level = "center" if side != "center" else "bottom" if up > 0.0 else "top"
        axes.text(*((length + 0.04) * direction), name, ha=side, va=level, fontsize=12, color="0.4", zorder=1.1)


def _region(axes: Any, normals: Array, style: Area) -> bool:
    """Fill where ``normals @ x >= 0`` on the sphere; return whether there is such an x."""
    if not len(normals):
        return False
    pieces, arcs = patch(normals), border(normals)
    if pieces:
        axes.add_collection3d(_filled(pieces, style))
    for arc in arcs:
        axes.plot(*arc.T, color=style.edge, linewidth=1.4, zorder=style.zorder + 0.2)
    return bool(pieces or arcs)


def _filled(polygons: list[Array], style: Area) -> Poly3DCollection:
    # Matplotlib 3.11 fills shorter polygons up with whatever lies in memory: with their last corner they are as long.
    longest = max(map(len, polygons))
    even = [np.concatenate([found, np.repeat(found[-1:], longest - len(found), axis=0)]) for found in polygons]
    filled = Poly3DCollection(even, facecolor=style.face, alpha=style.alpha, edgecolor="none")
    filled.set_zorder(style.zorder)
    filled.set_rasterized(True)  # in a pdf or svg, thousands of triangles would show their seams
    return filled


def _label_gradients(axes: Any, gradients: Array) -> Array:
    """Write the names beyond the tips; return where they stand."""
    shown = [(k, 1.14 * tip) for k, tip in enumerate(gradients) if np.linalg.norm(tip) > 0.0]
    if len(shown) > LABELLED:
        return np.empty((0, 3))
    for k, spot in shown:
        axes.text(*spot, f"$g_{{{k}}}$", ha="center", va="center", fontsize=13, color=GRADIENT, bbox=BEHIND, zorder=7)
    return np.array([spot for _, spot in shown]).reshape(-1, 3)


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
    pieces = []
    for triangle in _sphere(fineness):
        piece = triangle
        for normal in normals:
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
    return triangles


def _unit_rows(vectors: Array) -> Array:
    rows: Array = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
    return rows
