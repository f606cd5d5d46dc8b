"""The picture in three dimensions: unit arrows that end on a sphere, on which the cones are patches."""

from __future__ import annotations

from typing import Any

import numpy as np
from matplotlib.patches import FancyArrowPatch
from mpl_toolkits.mplot3d import proj3d  # type: ignore[import-untyped]
from mpl_toolkits.mplot3d.art3d import Poly3DCollection  # type: ignore[import-untyped]

from paretograd.geometry.gramian import Array
from paretograd.reports.palette import BEHIND, CONE, DUAL, GRADIENT, LABELLED, Area, Stroke, gradient_width
from paretograd.reports.scene import Scene
from paretograd.reports.sphere import border, facet_normals, flat_sector, patch, screen, viewpoint


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
