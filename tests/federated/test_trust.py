"""`TrustedMGDA`: what is proved of it, with hostile updates that try to refute it, and its limits."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from support import ROOT
from torch import Tensor

import paretograd as pg
from paretograd.federated import GeometricMedian, Server, TrustedMGDA
from paretograd.federated.baselines import geometric_median_weights
from paretograd.federated.trust import trust


def units(rows: Tensor) -> Tensor:
    """Return rows of the median length, the lower of two."""
    norms = rows.norm(dim=1)
    return rows / norms[:, None] * norms.median()


def attacks(honest: Tensor, count: int, generator: torch.Generator) -> list[Tensor]:
    """Return rows of attackers of many kinds, some of them hidden among the honest."""
    mean, spread = honest.mean(dim=0), honest.std(dim=0)
    noise = torch.randn(count, honest.shape[1], generator=generator, dtype=honest.dtype)
    same = torch.ones(count, 1, dtype=honest.dtype)
    return [
        -same * mean,
        -1e3 * same * mean,
        -0.1 * same * mean,
        same * (mean - spread),
        same * (mean - 3.0 * spread),
        same * honest[0],
        10.0 * noise,
        -honest[:count] + 0.1 * noise,
        torch.randn(count, len(honest), generator=generator, dtype=honest.dtype) @ honest,
    ]


@pytest.mark.parametrize("eps", [0.5, 0.8, 1.0])
@pytest.mark.parametrize(("m", "declared", "actual"), [(10, 3, 3), (10, 3, 1), (10, 4, 4), (7, 2, 2), (21, 6, 6)])
def test_the_direction_stays_near_the_honest_mean(m: int, declared: int, actual: int, eps: float) -> None:
    """The bound of the docstring, and the largest weight of all attackers together, f / ((m - f) eps)."""
    rule, closest = TrustedMGDA(declared, eps), math.inf
    for seed in range(6):
        generator = torch.Generator().manual_seed(seed)
        center = torch.randn(1, 12, generator=generator, dtype=torch.float64)
        spread = torch.randn(m - actual, 12, generator=generator, dtype=torch.float64)
        honest = center + (0.1, 0.5, 2.0)[seed % 3] * spread
        for hostile in attacks(honest, actual, generator):
            rows = torch.cat([honest, hostile])
            direction = rule(rows)
            u = units(rows)
            length = float(u[0].norm())
            apart = float(torch.cdist(u[: m - actual], u[: m - actual]).max())
            allowed = 2 * declared / (m * (m - 2 * declared)) ** 0.5 * apart + 2 * (1 - eps) * length
            off = float((direction - u[: m - actual].mean(dim=0)).norm())
            assert off <= allowed * (1 + 1e-9)
            # The same for the honest mean of the loss, and as for every convex risk measure.
            slope = float(direction @ u[: m - actual].mean(dim=0))
            least = float(direction.square().sum()) - float(direction.norm()) * (allowed - 2 * (1 - eps) * length)
            assert slope >= least - 1e-9 * length**2
            closest = min(closest, allowed / max(off, 1e-300))
            weights = rule.weights(rows @ rows.T) * rows.norm(dim=1) / length
            assert float(weights[m - actual :].sum()) <= actual / ((m - declared) * eps) * (1 + 1e-9)
    assert closest < 20.0  # the bound is not void


def test_the_page_proves_what_the_docstring_says() -> None:
    """It has the theorem, with the same bound, and each step of the proof once."""
    page = (ROOT / "docs" / "trusted.md").read_text(encoding="utf-8")
    _, found, proof = page.partition("**Theorem.**")
    assert found
    assert r"\frac{2f}{\sqrt{m (m - 2f)}}" in proof.partition("*Proof.*")[0]
    assert r"\frac{2f}{\sqrt{m (m - 2f)}}" in str(TrustedMGDA.__doc__)
    steps = ["*Proof.*", "*Mixed honest updates.*", "*Geometric median.*", "*Conditional value-at-risk.*", "*Weight.*"]
    assert [proof.count(step) for step in steps] == [1] * len(steps)
    assert r"$\square$" in proof


def test_without_attackers_it_is_capped_mgda_on_updates_of_one_length() -> None:
    rows = torch.randn(8, 20, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    rows *= torch.logspace(-2, 2, 8, dtype=torch.float64)[:, None]
    found = TrustedMGDA(0, eps=0.5)(rows)
    assert torch.allclose(found, pg.CappedMGDA(eps=0.5)(units(rows)), rtol=1e-10, atol=1e-13)


def test_with_eps_1_it_is_the_geometric_median_of_the_mixed_updates() -> None:
    rows = torch.randn(9, 20, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    u = units(rows)
    distances = torch.cdist(u, u)
    mixed = torch.stack([u[row.argsort()[:6]].mean(dim=0) for row in distances])
    assert torch.allclose(TrustedMGDA(3, eps=1.0)(rows), GeometricMedian()(mixed), rtol=1e-9, atol=1e-12)
    with pytest.raises(AssertionError):  # not that of the updates themselves
        assert torch.allclose(TrustedMGDA(3, eps=1.0)(rows), GeometricMedian()(u), rtol=1e-2)


def test_trust_is_low_for_what_nobody_resembles() -> None:
    rng = np.random.default_rng(0)
    honest = np.eye(1, 30) + 0.1 * rng.normal(size=(7, 30))
    rows = np.concatenate([honest, -honest[:3]])
    rows /= np.linalg.norm(rows, axis=1, keepdims=True)
    found = trust(rows @ rows.T, 3)
    assert found.sum() == pytest.approx(1.0, abs=1e-14)
    assert found[7:].max() < 0.02 < 0.1 < found[:7].min()
    assert geometric_median_weights(rows @ rows.T)[7:].min() > 0.02  # which the median alone gives them


@pytest.mark.parametrize("scale", [1e-15, 1.0, 1e15])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_the_direction_scales_with_the_updates(scale: float, dtype: torch.dtype) -> None:
    rows = torch.randn(10, 40, generator=torch.Generator().manual_seed(2), dtype=torch.float64).to(dtype)
    found, wanted = TrustedMGDA()(rows * scale), TrustedMGDA()(rows) * scale
    assert found.dtype == dtype
    tol = 16 * float(torch.finfo(dtype).eps)  # of terms of order one, rounded at both scales
    assert torch.allclose(found.double(), wanted.double(), rtol=tol, atol=tol * scale)


def test_one_long_update_and_one_short_one_change_nothing_but_by_their_direction() -> None:
    rows = torch.randn(10, 40, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
    other = rows.clone()
    longest, shortest = int(rows.norm(dim=1).argmax()), int(rows.norm(dim=1).argmin())
    other[longest] *= 1e30
    other[shortest] *= 1e-30
    assert torch.allclose(TrustedMGDA()(other), TrustedMGDA()(rows), rtol=1e-9, atol=1e-12)


def test_degenerate_updates() -> None:
    one = torch.tensor([[3.0, 4.0]], dtype=torch.float64)
    assert torch.equal(TrustedMGDA()(one), one[0])
    assert TrustedMGDA()(torch.zeros(4, 3)).tolist() == [0.0] * 3
    # Clients without data send zero updates. They neither slow the others down nor point anywhere.
    assert torch.allclose(TrustedMGDA()(torch.cat([one.expand(4, -1), torch.zeros(5, 2)])), one[0])
    assert torch.allclose(TrustedMGDA()(one.expand(10, -1)), one[0])
    opposite = torch.cat([one.expand(5, -1), -one.expand(5, -1)])
    assert TrustedMGDA(4)(opposite).isfinite().all()


@pytest.mark.parametrize("order", range(5))
def test_copies_of_an_update_have_one_weight(order: int) -> None:
    """Which copies are neighbours depends on their order, and the direction does not."""
    rows = torch.randn(5, 30, generator=torch.Generator().manual_seed(4), dtype=torch.float64).repeat(2, 1)
    shuffled = rows[torch.randperm(10, generator=torch.Generator().manual_seed(order))]
    assert torch.allclose(TrustedMGDA()(shuffled), TrustedMGDA()(rows), rtol=1e-6, atol=1e-8)


@pytest.mark.parametrize(
    ("made", "message"),
    [
        (lambda: TrustedMGDA(0.5), "attackers=0.5: give a whole number of hostile clients, or their share, at least 0"),
        (lambda: TrustedMGDA(-1), "attackers=-1: give a whole number"),
        (lambda: TrustedMGDA("few"), "attackers='few': a real number is needed"),  # type: ignore[arg-type]
        (lambda: TrustedMGDA(eps=0.0), "eps=0.0: the tail fraction must be above 0 and at most 1"),
        (lambda: Server(attackers=0.7), "attackers=0.7: give a whole number"),
        (lambda: TrustedMGDA(2)(torch.randn(4, 3)), r"attackers=2 of m=4 updates are not a minority; at most 1 can"),
    ],
)
def test_errors(made: object, message: str) -> None:
    with pytest.raises(pg.ParameterError, match=message):
        made()  # type: ignore[operator]


def test_a_share_follows_the_number_of_updates() -> None:
    """With a number, the server counts with fewer attackers in a round with few replies, and says so."""
    for rule, told in ((TrustedMGDA(0.3), False), (TrustedMGDA(3), True)):
        server, start = Server(rule, min_valid=1), {"w": np.zeros(4)}
        sent = {node: {"w": np.arange(4.0) + node} for node in range(4)}
        if told:
            with pytest.warns(UserWarning, match="attackers=1 in this round, for 4 valid replies: attackers=3 of m=4"):
                assert server.step(start, sent).moved
        else:
            assert server.step(start, sent).moved


def test_it_serves_training_on_one_machine() -> None:
    losses = torch.nn.Linear(3, 5)(torch.ones(3)).square()
    step = pg.backward(losses, TrustedMGDA(1))
    assert step.weights.shape == (5,)
    assert repr(TrustedMGDA(1)) == "TrustedMGDA(attackers=1)"
