"""Comparison of trajectories."""

from __future__ import annotations

import numpy as np

import paretograd as pg

#: What is recorded of runs.
ARRAYS = ("losses", "points", "gamma", "weights", "slopes", "norms", "step_sizes", "gradient_norms", "lengths")


def same(a: pg.Trajectory, b: pg.Trajectory) -> bool:
    """Whether two trajectories are equal bit by bit."""
    arrays = all(np.array_equal(getattr(a, name), getattr(b, name), equal_nan=True) for name in ARRAYS)
    return arrays and a.reasons == b.reasons and np.array_equal(a.left_box, b.left_box)
