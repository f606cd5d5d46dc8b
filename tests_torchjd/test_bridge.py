"""`paretograd.torchjd`: our rules inside TorchJD, and TorchJD's inside this library."""

from __future__ import annotations

import math

import pytest
import torch
import torchjd.aggregation as peer
from torch import Tensor, nn
from torchjd.autogram import Engine
from torchjd.autojac import backward, jac_to_grad, mtl_backward

import paretograd as pg
from paretograd.federated import CoordinateMedian
from paretograd.torchjd import TorchJDRowRule, TorchJDRule, from_torchjd, to_torchjd, to_weighting

J = torch.tensor([[3.0, 0.0, 1.0], [-1.0, 1.0, 0.0]], dtype=torch.float64)
G = J @ J.T

#: Every aggregator of TorchJD 0.18, for two objectives.
AGGREGATORS = {
    "AlignedMTL": peer.AlignedMTL,
    "CAGrad": lambda: peer.CAGrad(0.5),
    "ConFIG": peer.ConFIG,
    "Constant": lambda: peer.Constant(torch.tensor([0.5, 2.0], dtype=torch.float64)),
    "DualProj": peer.DualProj,
    "ExcessMTL": peer.ExcessMTL,
    "FairGrad": lambda: peer.FairGrad(2.0),
    "GradDrop": peer.GradDrop,
    "GradVac": peer.GradVac,
    "IMTLG": peer.IMTLG,
    "Krum": lambda: peer.Krum(0),
    "MGDA": peer.MGDA,
    "Mean": peer.Mean,
    "NashMTL": lambda: peer.NashMTL(n_tasks=2),
    "PCD": peer.PCD,
    "PCGrad": peer.PCGrad,
    "Random": peer.Random,
    "Sum": peer.Sum,
    "TrimmedMean": lambda: peer.TrimmedMean(0),
    "UPGrad": peer.UPGrad,
}
#: The same for weightings, without those of the aggregators.
WEIGHTINGS = {
    "CRMOGM(UPGrad)": lambda: peer.CRMOGMWeighting(peer.UPGradWeighting()),
    "CRMOGM(Mean)": lambda: peer.CRMOGMWeighting(peer.MeanWeighting()),
    "MoDo": peer.MoDoWeighting,
    "SDMGrad": peer.SDMGradWeighting,
    "UPGrad": peer.UPGradWeighting,
}
#: Rules that read the rows of the Jacobian.
OF_ROWS = ("ConFIG", "ExcessMTL", "GradDrop", "TrimmedMean")
OF_GRAMIANS = [name for name in AGGREGATORS if name not in OF_ROWS]
CHANGING = ("ExcessMTL", "GradDrop", "GradVac", "NashMTL", "PCD", "PCGrad", "Random")
ABSTRACT = ("Aggregator", "GramianWeightedAggregator", "WeightedAggregator", "Weighting")


def rows_for(name: str) -> Tensor:
    """A Jacobian that suits the rule: Krum needs three rows."""
    return torch.cat([J, J.mean(dim=0, keepdim=True)]) if name == "Krum" else J


def test_every_aggregator_is_tested() -> None:
    public = {name for name in peer.__all__ if not name.endswith("Weighting") and name not in ABSTRACT}
    assert public == set(AGGREGATORS)


@pytest.mark.parametrize("name", AGGREGATORS)
def test_same_direction_and_certificate(name: str) -> None:
    rows = rows_for(name)
    torch.manual_seed(0)
    expected = AGGREGATORS[name]()(rows)
    torch.manual_seed(0)
    rule = from_torchjd(AGGREGATORS[name]())
    assert (rule(rows) - expected).norm() <= 1e-6 * expected.norm()  # the root that NashMTL gets rounds otherwise
    assert rule.guarantee == pg.Guarantee(degree=None, equivariant=False, note=rule.guarantee.note)
    assert isinstance(rule, TorchJDRule)
    assert ("rows" in rule.needs) == isinstance(rule, TorchJDRowRule) == (name in OF_ROWS)


@pytest.mark.parametrize("name", OF_GRAMIANS)
def test_weights_and_certificate(name: str) -> None:
    gramian = pg.gramian(rows_for(name))
    rule = from_torchjd(AGGREGATORS[name]())
    solution = rule.solve(gramian)
    assert solution.status is pg.Status.APPROXIMATE
    assert math.isnan(solution.residual)
    certificate = pg.certify(gramian, solution.weights, rule)
    assert certificate.keeps_promise is not False
    assert math.isfinite(certificate.gamma)


