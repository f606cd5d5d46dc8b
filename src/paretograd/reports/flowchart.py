"""The picture of `paretograd theorems`: how the results follow from each other, and the rules beside each."""

from __future__ import annotations

import textwrap
from dataclasses import dataclass
from typing import TYPE_CHECKING

from paretograd.reports.coverage import Coverage
from paretograd.reports.words import short_name

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

#: Inches; all coordinates below are inches from the lower left corner.
SIZE = (8.6, 5.5)

_GREY, _WHITE = "#C4C4C4", "#FFFFFF"
#: Height of a box, and of a line of text.
_BOX, _LINE = 0.66, 0.19
_ANGLE = "angle"


@dataclass(frozen=True)
class Box:
    """A result: where its box stands and its colour, both as in the paper's overview, and what it asks for."""

    x: float
    y: float
    width: float
    colour: str
    caption: str


@dataclass(frozen=True)
class Names:
    """Where the rules of a result are listed: left edge, middle, and characters in a line."""

    x: float
    y: float
    width: int


_BOXES = {
    "thm:PS-fd": Box(0.1, 5.02, 2.05, _GREY, "non-convex objectives"),
    _ANGLE: Box(0.1, 2.55, 2.05, _WHITE, "classical, one objective"),
    "thm:PScvx-fun": Box(0.1, 1.3, 2.05, _GREY, "convex, all $f_k$ decrease"),
    "thm:PS-cvx": Box(3.15, 5.02, 2.05, "#D9CFE3", "condition (A)"),
    "thm:cvg_nonconflict": Box(3.15, 3.78, 2.05, "#F4CCCC", "hull & non-conflicting"),
    "thm:PS_proj_cvg": Box(3.15, 2.54, 2.05, "#D9EAD3", "projection to dual cone"),
    "thm:PSreg": Box(3.15, 1.3, 2.05, "#CFE2F3", "primal-dual"),
}
_NAMES = {
    "thm:PS-fd": Names(0.66, 3.82, 10),
    "thm:PS-cvx": Names(5.72, 5.02, 28),
    "thm:cvg_nonconflict": Names(5.72, 3.78, 28),
    "thm:PS_proj_cvg": Names(5.72, 2.54, 28),
    "thm:PSreg": Names(5.72, 1.3, 28),
}


def draw(found: Coverage) -> Figure:
    """The paper's overview figure, with the rules that the guarantees name."""
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    with rc_context({"font.size": 10.5, "font.family": "DejaVu Sans"}):
        figure = Figure(figsize=SIZE, facecolor="white")
        axes = figure.add_axes((0.0, 0.0, 1.0, 1.0))
        axes.set(xlim=(0.0, SIZE[0]), ylim=(0.0, SIZE[1]))
        axes.axis("off")
        for label, box in _BOXES.items():
            _draw_box(axes, box, "Angle condition" if label == _ANGLE else short_name(label))
        for label, place in _NAMES.items():
            _draw_names(axes, label, place, found.labels(label))
        _draw_arrows(axes)
        _draw_uncovered(axes, [rule.label for rule in found.uncovered])
    return figure


def _draw_box(axes: Axes, box: Box, title: str) -> None:
    from matplotlib.patches import FancyBboxPatch

    rounded = "round,pad=0,rounding_size=0.09"
    corner = (box.x, box.y - _BOX / 2)
    axes.add_patch(FancyBboxPatch(corner, box.width, _BOX, rounded, facecolor=box.colour, edgecolor="black", lw=1.2))
    middle = box.x + box.width / 2
    axes.text(middle, box.y + 0.13, title, ha="center", va="center", weight="bold", size=11.0)
    axes.text(middle, box.y - 0.15, box.caption, ha="center", va="center", size=9.5)


def _draw_names(axes: Axes, label: str, place: Names, rules: list[str]) -> None:
    """The rules in a frame, joined to their result by a dashed arrow."""
    from matplotlib.patches import Rectangle

    lines = _wrap(rules, place.width)
    height, width = _LINE * len(lines) + 0.18, 0.092 * place.width + 0.2
    axes.add_patch(Rectangle((place.x, place.y - height / 2), width, height, fill=False, edgecolor="0.45", lw=1.0))
    axes.text(place.x + 0.12, place.y, "\n".join(lines), va="center", linespacing=1.25)
    box = _BOXES[label]
    if place.x > box.x + box.width:
        _arrow(axes, (box.x + box.width, box.y), (place.x, place.y), dashed=True)
    else:
        middle = place.x + width / 2
        _arrow(axes, (middle, box.y - _BOX / 2), (middle, place.y + height / 2), dashed=True)


def _draw_arrows(axes: Axes) -> None:
    """Which result gives which; Theorem 3 has a proof of its own."""
    first, hull, safe, cone, dual = (
        _BOXES[label] for label in ("thm:PS-fd", "thm:PS-cvx", "thm:cvg_nonconflict", "thm:PS_proj_cvg", "thm:PSreg")
    )
    angle = _BOXES[_ANGLE]
    _arrow(axes, (first.x + first.width, first.y), (hull.x, hull.y))
    axes.text((first.x + first.width + hull.x) / 2, hull.y + 0.06, "convex hull", ha="center", va="bottom", size=9.5)
    _arrow(axes, (0.28, first.y - _BOX / 2), (0.28, angle.y + _BOX / 2))
    axes.text(0.38, angle.y + _BOX / 2 + 0.1, "m = 1", va="bottom", size=9.5)
    for above, below in ((hull, safe), (safe, cone)):
        middle = above.x + above.width / 2
        _arrow(axes, (middle, above.y - _BOX / 2), (middle, below.y + _BOX / 2))
    bend = "arc3,rad=0.3"
    _arrow(axes, (hull.x, hull.y - 0.18), (dual.x, dual.y + 0.12), bend=bend)


def _draw_uncovered(axes: Axes, rules: list[str]) -> None:
    from matplotlib.patches import Rectangle

    axes.add_patch(Rectangle((0.1, 0.2), SIZE[0] - 0.2, 0.42, fill=False, edgecolor="0.45", lw=1.0, ls=(0, (4, 3))))
    axes.text(0.25, 0.41, "No theorem:", va="center", weight="bold")
    axes.text(1.55, 0.41, ", ".join(rules), va="center")


def _arrow(
    axes: Axes, start: tuple[float, float], end: tuple[float, float], dashed: bool = False, bend: str = "arc3"
) -> None:
    style = {
        "arrowstyle": "-|>",
        "connectionstyle": bend,
        "color": "0.45" if dashed else "black",
        "linestyle": (0, (4, 3)) if dashed else "-",
        "lw": 1.2,
        "shrinkA": 0,
        "shrinkB": 0,
        "mutation_scale": 12,
    }
    axes.annotate("", xy=end, xytext=start, arrowprops=style)


def _wrap(rules: list[str], width: int) -> list[str]:
    """Names separated by commas, none broken in its middle."""
    text = ", ".join(rule.replace(" ", "\xa0") for rule in rules)
    lines = textwrap.wrap(text, width, break_on_hyphens=False, break_long_words=False)
    return [line.replace("\xa0", " ") for line in lines]
