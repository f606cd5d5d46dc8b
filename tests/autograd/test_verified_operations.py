"""The operations through which a backward pass may be batched: those that a sweep of torch's own samples found right.

`benchmarks/vmap_sweep.py` derives the list on the installed torch. Here its saved findings are compared with the list,
and some operations are checked anew.
"""

from __future__ import annotations

import json

import pytest
import torch
from support import ROOT
from torch import Tensor, nn

from paretograd.autograd import batched
from paretograd.autograd.graph import Graph

FINDINGS = json.loads((ROOT / "benchmarks" / "results" / "vmap-cpu.json").read_text())


def test_every_operation_was_right_in_every_sample() -> None:
    assert set(FINDINGS["right"]) >= batched.SWEPT


def test_no_operation_was_ever_wrong() -> None:
    """Squeeze and Unsqueeze only stand next to others that were."""
    assert set(FINDINGS["suspects"]) & batched.VERIFIED <= {"Squeeze", "Unsqueeze"}


OBSTACLES = {
    "Cdist": lambda w: torch.cdist(w[:, :3], w[:, 3:6]),
    "AsStridedScatter": lambda w: torch.as_strided_scatter(w, w[:2, :2] * 2.0, (2, 2), (6, 1)),
    "Roll": lambda w: torch.roll(w, 1),
}


@pytest.mark.parametrize("name", OBSTACLES)
def test_wrong_operations_are_obstacles(name: str) -> None:
    w = nn.Parameter(torch.randn(6, 6, dtype=torch.float64))
    out: Tensor = OBSTACLES[name](w)
    reason = batched.obstacle(Graph([out.sum(), out.square().sum()]))
    assert reason == f"{name} has no verified batching rule"
