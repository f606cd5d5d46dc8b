"""Draw the figures of guide/between.md into docs/assets: `python docs/make_between_figures.py`.

Every number comes from the library; the style is that of `make_figures`.
"""

import itertools
import math
from collections.abc import Callable
from typing import NamedTuple

import matplotlib.pyplot as plt
import torch
from make_figures import ASSETS, GRADIENT, STYLE, arrow, save
from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from matplotlib.patches import Polygon, Rectangle
from matplotlib.ticker import NullFormatter
from torch import Tensor

import paretograd as pg

#: Three gradients in the plane. The second is short and conflicts with the first: the mean increases its objective.
J = torch.tensor([[3.2, 0.2], [-1.1, 0.8], [0.7, 2.0]], dtype=torch.float64)
G = J @ J.T
HULL, INK = "#e4e8ef", "#222222"
#: Limits of the panels in the first figure.
WINDOW = ((-0.22, 1.21), (0.42, 1.28))


class Mark(NamedTuple):
    """A parameter value marked on a path, with the position of its label, in points, and its alignment."""

    value: float
    offset: tuple[float, float] = (-6.0, 5.0)
    align: str = "right"


class Dial(NamedTuple):
    """A family of rules with one parameter.

    Attributes:
        symbol: the symbol of the parameter.
        rule: returns the rule for a value of the parameter and m objectives.
        at: returns the value for a position from 0 (the mean) to 1 (MGDA).
        marks: values to mark.
        limits: both ends of the parameter's axis, that of the mean first.
        ticks: ticks on that axis.
        axis: label of the axis.
    """

    label: str
    colour: str
    symbol: str
    rule: Callable[[float, int], pg.Aggregator]
    at: Callable[[float], float]
    marks: tuple[Mark, ...]
    limits: tuple[float, float]
    ticks: tuple[float, ...]
    axis: str


def geometric(q: float, m: int) -> pg.Aggregator:
    """Return a spectrum in which every objective counts q times as much as the next worse one."""
    return pg.SpectralMGDA([q**i for i in range(m)])


DIALS = (
    Dial(
        "Entropic MGDA",
        "#1f5fbf",
        "t",
        lambda t, m: pg.EntropicMGDA(temperature=t),
        lambda s: 10.0 ** (3.0 - 7.0 * s),
        (Mark(1.0), Mark(0.3), Mark(0.1)),
        (100.0, 0.001),
        (100.0, 1.0, 0.01),
        "temperature $t$",
    ),
    Dial(
        "Spectral MGDA",
        "#16806a",
        "q",
        geometric,
        lambda s: 1.0 - s,
        (Mark(0.8), Mark(0.6), Mark(0.3, (8.0, -9.0), "left")),
        (1.0, 0.1),
        (1.0, 0.5, 0.2, 0.1),
        "ratio $q$ of the spectrum",
    ),
    Dial(
        "Chi-square MGDA",
        "#b36b00",
        "\\rho",
        lambda radius, m: pg.ChiSquareMGDA(radius=radius),
        lambda s: s * s,
        (Mark(0.05), Mark(0.2), Mark(0.5)),
        (0.001, 4.0),
        (0.001, 0.01, 0.1, 1.0),
        "radius $\\rho$",
    ),
    Dial(
        "Capped MGDA",
        "#8e44ad",
        "C",
        lambda C, m: pg.CappedMGDA(cap=C),
        lambda s: (1.0 + 2.0 * s) / 3.0,
        (Mark(0.4), Mark(0.5), Mark(0.6)),
        (0.2, 1.0),
        (0.2, 0.3, 0.5, 1.0),
        "cap $C$",
    ),
    Dial(
        "Power mean",
        "#c2185b",
        "p",
        lambda p, m: pg.PowerMean(p=p),
        lambda s: 1.0 - 10.0 ** (-3.0 + 6.0 * s),
        (Mark(0.5, (4.0, -15.0), "left"), Mark(0.0), Mark(-3.0, (8.0, -4.0), "left")),
        (0.01, 100.0),
        (0.01, 1.0, 100.0),
        "$1 - p$",
    ),
)


