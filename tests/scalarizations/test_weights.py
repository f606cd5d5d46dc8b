"""Rules that see the losses: their weights against an F in 80 digits, their promises, and what they refuse."""

from __future__ import annotations

import copy
import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from support import ROOT
from support.scalarizations import ROWS, SCALARIZATIONS, Row, drawn, slopes
from torch import Tensor, nn

import paretograd as pg
from paretograd.scalarizations.registry import SCALARIZERS

PAGE = (ROOT / "docs" / "scalarizations.md").read_text(encoding="utf-8")

#: Rounding of a dozen float64 operations. PBI and the 30-norm multiply it by their condition, up to a hundred.
ROUNDING = 1e-13

rows = pytest.mark.parametrize("name", ROWS)
functions = pytest.mark.parametrize("name", SCALARIZATIONS)


def made(name: str, m: int) -> tuple[pg.Weighting, Row]:
    return ROWS[name].make(m), ROWS[name]


@functions
@pytest.mark.parametrize("m", [1, 2, 3, 10, 100])
def test_weights_are_the_gradient_of_the_papers_f(name: str, m: int) -> None:
    rule, row = made(name, m)
    losses = drawn(m)
    assert row.F is not None
    want = torch.tensor(slopes(row.F, losses.tolist()), dtype=torch.float64)
    found = rule.weights(losses)
    if m == 1 and "pbi" in name:  # on the ray, where zero is a subgradient of the distance from it
        want = torch.ones(1, dtype=torch.float64)
    assert float((found - want).abs().max()) <= 100 * ROUNDING * float(want.abs().max())
    assert isinstance(rule, pg.Scalarization)
    assert math.isclose(float(rule(losses).detach()), float(row.F(losses.tolist())), rel_tol=1e-13, abs_tol=1e-13)


@functions
@pytest.mark.parametrize("exponents", [(-15, -15, -15), (15, 15, 15), (-15, 0, 15), (15, -15, 7)])
def test_extreme_losses(name: str, exponents: tuple[int, ...]) -> None:
    """As accurate as for losses of about one, relative to the largest weight."""
    rule, row = made(name, 3)
    losses = drawn(3, seed=1) * torch.tensor([10.0**e for e in exponents], dtype=torch.float64)
    assert row.F is not None
    want = torch.tensor(slopes(row.F, losses.tolist()), dtype=torch.float64)
    found = rule.weights(losses)
    assert bool(torch.isfinite(found).all())
    assert float((found - want).abs().max()) <= 100 * ROUNDING * float(want.abs().max())


@rows
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_dtype_and_device_are_those_of_the_losses(name: str, dtype: torch.dtype) -> None:
    rule, _ = made(name, 4)
    losses = drawn(4, dtype=dtype)
    found = rule.weights(losses)
    assert (found.dtype, found.device, found.shape) == (dtype, losses.device, (4,))
    want = made(name, 4)[0].weights(losses.double())
    assert torch.equal(found, want.to(dtype))
    assert not found.requires_grad


@rows
def test_forms_of_losses(name: str) -> None:
    """A vector, a list of scalars of any shape with one entry, a dictionary, and numbers."""
    losses = drawn(3)
    want = made(name, 3)[0].weights(losses)
    for form in (
        list(losses),
        [loss.reshape(1, 1) for loss in losses],
        dict(zip("abc", losses, strict=True)),
        losses.tolist(),
        losses.clone().requires_grad_(),
    ):
        assert torch.equal(made(name, 3)[0].weights(form), want)


@given(losses=st.lists(st.floats(1e-12, 1e12), min_size=1, max_size=8))
def test_weights_of_gls_and_norms_sum_to_at_least_one(losses: list[float]) -> None:
    """So Corollary 1 covers them: the geometric mean is at least the harmonic one, and u^(p-1) >= u^p for u <= 1."""
    f = torch.tensor(losses, dtype=torch.float64)
    for rule in (pg.GLS(), pg.PNorm(1.0), pg.PNorm(1.7), pg.PNorm(2), pg.PNorm(9), pg.PNorm(math.inf)):
        weights = rule.weights(f)
        assert rule.guarantee.beyond_hull
        assert float(weights.min()) >= 0.0
        assert float(weights.sum()) >= 1.0 - 1e-12  # rounding of m terms


