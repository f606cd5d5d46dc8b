"""The figure of the study, and the `Kind` that puts it together. Drawing needs the extra ``report``."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from paretograd.disk import replacing
from paretograd.errors import ParameterError
from paretograd.experiments.optimizers import table
from paretograd.experiments.optimizers.run import OptimizerResults, read_results, run_optimizers
from paretograd.experiments.optimizers.study import BATCHES, MODES, OPTIMIZERS, OptimizerStudy
from paretograd.experiments.study import TRAINING, Kind, Option, Summary, options_of
from paretograd.reports.study.content import curves
from paretograd.reports.study.figures import DPI, rendered

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_JOBS = Option("Processes, each with one thread; one per core if not given.", "N", type=int, least=1)
_MARKERS = dict(zip(OPTIMIZERS, "osD", strict=True))
Rows = Sequence[Mapping[str, Any]]


def conflicts_and_losses(found: Rows) -> Figure:
    """Draw the conflicts of the plain mode against the change of the loss, with a panel for each other mode."""
    from matplotlib.figure import Figure
    from matplotlib.lines import Line2D

    looks = curves(list(dict.fromkeys(row["rule"] for row in found)))
    compared = [row for row in found if row["validation_change"] is not None]
    modes = [mode for mode in MODES if any(row["mode"] == mode for row in compared)]
    changes = [abs(row["validation_change"]) for row in compared if math.isfinite(row["validation_change"])]
    figure = Figure(figsize=(5.6 * len(modes) + 0.6, 5.4), dpi=DPI, layout="constrained")
    for axes, mode in zip(figure.subplots(1, len(modes), sharey=True, squeeze=False)[0], modes, strict=True):
        for row in compared:
            if row["mode"] == mode:
                colour = looks[row["rule"]].colour
                axes.errorbar(
                    row["conflicts_percent_plain"],
                    row["validation_change"],
                    yerr=row["validation_change_half"],
                    color=colour,
                    marker=_MARKERS[row["optimizer"]],
                    markerfacecolor=colour if row["batches"] == "full" else "white",
                    markersize=6,
                    elinewidth=0.8,
                    linestyle="none",
                )
        axes.axhline(0.0, color="0.3", linewidth=1.0, zorder=1)
        axes.set_xlim(-3.0, 103.0)
        reach = 1.3 * max(changes, default=1.0) + 0.1  # cuts long intervals off
        axes.set_ylim(-reach, reach)
        axes.set_xlabel("plain updates that raise some loss of their batch, %")
        axes.set_title(MODES[mode], fontsize=10.5)
    figure.axes[0].set_ylabel("change of log10 loss against plain  (below 0 is better)")
    handles = [
        *(Line2D([], [], color=look.colour, linewidth=4, label=rule) for rule, look in looks.items()),
        *(_marker(_MARKERS[name], "white", optimizer.title) for name, optimizer in OPTIMIZERS.items()),
        *(_marker("o", "0.3" if name == "full" else "white", kind) for name, kind in BATCHES.items()),
    ]
    figure.legend(handles=handles, loc="outside lower center", ncols=5, frameon=False, fontsize=9)
    figure.suptitle("What a guarantee for the update changes, with 95% confidence intervals", fontsize=11)
    return figure


def _marker(symbol: str, fill: str, label: str) -> Any:
    from matplotlib.lines import Line2D

    return Line2D([], [], color="0.3", marker=symbol, markerfacecolor=fill, linestyle="none", label=label)


def _draw(results: OptimizerResults) -> list[Path]:
    found = results.rows
    if not any(row["validation_change"] is not None for row in found):
        raise ParameterError(
            f"no setting of the study in {results.folder} can be compared with its plain mode; the figure needs one"
        )
    paths = []
    for name, data in rendered(lambda: {"conflicts_and_losses": conflicts_and_losses(found)}).items():
        paths.append(results.folder / "figures" / name)
        with replacing(paths[-1]) as file:
            file.write(data)
    return paths


def _summary(results: OptimizerResults, width: int) -> Summary:
    return table.summary(results.study, results.rows, width)


def _numbers(results: OptimizerResults) -> str:
    return f"{results.folder / 'runs'} (every run)"


OPTIMIZER_STUDY = Kind(
    name="optimizers",
    title=table.TITLE,
    source="",
    options={"data_dir": TRAINING["data_dir"], "jobs": _JOBS} | options_of(OptimizerStudy),
    run_options=("data_dir", "jobs"),
    read_study=OptimizerStudy.from_options,
    run=run_optimizers,
    read_results=read_results,
    summary=_summary,
    numbers=_numbers,
    draw=_draw,
)