def draw_hull(axes: Axes) -> None:
    """Draw the convex hull and the two ends of every path."""
    axes.add_patch(Polygon(J.tolist(), facecolor=HULL, edgecolor="#9aa5b5", lw=0.8, zorder=1))
    axes.plot(*pg.Mean()(J).tolist(), "s", color=INK, ms=6, zorder=6)
    axes.plot(*pg.MGDA()(J).tolist(), "o", color=INK, ms=6, zorder=6)


def overview(axes: Axes) -> None:
    """Draw the gradients, and the part of the plane that the other panels show."""
    draw_hull(axes)
    for g, name, offset in zip(J, ("$g_1$", "$g_2$", "$g_3$"), ((-6, 8), (-6, 7), (6, 2)), strict=True):
        arrow(axes, g, GRADIENT, 1.8)
        axes.annotate(name, g.tolist(), offset, textcoords="offset points", color=GRADIENT, fontsize=12)
    (left, right), (bottom, top) = WINDOW
    axes.add_patch(Rectangle((left, bottom), right - left, top - bottom, fill=False, ec=INK, lw=1, ls="--", zorder=5))
    axes.text(1.75, 1.5, "convex hull of\nthe gradients", fontsize=9, color="#5a6675")
    axes.set(xlim=(-1.45, 3.5), ylim=(-0.25, 2.6), aspect="equal")
    axes.set_title("the other panels zoom into the box", fontsize=10)
    axes.axis("off")


def path(axes: Axes, dial: Dial) -> None:
    """Draw the path of the direction from the mean to MGDA."""
    draw_hull(axes)
    steps = torch.linspace(0.0, 1.0, 121).tolist()
    curve = torch.stack([dial.rule(dial.at(s), 3)(J) for s in steps])
    axes.plot(*curve.T.tolist(), color=dial.colour, lw=2.4, zorder=4, solid_capstyle="round")
    for mark in dial.marks:
        d = dial.rule(mark.value, 3)(J).tolist()
        axes.plot(*d, "o", color="white", mec=dial.colour, mew=1.8, ms=6, zorder=5)
        text = f"${dial.symbol} = {mark.value:g}$"
        axes.annotate(text, d, mark.offset, textcoords="offset points", ha=mark.align, color=dial.colour, zorder=7)
    if dial.symbol == "p":
        axes.annotate("DualProj", pg.DualProj()(J).tolist(), (0, 8), textcoords="offset points", ha="center")
    axes.annotate("Mean", pg.Mean()(J).tolist(), (8, -4), textcoords="offset points")
    axes.annotate("MGDA", pg.MGDA()(J).tolist(), (-2, -15), textcoords="offset points", ha="center")
    axes.set(xlim=WINDOW[0], ylim=WINDOW[1], aspect="equal", xticks=[], yticks=[])
    axes.set_title(dial.label, color=dial.colour, fontweight="bold")
    for spine in axes.spines.values():
        spine.set(visible=True, color="#b5bcc6")


def paths() -> None:
    """Draw the paths of the direction, one panel per family."""
    figure, panels = plt.subplots(2, 3, figsize=(9.0, 4.5), layout="constrained")
    overview(panels[0, 0])
    for axes, dial in zip(panels.flat[1:], DIALS, strict=True):
        path(axes, dial)
    save(figure, "between-paths")


def five() -> Tensor:
    """Return five gradients of lengths 0.5 to 2.5, some of which conflict."""
    generator = torch.Generator().manual_seed(9)
    rows = torch.randn(5, 8, generator=generator, dtype=torch.float64)
    lengths = torch.tensor([0.5, 0.8, 1.2, 1.8, 2.5], dtype=torch.float64)
    return rows / rows.norm(dim=1, keepdim=True) * lengths[:, None]