@given(losses=st.lists(st.floats(1e-9, 1e9), min_size=2, max_size=6), seed=st.integers(0, 99))
def test_promises_hold_on_every_step(losses: list[float], seed: int) -> None:
    """<d, grad F> = |d|^2, in the cone, in the hull: what the guarantee says, a certificate confirms."""
    m, generator = len(losses), np.random.default_rng(seed)
    J = torch.from_numpy(generator.standard_normal((m, 4)))
    for name in ROWS:
        rule, _ = made(name, m)
        weights = rule.weights(torch.tensor(losses, dtype=torch.float64))
        found = pg.certify(pg.gramian(J), weights, rule)
        assert found.keeps_promise is not False, (name, str(found))
        if isinstance(rule, pg.Scalarization):
            assert rule.guarantee.alignment == 1.0
            d = J.T @ weights  # grad F by the chain rule
            assert math.isclose(found.alignment * float(d @ d), float(weights @ (J @ d)), rel_tol=1e-6)


@functions
def test_the_direction_is_the_gradient_of_f(name: str) -> None:
    """Through losses that are not linear in the parameters: <d, grad F> = |d|^2 with torch's own grad F."""
    rule, _ = made(name, 3)
    assert isinstance(rule, pg.Scalarization)
    theta = drawn(5, seed=2).requires_grad_()
    A = torch.rand(3, 5, generator=torch.Generator().manual_seed(7), dtype=torch.float64)
    losses = (A @ theta).exp()
    J = torch.stack([torch.autograd.grad(loss, theta, retain_graph=True)[0] for loss in losses])
    d = J.T @ rule.weights(losses)
    (gradient,) = torch.autograd.grad(rule(losses), theta)
    assert float((d - gradient).abs().max()) <= ROUNDING * 100 * float(gradient.abs().max())
    assert math.isclose(float(d @ gradient), float(d @ d), rel_tol=1e-12)


def test_what_guarantees_say() -> None:
    assert pg.GLS().guarantee.theorem == "thm:PS-cvx"
    assert pg.WeightedSum([0.25, 0.75]).guarantee.in_hull
    assert pg.WeightedSum([0.25, 0.25]).guarantee.theorem == "thm:PS-fd"
    assert not pg.WeightedSum([0.25, 0.25]).guarantee.beyond_hull
    assert pg.STCH().guarantee.theorem == "thm:PS-fd"
    for rule in (pg.Tchebycheff(), pg.PBI(), pg.PNorm(math.inf), pg.DWA(), pg.RLW(), pg.FAMO(), pg.IMTLL(2)):
        assert rule.guarantee.theorem is None
    assert not pg.PBI().guarantee.in_cone
    assert not pg.COSMOS().guarantee.in_cone
    assert "gradient with respect to the losses" in str(pg.STCH().guarantee.F)
    with pytest.raises(pg.ParameterError, match="known for a step only"):
        pg.STCH().guarantee.F.phi(3)


# ---- facts about single rules ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("m", [2, 5])
def test_learned_weights_at_their_best_have_the_direction_of_gls(m: int) -> None:
    """At the s that minimises F, uncertainty weighting and IMTL-L weight by 1 / (2 f) and 1 / f."""
    losses = 10.0 ** (4.0 * drawn(m, seed=4) - 2.0)
    for rule, best in ((pg.UncertaintyWeighting(m), losses.log()), (pg.IMTLL(m), -losses.log())):
        rule.double()
        with torch.no_grad():
            rule.s.copy_(best)
        rule(losses).backward()
        assert rule.s.grad is not None
        assert float(rule.s.grad.abs().max()) <= 1e-14  # the best s: F is convex in s
        ratio = rule.weights(losses) / pg.GLS().weights(losses)
        assert torch.allclose(ratio, ratio[:1], rtol=1e-13)
        same = rule.weights(losses) / pg.LogSum().weights(losses)
        assert torch.allclose(same, torch.full_like(same, 0.5 if rule.name == "uncertainty" else 1.0), rtol=1e-13)


