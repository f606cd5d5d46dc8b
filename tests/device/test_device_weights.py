"""Weights computed on the device against those of the host.

Without a GPU, Triton's interpreter runs the kernels on the CPU, as in `make test-kernels`. It is slow, so that matrices
are small and few.
"""

from __future__ import annotations

import math
import os
import warnings
from collections.abc import Callable
from importlib.util import find_spec
from typing import NamedTuple

import pytest
import torch
from support.families import FAMILIES, HARD
from support.promises import NEGLIGIBLE
from torch import Tensor

import paretograd as pg
from paretograd.device.unit import split
from paretograd.device.weights import TRUSTED, DeviceWeights, device_weights
from paretograd.geometry.unit_gramian import unit_gramian

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
DEVICE = "cuda" if torch.cuda.is_available() and not INTERPRETED else "cpu"
EPS = torch.finfo(torch.float64).eps

pytestmark = pytest.mark.skipif(
    find_spec("triton") is None or (DEVICE == "cpu" and not INTERPRETED), reason="make test-kernels runs these tests"
)

#: Families with dependent gradients, or nearly so. Weights may not be unique, and the host chooses among them.
DEPENDENT = frozenset(
    name
    for name, family in FAMILIES.items()
    if family.singular or family.stationary == "maybe" or name == "nearly_stationary"
)
#: Families on which many objectives may ask for the host: at and next to stationary points, rounding decides.
STATIONARY = frozenset(
    name for name, family in FAMILIES.items() if family.stationary != "no" or name == "nearly_stationary"
)


class Case(NamedTuple):
    """A rule under test.

    ``host`` names the families on which the device may ask for the host. As in `support.table`, an ill-conditioned rule
    may be off by up to ``1e-14 / gamma**2`` next to a stationary point.
    """

    make: Callable[[], pg.Aggregator]
    host: frozenset[str] = frozenset()
    ill_conditioned: bool = False


CASES = {
    "upgrad": Case(pg.UPGrad),
    "upgrad*": Case(lambda: pg.UPGrad().normalized(), DEPENDENT),
    "greedy-dcp": Case(pg.GreedyDCP, ill_conditioned=True),
    "dualproj": Case(pg.DualProj),
    "cagrad": Case(pg.CAGrad, frozenset({"scaled_duplicates"})),
    "cagrad(2)": Case(lambda: pg.CAGrad(2.0), frozenset({"scaled_duplicates", "nearly_stationary"}), True),
    "imtl-g": Case(pg.IMTLG, DEPENDENT),
    "config": Case(pg.ConFIG, DEPENDENT, ill_conditioned=True),
    "pcgrad": Case(pg.PCGrad),
    "pcgrad+": Case(pg.PCGradPlus),
    "mean": Case(pg.Mean),
    "mgda": Case(pg.MGDA),
    "capped-mgda": Case(lambda: pg.CappedMGDA(eps=0.8)),
    "chi-square-mgda": Case(pg.ChiSquareMGDA, frozenset({"duplicate_rows", "nearly_stationary", "extremely_scaled"})),
    "clipped-mgda": Case(lambda: pg.ClippedMGDA(cap=0.3), DEPENDENT),
    "entropic-mgda": Case(pg.EntropicMGDA),
    "spectral-mgda": Case(pg.SpectralMGDA),
    "nash-mtl": Case(pg.NashMTL, ill_conditioned=True),
}
if not INTERPRETED:  # the same kernel as Nash-MTL, with more steps; `test_parameters` covers them
    CASES |= {
        "fairgrad": Case(pg.FairGrad, ill_conditioned=True),
        "fairgrad(.5)": Case(lambda: pg.FairGrad(0.5), ill_conditioned=True),
        "pivrg": Case(pg.PIVRG, ill_conditioned=True),
        "power-mean(.5)": Case(lambda: pg.PowerMean(0.5)),
        "power-mean(-20)": Case(lambda: pg.PowerMean(-20.0)),
    }
#: The cases with a kernel of their own, to which the interpreter is limited in the slower tests.
OWN = ("upgrad", "cagrad", "mgda", "capped-mgda", "entropic-mgda", "spectral-mgda", "nash-mtl")
KERNELS = OWN if INTERPRETED else tuple(CASES)
#: A GPU also takes one and many objectives, and more objectives than parameters.
SIZES = ((3, 5),) if INTERPRETED else ((1, 3), (2, 3), (4, 3), (4, 6), (16, 20), (20, 10))


