"""Runs of a rule as curves over epochs: mean and spread over the seeds."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from paretograd.experiments.federated import RunResult
from paretograd.geometry.gramian import Array

#: Epochs that a curve of what changes in every epoch is averaged over.
_WINDOW = 20


class Series(NamedTuple):
    """Values ``(K,)`` over epochs, with the least and the largest of the seeds."""

    epochs: NDArray[np.int64]
    middle: Array
    low: Array
    high: Array


def accuracy_series(runs: Sequence[RunResult]) -> Series:
    """Mean accuracy of the clients; a run that ended early stays where it ended."""
    looks = np.unique(np.concatenate([run.looks for run in runs])).astype(np.int64)
    values = np.stack([_held(run.looks, run.accuracies.mean(axis=1, dtype=np.float64), looks) for run in runs])
    return Series(looks, values.mean(axis=0), values.min(axis=0), values.max(axis=0))


def is_smoothed(run: RunResult) -> bool:
    """Whether a run is long enough for running means."""
    return len(run.epochs) >= 3 * _WINDOW


def record_series(run: RunResult, name: str) -> Series:
    """One run's norms or slopes: a running mean, and the least and the largest value in the same window."""
    values, width = np.asarray(getattr(run, name), dtype=np.float64), _WINDOW
    epochs = run.epochs.astype(np.int64)
    if not is_smoothed(run):
        return Series(epochs, values, values, values)
    # At both ends the window is what there is of it.
    padded = np.pad(values, (width // 2, width - 1 - width // 2), constant_values=np.nan)
    windows = np.lib.stride_tricks.sliding_window_view(padded, width)
    return Series(epochs, np.nanmean(windows, axis=1), np.nanmin(windows, axis=1), np.nanmax(windows, axis=1))


def _held(epochs: NDArray[np.int32], values: Array, wanted: NDArray[np.int64]) -> Array:
    """Values at these epochs, each the last one that was known."""
    return np.asarray(values[np.searchsorted(epochs, wanted, side="right").clip(1) - 1])
