"""The federated study: the paper's protocol, its runs and names, mistakes, and the command that makes it."""

from __future__ import annotations

import json
import shlex
from dataclasses import replace

import numpy as np
import pytest
import torch
from support.federated import ATTACK, CAPPED, SMALL, run
from typer.testing import CliRunner

import paretograd as pg
from paretograd.cli.app import app
from paretograd.cli.studies import STUDIES
from paretograd.experiments.fairness import FairnessStudy
from paretograd.experiments.federated import (
    FederatedStudy,
    Run,
    small_study,
)
from paretograd.experiments.federated.report import FEDERATED
from paretograd.experiments.federated.study import (
    BASELINES,
    CAPS,
    CENTRAL,
    CENTRALISED,
    CLEAN,
    CLIPS,
    PARTS,
    PUBLISHED,
    RHOS,
    TABLE,
    attack_of,
    label_of,
    read_study,
)
from paretograd.federated import combine_updates


class TestStudy:
    def test_the_paper_s_protocol(self):
        study = FederatedStudy()
        assert (study.seeds, study.epochs, study.lr, study.attack) == ((0, 1, 2), 1000, 0.01, ATTACK)
        assert (study.clients, study.shards, study.size, study.test_size) == (10, 10, 200, 40)
        assert study.changes() == {}
        assert (attack_of("literal").kind, attack_of("literal").noise) == ("literal", 0.01)
        study.rehearse()

    def test_published_values(self):
        """Typed once more from the paper's table."""
        assert [PUBLISHED[rule] for rule in TABLE[:5]] == [0.211, 0.433, 0.511, 0.515, 0.515]

    def test_a_run_of_two_parts_is_trained_once(self):
        runs = FederatedStudy().runs()
        assert len(runs) == len(set(runs)) == len(set(FederatedStudy().files())) == 3 * 55
        cases = FederatedStudy().cases()
        assert {case.rule for case in cases if case.setting == ATTACK} == {
            *TABLE, *CAPS.values(), *CLIPS, *BASELINES,
        }  # fmt: skip
        assert {case.rule for case in cases if case.setting == CLEAN} == set(TABLE)
        assert [case.rule for case in cases if case.setting == CENTRAL] == [CENTRALISED]
        sweep = {case.setting.noise for case in cases if case.rule == "mgda" and case.setting.kind == "relative"}
        assert sweep == set(RHOS)
        assert sum(case.setting.kind == "literal" for case in cases) == len(TABLE)

    def test_mgda_is_the_cap_of_one(self):
        updates = torch.randn(11, 20, generator=torch.Generator().manual_seed(0))
        first, second = (combine_updates(updates, rule, "none") for rule in (pg.get("mgda"), pg.CappedMGDA(cap=1.0)))
        assert CAPS[1.0] == "mgda"
        assert torch.equal(first.direction, second.direction)

    def test_names(self):
        assert label_of(CAPPED) == "Capped MGDA (C = 0.1)"
        assert [label_of(rule) for rule in CLIPS] == [
            "MGDA + clipping (C = 0.1)", "MGDA + clipping (C = 0.2)", "MGDA + clipping (C = 0.2, renormalised)",
        ]  # fmt: skip
        assert Run("nash-mtl*", attack_of("literal"), 2).label == "Nash-MTL*, literal noise 0.01, seed 2"

    @pytest.mark.parametrize(
        ("change", "message"),
        [
            ({"parts": ()}, "use some of table, clean, caps, clipping, baselines, sweep"),
            ({"parts": ("tabel",)}, "parts='tabel': use some of"),
            ({"seeds": (1, 1)}, "seed 1 is given twice"),
            ({"epochs": 0}, "the smallest is 1"),
            ({"lr": 0.0}, "lr=0: a finite number, above 0"),
            ({"noise": -1.0}, "noise=-1.0: a number of at least 0, or the word literal"),
            ({"noise": "much"}, "noise='much'"),
            ({"methods": ("krum",)}, "'krum' is no method of the parts table, clean; there are"),
        ],
    )
    def test_mistakes(self, change, message):
        with pytest.raises(pg.ParameterError, match=message):
            replace(SMALL, **change)

    def test_what_cannot_work_fails_before_anything_is_written(self, tmp_path):
        with pytest.raises(pg.InputError, match=r"Capped MGDA \(C = 0.1\), rho 0.15 cannot combine 5 updates"):
            run(tmp_path / "s", replace(SMALL, clients=4))
        assert not (tmp_path / "s").exists()

    def test_numbers_of_numpy_and_ranges(self):
        study = FederatedStudy(seeds=range(2), epochs=np.int64(5), lr=np.float32(0.25))
        assert study == FederatedStudy(seeds=(0, 1), epochs=5, lr=0.25)
        assert json.loads(json.dumps(study.plain()))["seeds"] == [0, 1]

    def test_as_plain_data_and_back(self):
        for study in (SMALL, FederatedStudy(noise="literal")):
            plain = json.loads(json.dumps(study.plain()))
            assert FederatedStudy.from_plain(plain) == study
        for wrong in ({}, plain | {"extra": 1}, FairnessStudy().plain(), plain | {"seeds": 3}):
            with pytest.raises(pg.InputError, match="not the configuration of a federated study"):
                FederatedStudy.from_plain(wrong)

    @pytest.mark.parametrize(
        "study",
        [
            FederatedStudy(),
            small_study(),
            replace(small_study(), epochs=7, tf32=False),
            replace(small_study(), parts=("clean",), methods=("mgda", "nash-mtl*")),
            replace(small_study(), parts=("table", "clean", "clipping", "sweep")),
            replace(small_study(), methods=("mgda",)),
            replace(small_study(), methods=()),
            replace(small_study(), parts=("caps",), methods=()),
            replace(small_study(), parts=tuple(PARTS), methods=("krum",)),
            FederatedStudy(parts=("clipping",), methods=CLIPS[:2], seeds=(1,), noise="literal", lr=0.1),
        ],
        ids=lambda study: study.command(),
    )
    def test_its_command_makes_it(self, study, monkeypatch):
        seen = []
        seeing = lambda made, *_, **__: seen.append(made) or 1 / 0  # noqa: E731
        monkeypatch.setitem(STUDIES, "federated", replace(FEDERATED, run=seeing))
        with pytest.raises(ZeroDivisionError):
            CliRunner().invoke(app, shlex.split(study.command())[1:], catch_exceptions=False)
        assert seen == [study]

    def test_where_no_command_makes_it_there_is_a_call(self):
        call = SMALL.command().removeprefix("paretograd.experiments.federated.run_federated")
        assert eval(call, {"FederatedStudy": FederatedStudy, "FOLDER": 0}) == (SMALL, 0)

    def test_what_a_person_writes(self):
        assert read_study(small=True) == small_study()
        assert read_study(seeds="0, 2", noise="0.4", parts="table").noise == 0.4
        for wrong in ({"seeds": "many"}, {"noise": "much"}):
            with pytest.raises(pg.InputError, match="such as"):
                read_study(**wrong)

    @pytest.mark.parametrize(
        ("written", "rule"),
        [
            ("MGDA", "mgda"),
            ("Nash-MTL*", "nash-mtl*"),
            ("capped-mgda(cap=.1)", CAPPED),
            ("capped-mgda(0.10)", CAPPED),
            ("clipped-mgda(cap=0.2,renormalize=false)", CLIPS[1]),
            ("clipped-mgda(0.2)", CLIPS[2]),
            ("Krum", "krum"),
            ("Centralised", CENTRALISED),
            ("mean", "mean"),
        ],
    )
    def test_a_rule_is_known_however_it_is_written(self, written, rule):
        assert FederatedStudy(methods=(written,)).methods == (rule,)
        assert {case.rule for case in read_study(small=True, methods=written).cases()} == {rule}

    def test_parts_come_with_all_their_rules_and_rules_with_their_parts(self):
        """The small variant's own choice of rules is for its own parts."""
        for part, cases in PARTS.items():
            small = read_study(small=True, parts=part)
            assert small.cases() == list(dict.fromkeys(cases(small.attack)))
            assert (small.epochs, small.seeds) == (small_study().epochs, (0,))
        assert read_study(small=True, methods="mgda").parts == small_study().parts
        assert [case.rule for case in read_study(small=True, methods="krum").cases()] == ["krum"]
        assert read_study(small=True, methods="mgda,krum").parts == ("table", "clean", "clipping", "baselines")
        assert read_study(methods="krum").parts == tuple(PARTS)
        assert read_study(small=True, parts="table", methods="mgda").methods == ("mgda",)
        with pytest.raises(pg.ParameterError, match=r"'krumm' is no method .* krum,"):
            read_study(small=True, methods="krumm")
        with pytest.raises(pg.ParameterError, match="'krum' is no method of the parts table;"):
            read_study(small=True, parts="table", methods="krum")

    @pytest.mark.parametrize("seed", [-1, 2**63, 10**30])
    def test_seeds_that_torch_cannot_take_are_refused_before_anything_is_written(self, seed, tmp_path):
        with pytest.raises(pg.ParameterError, match="seed"):
            run(tmp_path / "s", replace(SMALL, seeds=(0, seed)))
        with pytest.raises(pg.ParameterError, match="seed"):
            read_study(seeds=f"0,{seed}")
        assert not (tmp_path / "s").exists()
        assert FederatedStudy(seeds=(2**63 - 1,)).seeds == (2**63 - 1,)
