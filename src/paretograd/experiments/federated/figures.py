"""The figures of a federated study: those of the paper, and final accuracies. Drawing needs matplotlib."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from paretograd.experiments.federated.run import FederatedResults
from paretograd.experiments.federated.study import (
    BASELINES,
    CAPS,
    CENTRALISED,
    CLEAN,
    CLIPS,
    PUBLISHED,
    RHOS,
    TABLE,
    Case,
    Setting,
    attack_of,
    label_of,
)
from paretograd.experiments.federated.training import RunResult
from paretograd.geometry.gramian import Array
from paretograd.reports.study.content import Curve, curves
from paretograd.reports.study.figures import DASHES, DPI, plain

if TYPE_CHECKING:
    from matplotlib.figure import Figure

#: Epochs in the window of running means.
_WINDOW = 20
#: Purples for the caps below 1, on a light and on a dark ground; C = 1 is MGDA, which has its own colour.
_LIGHT = ("#3F007D", "#6A3FA0", "#8C6BB1", "#A794CB", "#C3B9DE")
_DARK = ("#E6D5FF", "#CDB4F5", "#B294E0", "#9678C4", "#7D64A6")
_SYMBOLS = ("D", "v", "P", "X", "p")
#: Rules of the figure capped_mgda_results.
_SHOWN = ("mgda", CAPS[0.5], CAPS[0.2], CAPS[0.1])
Looks = Mapping[str, Curve]
#: Position of the paper's own noise on the axis, right of all relative ones.
_LITERAL_AT = 4.0
#: Marker of the paper's values, visible on light and dark bars.
_CROSS: Any = {"marker": "X", "markersize": 9.0, "color": "0.1", "markeredgecolor": "white", "linestyle": "none"}


class Series(NamedTuple):
    """Values ``(K,)`` over epochs, with the least and the largest of the seeds."""

    epochs: NDArray[np.int64]
    middle: Array
    low: Array
    high: Array


def accuracy_series(runs: Sequence[RunResult]) -> Series:
    """Return the mean accuracy of the clients; a run that ended early keeps its last value."""
    looks = np.unique(np.concatenate([run.looks for run in runs])).astype(np.int64)
    values = np.stack([_held(run.looks, run.accuracies.mean(axis=1, dtype=np.float64), looks) for run in runs])
    return Series(looks, values.mean(axis=0), values.min(axis=0), values.max(axis=0))


def is_smoothed(run: RunResult) -> bool:
    """Return True if a run is long enough for running means."""
    return len(run.epochs) >= 3 * _WINDOW


def record_series(run: RunResult, name: str) -> Series:
    """Return the running mean of a run's norms or slopes, with the least and largest value in each window."""
    values, width = np.asarray(getattr(run, name), dtype=np.float64), _WINDOW
    epochs = run.epochs.astype(np.int64)
    if not is_smoothed(run):
        return Series(epochs, values, values, values)
    # The window is truncated at both ends.
    padded = np.pad(values, (width // 2, width - 1 - width // 2), constant_values=np.nan)
    windows = np.lib.stride_tricks.sliding_window_view(padded, width)
    return Series(epochs, np.nanmean(windows, axis=1), np.nanmin(windows, axis=1), np.nanmax(windows, axis=1))


def _held(epochs: NDArray[np.int32], values: Array, wanted: NDArray[np.int64]) -> Array:
    """Return the latest known values at these epochs."""
    return np.asarray(values[np.searchsorted(epochs, wanted, side="right").clip(1) - 1])


def looks() -> dict[str, Curve]:
    """Return colour, line and marker of each rule, by label."""
    capped = [label_of(rule) for rule in CAPS.values() if rule != "mgda"]
    others = [label_of(rule) for rule in (*TABLE, *BASELINES, *CLIPS, CENTRALISED)]
    found = curves([label for label in dict.fromkeys(others) if label not in capped])
    ramp = zip(capped, _LIGHT, _DARK, _SYMBOLS, strict=True)
    return found | {label: Curve(colour, on_dark, "solid", symbol) for label, colour, on_dark, symbol in ramp}


def capped_results(results: FederatedResults, looks: Looks) -> Figure | None:
    """Accuracy of each client with and without the attack, |d_t|, and min_k <d_t, g_k>, of the first seed."""
    attack, seed = results.study.attack, results.study.seeds[0]
    hit, free = (_first(results, _SHOWN, setting) for setting in (attack, CLEAN))
    if "mgda" not in hit or len(hit) < 2:
        return None
    from matplotlib.figure import Figure

    figure = Figure(figsize=(10.5, 7.2), dpi=DPI, layout="constrained")
    panels = figure.subplots(2, 2)
    top = max(float(run.accuracies[-1].max()) for run in (*hit.values(), *free.values()))
    for axes, runs, title in zip(panels[0], (hit, free), ("under attack", "no attack"), strict=True):
        _bars(axes, runs, looks)
        axes.set_ylim(0.0, 1.08 * top)
        axes.set_title(f"accuracy of each client, {title}", fontsize=10.5)
    for axes, name, label in zip(
        panels[1],
        ("norms", "slopes"),
        (r"$\Vert d_t \Vert$", r"$\min_k\,\langle d_t, g_k \rangle$ over the honest clients"),
        strict=True,
    ):
        _curves(axes, {rule: record_series(run, name) for rule, run in hit.items()}, looks)
        axes.set_ylabel(label)
        axes.set_title(
            f"under attack: {'length of the step' if name == 'norms' else 'conflict below 0'}", fontsize=10.5
        )
    panels[1, 1].axhline(0.0, color="0.3", linewidth=1.0, zorder=1)
    _legend(figure, [label_of(rule) for rule in hit], looks)
    smooth = "; lines: running means, shaded: ranges" if any(map(is_smoothed, hit.values())) else ""
    figure.suptitle(f"CIFAR-10, seed {seed}; {_noise(attack)}{smooth}", fontsize=11)
    return figure


def over_epochs(results: FederatedResults, looks: Looks, rules: Sequence[str], title: str) -> Figure | None:
    """Mean accuracy of the clients under attack over the epochs; shaded: from the least to the largest of the seeds."""
    found = {rule: runs for rule in rules if (runs := results.seeds_of(Case(rule, results.study.attack)))}
    if len(found) < 2:
        return None
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7.4, 4.6), dpi=DPI, layout="constrained")
    axes = figure.subplots()
    _curves(axes, {rule: accuracy_series(runs) for rule, runs in found.items()}, looks)
    axes.set_ylabel("mean test accuracy of the clients")
    axes.set_ylim(bottom=0)
    names = {label_of(rule): label_of(rule) + " = Capped MGDA (C = 1)" * (rule == "mgda") for rule in found}
    columns = 3 if len(found) > 4 and max(map(len, names.values())) < 35 else 2
    _legend(figure, [label_of(rule) for rule in found], looks, names, columns)
    seeds = max(map(len, found.values()))
    over = f"mean and range of {seeds} seeds" if seeds > 1 else f"seed {results.study.seeds[0]}"
    figure.suptitle(f"{title}; {_noise(results.study.attack)}; {over}", fontsize=11)
    return figure


