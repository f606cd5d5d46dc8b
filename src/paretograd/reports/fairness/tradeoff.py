"""Accuracy against the two gaps: where the methods end, and where the paper's did."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from paretograd.reports.palette import Curve

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_GAPS = {"deo1": "DEO1", "deo2": "DEO2"}


def tradeoff(rows: Sequence[Mapping[str, Any]], looks: Mapping[str, Curve]) -> Figure:
    """One panel for each gap: means over the seeds with deviations; a thin line leads to the paper's value.

    Args:
        rows: of the study's table.
        looks: colour and marker of each method.
    """
    from matplotlib.figure import Figure

    figure = Figure(figsize=(10.5, 4.9), dpi=150, layout="constrained")
    for axes, (gap, name) in zip(figure.subplots(1, 2), _GAPS.items(), strict=True):
        for row in rows:
            _point(axes, row, gap, looks[row["method"]])
        axes.set_xlabel(f"{name} on the test rows, %  (left is fairer)")
        axes.set_ylabel("accuracy on the test rows, %  (up is better)")
    handles, labels = axes.get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=6, frameon=False, fontsize=9)
    crosses = any(row["accuracy_paper"] is not None for row in rows)
    figure.suptitle("Mean and deviation over the seeds" + "; crosses: the paper's means" * crosses, fontsize=11)
    return figure


def _point(axes: Any, row: Mapping[str, Any], gap: str, look: Curve) -> None:
    here = (row[f"{gap}_mean"], row["accuracy_mean"])
    there = (row[f"{gap}_paper"], row["accuracy_paper"])
    if there[0] is not None:
        axes.plot(*zip(here, there, strict=True), color=look.colour, linewidth=0.8, zorder=1)
        axes.plot(*there, marker="x", color=look.colour, markersize=6, linestyle="none", zorder=2)
    axes.errorbar(
        *here,
        xerr=row[f"{gap}_std"],
        yerr=row["accuracy_std"],
        color=look.colour,
        marker=look.symbol,
        markersize=7.5,
        markerfacecolor=look.colour if look.dash == "solid" else "white",
        linestyle="none",
        elinewidth=1.0,
        label=row["method"],
        zorder=3,
    )
