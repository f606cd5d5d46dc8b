"""Plot of a trajectory: its path in objective space, and its gamma."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from paretograd.errors import needs
from paretograd.geometry.gramian import Array

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from paretograd.descent.trajectory import Trajectory

#: Okabe and Ito's colours, ordered so that neighbours also differ in lightness.
_COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9", "#E69F00")
_FRONT = {"color": "#1a1a1a", "zorder": 1, "label": "Pareto front"}
#: The legend names at most this many runs.
_NAMED = 8


def plot_trajectory(trajectory: Trajectory, bound: Array | None = None) -> Figure:
    """Plot objective space on the left (or the loss per step for one objective), and gamma on the right."""
    with needs("matplotlib", "plots need", "plot"):
        from matplotlib import rc_context
        from matplotlib.figure import Figure
    with rc_context({"font.size": 10, "axes.edgecolor": "0.6", "axes.grid": True, "grid.color": "0.9"}):
        figure = Figure(figsize=(10.0, 4.4), dpi=150, layout="constrained")
        grid = figure.add_gridspec(1, 2)
        left = figure.add_subplot(grid[0, 0], projection="3d" if trajectory.m == 3 else None)
        right = figure.add_subplot(grid[0, 1])
        _objectives(left, trajectory)
        _gamma(right, trajectory, bound)
        figure.suptitle(f"{trajectory.aggregator} on {trajectory.label}, lr = {trajectory.lr}")
    return figure


def _objectives(axes: Any, trajectory: Trajectory) -> None:
    shown = min(trajectory.m, 3) if trajectory.m in (1, 3) else 2
    if len(trajectory.front) and shown > 1:
        columns = _near(trajectory)[:, :shown].T
        if shown == 2 and trajectory.m == 2:
            axes.plot(*columns, linewidth=2.5, **_FRONT)
        else:
            axes.scatter(*columns, s=4, alpha=0.4, **_FRONT)
    for run in range(trajectory.runs):
        losses = trajectory.losses[: trajectory.lengths[run] + 1, run, :shown]
        if shown == 1:
            losses = np.column_stack([np.arange(len(losses)), losses])
        line = {"color": _COLOURS[run % len(_COLOURS)], "zorder": 2}
        axes.plot(*losses.T, linewidth=1.4, **line)
        axes.plot(*losses[:1].T, marker="o", markerfacecolor="white", linestyle="none", **line)
        axes.plot(*losses[-1:].T, marker="s", linestyle="none", **line)
    axes.plot([], [], "o", color="0.4", markerfacecolor="white", label="start")
    axes.plot([], [], "s", color="0.4", label="end")
    axes.legend(frameon=False)
    names = [f"f{k + 1}" for k in range(shown)] if shown > 1 else ["step", "f1"]
    axes.set_xlabel(names[0])
    axes.set_ylabel(names[1])
    if shown == 3:
        axes.set_zlabel(names[2])
    axes.set_title("Objective space" + (f" (2 of {trajectory.m} objectives)" if trajectory.m > 3 else ""), fontsize=10)


def _near(trajectory: Trajectory) -> Array:
    """Return the front, sorted by the first objective, without the points that are far from the runs."""
    front = trajectory.front[np.argsort(trajectory.front[:, 0])]
    low, high = np.nanmin(trajectory.losses, axis=(0, 1)), np.nanmax(trajectory.losses, axis=(0, 1))
    span = high - low
    near = ((front >= low - span) & (front <= high + span)).all(axis=1)
    return front[near] if near.sum() >= 2 else front


def _gamma(axes: Any, trajectory: Trajectory, bound: Array | None) -> None:
    for run in range(trajectory.runs):
        gamma = trajectory.gamma[: trajectory.lengths[run] + 1, run]
        name = f"seed {trajectory.seeds[run]}" if trajectory.seeds else f"run {run}"
        axes.plot(gamma, color=_COLOURS[run % len(_COLOURS)], label=name if run < _NAMED else None)
    if bound is not None:
        axes.plot(np.arange(len(bound)), bound, color="0.3", linestyle="--", label="bound on the least gamma")
    axes.set_yscale("log")
    axes.set_xlabel("step")
    axes.set_ylabel("gamma")
    axes.set_title("Distance from Pareto stationarity", fontsize=10)
    axes.legend(frameon=False)