def test_twice_a_loss_gives_uncertainty_weighting_of_a_classification() -> None:
    """As in Kendall et al. 2018: f_1 / (2 sigma_1^2) + f_2 / sigma_2^2 + log sigma_1 + log sigma_2, for two tasks."""
    regression, classification = drawn(2, seed=6)
    rule = pg.UncertaintyWeighting(2).double()
    sigma = torch.tensor([0.7, 2.5], dtype=torch.float64)
    with torch.no_grad():
        rule.s.copy_(2.0 * sigma.log())
    wanted = regression / (2.0 * sigma[0] ** 2) + classification / sigma[1] ** 2 + sigma.log().sum()
    assert torch.allclose(rule(torch.stack([regression, 2.0 * classification])), wanted, rtol=1e-14)


def test_an_optimizer_finds_that_s() -> None:
    losses = torch.tensor([0.01, 3.0, 200.0], dtype=torch.float64)
    rule = pg.UncertaintyWeighting(3)
    optimizer = torch.optim.Adam(rule.parameters(), lr=0.1)
    for _ in range(1500):
        optimizer.zero_grad()
        rule(losses).backward()
        optimizer.step()
    assert torch.allclose(rule.s.detach().double(), losses.log(), atol=1e-2)  # where Adam with this rate settles


@pytest.mark.parametrize("mu", [1.0, 0.1, 1e-6, 1e-300])
def test_stch_lies_within_mu_log_m_of_the_maximum(mu: float) -> None:
    losses, weights = drawn(5, seed=5), [0.1, 0.2, 0.3, 0.2, 0.2]
    hard, soft = float(pg.Tchebycheff(weights)(losses)), float(pg.STCH(mu, weights)(losses))
    assert hard - 1e-15 <= soft <= hard + mu * math.log(5) + 1e-15
    if mu <= 1e-6:
        assert torch.equal(pg.STCH(mu, weights).weights(losses), pg.Tchebycheff(weights).weights(losses))


def test_equal_maxima_share_the_weight() -> None:
    losses = torch.tensor([2.0, 1.0, 2.0], dtype=torch.float64)
    for rule, total in ((pg.Tchebycheff(), 1 / 3), (pg.PNorm(math.inf), 1.0), (pg.STCH(1e-9), 1 / 3)):
        assert torch.allclose(rule.weights(losses), torch.tensor([0.5, 0.0, 0.5], dtype=torch.float64) * total)


@pytest.mark.parametrize("p", [1.0, 1.5, 2.0, 3.0, 1e3, math.inf])
def test_norms_of_losses_that_are_zero(p: float) -> None:
    """Corollary 1 needs weights that sum to one or more, also where F has no gradient: those of equal losses."""
    rule = pg.PNorm(p)
    zeros = torch.zeros(2, dtype=torch.float64)
    assert torch.allclose(rule.weights(zeros), rule.weights([7.0, 7.0]), rtol=1e-15, atol=0.0)
    assert float(rule.weights(zeros).sum()) >= 1.0
    assert float(rule(zeros)) == 0.0
    first = 1.0 if p == 1.0 else 0.0  # the sum follows every loss
    assert torch.equal(rule.weights([0.0, 3.0]), torch.tensor([first, 1.0], dtype=torch.float64))
    G = torch.ones(2, 2, dtype=torch.float64)
    assert pg.certify(G, rule.weights(zeros), rule).keeps_promise


def test_pbi_on_its_ray() -> None:
    """There the distance has no gradient; zero is a subgradient."""
    weights = pg.PBI([3.0, 4.0], theta=5.0).weights(torch.tensor([3.0, 4.0], dtype=torch.float64))
    assert torch.allclose(weights, torch.tensor([0.6, 0.8], dtype=torch.float64), atol=1e-12)


def test_pbi_increases_a_loss_that_is_too_small_for_its_ray() -> None:
    assert float(pg.PBI().weights([0.1, 1.0])[0]) < 0.0


# ---- wrong input -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", [name for name, row in ROWS.items() if row.positive])
def test_losses_outside_the_domain_are_named(name: str) -> None:
    with pytest.raises(pg.InputError, match=r"got -2 for objective 1\. "):
        made(name, 3)[0].weights([1.0, -2.0, 3.0])
    if "norm" not in name:
        with pytest.raises(pg.InputError, match="got 0 for objective 0, 2"):
            made(name, 3)[0].weights([0.0, 1.0, 0.0])


