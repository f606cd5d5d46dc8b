"""``metrics.csv``: what can be plotted, for every method and seed, thinned to every k-th step."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

import numpy as np

from paretograd.descent.trajectory import Trajectory
from paretograd.experiments.files import write_text
from paretograd.experiments.study import Study


def write(path: Path, study: Study, trajectories: Mapping[str, Trajectory], every: int) -> Path:
    """Write the table: steps 0, k, 2k, ... and the last point of each run; all digits of every number.

    What belongs to a step (|d|, its size) stands in the row of the point that it leaves, and is empty in the last row
    of a run. ``conflicts`` counts the steps up to that point along which some objective goes up.
    """
    return write_text(path, _lines(study, trajectories, every))


def _lines(study: Study, trajectories: Mapping[str, Trajectory], every: int) -> Iterator[str]:
    losses = [f"f{k + 1}" for k in range(study.make_problem().m)]
    yield ",".join(["method", "seed", "step", *losses, "gamma", "direction_norm", "step_size", "conflicts"])
    for label, trajectory in trajectories.items():
        conflicts = np.asarray(trajectory.conflicts.any(axis=2))
        for run, seed in enumerate(study.seeds):
            last = int(trajectory.lengths[run])
            shown = np.unique(np.append(np.arange(0, last + 1, every), last))
            so_far = np.concatenate([[0], conflicts[:last, run].cumsum()])
            for t in shown.tolist():
                step = (trajectory.norms[t, run], trajectory.step_sizes[t, run]) if t < last else (None, None)
                numbers = (*trajectory.losses[t, run], trajectory.gamma[t, run], *step)
                cells = ("" if number is None else repr(float(number)) for number in numbers)
                yield f"{_quoted(label)},{seed},{t},{','.join(cells)},{so_far[t]}"


def _quoted(label: str) -> str:
    return f'"{label}"' if "," in label else label