def weights() -> None:
    """Draw the weights of five objectives along each path, with MGDA on the right."""
    gramian = pg.gramian(five())
    colours = ("#d1495b", "#e69f00", "#2a9d8f", "#3b6fb6", "#6c4a8c")
    figure, panels = plt.subplots(2, 3, figsize=(9.0, 5.6), layout="constrained")
    for axes, dial in zip(panels.flat, DIALS, strict=False):
        start, end = (math.log10(limit) for limit in dial.limits)
        grid = torch.logspace(start, end, 241, dtype=torch.float64).clamp(min(dial.limits), max(dial.limits)).tolist()
        rules = [dial.rule(1.0 - v if dial.symbol == "p" else v, 5) for v in grid]
        lines = torch.stack([rule.weights(gramian) for rule in rules])
        lines /= lines.sum(1, keepdim=True)
        for k, colour in enumerate(colours):
            axes.plot(grid, lines[:, k].tolist(), color=colour, lw=2, label=f"objective {k + 1}")
        axes.set(xscale="log", xlim=dial.limits, ylim=(-0.01, 0.55), xlabel=dial.axis)
        axes.set_xticks(dial.ticks, [f"{tick:g}" for tick in dial.ticks])
        axes.xaxis.set_minor_formatter(NullFormatter())
        axes.set_title(dial.label, color=dial.colour, fontweight="bold")
    for axes in panels[:, 0]:
        axes.set_ylabel("weight $w_k$")
    panels[1, 1].set_ylabel("weight $w_k$ / sum")
    panels[1, 2].axis("off")
    handles, _ = panels[0, 0].get_legend_handles_labels()
    names = [f"objective {k + 1}, $|g_{k + 1}| = {g.norm():.1f}$" for k, g in enumerate(five())]
    panels[1, 2].legend(handles, names, loc="upper left", fontsize=11, labelspacing=0.6, borderaxespad=0.0)
    ends = "left end: the mean\n(power mean: DualProj)\nright end: MGDA"
    panels[1, 2].text(0.02, 0.02, ends, transform=panels[1, 2].transAxes, fontsize=11)
    save(figure, "between-weights")


CORNERS = torch.tensor([[0.0, 0.0], [0.5, 0.75**0.5], [1.0, 0.0]], dtype=torch.float64)
CENTER = torch.full((3,), 1.0 / 3.0, dtype=torch.float64)


def flat(w: Tensor) -> Tensor:
    """Map weights of shape (..., 3) to points of the triangle."""
    return w @ CORNERS


def hexagon(spectrum: tuple[float, ...]) -> Tensor:
    """Return the permutahedron of a spectrum: all its permutations, ordered by angle."""
    points = flat(torch.tensor(list(itertools.permutations(spectrum)), dtype=torch.float64))
    around = points - flat(CENTER)
    return points[torch.atan2(around[:, 1], around[:, 0]).argsort()]


def level_set(divergence: Callable[[Tensor], Tensor], level: float) -> Tensor:
    """Return, by angle, where a divergence from uniform weights reaches a level or the simplex's boundary."""
    angles = torch.arange(360, dtype=torch.float64) * (math.tau / 360)
    first = torch.tensor([1.0, 0.0, -1.0], dtype=torch.float64) / 2**0.5
    second = torch.tensor([-1.0, 2.0, -1.0], dtype=torch.float64) / 6**0.5
    rays = angles.cos()[:, None] * first + angles.sin()[:, None] * second
    reach = (-CENTER / rays.clamp(max=-1e-12)).min(1).values
    low, high = torch.zeros_like(reach), reach
    for _ in range(50):
        middle = (low + high) / 2
        inside = divergence(CENTER + middle[:, None] * rays) <= level
        low, high = torch.where(inside, middle, low), torch.where(inside, high, middle)
    return flat(CENTER + low[:, None] * rays)


def chi_square(w: Tensor) -> Tensor:
    """Return ``m |w|^2 - 1``."""
    return 3.0 * w.square().sum(-1) - 1.0