@rows
@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_losses_that_are_not_finite_are_named(name: str, bad: float) -> None:
    rule, _ = made(name, 3)
    before = copy.deepcopy(rule.state_dict())
    with pytest.raises(pg.NonFiniteGradientError, match="the loss of objective 2 holds") as caught:
        rule.weights([1.0, 2.0, bad])
    assert caught.value.objectives == [2]
    assert all(torch.equal(value, before[key]) for key, value in rule.state_dict().items())


def test_cosmos_needs_a_direction() -> None:
    with pytest.raises(pg.InputError, match="not all 0"):
        pg.COSMOS().weights([0.0, 0.0])


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: pg.PNorm(0.5), "p=0.5"),
        (lambda: pg.PNorm(math.nan), "p=nan"),
        (lambda: pg.STCH(0.0), "mu=0.0"),
        (lambda: pg.STCH(math.inf), "mu=inf"),
        (lambda: pg.PBI(theta=-1.0), "theta=-1.0"),
        (lambda: pg.COSMOS(penalty=math.inf), "penalty=inf"),
        (lambda: pg.DWA(0.0), "temperature=0.0"),
        (lambda: pg.FAMO(lr=0.0), "lr=0.0"),
        (lambda: pg.FAMO(decay=-1.0), "decay=-1.0"),
        (lambda: pg.RLW(-1), "seed=-1"),
        (lambda: pg.RLW(2**60), "too large"),
        (lambda: pg.WeightedSum([-1.0, 2.0]), "weights holds"),
        (lambda: pg.Tchebycheff([1.0, 1.0], [0.0, 0.0, 0.0]), "different lengths"),
        (lambda: pg.STCH(ideal=[math.nan]), "ideal="),
        (lambda: pg.STCH(ideal=[]), "ideal="),
        (lambda: pg.STCH(ideal=None), "ideal=None"),  # type: ignore[arg-type]
        (lambda: pg.FAMO(lowest=[math.inf]), r"lowest=\[inf\]"),
        (lambda: pg.UncertaintyWeighting(0), "m=0"),
        (lambda: pg.IMTLL(2.5), "m=2.5"),  # type: ignore[arg-type]
    ],
)
def test_wrong_parameters(make, words: str) -> None:
    with pytest.raises(pg.ParameterError, match=words):
        make()


@pytest.mark.parametrize(
    "rule", [pg.WeightedSum([1.0, 1.0]), pg.STCH(ideal=[0.0, 0.0]), pg.IMTLL(2), pg.FAMO(lowest=[0.0, 0.0])]
)
def test_another_number_of_losses(rule: pg.Weighting) -> None:
    with pytest.raises(pg.ParameterError, match="3"):
        rule.weights(drawn(3))


