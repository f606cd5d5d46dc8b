"""`Step.of_update` and `certify_update`: the slopes of the change that an optimizer makes, against a slow reference."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from support.models import MODELS
from torch import Tensor, nn

import paretograd as pg


class Tasks(nn.Module):
    """A trunk and two heads, whose losses pull apart."""

    def __init__(self, dtype: torch.dtype = torch.float64) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.trunk = nn.Sequential(nn.Linear(4, 6), nn.Tanh()).to(dtype)
        self.heads = nn.ModuleList(nn.Linear(6, 1).to(dtype) for _ in range(2))
        self.dtype = dtype

    def losses(self, seed: int = 0) -> list[Tensor]:
        x = torch.randn(8, 4, generator=torch.Generator().manual_seed(seed)).to(self.dtype)
        return [
            (head(self.trunk(x)) - 3.0 * (-1.0) ** k * x[:, :1]).square().mean() for k, head in enumerate(self.heads)
        ]


def flat(values: Any) -> Tensor:
    return torch.cat([value.detach().reshape(-1).double() for value in values])


@pytest.mark.parametrize("engine", ["auto", "jacobian", "batched", "gramian"])
@pytest.mark.parametrize("specific", [False, True])
@pytest.mark.filterwarnings("ignore:engine=")
def test_slopes_are_those_of_all_parameters(engine: Any, specific: bool) -> None:
    net = Tasks()
    params = list(net.parameters())
    optimizer = torch.optim.Adam(params, lr=0.1)
    for t in range(12):
        optimizer.zero_grad()
        J = torch.cat([block.flatten(1) for block in pg.jacobian(net.losses(t), params)], dim=1)
        chosen = net.trunk[0].bias if specific else None
        step = pg.backward(net.losses(t), pg.UPGrad(), net, engine=engine, keep_rows=True, specific=chosen)
        before = flat(params)
        with step.of_update() as update:
            optimizer.step()
        u, d = before - flat(params), flat(param.grad for param in params)
        slopes = J @ u
        cosines = slopes / (J.norm(dim=1) * u.norm())
        assert update.slopes == pytest.approx(slopes.tolist(), rel=1e-9, abs=1e-13)
        assert update.cosines == pytest.approx(cosines.tolist(), rel=1e-9, abs=1e-13)
        assert update.cosine == pytest.approx(float(torch.dot(u, d) / (u.norm() * d.norm())), rel=1e-9)
        assert update.conflicts == tuple((cosines < -1e-6).nonzero().flatten().tolist())
        metrics = step.metrics()
        assert metrics["mo/update_conflicts"] == len(update.conflicts)
        assert metrics["mo/update_slope/1"] == update.slopes[1]
        blocks = dict(pg.jacobian(net.losses(t), net))  # at the new parameters: only its form matters here
        certificate = pg.certify_update(blocks, {name: torch.zeros_like(p) for name, p in net.named_parameters()})
        assert certificate.non_conflicting
        assert math.isnan(certificate.cosine)


def test_momentum_conflicts_and_names_are_told() -> None:
    """Two bowls: momentum carries the run beyond the front, where both losses increase. See the theory in a metric."""
    theta = torch.tensor([1.0, 0.0], dtype=torch.float64, requires_grad=True)
    optimizer = torch.optim.SGD([theta], lr=0.5, momentum=0.9)
    for t in range(3):
        optimizer.zero_grad()
        losses = {
            name: (theta - torch.tensor([0.0, y])).square().sum() / 2 for name, y in (("up", 1.0), ("down", -1.0))
        }
        step = pg.backward(losses, pg.MGDA(), [theta], keep_rows=True)
        assert step.certificate.non_conflicting
        with step.of_update() as update:
            if t == 2:
                with pytest.raises(pg.ParameterError, match="has not been made"):
                    update.slopes  # noqa: B018
            optimizer.step()
    assert update.conflicts == (0, 1)
    assert update.slopes == pytest.approx((-0.106, -0.106), abs=1e-3)
    assert "loss up                   increases" in str(update)
    assert step.metrics()["mo/update_conflicts"] == 2.0
    assert step.metrics()["mo/update_slope/down"] < 0.0


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_other_precisions(dtype: torch.dtype) -> None:
    net = Tasks(dtype)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.5)
    params = list(net.parameters())
    J = torch.cat([block.flatten(1).double() for block in pg.jacobian(net.losses(), params)], dim=1)
    step = pg.backward(net.losses(), pg.Mean(), net, keep_rows=True)
    before = flat(params)
    with step.of_update() as update:
        optimizer.step()
    want = J @ (before - flat(params))
    assert update.slopes == pytest.approx(want.tolist(), rel=1e-5 if dtype is torch.float32 else 1e-2)


def test_groups_report_the_whole_update() -> None:
    net = Tasks()
    step = pg.backward(net.losses(), pg.UPGrad(), [net.trunk.parameters(), net.heads.parameters()], keep_rows=True)
    assert len(step.groups) == 2
    with step.of_update() as update:
        torch.optim.SGD(net.parameters(), lr=0.1).step()
    assert not update.conflicts
    assert step.metrics()["mo/update_conflicts"] == 0.0


def test_sparse_gradients() -> None:
    table = nn.Embedding(10, 2, sparse=True, dtype=torch.float64)
    chosen = torch.tensor([1, 4, 4, 7])
    optimizer = torch.optim.SparseAdam(table.parameters(), lr=0.1)

    def losses() -> list[Tensor]:
        y = table(chosen)
        return [y.square().mean(), (y[:2] - 1.0).square().mean()]

    J = pg.jacobian(losses(), [table.weight])[0].flatten(1)
    step = pg.backward(losses(), pg.UPGrad(), keep_rows=True)
    before = table.weight.detach().clone()
    with step.of_update() as update:
        optimizer.step()
    assert update.slopes == pytest.approx((J @ (before - table.weight.detach()).flatten()).tolist())


def test_rows_must_be_kept() -> None:
    net = Tasks()
    step = pg.backward(net.losses(), pg.UPGrad(), net)
    with pytest.raises(pg.ParameterError, match="keep_rows=True"):
        step.of_update()
    net.trunk[0].bias.data[0] = math.nan
    step = pg.backward(net.losses(), pg.UPGrad(), net, keep_rows=True, nonfinite="propagate")
    with pytest.raises(pg.ParameterError, match="not finite"):
        step.of_update()


def test_nothing_moves() -> None:
    net = Tasks()
    step = pg.backward(net.losses(), pg.UPGrad(), net, keep_rows=True)
    with step.of_update() as update:
        net.zero_grad()
    assert update.cosines == (0.0, 0.0)
    assert not update.conflicts
    assert math.isnan(update.cosine)


def test_certificates_of_matrices() -> None:
    J = torch.tensor([[3.0, 0.0], [-1.0, 1.0]])
    certificate = pg.certify_update(J, torch.tensor([9.0, 1.0]), pg.UPGrad()(J), names=["a", "b"])
    assert certificate.slopes == (27.0, -8.0)
    assert certificate.conflicts == (1,)
    assert certificate.norm == pytest.approx(math.sqrt(82.0))
    assert "loss b                    increases" in str(certificate)
    split = pg.certify_update([J[:, :1], J[:, 1:]], [torch.tensor([9.0]), torch.tensor([1.0])])
    assert split.slopes == certificate.slopes
    for update, text in [
        (torch.ones(3), "shape"),
        ([torch.ones(2)] * 2, "same parameters"),
        (torch.tensor([1.0, math.nan]), "NaN"),
    ]:
        with pytest.raises(pg.ParetogradError, match=text):
            pg.certify_update(J, update)


@pytest.mark.parametrize("engine", ["jacobian", "batched", "gramian"])
@pytest.mark.parametrize("name", MODELS)
@pytest.mark.filterwarnings("ignore::UserWarning")  # of engines and losses, which other tests look at
def test_every_model_is_measured_in_every_way(name: str, engine: Any) -> None:
    """Products of the kept gradients with vectors, and their combination, are those of the Jacobian."""
    problem = MODELS[name]()
    params = [param for param in problem.params if param.requires_grad]
    torch.manual_seed(0)  # of dropout
    blocks = [block.detach() for block in pg.jacobian(problem.losses(), params)]

    def real(values: Tensor) -> Tensor:
        return torch.view_as_real(values) if values.is_complex() else values

    torch.manual_seed(0)
    step = pg.backward(problem.losses(), pg.UPGrad(), params, engine=engine, keep_rows=True)
    kept = step.kept
    assert kept is not None
    of = {id(param): block for param, block in zip(params, blocks, strict=True)}
    vectors = []
    for seed in range(2):
        torch.manual_seed(seed)
        vectors.append({id(param): torch.randn_like(param).detach() for param in kept.params})
    J = torch.cat([real(of[id(param)]).reshape(kept.m, -1) for param in kept.params], dim=1)
    V = torch.stack([torch.cat([real(vector[id(param)]).reshape(-1) for param in kept.params]) for vector in vectors])
    every = torch.cat([J, V])
    want = every @ every.T
    scale = float(want.diagonal().max())
    with torch.no_grad(), kept.updating():
        for param in kept.params:
            param.mul_(1.1)  # what was kept does not depend on the parameters any more
    found = torch.from_numpy(kept.measure(vectors))
    torch.testing.assert_close(found, want, rtol=1e-9, atol=1e-11 * scale)
    weights = torch.linspace(-1.0, 2.0, kept.m, dtype=torch.float64)
    for param, part in kept.combine(weights):
        wanted = torch.tensordot(weights.to(of[id(param)].dtype), of[id(param)], dims=1)
        torch.testing.assert_close(part.to_dense(), wanted, rtol=1e-9, atol=1e-11 * math.sqrt(scale))
    with kept.used():
        pass  # frees the graph
    assert step.how is not None
    assert kept.open == (step.how.way != "gramian")
