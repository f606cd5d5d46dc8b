"""Where the runs end: accuracy over the noise of the attack, and of all rules beside each other."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from paretograd.experiments.federated import Case, FederatedResults, RunResult
from paretograd.experiments.federated.paper import PUBLISHED, RHOS, TABLE
from paretograd.experiments.federated.plan import CLEAN, Setting, attack_of
from paretograd.experiments.federated.rules import label_of
from paretograd.reports.palette import Curve
from paretograd.reports.study.figures import DASHES, DPI, plain

if TYPE_CHECKING:
    from matplotlib.figure import Figure

#: Where the paper's own noise stands, right of all relative ones.
_LITERAL_AT = 4.0
#: The paper's values, to be seen on light and dark bars.
_CROSS: Any = {"marker": "X", "markersize": 9.0, "color": "0.1", "markeredgecolor": "white", "linestyle": "none"}


def noise_sweep(results: FederatedResults, looks: Mapping[str, Curve]) -> Figure | None:
    """Accuracy at the end over the noise; bars: standard deviation over the seeds."""
    settings = {rho: attack_of(rho) for rho in RHOS} | {_LITERAL_AT: attack_of("literal")}
    found = {rule: _points(results, rule, settings) for rule in TABLE}
    found = {rule: points for rule, points in found.items() if len(points) > 1}
    if not found:
        return None
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7.8, 4.9), dpi=DPI, layout="constrained")
    axes = figure.subplots()
    for place, (rule, points) in enumerate(found.items()):
        look, shift = looks[label_of(rule)], 1.03 ** (place - 0.5 * (len(found) - 1))
        line = {rho: values for rho, values in points.items() if rho != _LITERAL_AT}
        _errors(axes, line, shift, look, DASHES[look.dash], plain(label_of(rule)))
        _errors(axes, {rho: points[rho] for rho in points if rho == _LITERAL_AT}, shift, look, "none", None)
    free = results.seeds_of(Case("mean", CLEAN))
    if free:
        level = float(np.mean([run.accuracy for run in free]))
        axes.axhline(level, color="0.35", linewidth=1.0, linestyle=(0, (1, 1.5)), label="Mean, no attack", zorder=1)
    axes.set_xscale("log")
    ticks = sorted({rho for points in found.values() for rho in points})
    axes.set_xticks(ticks, ["the paper's\n0.01 N(0, I)" if rho == _LITERAL_AT else f"{rho:g}" for rho in ticks])
    axes.minorticks_off()
    axes.set_ylim(bottom=0)
    axes.set_xlabel(r"noise of the attack, $\rho$ = its length over that of the gradient")
    axes.set_ylabel("mean test accuracy of the clients")
    figure.legend(loc="outside lower center", ncols=4, frameon=False, fontsize=9)
    count = len(results.study.seeds)
    over = f"mean and deviation of {count} seeds" if count > 1 else f"seed {results.study.seeds[0]}"
    figure.suptitle(f"CIFAR-10, {results.study.epochs:,} epochs; {over}", fontsize=11)
    return figure


def final_accuracy(results: FederatedResults, looks: Mapping[str, Curve]) -> Figure:
    """All rules under attack, the best at the top; rings: without it; crosses: the paper's."""
    from matplotlib.figure import Figure

    attack = results.study.attack
    every = [(case.rule, runs) for case in results.study.cases() if (runs := results.seeds_of(case))]
    rules = list(dict.fromkeys(rule for rule, _ in every))
    hit = {rule: runs for rule in rules if (runs := results.seeds_of(Case(rule, attack)))}
    order = sorted(hit, key=lambda rule: _mean(hit[rule]))
    figure = Figure(figsize=(7.4, 1.9 + 0.3 * len(order)), dpi=DPI, layout="constrained")
    axes = figure.subplots()
    for place, rule in enumerate(order):
        values = [run.accuracy for run in hit[rule]]
        spread = float(np.std(values, ddof=1)) if len(values) > 1 else None
        look = looks[label_of(rule)]
        axes.barh(place, np.mean(values), 0.66, xerr=spread, color=look.colour, zorder=2, ecolor="0.2", capsize=2.5)
        free = results.seeds_of(Case(rule, CLEAN))
        if free:
            axes.plot(_mean(free), place, "o", color="0.15", markerfacecolor="white", markersize=6.5, zorder=4)
        if rule in PUBLISHED:
            axes.plot(PUBLISHED[rule], place, **_CROSS, zorder=5)
    axes.set_yticks(range(len(order)), [plain(label_of(rule)) for rule in order])
    axes.grid(axis="y", visible=False)
    axes.set_xlabel("mean test accuracy of the clients at the end")
    _key(figure)
    noise = rf"$\rho$ = {attack.noise:g}" if attack.kind == "relative" else "literal"
    figure.suptitle(f"Under attack (noise {noise})", fontsize=11)
    return figure


def _points(results: FederatedResults, rule: str, settings: Mapping[float, Setting]) -> dict[float, list[float]]:
    found = {rho: results.seeds_of(Case(rule, setting)) for rho, setting in settings.items()}
    return {rho: [run.accuracy for run in runs] for rho, runs in found.items() if runs}


def _errors(
    axes: Any, points: Mapping[float, Sequence[float]], shift: float, look: Curve, line: Any, label: str | None
) -> None:
    """A point for each noise, a little to the side, so that bars do not cover each other."""
    if not points:
        return
    deviations = [float(np.std(values, ddof=1)) if len(values) > 1 else 0.0 for values in points.values()]
    axes.errorbar(
        [shift * rho for rho in points],
        [float(np.mean(values)) for values in points.values()],
        yerr=deviations if any(deviations) else None,
        color=look.colour,
        marker=look.symbol,
        markersize=6.5,
        markerfacecolor=look.colour if look.dash == "solid" else "white",
        linestyle=line,
        linewidth=1.7,
        elinewidth=1.0,
        capsize=2.5,
        label=label,
        zorder=3,
    )


def _mean(runs: Sequence[RunResult]) -> float:
    return float(np.mean([run.accuracy for run in runs]))


def _key(figure: Any) -> None:
    from matplotlib.lines import Line2D

    ring = Line2D([], [], marker="o", color="0.15", markerfacecolor="white", markersize=6.5, linestyle="none")
    cross = Line2D([], [], **_CROSS)
    texts = ["the same rule without the attack", "the paper, under attack"]
    figure.legend([ring, cross], texts, loc="outside lower center", ncols=2, frameon=False, fontsize=9)
