"""The picture in two dimensions: cone and dual cone as wedges, gradients and directions as arrows."""

from __future__ import annotations

import numpy as np
from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from matplotlib.patches import Circle, Wedge

from paretograd.geometry.gramian import Array
from paretograd.reports.palette import BEHIND, CONE, DUAL, GRADIENT, LABELLED, Stroke, gradient_width
from paretograd.reports.scene import Scene, cone_sectors, dual_sectors


def draw_plane(axes: Axes, scene: Scene, strokes: list[Stroke]) -> tuple[bool, bool]:
    """Draw a scene with two coordinates; one stroke for each of its arrows.

    Returns:
        whether the cone is the whole plane, and whether the dual cone holds more than zero.
    """
    tips = [scene.gradients, *(arrow.tip[None] for arrow in scene.arrows)]
    reach = float(max(np.linalg.norm(tip, axis=1).max() for tip in tips)) or 1.0
    far = 4.0 * reach
    cone, dual = cone_sectors(scene.gradients), dual_sectors(scene.gradients)
    for style, sectors in ((CONE, cone), (DUAL, dual)):
        for sector in sectors:
            if sector.width > 0.0:
                bounds = np.degrees([sector.start, sector.start + sector.width])
                axes.add_patch(Wedge((0.0, 0.0), far, *bounds, **style.patch()))
            else:
                end = far * np.array([np.cos(sector.start), np.sin(sector.start)])
                axes.add_line(Line2D([0.0, end[0]], [0.0, end[1]], color=style.edge, linewidth=3.0, alpha=0.6))
    if scene.unit and not scene.projected:
        axes.add_patch(Circle((0.0, 0.0), 1.0, fill=False, edgecolor="0.75", linewidth=0.8, zorder=1.5))
    for tip in scene.gradients:
        if np.linalg.norm(tip) > 0.0:
            _gradient(axes, tip, gradient_width(len(scene.gradients)))
    for arrow, stroke in zip(scene.arrows, strokes, strict=True):
        axes.plot([0.0, arrow.tip[0]], [0.0, arrow.tip[1]], **stroke.line(), zorder=4, solid_capstyle="round")
        axes.plot(*arrow.tip, **stroke.marker(), zorder=5)
    axes.plot(0.0, 0.0, "o", color=GRADIENT, markersize=4, zorder=6)
    placed = _label_gradients(axes, scene.gradients, reach)
    _frame(axes, np.concatenate([*tips, placed, np.zeros((1, 2))]), reach)
    axes.set_xlabel(scene.axes[0])
    axes.set_ylabel(scene.axes[1])
    return any(sector.width > np.pi + 1e-9 for sector in cone), bool(dual)


def _gradient(axes: Axes, tip: Array, width: float) -> None:
    look = {"arrowstyle": "-|>,head_width=0.35,head_length=0.7", "color": GRADIENT, "linewidth": width}
    axes.annotate("", xy=(tip[0], tip[1]), xytext=(0.0, 0.0), arrowprops={**look, "shrinkA": 0, "shrinkB": 0})


def _label_gradients(axes: Axes, gradients: Array, reach: float) -> Array:
    """Write the names beyond the tips, further out where another name is in the way; return where they stand."""
    step, placed = 0.1 * reach, [np.zeros(2)]
    for k, tip in enumerate(gradients if len(gradients) <= LABELLED else []):
        length = float(np.linalg.norm(tip))
        if length == 0.0:
            continue
        along = tip / length
        spot = tip + step * along
        while min(float(np.linalg.norm(spot - other)) for other in placed) < 1.1 * step:
            spot = spot + 0.5 * step * along
        placed.append(spot)
        axes.text(
            spot[0],
            spot[1],
            f"$g_{{{k}}}$",
            ha="center",
            va="center",
            fontsize=13,
            color=GRADIENT,
            bbox=BEHIND,
            zorder=7,
        )
    return np.array(placed)


def _frame(axes: Axes, points: Array, reach: float) -> None:
    """A square that holds every point, with a margin."""
    low, high = points.min(axis=0), points.max(axis=0)
    side = 0.5 * float((high - low).max()) + 0.12 * reach
    centre = 0.5 * (low + high)
    axes.set_xlim(centre[0] - side, centre[0] + side)
    axes.set_ylim(centre[1] - side, centre[1] + side)
    axes.set_aspect("equal")
    axes.grid(color="0.92", linewidth=0.8)
    axes.set_axisbelow(True)
