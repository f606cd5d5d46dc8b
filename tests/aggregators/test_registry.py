"""Names, representations, state, exports and layering of the public surface."""

from __future__ import annotations

import math
import subprocess
import sys

import numpy as np
import pytest
import torch

import paretograd as pg
from paretograd.aggregators.base import Aggregator

NAMES = pg.names()


def make(name: str) -> Aggregator:
    return pg.get(name, **({"cap": 0.6} if name.startswith("capped") else {}))


@pytest.mark.parametrize("name", NAMES)
def test_by_name_and_starred(name: str) -> None:
    rule = make(name)
    assert rule.name == name
    starred = make(f"{name}*")
    assert (starred.name, starred.label) == (f"{name}*", f"{rule.label}*")
    assert isinstance(starred, pg.Normalized)
    assert starred.normalized().name == f"{name}*"  # a star on a star changes nothing
    for described in (rule.description, starred.description):
        assert described.formula
        assert described.reference
        assert described.paper
        assert described.when


@pytest.mark.parametrize("name", NAMES)
def test_class_docstrings_show_the_formula(name: str) -> None:
    doc = type(make(name)).__doc__ or ""
    assert "$$" in doc or name == "pcgrad+"


def test_unknown_names_and_parameters() -> None:
    with pytest.raises(pg.UnknownNameError, match="Did you mean 'upgrad'"):
        pg.get("upgard")
    with pytest.raises(pg.UnknownNameError, match="Known names: mean"):
        pg.get("frobnicate")
    with pytest.raises(pg.ParameterError, match="unexpected keyword argument 'cap'"):
        pg.get("upgrad", cap=0.2)


def test_representations() -> None:
    assert repr(pg.CappedMGDA(cap=0.2)) == "CappedMGDA(cap=0.2)"
    assert repr(pg.UPGrad()) == "UPGrad()"
    assert repr(pg.UPGrad([1.0, 2.0])) == "UPGrad(preference=[1.0, 2.0])"
    assert repr(pg.Mean([1.0, 2.0])) == "Mean(weights=[1.0, 2.0])"
    assert repr(pg.NashMTL(max_norm=None)) == "NashMTL(max_norm=None)"
    assert repr(pg.CAGrad(c=0.4).normalized()) == "CAGrad(c=0.4).normalized()"
    assert repr(pg.PCGrad(order="shuffled", seed=0)) == "PCGrad(order='shuffled', seed=0)"
    assert (repr(pg.RGW()), repr(pg.RGW(seed=np.int64(1)))) == ("RGW()", "RGW(seed=1)")
    assert (repr(pg.PIVRG()), repr(pg.PIVRG([3, 50.5]))) == ("PIVRG()", "PIVRG(scores=[3.0, 50.5])")


GRAMIAN = torch.tensor([[2.0, -1.0, -1.0], [-1.0, 2.0, -0.5], [-1.0, -0.5, 2.5]], dtype=torch.float64)


def restored() -> pg.PIVRG:
    """A PIVRG whose omega comes from a checkpoint."""
    rule = pg.PIVRG()
    rule.load_state_dict(pg.PIVRG([3.0, 50.5, -7.0]).state_dict())
    return rule


@pytest.mark.parametrize(
    "rule",
    [
        *(
            pg.get(
                name, **({"seed": 7} if name in ("rgw", "gradvac") else {"cap": 0.6} if name == "capped-mgda" else {})
            )
            for name in NAMES
        ),
        *(pg.Mean([1 / 3, 2.0, 0.1]), pg.CappedMGDA(cap=np.float64(1 / 3 + 0.1)), pg.CappedMGDA(eps=2 / 3)),
        *(
            pg.ClippedMGDA(0.4, renormalize=False),
            pg.EntropicMGDA(1 / 3),
            pg.SpectralMGDA([3, 2, 2]),
            pg.ChiSquareMGDA(1 / 7),
        ),
        *(pg.PowerMean(-math.inf), pg.PowerMean(-1 / 3), pg.NashMTL(None), pg.FairGrad(1 / 3), pg.CAGrad(1 / 3)),
        *(pg.PIVRG([1 / 3, 50.5, -7.0], bound=3.0, min_temperature=1 / 3), restored()),
        *(
            pg.UPGrad(torch.tensor([1.0, 2.0, 3.0])),
            pg.DualProj([1 / 3, 1.0, 1.0]),
            pg.UPGrad([1.0, 2.0, 3.0]).normalized(),
        ),
        *(pg.PCGrad("shuffled", "sum", seed=3), pg.RGW(seed=3).normalized()),
        pg.Blend([pg.MGDA(), pg.Mean(), pg.UPGrad()], [1.0, 2.0, 4.0]),
        pg.Mixed([pg.FairGrad(1 / 3), pg.RGW(seed=2)], pg.Random(5)),
        pg.Subproblem(pg.subproblem.Entropic(1 / 3), pg.subproblem.Power(10 / 3)),
        pg.Subproblem(pg.subproblem.CVaR(cap=1 / 3 + 0.01), pg.subproblem.Ball(1 / 3)),
        pg.Subproblem(pg.subproblem.Spectral([3, 2, 2]), pg.subproblem.HalfSquare(10 / 3)),
        pg.Subproblem(pg.subproblem.ChiSquare(1 / 7), pg.subproblem.MeanBall(1 / 3)),
        pg.Subproblem(pg.subproblem.MinusPowerMean(-1 / 3)),
    ],
    ids=lambda rule: rule.name,
)
def test_a_representation_makes_the_rule_anew(rule: Aggregator) -> None:
    """Whatever the parameters: the same answers. Weights that are divided by their sum may change their last digit."""
    again = eval(repr(rule), vars(pg) | vars(pg.subproblem))
    for _ in range(3):
        assert torch.allclose(again.weights(GRAMIAN), rule.weights(GRAMIAN), rtol=1e-13, atol=1e-15)