def entropy(w: Tensor) -> Tensor:
    """Return the Kullback-Leibler divergence from uniform weights."""
    return torch.special.xlogy(w, 3.0 * w.clamp(min=1e-300)).sum(-1)


def outline(dial: Dial, value: float) -> Tensor:
    """Return the feasible weights of a rule; for the entropic rule, those at least as near to uniform as its choice."""
    if dial.symbol == "C":
        return hexagon((value, min(value, 1.0 - value), max(1.0 - 2.0 * value, 0.0)))
    if dial.symbol == "q":
        return hexagon(tuple(q / (1.0 + value + value**2) for q in (1.0, value, value**2)))
    if dial.symbol == "t":
        return level_set(entropy, float(entropy(dial.rule(value, 3).weights(G))))
    return level_set(chi_square, value)


def triangle(axes: Axes, dial: Dial) -> None:
    """Draw the simplex with a rule's sets for the marked values, and the weights of least norm in each."""
    i, j = torch.meshgrid(torch.arange(41.0), torch.arange(41.0), indexing="ij")
    w = torch.stack([i, j, 40.0 - i - j], -1)[i + j <= 40.0].double() / 40.0
    norms = (w @ G * w).sum(-1).sqrt()
    axes.tricontour(*flat(w).T.tolist(), norms.tolist(), levels=12, colors="#c3c9d2", linewidths=0.7, zorder=1)
    axes.add_patch(Polygon(CORNERS.tolist(), fill=False, ec=INK, lw=1.2, zorder=3))
    for mark, place in zip(dial.marks, ((0.93, 0.53), (0.86, 0.65), (0.79, 0.77)), strict=True):
        axes.add_patch(Polygon(outline(dial, mark.value).tolist(), fc=dial.colour, alpha=0.13, lw=0, zorder=2))
        axes.add_patch(Polygon(outline(dial, mark.value).tolist(), fill=False, ec=dial.colour, lw=1.4, zorder=4))
        point = flat(dial.rule(mark.value, 3).weights(G)).tolist()
        axes.plot(*point, "o", color=dial.colour, ms=6, zorder=6)
        line = {"arrowstyle": "-", "color": dial.colour, "lw": 0.7, "shrinkA": 0, "shrinkB": 3}
        text = f"${dial.symbol} = {mark.value:g}$"
        axes.annotate(text, point, place, color=dial.colour, va="center", arrowprops=line, zorder=5)
    axes.plot(*flat(CENTER).tolist(), "s", color=INK, ms=6, zorder=6)
    axes.plot(*flat(pg.MGDA().weights(G)).tolist(), "o", color=INK, ms=6, zorder=6)
    for k, (place, align) in enumerate((((0.0, -0.03), "top"), ((0.5, 0.885), "bottom"), ((1.0, -0.03), "top"))):
        axes.text(*place, f"only $g_{k + 1}$", ha="center", va=align)
    axes.set(xlim=(-0.1, 1.12), ylim=(-0.1, 0.95), aspect="equal")
    axes.set_title(dial.label, color=dial.colour, fontweight="bold")
    axes.axis("off")


def sets() -> None:
    """Draw the sets of weights on the simplex of three objectives."""
    figure, panels = plt.subplots(2, 2, figsize=(9.0, 8.0), layout="constrained")
    for axes, dial in zip(panels.flat, DIALS, strict=False):
        triangle(axes, dial)
    keys = (
        Line2D([], [], marker="s", color=INK, ls="", label="mean"),
        Line2D([], [], marker="o", color=INK, ls="", label="MGDA"),
        Line2D([], [], marker="o", color="#7f8894", ls="", label="the rule's choice in its set"),
        Line2D([], [], color="#c3c9d2", label="equal length of $d = J^{\\top} w$"),
    )
    figure.legend(handles=keys, loc="outside lower center", ncols=4)
    save(figure, "between-sets")


if __name__ == "__main__":
    ASSETS.mkdir(exist_ok=True)
    with plt.rc_context(STYLE):
        paths()
        weights()
        sets()