def solved(rule: pg.Aggregator, J: Tensor) -> DeviceWeights:
    found = device_weights(rule, pg.gramian(J).to(DEVICE), EPS)
    assert found is not None
    assert found.weights.dtype is found.residual.dtype is torch.float64
    return DeviceWeights(found.weights.cpu(), found.residual.cpu())


def error(rule: pg.Aggregator, J: Tensor, found: DeviceWeights) -> float:
    """Distance of the direction from the host's, relative to its length; 0 if both are rounding."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # HARD families are hard for the host, too
        host = rule.weights(pg.gramian(J))
    d, wanted, largest = found.weights @ J, host @ J, J.norm(dim=1).max()
    if max(d.norm(), wanted.norm()) <= 2.0 * NEGLIGIBLE * largest:
        return 0.0
    return float((d - wanted).norm() / wanted.norm())


def allowed(case: Case, J: Tensor) -> float:
    if not case.ill_conditioned:
        return 1e-8
    units = J / J.norm(dim=1, keepdim=True).clamp(min=1e-300)
    return max(1e-8, 1e-14 / max(float(pg.stationarity(pg.gramian(units))), 1e-7) ** 2)


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("family", FAMILIES)
def test_directions_are_those_of_the_host(name: str, family: str) -> None:
    case = CASES[name]
    for m, n in SIZES:
        if FAMILIES[family].fits(m, n):
            J = FAMILIES[family].make(m, n, 0)
            found = solved(case.make(), J)
            if found.residual <= TRUSTED:
                assert error(case.make(), J, found) <= allowed(case, J), (m, n)
            else:
                assert family in case.host or (m > 6 and family in STATIONARY), (m, n)


@pytest.mark.parametrize("name", KERNELS)
@pytest.mark.parametrize("family", [name for name in HARD if name not in FAMILIES])
def test_hard_directions_are_those_of_the_host_if_trusted(name: str, family: str) -> None:
    case = CASES[name]
    for m, n in SIZES:
        if HARD[family].fits(m, n):
            J = HARD[family].make(m, n, 0)
            found = solved(case.make(), J)
            assert not found.residual <= TRUSTED or error(case.make(), J, found) <= allowed(case, J), (m, n)


@pytest.mark.parametrize("name", KERNELS)
@pytest.mark.parametrize("m", [17] if INTERPRETED else [17, 32, 64, 100, 128])
def test_more_objectives(name: str, m: int) -> None:
    make = CASES[name].make
    J = FAMILIES["badly_scaled_conflicting"].make(m, m + 4, 0)
    found = solved(make(), J)
    if name in ("pcgrad+", "power-mean(-20)") and not found.residual <= TRUSTED:
        return  # the number of passes is limited; weights to the power of 20 leave the range of float64
    assert found.residual <= TRUSTED
    assert error(make(), J, found) <= 1e-8


@pytest.mark.skipif(DEVICE == "cpu", reason="needs CUDA")
@pytest.mark.parametrize("name", KERNELS)
def test_threads_never_disagree(name: str) -> None:
    """If products were fused into sums across threads, MGDA would wait forever on ten opposite rows of seed 1."""
    for family in FAMILIES.values():
        for m, n in ((5, 9), (10, 14), (10, 5)):
            if family.fits(m, n):
                for seed in range(4):
                    solved(CASES[name].make(), family.make(m, n, seed))


@pytest.mark.parametrize("name", KERNELS)
@pytest.mark.parametrize("entry", [math.nan, math.inf])
@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # of numpy, in the interpreter
def test_what_is_not_finite_is_not_trusted(name: str, entry: float) -> None:
    make = CASES[name].make
    G = torch.eye(3, dtype=torch.float64)
    G[0, 1] = G[1, 0] = entry
    found = device_weights(make(), G.to(DEVICE), EPS)
    assert found is not None
    assert not found.residual.cpu() <= TRUSTED


@pytest.mark.parametrize(
    "G",
    [[[1.0, 2.0], [2.0, 1.0]], [[1.0, 0.5], [0.0, 1.0]], [[-1.0, 0.0], [0.0, 1.0]], [[0.0, 1.0], [1.0, 1.0]]],
    ids=["cosine above one", "not symmetric", "negative square", "zero row with an entry"],
)
def test_what_is_no_gramian_is_not_trusted(G: list[list[float]]) -> None:
    found = device_weights(pg.UPGrad(), torch.tensor(G, dtype=torch.float64, device=DEVICE), EPS)
    assert found is not None
    assert not found.residual.cpu() <= TRUSTED


@pytest.mark.parametrize("family", ["gaussian", "extremely_scaled", "zero_rows", "all_zeros"])
def test_the_split_is_that_of_the_host(family: str) -> None:
    G = pg.gramian(FAMILIES[family].make(5, 7, 0))
    unit, host = split(G.to(DEVICE), EPS), unit_gramian(G.numpy(), EPS)
    assert not unit.faults.any()
    torch.testing.assert_close(unit.norms.cpu(), torch.from_numpy(host.expand(host.norms)), rtol=1e-15, atol=0.0)
    live = unit.norms.cpu() > 0.0
    torch.testing.assert_close(unit.C.cpu()[live][:, live], torch.from_numpy(host.C), rtol=1e-15, atol=1e-16)
    assert (unit.C.cpu()[~live] == torch.eye(5, dtype=torch.float64)[~live]).all()


def test_preferences() -> None:
    J = FAMILIES["conflicting"].make(3, 5, 0)
    for rule in (pg.UPGrad([1.0, 2.0, 3.0]), pg.DualProj([1.0, 2.0, 3.0]), pg.Mean([1.0, 2.0, 3.0])):
        found = solved(rule, J)
        assert found.residual <= TRUSTED
        assert error(rule, J, found) <= 1e-12
        with pytest.raises(pg.ParameterError, match="3 numbers"):
            solved(rule, FAMILIES["conflicting"].make(4, 5, 0))


@pytest.mark.parametrize(
    "rule",
    [
        pg.NashMTL(max_norm=None),
        pg.FairGrad(0.0),
        pg.FairGrad(0.5),
        pg.FairGrad(10.0),
        pg.PIVRG(),
        pg.PIVRG([0.0, 30.0, -5.0, 1.0]),
        pg.PowerMean(1.0),
        pg.PowerMean(0.9),
        pg.PowerMean(0.0),
        pg.PowerMean(-20.0),
        pg.PowerMean(-math.inf),
        pg.EntropicMGDA(1e-4),
        pg.EntropicMGDA(10.0),
        pg.SpectralMGDA([1.0]),
        pg.SpectralMGDA([0.7, 0.3]),
        pg.SpectralMGDA([1.0, 1.0, 1.0, 1.0]),
    ],
    ids=repr,
)
def test_parameters(rule: pg.Aggregator) -> None:
    for family in ("conflicting", "scaled_duplicates"):
        J = FAMILIES[family].make(4, 6, 0)
        found = solved(rule, J)
        assert found.residual <= TRUSTED
        assert error(rule, J, found) <= 1e-12


@pytest.mark.parametrize("cap", [0.25, 0.3, 0.5, 0.9, 1.0])
@pytest.mark.parametrize("zeros", [0, 1, 2, 4])
def test_caps(cap: float, zeros: int) -> None:
    """Zero gradients take all that the cap allows."""
    J = FAMILIES["badly_scaled_conflicting"].make(4, 6, 0)
    J[:zeros] = 0.0
    for rule in (pg.CappedMGDA(cap=cap), pg.ClippedMGDA(cap=cap, renormalize=False)):
        found = solved(rule, J)
        assert found.residual <= TRUSTED
        assert error(rule, J, found) <= 1e-12
        assert found.weights.max() <= cap * (1.0 + 1e-12)
    assert abs(solved(pg.CappedMGDA(cap=cap), J).weights.sum() - 1.0) <= 1e-14
    with pytest.raises(pg.InfeasibleCapError):
        solved(pg.CappedMGDA(cap=0.2), J)


@pytest.mark.parametrize("radius", [0.0, 1e-9, 0.3, 1.9, 3.0])
@pytest.mark.parametrize("zeros", [0, 1])
def test_radii(radius: float, zeros: int) -> None:
    """From the mean to MGDA."""
    J = FAMILIES["badly_scaled_conflicting"].make(4, 6, 0)
    J[:zeros] = 0.0
    rule = pg.ChiSquareMGDA(radius)
    found = solved(rule, J)
    assert found.residual <= TRUSTED
    assert error(rule, J, found) <= 1e-12
    assert 4.0 * found.weights.square().sum() - 1.0 <= radius + 1e-12


@pytest.mark.parametrize(
    "rule",
    [
        *(pg.MGDA(), pg.CappedMGDA(cap=0.5), pg.ChiSquareMGDA(), pg.EntropicMGDA(), pg.SpectralMGDA()),
        *(pg.UPGrad(), pg.NashMTL()),
    ],
    ids=repr,
)
def test_a_negative_square_is_not_trusted(rule: pg.Aggregator) -> None:
    """Cosines of at most one, and yet no Gramian."""
    G = torch.eye(3, dtype=torch.float64, device=DEVICE) * 1.9 - 0.9
    found = device_weights(rule, G, EPS)
    assert found is not None
    assert not found.residual.cpu() <= TRUSTED


@pytest.mark.parametrize(
    "make",
    [
        lambda: pg.UPGrad().normalized(),
        lambda: pg.Blend([pg.UPGrad(), pg.UPGrad([1.0, 2.0, 3.0])], [1.0, 3.0]),
        lambda: pg.Mixed([pg.UPGrad(), pg.UPGrad([1.0, 2.0, 3.0])], lambda step: 1),
    ],
    ids=["normalized", "blend", "mixed"],
)
def test_rules_made_of_others(make: Callable[[], pg.Aggregator]) -> None:
    J = FAMILIES["conflicting"].make(3, 5, 0)
    found = solved(make(), J)
    assert found.residual <= TRUSTED
    assert error(make(), J, found) <= 1e-12


def test_normalized_weights_of_dependent_gradients_are_left_to_the_host() -> None:
    """The host returns the smallest of all weights that give the direction."""
    J = FAMILIES["opposite_rows"].make(4, 5, 0)
    assert solved(pg.UPGrad(), J).residual <= TRUSTED
    assert not solved(pg.UPGrad().normalized(), J).residual <= TRUSTED


def test_mixed_counts_a_step_only_if_it_is_solved_here() -> None:
    class Other(pg.UPGrad):
        """A rule of the user's own, which may solve another problem."""

    rule = pg.Mixed([pg.UPGrad(), Other()])
    G = pg.gramian(FAMILIES["conflicting"].make(3, 5, 0)).to(DEVICE)
    with rule.one_step():
        assert device_weights(rule, G, EPS) is not None
        rule.weights(G)  # the host's answer, if that of the device was not trusted
    assert rule.position == 1
    assert device_weights(rule, G, EPS) is None
    assert rule.position == 1