@pytest.mark.parametrize("name", NAMES)
def test_names_are_found_however_they_are_spelled(name: str) -> None:
    parameters = {"cap": 0.6} if name == "capped-mgda" else {"seed": 1} if name == "rgw" else {}
    label = type(make(name)).__name__
    for written in (name.upper(), name.replace("-", "_"), name.replace("-", " "), name.replace("-", ""), label):
        assert repr(pg.get(written, **parameters)) == repr(pg.get(name, **parameters))
        assert pg.get(f" {written}* ", **parameters).name == f"{name}*"


def test_spellings_of_schedules_and_with_parameters() -> None:
    assert pg.get("MAS_RR(5)").name == pg.get("mas rr (n=5)").name == "mas-rr(5)"
    assert repr(pg.get("Capped MGDA (cap=0.2)*")) == "CappedMGDA(cap=0.2).normalized()"
    with pytest.raises(pg.ParameterError, match="write mas-rand"):
        pg.get("MAS_RR")
    with pytest.raises(pg.UnknownNameError, match="Did you mean 'nash-mtl'"):
        pg.get("nash_mtk")


@pytest.mark.parametrize(
    "make_rule",
    [
        lambda: pg.RGW(seed=3),
        lambda: pg.RGW(seed=3).normalized(),
        lambda: pg.PCGrad(order="shuffled", seed=3),
        lambda: pg.RGW(generator=torch.Generator().manual_seed(3)),
    ],
)
def test_random_rules_resume_from_their_state(make_rule: object) -> None:
    G = torch.tensor([[2.0, -1.0, -1.0], [-1.0, 2.0, -1.0], [-1.0, -1.0, 2.5]], dtype=torch.float64)
    rule, again = make_rule(), make_rule()  # type: ignore[operator]
    rule.weights(G)
    state = rule.state_dict()
    expected = [rule.weights(G) for _ in range(3)]
    again.load_state_dict(state)
    assert all(torch.equal(again.weights(G), w) for w in expected)


def test_unseeded_random_rules_follow_the_global_seed() -> None:
    draws = []
    for _ in range(2):
        torch.manual_seed(11)
        draws.append(pg.RGW().weights(torch.eye(4)))
    assert torch.equal(*draws)


def test_pivrg_keeps_its_scores_in_its_state() -> None:
    rule = pg.PIVRG([0.0, 50.0])
    again = pg.PIVRG()
    again.load_state_dict(rule.state_dict())
    assert torch.equal(rule.weights(torch.eye(2)), again.weights(torch.eye(2)))


def test_rules_without_state_refuse_one() -> None:
    pg.UPGrad().load_state_dict({})
    with pytest.raises(pg.ParameterError, match="has no state"):
        pg.UPGrad().load_state_dict({"step": 3})


def test_exported_names() -> None:
    assert sorted(pg.__all__) == sorted(set(pg.__all__))
    for name in pg.__all__:
        assert getattr(pg, name).__doc__, f"{name} has no docstring"


def test_importing_is_light() -> None:
    """No extra, and not even scipy, is imported before it is needed."""
    code = (
        "import sys, paretograd; "
        "heavy = {'scipy', 'matplotlib', 'typer', 'rich', 'cvxpy', 'pandas'} & set(sys.modules); "
        "sys.exit(', '.join(sorted(heavy)) or 0)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