def multiple_caps(results: FederatedResults, looks: Looks) -> Figure | None:
    """The paper's avg_acc_multiC."""
    return over_epochs(results, looks, tuple(CAPS.values()), "Several caps")


def cap_against_clip(results: FederatedResults, looks: Looks) -> Figure | None:
    """The paper's cap_vs_clip, for two thresholds."""
    if not any(results.seeds_of(Case(rule, results.study.attack)) for rule in CLIPS):
        return None
    return over_epochs(results, looks, (CAPS[0.1], CAPS[0.2], *CLIPS), "Capping and clipping")


def _first(results: FederatedResults, rules: Sequence[str], setting: Setting) -> dict[str, RunResult]:
    """Return the runs of the first seed."""
    seed = results.study.seeds[0]
    return {run.rule: one for rule in rules for run, one in results.runs.items() if run == (rule, setting, seed)}


def _bars(axes: Any, runs: Mapping[str, RunResult], looks: Looks) -> None:
    """Draw a group of bars for each client."""
    width = 0.8 / max(len(runs), 1)
    for place, (rule, run) in enumerate(runs.items()):
        clients = np.arange(run.accuracies.shape[1])
        offset = (place - 0.5 * (len(runs) - 1)) * width
        axes.bar(clients + offset, run.accuracies[-1], width, color=looks[label_of(rule)].colour, zorder=2)
        axes.set_xticks(clients)
    axes.grid(axis="x", visible=False)
    axes.set_xlabel("client")
    axes.set_ylabel("test accuracy")


def _curves(axes: Any, curves: Mapping[str, Series], looks: Looks) -> None:
    """Draw curves over the epochs, by rule. A curve that a later one covers is drawn wide, so that both show."""
    every = list(curves.values())
    top = max(float(np.abs(series.middle).max()) for series in every)
    for place, (rule, series) in enumerate(curves.items()):
        look = looks[label_of(rule)]
        covered = any(_near(other, series, top) for other in every[place + 1 :])
        width, dash = (4.5, "-") if covered else (1.7, DASHES[look.dash])
        ends = (series.epochs, series.low, series.high)
        axes.fill_between(*ends, color=look.colour, alpha=0.13, linewidth=0.0, zorder=1)
        axes.plot(series.epochs, series.middle, color=look.colour, linestyle=dash, linewidth=width, zorder=2)
    axes.set_xlabel("epoch")
    axes.set_xlim(left=0)


def _near(one: Series, other: Series, top: float) -> bool:
    """Return True if two curves look the same."""
    same = np.array_equal(one.epochs, other.epochs)
    return same and bool(np.abs(one.middle - other.middle).max() < 0.01 * top)


def _legend(
    figure: Any, labels: Sequence[str], looks: Looks, names: Mapping[str, str] | None = None, columns: int = 4
) -> None:
    from matplotlib.lines import Line2D

    handles = [
        Line2D([], [], color=looks[label].colour, linestyle=DASHES[looks[label].dash], linewidth=2.2)
        for label in labels
    ]
    texts = [plain((names or {}).get(label, label)) for label in labels]
    figure.legend(
        handles, texts, loc="outside lower center", ncols=columns, frameon=False, fontsize=9, handlelength=2.6
    )


def _noise(setting: Setting) -> str:
    return rf"noise $\rho$ = {setting.noise:g}" if setting.kind == "relative" else rf"noise {setting.noise:g} N(0, I)"


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
    """Draw a point for each noise, slightly shifted, so that error bars do not overlap."""
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
