"""`descend`: run the paper's algorithm on a problem and return the trajectory."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from paretograd.aggregators.base import Aggregator
from paretograd.descent.records import DescentWarning
from paretograd.descent.run import Descent
from paretograd.descent.step_sizes import StepSize
from paretograd.descent.stopping import Stop
from paretograd.descent.trajectory import Trajectory
from paretograd.problems.base import Problem
from paretograd.scalarizations.base import Weighting

#: Steps between two updates of the progress bar.
_UPDATE_EVERY = 50


def descend(
    problem: Problem,
    aggregator: Aggregator | Weighting,
    lr: float | StepSize = 1e-3,
    steps: int = 10_000,
    *,
    seeds: Iterable[int] | None = None,
    starts: Tensor | Sequence[Sequence[float]] | None = None,
    stop_gamma: float | None = None,
    stop_norm: float | None = None,
    dtype: torch.dtype = torch.float64,
    progress: bool = False,
) -> Trajectory:
    """Descend on a problem from one or several starts (eq. fd): ``w <- w - eta_t d_t``.

    All runs advance together, in one batch. Each is bit-identical to the same run alone (`Descent` lists two
    exceptions). A run whose next loss or gradient is not finite stops at its last good point; the others continue.

    Ctrl-C ends the runs after the current step. The trajectory so far is returned with ``Stop.INTERRUPTED`` as the
    reason of these runs, and a `DescentWarning` is issued. Use `Descent` to handle interrupts yourself.

    Args:
        problem: the problem to minimise, such as ``pg.problem("vlmop2")``.
        aggregator: the rule that combines the gradients into one direction, or weights the losses by their values.
        lr: a number, or a rule of `paretograd.descent`: ``Smooth()``, ``Aligned()``, ``Monotone()``, ``Armijo()``.
        steps: maximum number of steps.
        seeds: one run per seed, from `Problem.start`; (0,) by default.
        starts: starting points ``(B, n)`` to use instead; seeds, if given, then only name the runs.
        stop_gamma: stop a run at the first point whose gamma is below this.
        stop_norm: stop a run at the first point whose direction is shorter than this.
        dtype: dtype of points, losses and gradients. Starts are always drawn in float32, so that a seed gives the same
            point in either precision.
        progress: show a progress bar on standard error, if rich is installed (``paretograd[cli]``).
    """
    descent = Descent(
        problem,
        aggregator,
        lr,
        steps,
        seeds=seeds,
        starts=starts,
        stop_gamma=stop_gamma,
        stop_norm=stop_norm,
        dtype=dtype,
    )
    unfinished = Stop.RUNNING
    try:
        if progress:
            _advance_with_bar(descent, steps, f"{aggregator.label} on {problem.label}")
        else:
            descent.advance(steps + 1)
    except KeyboardInterrupt:
        unfinished = Stop.INTERRUPTED
        warnings.warn(
            f"interrupted after {descent.step} of at most {steps} steps; the trajectory ends there",
            DescentWarning,
            stacklevel=2,
        )
    return descent.trajectory(unfinished)


def _advance_with_bar(descent: Descent, steps: int, title: str) -> None:
    with _bar(title, steps) as bar:
        while descent.running:
            descent.advance(_UPDATE_EVERY)
            if bar is not None:
                gamma = f"{descent.gamma.max():.2e}" if descent.running else "-"
                bar.update(bar.task_ids[0], completed=descent.step, runs=descent.running, gamma=gamma)


@contextmanager
def _bar(title: str, steps: int) -> Iterator[Any]:
    """A rich progress bar, or None if rich is not installed."""
    try:
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
    except ModuleNotFoundError:
        yield None
        return
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("{task.fields[runs]} running, largest gamma {task.fields[gamma]}"),
    )
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        bar.add_task(title, total=steps, runs="-", gamma="-")
        yield bar
