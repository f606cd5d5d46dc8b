"""A study's figures in the paper's form: losses and gamma over iterations, and objective space."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from io import BytesIO
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from paretograd.errors import needs
from paretograd.reports.palette import GRADIENT
from paretograd.reports.study.content import Content, Curve, Run

if TYPE_CHECKING:
    from matplotlib.figure import Figure

DPI = 150
#: Panels in a row.
_COLUMNS = 3
#: plotly's names of the line styles in matplotlib's.
DASHES: dict[str, Any] = {
    "solid": "-",
    "dash": (0, (4, 1.8)),
    "dashdot": (0, (5, 1.5, 1, 1.5)),
    "longdash": (0, (8, 2)),
    "longdashdot": (0, (9, 2, 1.5, 2)),
    "dot": (0, (1, 1.2)),
}
_STYLE: Any = {
    "font.size": 10.0,
    "font.family": "DejaVu Sans",
    "axes.edgecolor": "0.6",
    "axes.axisbelow": True,
    "axes.grid": True,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "grid.color": "0.92",
    "svg.hashsalt": "paretograd",  # the same bytes for the same study
}


def draw(content: Content) -> dict[str, bytes]:
    """Draw every figure; returns the bytes of ``name.png`` and ``name.svg``."""

    def figures() -> dict[str, Figure]:
        space = {"objective-space": objective_space(content)} if content.m > 1 else {}
        return {"dynamics": dynamics(content), **space}

    return rendered(figures)


def rendered(figures: Callable[[], dict[str, Figure]]) -> dict[str, bytes]:
    """Render figures in the style of studies; returns the bytes of ``name.png`` and ``name.svg``."""
    with needs("matplotlib", "figures need", "report"):
        from matplotlib import rc_context
    with rc_context(_STYLE):
        made = figures()
        return {f"{name}.{kind}": _render(figure, kind) for name, figure in made.items() for kind in ("png", "svg")}


def dynamics(content: Content) -> Figure:
    """Draw the shown seed over the iterations: a panel for each objective, then gamma on a log axis."""
    from matplotlib.figure import Figure

    count = content.panels + 1
    columns = min(count, _COLUMNS if count != 4 else 2)
    rows = -(-count // columns)
    figure = Figure(figsize=(4.2 * columns, 3.5 * rows + 1.0), dpi=DPI, layout=_layout())
    panels = figure.subplots(rows, columns, squeeze=False).ravel()
    for k, axes in enumerate(panels[: count - 1]):
        for run in content.shown:
            _line(axes, [run.iterations, run.losses[:, k]], run, content)
        name = f", {content.names[k]}" if content.names else ""
        axes.set_ylabel(rf"objective $f_{{{k + 1}}}${name}")
    _gamma(panels[count - 1], content)
    for axes in panels[:count]:
        axes.set_xlabel("iteration")
        axes.set_xlim(left=0)
        axes.ticklabel_format(axis="x", style="plain")
        axes.xaxis.set_major_locator(_few_ticks())
    for axes in panels[count:]:
        axes.set_axis_off()
    _legend(figure, content, columns=min(len(content.methods) + 1, 4 * columns // 2 + 1))
    note = f"the first {content.panels} of {content.m} objectives" if content.m > content.panels else ""
    figure.suptitle(_title(content, note), fontsize=11)
    return figure


def objective_space(content: Content) -> Figure:
    """Draw the paths of the shown seed and the Pareto front: in a plane, in space, or in parallel coordinates."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7.6, 5.0), dpi=DPI, layout="constrained")
    if content.m > 3:
        _parallel(figure.add_subplot(), content)
    else:
        axes = figure.add_subplot(projection="3d" if content.m == 3 else None)
        _paths(axes, content)
    _legend(figure, content, columns=1)
    figure.suptitle(_title(content, "losses at the ends of the runs" if content.m > 3 else ""), fontsize=11)
    return figure


def _gamma(axes: Any, content: Content) -> None:
    for run in content.shown:
        _line(axes, [run.iterations, run.gamma], run, content)
    axes.set_yscale("log")
    axes.set_ylabel(r"$\gamma$, distance to Pareto stationarity")
    if content.stop_gamma is not None:
        axes.axhline(content.stop_gamma, color="0.35", linewidth=1.0, linestyle=(0, (1, 1.5)), zorder=1)
        note = rf"stop at $\gamma$ < {content.stop_gamma:g}"
        axes.set_ylim(bottom=min(axes.get_ylim()[0], content.stop_gamma / 1.9))  # room for the note
        place = {"xytext": (0, -7), "textcoords": "offset points", "xycoords": ("axes fraction", "data")}
        axes.annotate(note, (1.0, content.stop_gamma), fontsize=8.5, color="0.3", va="top", ha="right", **place)