@pytest.mark.parametrize(
    ("losses", "error", "words"),
    [
        (torch.ones(2, 2), pg.ShapeError, r"got shape \(2, 2\)"),
        (torch.ones(0), pg.ShapeError, r"got shape \(0,\)"),
        ([], pg.ShapeError, "list of scalars"),
        ([torch.ones(2)], pg.ShapeError, r"\(2,\)"),
        (torch.ones(2, dtype=torch.int64), pg.DTypeError, "int64"),
        (["a"], pg.DTypeError, "list of scalars"),
    ],
)
def test_wrong_losses(losses, error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        pg.STCH().weights(losses)


def test_weights_beyond_float64_are_an_error() -> None:
    with pytest.raises(pg.InputError, match="no finite weights"):
        pg.LogSum().weights(torch.tensor([1e-310, 1.0], dtype=torch.float64))


# ---- names, representations, modules ---------------------------------------------------------------------------------


def by_name(name: str) -> pg.Weighting:
    return pg.scalarizer(name, **({"m": 3} if name in ("uncertainty", "imtl-l") else {}))


@pytest.mark.parametrize("name", SCALARIZERS)
def test_names(name: str) -> None:
    cls = SCALARIZERS[name]
    rule = by_name(name)
    assert type(rule) is cls
    assert getattr(pg, cls.__name__) is cls
    assert type(by_name(name.upper().replace("-", "_")) if "m" not in repr(rule) else rule) is cls
    assert {type(row.make(3)) for row in ROWS.values()} >= {cls}
    assert name in pg.scalarizer_names()
    assert f"::: paretograd.{cls.__name__}\n" in PAGE
    assert f"| `{name}` |" in PAGE


def test_wrong_names() -> None:
    with pytest.raises(pg.UnknownNameError, match="Did you mean 'stch'"):
        pg.scalarizer("stc")
    with pytest.raises(pg.ParameterError, match=r"p-norm: .*See help"):
        pg.scalarizer("p-norm", q=3)
    assert repr(pg.scalarizer("STCH(mu=0.1, weights=[1, 2])")) == "STCH(mu=0.1, weights=[1.0, 2.0])"
    assert repr(pg.scalarizer("p-norm(3)")) == "PNorm(p=3.0)"
    for text, words in (
        ("stch(0.1)*", "no starred variant"),
        ("stch(nu=1)", "unexpected keyword argument 'nu'"),
        ("gls(1)", "takes 1 positional argument"),
        ("stch(mu=0.1", "is not a rule"),
    ):
        with pytest.raises(pg.ParameterError, match=words):
            pg.scalarizer(text)
    with pytest.raises(pg.ParameterError, match="multiple values for keyword argument 'mu'"):
        pg.scalarizer("stch(mu=0.1)", mu=1.0)
    with pytest.raises(pg.UnknownNameError):
        pg.get("stch")


@pytest.mark.parametrize(
    "shown",
    [
        "WeightedSum()",
        "WeightedSum(weights=[1.0, 2.0])",
        "STCH(mu=0.1, ideal=[0.0, 1.0])",
        "PNorm(p=3.0)",
        "PNorm(p=float('inf'))",
        "UncertaintyWeighting(m=4)",
        "RLW(seed=7)",
        "FAMO(decay=0.0, lowest=-1e-08)",
        "PBI(weights=[1.0, 2.0], theta=2.0)",
        "DWA()",
    ],
)
def test_a_rule_is_shown_as_the_expression_that_makes_it(shown: str) -> None:
    assert repr(eval(f"pg.{shown}", {"pg": pg, "float": float})) == shown


@rows
def test_state_round_trip(name: str) -> None:
    """Weights after a checkpoint are those without one, also for a rule in a model."""
    model = nn.ModuleDict({"rule": made(name, 3)[0]})
    for step in range(5):
        model["rule"].weights(drawn(3, seed=step))
        if isinstance(model["rule"], pg.DWA) and step in (1, 3):
            model["rule"].next_epoch()
        if isinstance(model["rule"], pg.FAMO):
            model["rule"].update(0.9 * drawn(3, seed=step) ** 1.1)
    for param in model.parameters():
        param.data += drawn(3, seed=9)
    other = nn.ModuleDict({"rule": ROWS[name].make(3) if name != "rlw" else pg.RLW(seed=8)})
    other.load_state_dict(copy.deepcopy(model.state_dict()))
    for step in range(3):
        losses = drawn(3, seed=20 + step)
        assert torch.equal(other["rule"].weights(losses), model["rule"].weights(losses))
        if isinstance(model["rule"], pg.FAMO):
            for each in (model, other):
                each["rule"].update(losses * drawn(3, seed=step))


@rows
def test_copies_are_independent(name: str) -> None:
    rule, _ = made(name, 3)
    rule.weights(drawn(3))
    other = copy.deepcopy(rule)
    state = {key: value.clone() for key, value in other.state_dict().items()}
    if isinstance(rule, pg.FAMO):
        rule.update(drawn(3, seed=1))
    rule.weights(drawn(3, seed=2))
    assert all(torch.equal(value, state[key]) for key, value in other.state_dict().items())


def test_a_scalarization_of_ones_own() -> None:
    """Two methods: F and its guarantee. The weights follow."""

    class Squares(pg.Scalarization):
        guarantee = pg.Guarantee()

        def forward(self, losses: Tensor) -> Tensor:
            return losses.square().sum()

    assert torch.equal(Squares().weights([1.0, 3.0]), torch.tensor([2.0, 6.0], dtype=torch.float64))
