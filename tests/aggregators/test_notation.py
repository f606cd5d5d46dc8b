"""Rules as text: names, labels, parameters in parentheses, lists, and pools on the command line."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest
import torch
from typer.testing import CliRunner

import paretograd as pg
from paretograd.aggregators.mixed import paper_pool
from paretograd.aggregators.registry import parse_aggregators
from paretograd.cli.app import app

G = torch.tensor([[10.0, -3.0, 0.5], [-3.0, 2.0, 0.0], [0.5, 0.0, 1.5]], dtype=torch.float64)


def test_names_and_labels() -> None:
    found = {name: pg.get(name) for name in ("mas-rand", "mas-rr(100)", "mas-rr(1000)", "mas-rr(2500)", "mas-rr(1234)")}
    labels = ["MAS-Rand", "MAS-RR(100)", "MAS-RR(1k)", "MAS-RR(2.5k)", "MAS-RR(1234)"]
    assert [rule.label for rule in found.values()] == labels
    assert [rule.name for rule in found.values()] == list(found)
    assert [pg.get(label).label for label in labels] == labels  # as the paper writes them
    assert (pg.get("mas-rr(7)*").name, pg.get("mas-rr(7)*").label) == ("mas-rr(7)*", "MAS-RR(7)*")
    assert [rule.label for rule in paper_pool()] == ["MGDA", "Nash-MTL*", "UPGrad*", "DualProj*"]
    mixed = pg.Mixed([pg.MGDA(), pg.UPGrad().normalized()], pg.RoundRobin(1000))
    assert (mixed.name, mixed.label) == ("mixed", "Mixed(MGDA, UPGrad*; RR(1k))")
    assert repr(mixed) == "Mixed([MGDA(), UPGrad().normalized()], RoundRobin(1000))"
    assert pg.Mixed(paper_pool(), pg.Sequence([0])).name == "mixed"
    for rule in (*found.values(), mixed, mixed.normalized()):
        assert all(vars(rule.description).values())


def test_parameters_by_keyword_or_in_parentheses() -> None:
    assert pg.get("mas-rand", seed=3).schedule.seed == pg.get("mas-rand(3)").schedule.seed == 3
    assert repr(pg.get("mas-rr", n=5)) == repr(pg.get("MAS-RR(n=5)")) == repr(pg.get(" mas-rr( 5 ) "))
    assert repr(pg.get("power-mean(-inf)")) == "PowerMean(p=float('-inf'))"
    assert repr(pg.get("nash-mtl(max_norm=None)*")) == "NashMTL(max_norm=None).normalized()"
    assert repr(pg.get("upgrad(preference=(1, 2))")) == "UPGrad(preference=[1.0, 2.0])"
    assert pg.get("pcgrad(order='shuffled', reduction=sum)").reduction == "sum"
    assert pg.get("clipped-mgda(0.5, false)").renormalize is False


def test_rules_around_a_rule() -> None:
    assert repr(pg.get("unit-rows(upgrad*)")) == "UnitRows(UPGrad().normalized())"
    assert repr(pg.get("ClippedRows(capped-mgda(cap=0.5), max_norm=2)*")) == (
        "ClippedRows(CappedMGDA(cap=0.5), 2).normalized()"
    )
    assert repr(pg.get("cr-mogm", aggregator=pg.MGDA(), momentum=0.5)) == "CRMOGM(MGDA(), 0.5)"
    for name in ("unit-rows(mgda)", "clipped-rows(upgrad*)", "cr-mogm(unit-rows(mgda))*"):
        assert pg.get(name).name == name
    seeded = parse_aggregators("cr-mogm(rgw), unit-rows(rgw(seed=4))", seed=7)
    assert [repr(rule) for rule in seeded] == ["CRMOGM(RGW(seed=7), 0.9)", "UnitRows(RGW(seed=4))"]


@pytest.mark.parametrize(
    ("name", "error", "words"),
    [
        ("mas-rr(0)", pg.ParameterError, r"n=0: .*at least 1, as in .*mas-rr\(1000\)"),
        ("mas-rr(x)", pg.ParameterError, r"n='x': .*mas-rr\(1000\)"),
        ("mas-rr(2.5)", pg.ParameterError, r"n=2.5"),
        ("mas-rr", pg.ParameterError, r"'n'.*write mas-rand.*mas-rr\(1000\)"),
        ("mas-rr()", pg.ParameterError, r"'n'"),
        ("mas-rr(1, 2)", pg.ParameterError, "too many positional"),
        ("mas-rr(k=3)", pg.ParameterError, "unexpected keyword argument 'k'"),
        ("mas-rr(3", pg.ParameterError, "is not a rule"),
        ("mas-rnd", pg.UnknownNameError, "Did you mean 'mas-rand'.*mas-rr\\(N\\)"),
        ("two words", pg.UnknownNameError, "no aggregator is called 'two words'"),
        ("mgda*(3)", pg.ParameterError, "star goes at the end"),
        ("unit-rows", pg.ParameterError, r"'aggregator'.*such as unit-rows\(upgrad\)"),
        ("CRMOGM()", pg.ParameterError, r"It takes RULE, momentum, such as cr-mogm\(upgrad\)"),
        ("stch(mu=0.1)", pg.UnknownNameError, r"see only the losses are in paretograd\.scalarizer_names"),
        ("m-config(betas=0.9)", pg.ParameterError, "give two numbers"),
        ("cr-mogm(adam)", pg.UnknownNameError, "no aggregator is called 'adam'"),
        ("cagrad(c=1, c=2)", pg.ParameterError, "gives c twice"),
        ("clipped-mgda(cap=1, true)", pg.ParameterError, "follows a named parameter"),
        ("cagrad(__import__('os').getpid())", pg.ParameterError, "is not a number, word"),
        ("cagrad({1: 2})", pg.ParameterError, "is not a number, word"),
        ("cagrad([[1]])", pg.ParameterError, "is not a number, word"),
        ("cagrad(9**9)", pg.ParameterError, "is not a number, word"),
    ],
)
def test_wrong_names(name: str, error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        pg.get(name)


def test_a_parameter_is_given_once() -> None:
    with pytest.raises(pg.ParameterError, match="already gives n"):
        pg.get("mas-rr(3)", n=4)


def test_lists_of_aggregators() -> None:
    rules = parse_aggregators("mgda, upgrad*,mas-rr(100),capped-mgda(cap=0.2),upgrad(preference=[1,2]),rgw,", seed=3)
    assert [rule.name for rule in rules] == ["mgda", "upgrad*", "mas-rr(100)", "capped-mgda", "upgrad", "rgw"]
    assert torch.equal(rules[-1].weights(G), pg.RGW(seed=3).weights(G))
    first, second = parse_aggregators("mas-rand,mas-rand(5)*", seed=3)
    assert (first.schedule.seed, second.aggregator.schedule.seed) == (3, 5)
    for wrong, error in (
        ("", pg.ParameterError),
        (" , ", pg.ParameterError),
        ("mgda,upgrd", pg.UnknownNameError),
        ("mgda,mas-rr(3", pg.ParameterError),
        ("mgda),mgda", pg.ParameterError),
        ("pcgrad(order='a)", pg.ParameterError),
        ("capped-mgda", pg.ParameterError),
    ):
        with pytest.raises(error):
            parse_aggregators(wrong)


@pytest.fixture
def command(monkeypatch: pytest.MonkeyPatch) -> Callable[..., str]:
    monkeypatch.setenv("COLUMNS", "200")

    def run_command(*arguments: str, code: int = 0) -> str:
        result = CliRunner().invoke(app, list(arguments))
        assert result.exit_code == code, result.output
        return result.output

    return run_command


def test_on_the_command_line(command: Callable[..., str]) -> None:
    listed = command("list")
    assert all(name in listed for name in ("mas-rand", "mas-rr(1000)", "mas-rr(N)"))
    assert "Random(seed=0)" in command("explain", "mas-rand")  # a report reads the same twice
    assert "Random(seed=3)" in command("explain", "mas-rand", "--param", "seed=3")
    assert "Random(seed=4)" in command("explain", "mas-rand(4)*")
    assert "seed (default None): " in command("explain", "mas-rand")
    assert "n (required): " in command("explain", "mas-rr")
    assert "RoundRobin(7)" in command("explain", "mas-rr", "--param", "mas-rr.n=7")
    assert "n=0: " in command("explain", "mas-rr(0)", code=2)
    rules = "mas-rand,capped-mgda(cap=0.4),upgrad(preference=[1,2,1])*"
    found = json.loads(command("compare", "example", "--json", "--only", rules))["rules"]
    assert [rule["name"] for rule in found] == ["mas-rand", "capped-mgda", "upgrad*"]
    assert found[1]["setting"] == "CappedMGDA(cap=0.4)"