def _paths(axes: Any, content: Content) -> None:
    if len(content.front):
        if content.m == 2:
            axes.plot(*content.front.T, color=GRADIENT, linewidth=2.2, zorder=1)
        else:
            axes.scatter(*content.front.T, color="0.55", s=4, alpha=0.35, depthshade=False)
    for run in content.shown:
        _line(axes, list(run.losses.T), run, content)
        axes.plot(*run.losses[:1].T, marker="o", color="0.25", markerfacecolor="white", markersize=7, zorder=4)
    axes.set_xlabel("objective $f_1$")
    axes.set_ylabel("objective $f_2$")
    if content.m == 3:
        axes.set_zlabel("objective $f_3$")


def _parallel(axes: Any, content: Content) -> None:
    """Draw one vertical axis for each objective, from the least to the largest loss shown."""
    place = np.arange(1, content.m + 1)
    if len(content.front):
        axes.plot(place, content.scaled(content.front).T, color="0.85", linewidth=0.8, zorder=0.5)
    start = content.scaled(content.shown[0].losses[0])
    axes.plot(place, start, color="0.25", marker="o", markerfacecolor="white", linewidth=1.0, zorder=1)
    for run in content.shown:
        look, end = content.methods[run.method], content.scaled(run.losses[-1])
        axes.plot(place, end, linestyle=DASHES[look.dash], linewidth=1.6, **_end(look))
    if content.m <= 24:
        axes.set_xticks(place, [f"$f_{{{k}}}$" for k in place])
    axes.set_xlabel("objective")
    axes.set_ylabel("loss, from its least to its largest value here")
    axes.set_ylim(-0.05, 1.05)


def _line(axes: Any, columns: Sequence[NDArray[Any]], run: Run, content: Content) -> None:
    """Draw a curve with the method's marker at its end. The first curves are wider, to show below the others."""
    look, place = content.methods[run.method], list(content.methods).index(run.method)
    width = 2.3 - 0.9 * place / max(1, len(content.methods) - 1)
    axes.plot(*columns, color=look.colour, linestyle=DASHES[look.dash], linewidth=width, zorder=2)
    axes.plot(*(column[-1:] for column in columns), **_end(look), zorder=3)


def _end(look: Curve) -> dict[str, Any]:
    """Return the style of the end marker. A starred variant has a ring, which shows around its method's marker."""
    if look.dash != "solid":
        ring = {"markersize": 8.5, "markerfacecolor": "none", "markeredgewidth": 1.3}
        return {"color": look.colour, "marker": look.symbol, **ring}
    return {"color": look.colour, "marker": look.symbol, "markersize": 6.5, "markeredgewidth": 0.0}


def _legend(figure: Any, content: Content, columns: int) -> None:
    from matplotlib.lines import Line2D

    handles = [
        Line2D([], [], linestyle=DASHES[look.dash], linewidth=1.8, **_end(look)) for look in content.methods.values()
    ]
    labels = [plain(label) for label in content.methods]
    if columns == 1:  # objective space
        handles.append(Line2D([], [], color="0.25", marker="o", markerfacecolor="white", linestyle="none"))
        labels.append("start")
        if len(content.front):
            handles.append(Line2D([], [], color=GRADIENT if content.m == 2 else "0.6", linewidth=2.2))
            labels.append("Pareto front")
    place = "outside right upper" if columns == 1 else "outside lower center"
    figure.legend(handles, labels, loc=place, ncols=columns, frameon=False, handlelength=3.0, fontsize=9)


def _title(content: Content, note: str) -> str:
    title = f"{plain(content.problem)}, seed {content.seeds[0]}, lr = {plain(content.lr)}"
    return f"{title} ({note})" if note else title


def plain(text: str) -> str:
    """Escape text for matplotlib, on one line."""
    return " ".join(text.replace("$", r"\$").split())


def _layout() -> Any:
    from matplotlib.layout_engine import ConstrainedLayoutEngine

    return ConstrainedLayoutEngine(wspace=0.04, hspace=0.04)


def _few_ticks() -> Any:
    from matplotlib.ticker import MaxNLocator

    return MaxNLocator(nbins=5, integer=True)


def _render(figure: Figure, kind: str) -> bytes:
    out = BytesIO()
    figure.savefig(out, format=kind, dpi=DPI, metadata={"Date": None} if kind == "svg" else None)
    return out.getvalue()
