"""Pictures of a comparison: gradients, their cone and dual cone, and where each rule goes."""

from __future__ import annotations

import os
import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from paretograd.errors import InputError, needs
from paretograd.reports.compare import Comparison
from paretograd.reports.palette import CONE, DUAL, GRADIENT, LABELLED, Stroke, stroke
from paretograd.reports.scene import Arrow, Scene, compose

if TYPE_CHECKING:
    from matplotlib.artist import Artist
    from matplotlib.figure import Figure

#: Inches and dots per inch.
SIZE = (9.0, 6.0)
DPI = 150
#: Characters in a line of the legend.
_LEGEND_WIDTH = 38
SUFFIXES = (".png", ".pdf", ".svg")


def check_target(path: Path) -> None:
    """Raise early if a picture cannot be drawn, or not be written there."""
    if path.suffix.lower() not in SUFFIXES:
        given = f"{path.suffix!r}" if path.suffix else "no suffix"
        raise InputError(f"a picture is written as {', '.join(SUFFIXES)}, by the name's suffix; {path} has {given}")
    if path.is_dir():
        raise InputError(f"{path} is a folder; name a file for the picture, such as {path / 'compare.png'}")
    with needs("matplotlib", "pictures need", "plot"):
        import matplotlib  # noqa: F401


def draw(comparison: Comparison) -> Figure:
    """A figure of 9 by 6 inches: the scene on the left, its legend on the right, a caption below."""
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    scene = compose(comparison)
    strokes = [stroke(i, dashed=bool(arrow.conflicts)) for i, arrow in enumerate(scene.arrows)]
    with rc_context({"font.size": 10, "hatch.linewidth": 0.6, "axes.edgecolor": "0.6"}):
        figure = Figure(figsize=SIZE, dpi=DPI)
        if len(scene.axes) == 3:
            from paretograd.reports.space import draw_space

            seen = draw_space(figure.add_axes((0.01, 0.06, 0.6, 0.86), projection="3d"), scene, strokes)
        else:
            from paretograd.reports.plane import draw_plane

            seen = draw_plane(figure.add_axes((0.09, 0.19, 0.5, 0.7)), scene, strokes)
        figure.suptitle(scene.title, x=0.03, y=0.975, ha="left", fontsize=11)
        handles, labels = _legend(scene, strokes, *seen)
        size = 9.0 * min(1.0, 28.0 / sum(1 + label.count("\n") for label in labels))
        look = {"frameon": False, "fontsize": size, "handlelength": 3.2}
        figure.legend(handles, labels, loc="upper left", bbox_to_anchor=(0.62, 0.97), **look)
        figure.text(0.03, 0.015, textwrap.fill(caption(scene), 128), fontsize=8.5, color="0.25", va="bottom")
    return figure


def save(figure: Figure, path: Path) -> None:
    """Write a figure as its suffix says: whole or not at all. Folders on the way are made."""
    check_target(path)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        half = path.with_name(f".{path.name}.{os.getpid()}.part")
        try:
            figure.savefig(half, format=path.suffix.lower()[1:], dpi=DPI)
            half.replace(path)
        finally:
            half.unlink(missing_ok=True)
    except OSError as error:
        raise InputError(f"cannot write {path}: {error.strerror or error}") from None


def caption(scene: Scene) -> str:
    """How to read the picture, in words."""
    parts = ["Parameters move along -d."]
    if scene.projected:
        parts.append(
            "Both cones are those of the projected gradients. A short arrow leaves the plane, and may be free of "
            "conflicts outside this dual cone: trust the line style."
        )
    else:
        if len(scene.axes) == 3:
            parts.append("The cones are drawn as patches of the unit sphere, on which every arrow ends.")
        parts.append("A direction in the dual cone increases no objective; one in the cone has weights >= 0.")
    parts.append("Solid, filled: no conflict. Dashed, hollow: some objective goes up.")
    if len(scene.gradients) > LABELLED:
        parts.append(f"More than {LABELLED} gradients go without their names.")
    if scene.unit:
        parts.append(f"Every arrow has length 1{' before projection' if scene.projected else ''}: norms are not shown.")
    return " ".join(parts)


def _legend(scene: Scene, strokes: list[Stroke], whole: bool, open_dual: bool) -> tuple[list[Artist], list[str]]:
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    dual = DUAL.patch() if len(scene.axes) == 2 else {**DUAL.patch(), "hatch": ""}
    handles: list[Artist] = [
        Line2D([], [], color=GRADIENT, linewidth=3.0, marker=">", markersize=7),
        Patch(**CONE.patch()),
        Patch(**dual),
    ]
    labels = [
        "gradients $g_k$" + (", projected" if scene.projected else ""),
        "their cone" + (" (here everything)" if whole else ""),
        "their dual cone" + (": no objective goes up" if open_dual else " (here only zero)"),
    ]
    for arrow, look in zip(scene.arrows, strokes, strict=True):
        handles.append(Line2D([], [], **{**look.marker(), **look.line()}))
        labels.append(_entry(arrow))
    if scene.zero:
        handles.append(Line2D([], [], color=GRADIENT, marker="o", markersize=4, linestyle="none"))
        labels.append(_wrap(scene.zero, "d = 0: "))
    return handles, labels


def _entry(arrow: Arrow) -> str:
    rules = _wrap(arrow.labels)
    if not arrow.conflicts:
        return rules
    against = ", ".join(f"$g_{{{k}}}$" for k in arrow.conflicts[:4]) + (", ..." if len(arrow.conflicts) > 4 else "")
    room = _LEGEND_WIDTH - len(rules.rpartition("\n")[2]) >= 16 + 4 * min(len(arrow.conflicts), 5)
    return f"{rules}{' ' if room else chr(10)}(conflicts with {against})"


def _wrap(labels: Sequence[str], start: str = "") -> str:
    """Rules separated by commas, none broken in its middle."""
    text = start + ", ".join(label.replace(" ", "\xa0") for label in labels)
    return textwrap.fill(text, _LEGEND_WIDTH, break_on_hyphens=False).replace("\xa0", " ")
