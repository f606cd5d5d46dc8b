"""The derivatives of a network by the chain rule are those of autograd."""

from __future__ import annotations

import pytest
import torch
from support.fields import field_by_autograd
from torch import nn

from paretograd.problems.fields import Field, field_of


def network(inputs: int, outputs: int) -> nn.Sequential:
    layers = nn.Linear(inputs, 9), nn.Tanh(), nn.Linear(9, 8), nn.Tanh(), nn.Linear(8, outputs)
    return nn.Sequential(*layers).double()


def points(n: int, inputs: int) -> torch.Tensor:
    return 2.0 * torch.rand(n, inputs, dtype=torch.float64) - 1.0


@pytest.mark.parametrize(
    ("second", "outputs"),
    [((1.0, 0.0), 1), ((-1.0, 1.0), 2), ((0.0, 0.0), 2), ((1.0, 0.5, 2.0, 0.0), 4)],
    ids=["one variable", "wave operator", "none", "four variables"],
)
def test_the_field_of_a_network_is_that_of_autograd(second, outputs):
    torch.manual_seed(0)
    net, at = network(len(second), outputs), points(12, len(second))
    found, expected = field_of(net, at, second), field_by_autograd(net, at, second)
    for name, one, other in zip(Field._fields, found, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-10, atol=1e-12, msg=name)


def test_many_networks_are_evaluated_at_once():
    torch.manual_seed(0)
    networks, at = [network(3, 2) for _ in range(4)], points(20, 3).reshape(4, 5, 3)
    parameters, _ = torch.func.stack_module_state(networks)

    class Laplacian(nn.Module):
        def __init__(self):
            super().__init__()
            self.network = networks[0]

        def forward(self, at):
            return field_of(self.network, at, (1.0, 1.0, 1.0))

    def stacked(values, at):
        return torch.func.functional_call(Laplacian(), {f"network.{name}": part for name, part in values.items()}, at)

    found = torch.vmap(stacked)(parameters, at)
    for k, net in enumerate(networks):
        for one, other in zip(found, field_of(net, at[k], (1.0, 1.0, 1.0)), strict=True):
            torch.testing.assert_close(one[k], other, rtol=1e-10, atol=1e-12)
