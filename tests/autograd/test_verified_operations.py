"""The operations through which a backward pass may be batched, derived anew on the installed torch.

All samples of torch's own test suite whose graphs have a listed operation are differentiated with and without
`torch.vmap`, in about fifteen seconds.
"""

from __future__ import annotations

import pytest
import torch
from support.batching import Worker
from torch import Tensor, nn

from paretograd.autograd import batched
from paretograd.autograd.graph import Graph

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


def test_every_operation_is_right_in_every_sample() -> None:
    """Each listed operation has samples, and a batched pass agrees with plain ones in every graph that has it.

    As a control, the sweep covers operations that are known to be wrong, and must find them.
    """
    worker = Worker(among=batched.SWEPT | set(OBSTACLES))
    results = [worker.result(number) for number in range(len(worker.names))]
    worker.stop()
    assert [result.operator for result in results if result.stopped] == []
    wrong = {result.operator: result.ways["torch.vmap"].first for result in results if result.suspects & batched.SWEPT}
    assert wrong == {}
    assert set().union(*(result.right for result in results)) >= batched.SWEPT
    assert set().union(*(result.suspects for result in results)) >= set(OBSTACLES)
