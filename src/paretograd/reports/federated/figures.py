"""The figures of capped MGDA in the paper's form."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from paretograd.experiments.federated import Case, FederatedResults, RunResult, Setting
from paretograd.experiments.federated.paper import CAPS, CLIPS
from paretograd.experiments.federated.plan import CLEAN
from paretograd.experiments.federated.rules import label_of
from paretograd.reports.federated.series import Series, accuracy_series, is_smoothed, record_series
from paretograd.reports.palette import Curve
from paretograd.reports.study.figures import DASHES, DPI, plain

if TYPE_CHECKING:
    from matplotlib.figure import Figure

#: Rules of the figure capped_mgda_results.
_SHOWN = ("mgda", CAPS[0.5], CAPS[0.2], CAPS[0.1])
Looks = Mapping[str, Curve]


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
    """The runs of the first seed."""
    seed = results.study.seeds[0]
    return {run.rule: one for rule in rules for run, one in results.runs.items() if run == (rule, setting, seed)}


def _bars(axes: Any, runs: Mapping[str, RunResult], looks: Looks) -> None:
    """A group of bars for each client."""
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
    """Over the epochs, by rule; one that a later one covers is wide, so that it shows on both sides."""
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
    """Whether two curves cannot be told apart by eye."""
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
