"""A rule as part of a module: its state is in the module's `state_dict`, and comes back from a file."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from support.models import MODELS
from torch import Tensor, nn

import paretograd as pg

RULES: dict[str, Callable[[], pg.Aggregator]] = {
    "rgw": lambda: pg.RGW(seed=1),
    "rgw*": lambda: pg.RGW(seed=1).normalized(),
    "pcgrad, shuffled": lambda: pg.PCGrad(order="shuffled", seed=2),
    "pivrg": lambda: pg.PIVRG(scores=[0.1, 0.7, 0.4]),
    "mixed": lambda: pg.Mixed([pg.RGW(seed=3), pg.UPGrad(), pg.MGDA()], pg.RoundRobin(2)),
    "mas-rand": lambda: pg.get("mas-rand"),
    "blend": lambda: pg.Blend([pg.UPGrad(), pg.RGW(seed=4)]),
    "gradvac": lambda: pg.GradVac(seed=5),
    "gradvac, given order": lambda: pg.GradVac(order="given"),
    "pcd": lambda: pg.PCD(tau=0.3, beta=0.5),
    "cr-mogm": lambda: pg.CRMOGM(pg.UPGrad(), 0.5),
    "cr-mogm of a rule with state": lambda: pg.UnitRows(pg.CRMOGM(pg.GradVac(seed=6))).normalized(),
    "without state": pg.UPGrad,
}
rules = pytest.mark.parametrize("make", RULES.values(), ids=list(RULES))


class Net(nn.Module):
    def __init__(self, rule: pg.Aggregator) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 3)
        self.rule = rule.as_module()

    def weights(self, steps: int) -> list[Tensor]:
        """The weights of some steps on the same batch."""
        losses = self.layer(torch.linspace(-1.0, 1.0, 20).reshape(5, 4)).square().mean(dim=0)
        return [pg.backward(losses, self.rule, retain_graph=True).weights for _ in range(steps)]


@rules
def test_a_module_goes_on_from_a_file(make: Callable[[], pg.Aggregator], tmp_path: Path) -> None:
    first = Net(make())
    first.weights(5)
    torch.save(first.state_dict(), tmp_path / "net.pt")
    wanted = first.weights(5)
    second = Net(make())
    second.weights(1)
    second.load_state_dict(torch.load(tmp_path / "net.pt", weights_only=True))
    assert all(torch.equal(a, b) for a, b in zip(second.weights(5), wanted, strict=True))


@rules
def test_every_entry_of_the_state_is_a_tensor(make: Callable[[], pg.Aggregator]) -> None:
    """Loops such as ``{k: v.cpu() ...}`` and files of tensors alone take it like any other entry."""
    net = Net(make())
    state = net.state_dict()
    assert set(state) == {"layer.weight", "layer.bias", "rule._extra_state"}
    assert all(isinstance(value, Tensor) for value in state.values())
    net.load_state_dict({name: value.cpu().clone() for name, value in state.items()})


def test_a_module_of_a_rule_is_the_rule() -> None:
    rule = pg.UPGrad()
    module = rule.as_module()
    J = torch.randn(3, 5, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    assert module.aggregator is rule
    assert torch.equal(module(J), rule(J))
    assert not list(module.parameters())
    assert "UPGrad()" in repr(module)
    problem = MODELS["mlp"]()
    steps = [pg.backward(problem.losses(), given) for given in (module, rule)]
    assert torch.equal(steps[0].weights, steps[1].weights)


def test_a_state_of_another_rule_is_refused() -> None:
    state = Net(pg.UPGrad()).state_dict()
    with pytest.raises(pg.ParetogradError, match="RGW"):
        Net(pg.RGW(seed=0)).load_state_dict(state)
    with pytest.raises(pg.ParetogradError, match="has no state"):
        Net(pg.UPGrad()).load_state_dict(Net(pg.RGW(seed=0)).state_dict())
    damaged = state | {"rule._extra_state": state["rule._extra_state"][:-1]}
    with pytest.raises(pg.ParetogradError, match="damaged"):
        Net(pg.UPGrad()).load_state_dict(damaged)
