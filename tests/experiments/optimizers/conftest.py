"""A study that takes a second, on a clock that the test owns."""

from __future__ import annotations

from itertools import count

import pytest

from paretograd.experiments.optimizers import OptimizerStudy


@pytest.fixture
def small() -> OptimizerStudy:
    """Two settings, with six runs of a few steps each."""
    return OptimizerStudy(
        problems=("helmholtz",),
        batches=("fresh",),
        methods=("upgrad",),
        optimizers=("adam",),
        modes=("plain", "projected"),
        seeds=(0, 1),
        budget=0.125,
    )


@pytest.fixture
def ticking(monkeypatch) -> None:
    """Let a step take 1/128 s of CPU time, which is exact in binary: no run depends on the machine."""
    ticks = count()
    monkeypatch.setattr("time.process_time", lambda: next(ticks) / 128)
