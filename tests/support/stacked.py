"""Networks of a task of the benchmark: seeded, trained, and stacked as the benchmark trains them."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from paretograd.bench.task import Batch, Data, Task


class Losses(nn.Module):
    """The losses of a network as its forward pass, for `torch.func.functional_call`."""

    def __init__(self, task: Task, network: nn.Module) -> None:
        super().__init__()
        self.task, self.network = task, network

    def forward(self, *batch: Tensor) -> Tensor:
        return torch.stack(list(self.task.losses(self.network, batch)))


def seeded(task: Task, seed: int) -> nn.Module:
    """A network of the task with torch's initial weights for this seed."""
    torch.manual_seed(seed)
    return task.network()


def drawn(task: Task, data: Data, network: nn.Module, seed: int) -> Batch:
    return task.batch(data, torch.Generator().manual_seed(seed), network)


def trained(task: Task, data: Data, steps: int, lr: float, weights: Sequence[float] | None = None) -> nn.Module:
    """A network after some steps of Adam on the mean of the losses, or on a weighted sum."""
    network = seeded(task, 0)
    optimizer = torch.optim.Adam(network.parameters(), lr=lr)
    for step in range(steps):
        losses = torch.stack(list(task.losses(network, drawn(task, data, network, step))))
        loss = losses.mean() if weights is None else losses @ torch.tensor(weights)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return network.requires_grad_(False)


def check_stacked(task: Task, data: Data, count: int = 3) -> None:
    """Compare losses and gradients of stacked networks with those of each network by itself, in float64."""
    networks = [seeded(task, seed) for seed in range(count)]
    batches = [doubled(drawn(task, data, network, seed)) for seed, network in enumerate(networks)]
    whole = [Losses(task, network.double()) for network in networks]
    params, buffers = torch.func.stack_module_state(whole)
    assert not buffers

    def losses(values: dict[str, Tensor], batch: Batch) -> Tensor:
        return torch.func.functional_call(whole[0], values, batch)

    found = torch.vmap(losses)(params, tuple(torch.stack(parts) for parts in zip(*batches, strict=True)))
    assert found.shape == (count, len(task.objectives))
    rows = [_gradients(column.sum(), list(params.values())) for column in found.T]
    for place, (network, batch) in enumerate(zip(networks, batches, strict=True)):
        for k, loss in enumerate(task.losses(network, batch)):
            torch.testing.assert_close(found[place, k], loss, rtol=1e-10, atol=1e-12)
            assert not task.positive or loss > 0.0
            alone = _gradients(loss, list(network.parameters()))
            for row, gradient in zip(rows[k], alone, strict=True):
                torch.testing.assert_close(row[place], gradient, rtol=1e-10, atol=1e-12)


def _gradients(loss: Tensor, params: Sequence[Tensor]) -> tuple[Tensor, ...]:
    return torch.autograd.grad(loss, params, retain_graph=True, materialize_grads=True)


def doubled(batch: Batch) -> Batch:
    """The batch in float64."""
    return tuple(part.double() if part.is_floating_point() else part for part in batch)


def same(first: Data, second: Data) -> bool:
    """True if all rows are equal."""
    pairs = zip(first, second, strict=True)
    return all(torch.equal(a, b) for one, two in pairs for a, b in zip(one, two, strict=True))
