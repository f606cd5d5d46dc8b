"""Draw the figures of the documentation into docs/assets: `python docs/make_figures.py`.

This also updates the tables of docs/coverage.md. Every number comes from the library. The output is reproducible on a
given machine: no date, no random identifiers, letters as outlines.
"""

import math
from pathlib import Path

import matplotlib as mpl

mpl.use("svg")
import matplotlib.pyplot as plt
import torch
from marks import between_marks
from matplotlib.axes import Axes
from matplotlib.patches import FancyBboxPatch, Wedge

import paretograd as pg
from paretograd.reports import flowchart
from paretograd.reports.coverage import coverage, to_markdown

ASSETS = Path(__file__).parent / "assets"
COVERAGE_PAGE = Path(__file__).parent / "coverage.md"
STYLE = {
    "svg.hashsalt": "paretograd",
    "font.size": 10.0,
    "font.family": "DejaVu Sans",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "figure.facecolor": "white",
    "legend.frameon": False,
}

#: The two gradients of the guide: the first is long, and the second conflicts with it.
J = torch.tensor([[3.0, 0.0], [-1.0, 1.0]], dtype=torch.float64)
GRADIENT, CONE, DUAL = "#444444", "#b8c7e0", "#f3d9a4"
#: Colour, and position of the label: offset in points and horizontal alignment.
DIRECTIONS = {
    "Mean": (pg.Mean(), "#c0392b", (1, -14), "left"),
    "Capped MGDA (C = 0.55)": (pg.CappedMGDA(cap=0.55), "#8e44ad", (7, 3), "left"),
    "CAGrad (c = 0.5)": (pg.CAGrad(c=0.5), "#16806a", (8, 1), "left"),
    "UPGrad": (pg.UPGrad(), "#1f5fbf", (6, 3), "left"),
    "MGDA": (pg.MGDA(), "#d35400", (-9, -8), "right"),
}

#: The layers of src/paretograd in the order of pyproject.toml, in bands: title, explanation, colour, and for each layer
#: what it is for. A test compares the layers with pyproject.toml.
BANDS = (
    (
        "Studies",
        "commands and pages",
        "#D9CFE3",
        {"cli": "commands", "bench": "real tasks", "experiments": "studies", "reports": "tables, figures"},
    ),
    (
        "Engines",
        "training and descent",
        "#CFE2F3",
        {
            "federated": "server, clients",
            "integrations": "trainers",
            "torchjd": "a bridge",
            "descent": "pg.descend",
            "problems": "tasks and data",
            "distributed": "processes",
            "autograd": "pg.backward",
        },
    ),
    (
        "Rules",
        "and their framework",
        "#D9EAD3",
        {
            "certification": "pg.certify",
            "device": "on the GPU",
            "scalarizations": "from losses",
            "aggregators": "every rule",
            "schedules": "rule by step",
            "subproblem": "design: s, r",
        },
    ),
    (
        "Theory",
        "promises, verdicts",
        "#F4CCCC",
        {"certificates": "verdicts", "guarantees": "the theorems"},
    ),
    (
        "Numerics",
        "solvers and geometry",
        "#FCE5CD",
        {"solvers": "exact weights", "checks": "parameters", "geometry": "Gramians", "solution": "status"},
    ),
    (
        "Foundations",
        "used everywhere",
        "#E4E4E4",
        {"disk": "safe files", "callers": "warnings", "errors": "exceptions"},
    ),
)


def save(figure: plt.Figure, name: str) -> None:
    """Write one SVG file without matplotlib's date."""
    figure.savefig(ASSETS / f"{name}.svg", metadata={"Date": None, "Creator": None}, bbox_inches="tight")
    plt.close(figure)


def arrow(axes: Axes, tip: torch.Tensor, colour: str, width: float = 2.0) -> None:
    """Draw an arrow from the origin."""
    style = {
        "arrowstyle": "-|>",
        "color": colour,
        "lw": width,
        "shrinkA": 0,
        "shrinkB": 0,
        "mutation_scale": 13,
    }
    axes.annotate("", xy=tip.tolist(), xytext=(0.0, 0.0), arrowprops=style, zorder=4)