@pytest.mark.parametrize("name", OF_GRAMIANS)
def test_starred_and_mixed(name: str) -> None:
    rows = rows_for(name)
    weights = from_torchjd(AGGREGATORS[name]()).normalized().weights(pg.gramian(rows))
    assert abs(weights.abs().sum() - 1.0) <= 1e-12
    mixed = pg.Mixed([from_torchjd(AGGREGATORS[name]()), pg.UPGrad()])
    mixed(rows)
    assert torch.equal(mixed(rows), pg.UPGrad()(rows))
    assert mixed.guarantee.theorem is None


@pytest.mark.parametrize("name", OF_ROWS)
def test_rules_of_rows_say_so(name: str) -> None:
    rule = from_torchjd(AGGREGATORS[name]())
    for call in (lambda: rule.weights(G), lambda: rule.solve(G)):
        with pytest.raises(pg.ParameterError, match=r"reads the rows of the Jacobian.*Call rule\(J\)"):
            call()
    with pytest.raises(pg.ParameterError, match="needs more than the Gramian"):
        to_weighting(rule)
    weight = torch.zeros(3, requires_grad=True)
    for outer in (rule.normalized(), pg.Mixed([rule]), pg.UnitRows(rule)):
        with pytest.raises(pg.ParameterError, match="cannot be a part of another rule"):
            pg.backward([(row.float() * weight).sum() for row in J], outer)
    assert weight.grad is None


@pytest.mark.parametrize("name", OF_ROWS)
def test_rules_of_rows_in_backward(name: str) -> None:
    """Blocks of several shapes and dtypes become one Jacobian, and its direction becomes their gradients."""
    rule, x = from_torchjd(AGGREGATORS[name]()), torch.zeros(3, 1, dtype=torch.float64, requires_grad=True)
    y = torch.zeros(2, requires_grad=True)
    wide = torch.cat([J, torch.tensor([[0.5, -2.0], [1.0, 0.25]])], dim=1)
    torch.manual_seed(0)
    step = pg.backward([(row[:3, None] * x).sum() + (row[3:].float() * y).sum() for row in wide], rule, [x, y])
    torch.manual_seed(0)
    wanted = AGGREGATORS[name]()(wide)
    assert x.grad is not None
    assert y.grad is not None
    assert torch.allclose(torch.cat([x.grad.flatten(), y.grad.double()]), wanted, rtol=1e-6, atol=1e-9)
    if name == "ExcessMTL":
        assert math.isfinite(step.certificate.gamma)
    else:
        assert torch.allclose(torch.tensor(step.direction.slopes).double(), wide @ wanted, rtol=1e-5)


@pytest.mark.parametrize("name", OF_ROWS)
def test_rules_of_rows_take_jacobians(name: str) -> None:
    rule = from_torchjd(AGGREGATORS[name]())
    assert rule(torch.stack([J, J, J])).shape == (3, 3)
    assert rule(J.float()).dtype is torch.float32
    assert isinstance(to_torchjd(rule), type(AGGREGATORS[name]()))
    with pytest.raises(pg.NonFiniteGradientError) as caught:
        rule(torch.stack([J[0], J[1] * math.nan]))
    assert caught.value.objectives == [1]
    with pytest.raises(pg.ShapeError):
        rule(J[0])


@pytest.mark.parametrize("name", AGGREGATORS)
def test_state_is_refused_where_it_cannot_be_saved(name: str) -> None:
    rule = from_torchjd(AGGREGATORS[name]())
    if name not in CHANGING:
        assert rule.state_dict() == {}
        return
    for saves in (rule, rule.normalized(), pg.Mixed([pg.MGDA(), rule])):
        with pytest.raises(pg.ParameterError, match="changes from call to call"):
            saves.state_dict()


def test_their_own_state_dict_does_not_restore() -> None:
    """The reason why we refuse."""
    first, second = peer.GradVac(), peer.GradVac()
    first(J)
    with pytest.raises(RuntimeError, match="Unexpected key"):
        second.load_state_dict(first.state_dict())


@pytest.mark.parametrize("name", WEIGHTINGS)
def test_their_weightings(name: str) -> None:
    expected = WEIGHTINGS[name]()(G)
    rule = from_torchjd(WEIGHTINGS[name]())
    assert torch.equal(rule.weights(G), expected)
    assert torch.allclose(from_torchjd(WEIGHTINGS[name]())(J), expected @ J, rtol=1e-12)
    assert repr(rule).startswith("from_torchjd(")
    assert isinstance(to_torchjd(rule), peer.GramianWeightedAggregator)


def test_their_weightings_of_rows() -> None:
    """A composition computes the Gramian itself; given one, it would square it again."""
    composed = from_torchjd(peer.MGDAWeighting() << (lambda rows: rows @ rows.T))
    assert "rows" in composed.needs
    assert torch.allclose(composed(J), peer.MGDA()(J), rtol=1e-12)
    excess = from_torchjd(peer.ExcessMTLWeighting())
    assert "rows" in excess.needs
    assert torch.allclose(excess(J), peer.ExcessMTL()(J), rtol=1e-12)
    again = to_torchjd(from_torchjd(peer.ExcessMTLWeighting()))
    assert torch.allclose(again(J), peer.ExcessMTL()(J), rtol=1e-12)


