"""What the paper states about its synthetic studies, settled by rows of their tables."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from paretograd.experiments import paper_study
from paretograd.experiments.study import Claim
from paretograd.experiments.synthetic.table import claims

PUBLISHED = {"MGDA": 7417, "UPGrad": 4043, "DualProj": 4975, "Nash-MTL": 1053}


def rows(name: str, **counts: int | None) -> list[dict[str, Any]]:
    """A row for each method, with the published iterations, or these."""
    made = []
    for label in paper_study(name).labels():
        count = counts.get(label.replace("-", "_"), PUBLISHED.get(label, 1000))
        made.append(
            {"method": label, "iterations_figure_seed": count, "iterations_median": count, "conflicting_steps": 0}
        )
    return made


def settled(found: list[Claim]) -> list[bool]:
    return [claim.holds for claim in found]


def test_the_published_iterations():
    study = paper_study("vlmop2")
    found = claims(study, rows("vlmop2"))
    assert settled(found) == [True, True]
    assert "MGDA 7,417 (7,417), UPGrad 4,043 (4,043)" in found[0].sentence
    assert settled(claims(study, rows("vlmop2", MGDA=7400))) == [True, True]
    for count in (7300, None):
        assert settled(claims(study, rows("vlmop2", MGDA=count))) == [False, True]
    assert settled(claims(paper_study("vlmop2", authors_lr=True), rows("vlmop2"))) == [True, True]


def test_a_conflict():
    found = rows("omnitest")
    assert settled(claims(paper_study("omnitest"), found)) == [True]
    found[-1]["conflicting_steps"] = 1
    [claim] = claims(paper_study("omnitest"), found)
    assert claim.sentence == "Does not hold: No step of any method conflicts."


def test_schedules_against_their_pool():
    study = paper_study("mas")
    assert settled(claims(study, rows("mas"))) == [True, True]
    assert settled(claims(study, rows("mas", MAS_Rand=9000))) == [True, False]
    assert settled(claims(study, rows("mas", MAS_Rand=None))) == [True, False]
    assert "slowest rule of their pool: 7,417" in claims(study, rows("mas"))[1].text


def test_other_studies_are_not_compared():
    study = replace(paper_study("vlmop2"), steps=10)
    assert claims(study, rows("vlmop2")) == []