def draw_cones(axes: Axes, radius: float) -> None:
    """Draw the cone of the two gradients and the dual cone, the directions along which no objective increases."""
    first, second = (math.degrees(math.atan2(*g.flip(0).tolist())) for g in J)
    axes.add_patch(Wedge((0, 0), radius, first, second, color=CONE, alpha=0.45, lw=0, zorder=1))
    axes.add_patch(Wedge((0, 0), radius, second - 90, first + 90, color=DUAL, alpha=0.8, lw=0, zorder=2))


def frame(axes: Axes) -> None:
    """Set both axes to the same scale, without ticks."""
    axes.set(xlim=(-1.6, 3.4), ylim=(-0.15, 2.1), aspect="equal")
    axes.axis("off")


def draw_gradients(axes: Axes) -> None:
    """Draw the gradients as labelled arrows."""
    for g, name, offset, align in zip(J, ("$g_1$", "$g_2$"), ((6, -4), (-6, 2)), ("left", "right"), strict=True):
        arrow(axes, g, GRADIENT, 2.6)
        axes.annotate(name, g.tolist(), offset, textcoords="offset points", ha=align, color=GRADIENT, fontsize=13)


def directions() -> None:
    """Draw two gradients, their cone and dual cone, and the directions of five rules."""
    figure, axes = plt.subplots(figsize=(7.6, 4.0))
    draw_cones(axes, 2.05)
    draw_gradients(axes)
    axes.plot(*J.T.tolist(), color=GRADIENT, lw=1, ls=":", zorder=3)
    for label, (rule, colour, offset, align) in DIRECTIONS.items():
        d = rule(J)
        arrow(axes, d, colour)
        axes.annotate(label, d.tolist(), offset, textcoords="offset points", ha=align, color=colour)
    axes.text(0.06, 1.6, "dual cone: no\nobjective goes up", color="#7a5a10", fontsize=9)
    axes.text(-0.68, 1.36, "cone of the\ngradients", color="#3d5684", fontsize=9, ha="center")
    axes.text(2.15, 0.26, "convex hull", color=GRADIENT, fontsize=9, rotation=-14, ha="center", va="bottom")
    frame(axes)
    save(figure, "directions")


def dials() -> None:
    """Draw the path of the direction as a rule's parameter varies."""
    figure, axes = plt.subplots(figsize=(7.6, 4.0))
    draw_cones(axes, 2.05)
    draw_gradients(axes)
    steps = torch.linspace(0.0, 1.0, 60).tolist()
    families = (
        ("CappedMGDA, cap from 1/2 to 1", "#8e44ad", [pg.CappedMGDA(cap=0.5 + 0.5 * s) for s in steps]),
        (
            "PowerMean, p from $-\\infty$ to 1",
            "#c2185b",
            [pg.PowerMean(p=1 - 10 ** (4 - 7 * s)) for s in steps],
        ),
        ("CAGrad, c from 0 to 1", "#16806a", [pg.CAGrad(c=s) for s in steps]),
    )
    for label, colour, rules in families:
        path = torch.stack([rule(J) for rule in rules])
        axes.plot(*path.T.tolist(), color=colour, lw=2.6, label=label, zorder=4, solid_capstyle="round")
    points = (
        ("Mean", pg.Mean(), (8, -4), "left"),
        ("MGDA", pg.MGDA(), (-8, -2), "right"),
        ("DualProj", pg.DualProj(), (8, 0), "left"),
        ("CAGrad, c = 1", pg.CAGrad(c=1.0), (8, 2), "left"),
    )
    for name, rule, offset, align in points:
        d = rule(J).tolist()
        axes.plot(*d, "o", color="black", ms=5, zorder=5)
        axes.annotate(name, d, offset, textcoords="offset points", ha=align, zorder=5)
    axes.legend(loc="upper right", fontsize=9, borderaxespad=0.0)
    frame(axes)
    save(figure, "dials")