@pytest.mark.parametrize("rule", [from_torchjd(peer.UPGrad()), from_torchjd(peer.NashMTL(2))], ids=["upgrad", "nash"])
def test_backward_with_their_rule(rule: pg.Aggregator) -> None:
    weight = torch.zeros(3, dtype=torch.float64, requires_grad=True)
    step = pg.backward([(row * weight).sum() for row in J], rule)
    assert weight.grad is not None
    assert torch.allclose(weight.grad, rule(J), rtol=1e-6)  # NashMTL continues from its last weights
    assert step.certificate.non_conflicting


@pytest.mark.parametrize("rule", [pg.UPGrad(), pg.MGDA().normalized(), pg.RGW(seed=0).as_module()], ids=repr)
def test_our_rule_in_jac_to_grad(rule: pg.Aggregator) -> None:
    """It returns the weights, and may sum the Gramian up parameter by parameter."""
    fresh = to_torchjd(rule)
    for optimize in (False, True):
        params = [torch.zeros(2, dtype=torch.float64, requires_grad=True) for _ in range(2)]
        flat = torch.cat(params)
        wide = torch.cat([J, J[:, :1]], dim=1)
        backward(list(wide @ flat))
        weights = jac_to_grad(params, fresh, optimize_gramian_computation=optimize)
        gradient = torch.cat([param.grad for param in params if param.grad is not None])
        assert torch.allclose(gradient, weights @ wide, rtol=1e-12)


def test_our_rule_in_mtl_backward() -> None:
    torch.manual_seed(0)
    trunk, heads = nn.Linear(4, 3), [nn.Linear(3, 1), nn.Linear(3, 1)]
    inputs = torch.randn(16, 4)

    def losses(features: Tensor) -> list[Tensor]:
        return [(head(features) - k).square().mean() for k, head in enumerate(heads)]

    features = trunk(inputs)
    mtl_backward(losses(features), features=features)
    jac_to_grad(trunk.parameters(), to_torchjd(pg.MGDA()))
    found = [
        param.grad.clone() for module in (trunk, *heads) for param in module.parameters() if param.grad is not None
    ]
    for module in (trunk, *heads):
        module.zero_grad()
    pg.backward(losses(trunk(inputs)), pg.MGDA())
    expected = [param.grad for module in (trunk, *heads) for param in module.parameters()]
    for mine, other in zip(expected, found, strict=True):
        assert torch.allclose(mine, other, rtol=1e-4, atol=1e-6)  # float32, and the sums have other orders


def test_our_rule_in_the_engine() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(5, 4), nn.Tanh(), nn.Linear(4, 1))
    engine = Engine(model, batch_dim=0)
    losses = model(torch.randn(6, 5)).squeeze(1).square()
    weights = to_weighting(pg.CappedMGDA(cap=0.5))(engine.compute_gramian(losses))
    assert weights.dtype is torch.float32
    assert torch.allclose(weights.sum(), torch.ones(()))
    losses.backward(weights)
    smoothed = peer.CRMOGMWeighting(to_weighting(pg.UPGrad()))
    assert torch.allclose(smoothed(G), pg.UPGrad().weights(G))


def test_round_trips() -> None:
    rule, theirs, weighting = pg.UPGrad(), peer.MGDA(), peer.MGDAWeighting()
    assert from_torchjd(to_torchjd(rule)) is rule
    assert from_torchjd(to_weighting(rule)) is rule
    assert to_torchjd(from_torchjd(theirs)) is theirs
    assert torch.equal(to_torchjd(from_torchjd(weighting))(J), theirs(J))
    assert str(to_torchjd(rule)) == "UPGrad"
    assert repr(to_torchjd(rule)) == "to_torchjd(UPGrad())"


def test_functions_of_the_jacobian() -> None:
    """The robust baselines have no weights."""
    median = to_torchjd(CoordinateMedian())
    assert torch.equal(median(J), CoordinateMedian()(J))
    assert jac_to_grad_returns(median) is None
    assert "CoordinateMedian" in repr(median)


def jac_to_grad_returns(aggregator: peer.Aggregator) -> object:
    param = torch.zeros(3, dtype=torch.float64, requires_grad=True)
    backward(list(J @ param))
    return jac_to_grad([param], aggregator)


def test_state_survives_a_checkpoint() -> None:
    first = to_torchjd(pg.RGW(seed=0))
    first(J)
    saved = first.state_dict()
    assert all(isinstance(value, Tensor) for value in saved.values())
    second = to_torchjd(pg.RGW(seed=1))
    second.load_state_dict(saved)
    assert torch.equal(second(J), first(J))


