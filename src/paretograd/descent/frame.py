"""A trajectory as a pandas data frame."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from paretograd.errors import needs

if TYPE_CHECKING:
    from paretograd.descent.trajectory import Trajectory


def to_columns(trajectory: Trajectory) -> dict[str, np.ndarray[Any, Any]]:
    """One row for each run and visited point, runs one after the other.

    What belongs to a step stands in the row of the point that it leaves; NaN in the last row of a run.
    """
    B, lengths = trajectory.runs, trajectory.lengths
    steps = np.concatenate([np.arange(end + 1) for end in lengths]) if B else np.empty(0, dtype=np.int64)
    runs = np.repeat(np.arange(B), lengths + 1)
    columns: dict[str, np.ndarray[Any, Any]] = {"run": runs}
    if trajectory.seeds:
        columns["seed"] = np.array(trajectory.seeds)[runs]
    columns["step"] = steps
    columns["gamma"] = trajectory.gamma[steps, runs]
    for name in ("norms", "step_sizes"):
        columns[{"norms": "norm", "step_sizes": "step_size"}[name]] = _shifted(getattr(trajectory, name), steps, runs)
    for k in range(trajectory.m):
        columns[f"loss_{k}"] = trajectory.losses[steps, runs, k]
    for k in range(trajectory.m):
        columns[f"weight_{k}"] = _shifted(trajectory.weights[..., k], steps, runs)
        columns[f"slope_{k}"] = _shifted(trajectory.slopes[..., k], steps, runs)
    for i in range(trajectory.points.shape[2]):
        columns[f"x_{i}"] = trajectory.points[steps, runs, i]
    return columns


def to_pandas(trajectory: Trajectory) -> Any:
    """`to_columns` as a data frame."""
    with needs("pandas", "a data frame needs", "pandas"):
        import pandas
    return pandas.DataFrame(to_columns(trajectory))


def _shifted(values: np.ndarray[Any, Any], steps: np.ndarray[Any, Any], runs: np.ndarray[Any, Any]) -> Any:
    """Values of steps in the rows of points, of which there is one more."""
    padded = np.concatenate([values, np.full((1, *values.shape[1:]), np.nan)])
    return padded[steps, runs]