def clients(count: int = 10, size: int = 5) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the targets of ten honest clients, and a distant start: the example of guide/robust.md."""
    torch.manual_seed(0)
    return torch.randn(count, size), torch.full((size,), 10.0)


def attacked() -> None:
    """Draw the distance from the mean target by step, while an attacker sends a flipped gradient."""
    targets, start = clients()
    rules = (
        ("MGDA", pg.MGDA(), "#d35400", "-"),
        ("MGDA, weights clipped at 0.2", pg.ClippedMGDA(cap=0.2), "#7f8c8d", "--"),
        ("Capped MGDA, C = 0.2", pg.CappedMGDA(cap=0.2), "#8e44ad", "-"),
    )
    figure, axes = plt.subplots(figsize=(6.4, 3.2))
    for label, rule, colour, style in rules:
        torch.manual_seed(1)
        x, distances = start.clone(), []
        for _ in range(101):
            distances.append(float((x - targets.mean(0)).norm()))
            honest = x - targets
            attack = -honest[0] + 0.01 * torch.randn(len(x))
            x = x - 0.1 * rule(torch.vstack([honest, attack]))
        axes.plot(distances, color=colour, ls=style, lw=2, label=label)
    axes.set(xlabel="step", ylabel="distance from the mean target", ylim=(0, None), xlim=(0, 100))
    axes.legend(fontsize=9)
    save(figure, "attacked")


def theorems() -> None:
    """Draw which theorem covers which method, and update the tables of docs/coverage.md."""
    found = coverage()
    save(flowchart.draw(found), "coverage")
    text = COVERAGE_PAGE.read_text(encoding="utf-8")
    COVERAGE_PAGE.write_text(between_marks(text, to_markdown(found)), encoding="utf-8")


def layers() -> None:
    """Draw the layers of the package in bands: a layer imports only what lies to its right, or in a band below."""
    width, gap, height, step, left = 1.18, 0.09, 0.56, 0.84, 1.75
    columns = max(len(names) for *_, names in BANDS)
    right, top = left + columns * (width + gap), step * len(BANDS)
    figure, axes = plt.subplots(figsize=(right + 0.1, top + 0.1))
    figure.subplots_adjust(0.0, 0.0, 1.0, 1.0)
    axes.set(xlim=(-0.05, right + 0.05), ylim=(-0.05, top + 0.05))
    axes.axis("off")
    rounded = "round,pad=0,rounding_size=0.07"
    for row, (title, caption, colour, names) in enumerate(BANDS):
        y = top - step * row - step / 2
        band = FancyBboxPatch((0.0, y - 0.37), right, 0.74, rounded, facecolor=colour, alpha=0.45, lw=0)
        axes.add_patch(band)
        axes.text(0.15, y + 0.12, title, va="center", weight="bold", size=11.0)
        axes.text(0.15, y - 0.14, caption, va="center", size=9.5)
        for column, (name, purpose) in enumerate(names.items()):
            x = left + column * (width + gap)
            corner = (x, y - height / 2)
            box = FancyBboxPatch(corner, width, height, rounded, facecolor=colour, edgecolor="black", lw=1.0)
            box.set_gid(f"layer-{name}")
            axes.add_patch(box)
            axes.text(x + width / 2, y + 0.11, name, ha="center", va="center", weight="bold", size=10.0)
            axes.text(x + width / 2, y - 0.13, purpose, ha="center", va="center", size=9.0)
    axes.text(
        right - 0.15, top - step / 2, "imports go $\\rightarrow$ and $\\downarrow$", ha="right", va="center", size=11.0
    )
    theory = [title for title, *_ in BANDS].index("Theory")
    x, y = left + width / 2, top - step * theory - step / 2 - height / 2
    style = {"arrowstyle": "-|>", "color": "#b00020", "lw": 1.6, "ls": (0, (3, 2)), "shrinkA": 0, "shrinkB": 0}
    axes.annotate("", xy=(x, y - step + height), xytext=(x, y), arrowprops=style | {"mutation_scale": 11})
    axes.text(x + 0.12, y - (step - height) / 2, "never imports", va="center", size=9.0, color="#b00020")
    save(figure, "layers")


if __name__ == "__main__":
    ASSETS.mkdir(exist_ok=True)
    with plt.rc_context(STYLE):
        directions()
        dials()
        attacked()
        theorems()
        layers()