def test_state_of_a_rule_of_rows_survives_a_checkpoint() -> None:
    first, second = to_torchjd(pg.MoCo()), to_torchjd(pg.MoCo())
    first(J)
    second.load_state_dict(first.state_dict())
    assert torch.equal(second(2.0 * J), first(2.0 * J))
    assert not torch.equal(to_torchjd(pg.MoCo())(2.0 * J), first(2.0 * J))
    rule = pg.MoCo()
    assert from_torchjd(to_torchjd(rule)) is rule
    assert repr(first) == "to_torchjd(MoCo())"


def test_gradients_of_the_input_do_not_matter() -> None:
    rows = J.clone().requires_grad_()
    assert torch.equal(to_torchjd(pg.UPGrad())(rows), pg.UPGrad()(J))
    assert not to_weighting(pg.UPGrad())(rows @ rows.T).requires_grad
    assert not from_torchjd(peer.Mean())(rows).requires_grad
    assert not from_torchjd(peer.TrimmedMean(0))(rows).requires_grad


@pytest.mark.parametrize("wrong", [None, "upgrad", pg.UPGrad, 3, peer.UPGradWeighting()])
def test_wrong_arguments(wrong: object) -> None:
    with pytest.raises(pg.ParameterError, match=r"give a rule, such as pg.UPGrad\(\)"):
        to_torchjd(wrong)
    with pytest.raises(pg.ParameterError, match=r"give a rule, such as pg.UPGrad\(\)"):
        to_weighting(wrong)
    if not isinstance(wrong, peer.Weighting):
        with pytest.raises(pg.ParameterError, match="give an aggregator or a weighting of TorchJD"):
            from_torchjd(wrong)


@pytest.mark.parametrize("rule", [pg.STCH(), pg.DWA()])
def test_rules_that_see_the_losses_are_no_aggregators(rule: pg.Weighting) -> None:
    with pytest.raises(pg.ParameterError, match="sees the losses, not the gradients"):
        to_torchjd(rule)  # type: ignore[arg-type]


class Broken(peer.Weighting):
    """Returns what it was built with."""

    def __init__(self, answer: Tensor) -> None:
        super().__init__()
        self.answer = answer

    def forward(self, gramian: Tensor, /) -> Tensor:
        gramian.fill_(7.0)  # must not reach the caller's
        return self.answer


@pytest.mark.parametrize("answer", [[1.0, math.nan], [1.0], [[1.0, 2.0]], [math.inf, 0.0]])
def test_wrong_answers_change_nothing(answer: list[float]) -> None:
    rule = from_torchjd(Broken(torch.tensor(answer)))
    before = G.clone()
    with pytest.raises(pg.InputError, match=r"returned (NaN or infinity|shape).* instead of 2 finite numbers"):
        rule.weights(G)
    assert torch.equal(G, before)
    weight = torch.zeros(3, requires_grad=True)
    with pytest.raises(pg.InputError):
        pg.backward([weight.sum(), -weight.sum()], rule)
    assert weight.grad is None


def test_bad_gramians_do_not_reach_their_rule() -> None:
    rule = from_torchjd(peer.GradVac())
    with pytest.raises(pg.NonFiniteGradientError):
        rule.weights(torch.tensor([[1.0, math.nan], [math.nan, 1.0]]))
    with pytest.raises(pg.ShapeError):
        rule.weights(torch.ones(2, 3))
    assert rule.theirs.gramian_weighting._phi_t is None


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
@pytest.mark.parametrize("m", [1, 100])
def test_dtypes_and_sizes(dtype: torch.dtype, m: int) -> None:
    rows = torch.randn(m, 200, generator=torch.Generator().manual_seed(0)).to(dtype)
    for theirs in (peer.UPGrad(), peer.MGDA(), peer.Mean()):
        direction = from_torchjd(theirs)(rows)
        assert direction.dtype is dtype
        assert torch.isfinite(direction).all()
    assert torch.equal(to_torchjd(pg.UPGrad())(rows), pg.UPGrad()(rows))


def test_batches() -> None:
    rows = torch.randn(4, 3, 8, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    rule = from_torchjd(peer.UPGrad())
    assert torch.allclose(rule(rows), torch.stack([rule(one) for one in rows]), rtol=1e-12)
    assert rule.weights(pg.gramian(rows)).shape == (4, 3)
    assert from_torchjd(peer.TrimmedMean(1))(rows[:0]).shape == (0, 8)


@pytest.mark.parametrize("make", [pg.TrimmedMean, pg.MoCo, lambda: pg.GradDrop(seed=0)])
def test_our_rules_of_rows_become_aggregators(make) -> None:
    rows = torch.randn(3, 4, generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(to_torchjd(make())(rows), make()(rows))
    with pytest.raises(pg.ParameterError, match="needs more than the Gramian"):
        to_weighting(make())