def test_random_orders_are_left_to_the_host() -> None:
    G = torch.eye(3, dtype=torch.float64, device=DEVICE)
    assert device_weights(pg.PCGrad(order="shuffled", seed=0), G, EPS) is None
    assert device_weights(pg.RGW(seed=0), G, EPS) is None
    rule, J = pg.PCGrad(reduction="sum"), FAMILIES["conflicting"].make(4, 6, 0)
    assert error(rule, J, solved(rule, J)) <= 1e-12


def test_too_many_objectives_are_left_to_the_host() -> None:
    assert device_weights(pg.UPGrad(), torch.eye(129, dtype=torch.float64, device=DEVICE), EPS) is None


@pytest.mark.skipif(DEVICE == "cpu", reason="needs CUDA")
@pytest.mark.parametrize("name", CASES)
def test_calls_can_be_captured(name: str) -> None:
    make = CASES[name].make
    families = ("conflicting", "opposite_rows", "badly_scaled")
    matrices = [FAMILIES[family].make(6, 9, 0) for family in families]
    G = pg.gramian(matrices[0]).to(DEVICE)
    rule = make()
    device_weights(rule, G, EPS)  # compiles
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        found = device_weights(rule, G, EPS)
    assert found is not None
    for J in matrices:
        G.copy_(pg.gramian(J))
        graph.replay()
        answer = DeviceWeights(found.weights.cpu(), found.residual.cpu())
        assert not answer.residual <= TRUSTED or error(make(), J, answer) <= 1e-8
