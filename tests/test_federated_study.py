"""The federated study: protocol, attack, gradients, training, folder, tables, figures, commands, and kills."""

from __future__ import annotations

import csv
import json
import re
import shlex
import shutil
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from support.cifar10 import made_cifar10
from support.killing import Press, killed_at_every_write, results_in
from torch.nn.functional import cross_entropy
from torch.nn.utils import parameters_to_vector, vector_to_parameters
from typer.testing import CliRunner

import paretograd as pg
from paretograd.cli.app import app
from paretograd.descent import Stop, archive
from paretograd.experiments.fairness import FairnessStudy
from paretograd.experiments.federated import (
    FederatedResults,
    FederatedStudy,
    Run,
    RunResult,
    Setting,
    read_results,
    run_federated,
    small_study,
)
from paretograd.experiments.federated import run as run_module
from paretograd.experiments.federated.__main__ import main
from paretograd.experiments.federated.clients import Clients, Federation
from paretograd.experiments.federated.figures import record_series
from paretograd.experiments.federated.report import FEDERATED, write_federated
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
    rule_of,
)
from paretograd.experiments.federated.table import claims, rows, write
from paretograd.experiments.federated.training import Training, attacked, draw
from paretograd.experiments.registry import STUDIES
from paretograd.federated import combine_updates
from paretograd.problems.cifar10 import Images, cnn, partition
from paretograd.problems.cifar10.model import normalized

DATA = made_cifar10()
CAPPED = "capped-mgda(cap=0.1)"
SMALL = FederatedStudy(
    parts=("table", "clean"),
    methods=("mgda", CAPPED),
    seeds=(0,),
    epochs=3,
    lr=0.05,
    every=2,
    shards=2,
    size=2,
    test_size=2,
)
ATTACK = attack_of(0.15)
CPU = torch.device("cpu")
NO_GPU = {"condition": not torch.cuda.is_available(), "reason": "there is no GPU"}


def run(folder: Path, study: FederatedStudy = SMALL, **options: object) -> FederatedResults:
    """With made images in the place of CIFAR-10, unless the test says what to take."""
    with pytest.MonkeyPatch.context() as patch:
        if "data" not in options:
            patch.setattr(run_module, "load_cifar10", lambda *_: DATA)
        return run_federated(study, folder, **({"device": "cpu"} | options))


@pytest.fixture(scope="module")
def done(tmp_path_factory) -> Path:
    return run(tmp_path_factory.mktemp("done") / "study").folder


@pytest.fixture(scope="module")
def federation() -> Federation:
    return Federation(DATA, SMALL, 0, False, CPU)


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


def test_the_ordering_on_made_images(tmp_path):
    """The attack stops MGDA and not capped MGDA, in a study of seconds; a class is a colour here."""
    study = replace(SMALL, epochs=15, size=4, test_size=4)
    found = {(row["rule"], row["setting"]): row["accuracy_mean"] for row in run(tmp_path / "s", study).rows}
    assert found["mgda", "relative"] < found[CAPPED, "relative"] - 0.15
    assert found["mgda", "relative"] < found["mgda", "clean"] - 0.05
    assert found[CAPPED, "relative"] > 0.4
    assert found[CAPPED, "clean"] > 0.4


class TestAttack:
    def test_the_draws_are_a_function_of_seed_and_epoch(self):
        assert draw(1, 5, 10) == draw(1, 5, 10)
        assert len({draw(seed, epoch, 10).noise_seed for seed in range(3) for epoch in range(100)}) == 300
        targets = np.bincount([draw(0, epoch, 10).target for epoch in range(1000)], minlength=10)
        assert targets.sum() == 1000
        assert targets.min() > 60

    def test_one_more_row_with_the_opposite_sign(self):
        gradients = torch.randn(10, 500, generator=torch.Generator().manual_seed(0))
        found = attacked(gradients, ATTACK, seed=3, epoch=8)
        assert torch.equal(found[:10], gradients)
        victim = gradients[draw(3, 8, 10).target]
        assert float((found[10] + victim).norm() / victim.norm()) == pytest.approx(0.15, rel=1e-5)
        assert torch.equal(found, attacked(gradients, ATTACK, 3, 8))
        assert attacked(gradients, CLEAN, 3, 8) is gradients

    def test_the_literal_noise_is_longer_than_the_gradient(self):
        """0.01 sqrt(411,626) = 6.4."""
        found = attacked(torch.zeros(10, 411_626), attack_of("literal"), 0, 0)
        assert float(found[10].norm()) == pytest.approx(0.01 * 411_626**0.5, rel=0.01)

    def test_every_rule_faces_the_same_attack(self, federation, monkeypatch):
        seen: dict[str, list[tuple[int, int]]] = {}
        for rule in ("mean", "krum"):
            monkeypatch.setattr(
                "paretograd.experiments.federated.training.draw",
                lambda *given, rule=rule: seen.setdefault(rule, []).append(draw(*given)) or draw(*given),
            )
            Training(SMALL, Run(rule, ATTACK, 0), federation).advance(9)
        assert seen["mean"] == seen["krum"] == [draw(0, epoch, 10) for epoch in range(3)]


class TestClients:
    IMAGES = tuple(
        Images(
            torch.randint(0, 256, (6, 3, 32, 32), dtype=torch.uint8, generator=torch.Generator().manual_seed(k)),
            torch.randint(0, 10, (6,), generator=torch.Generator().manual_seed(k)),
        )
        for k in range(3)
    )

    def test_gradients_are_autograd_s(self):
        model = cnn(seed=4)
        flat = parameters_to_vector(model.parameters()).detach()
        found = Clients(self.IMAGES, CPU).gradients(flat)
        assert found.gradients.shape == (3, 411_626)
        for k, (pixels, labels) in enumerate(self.IMAGES):
            model.zero_grad()
            loss = cross_entropy(model.train()(normalized(pixels)), labels)
            loss.backward()
            wanted = torch.cat([param.grad.reshape(-1) for param in model.parameters()])
            assert float(found.losses[k]) == pytest.approx(loss.item(), rel=1e-5)
            # Sums of float32 over thousands of pixels, in another order where channels come last.
            assert float((found.gradients[k] - wanted).norm()) <= 1e-4 * float(wanted.norm())

    def test_gradients_of_many_images_are_those_of_float64(self):
        """Sums over 78,400 pixels: to what float32 has, and not to what some kernels leave of it."""
        generator = torch.Generator().manual_seed(0)
        own = Images(
            torch.randint(0, 256, (100, 3, 32, 32), dtype=torch.uint8, generator=generator),
            torch.randint(0, 10, (100,), generator=generator),
        )
        model = cnn(seed=0)
        found = Clients([own], CPU).gradients(parameters_to_vector(model.parameters()).detach()).gradients[0]
        model = model.double().train()
        cross_entropy(model(normalized(own.pixels).double()), own.labels).backward()
        wanted = torch.cat([param.grad.reshape(-1) for param in model.parameters()])
        assert float((found.double() - wanted).norm()) <= 1e-4 * float(wanted.norm())

    def test_statistics_are_pooled_over_the_clients(self):
        """The first BatchNorm's against those of all images in one batch; all in an evaluation by the module."""
        model = cnn(seed=4)
        flat, clients = parameters_to_vector(model.parameters()).detach(), Clients(self.IMAGES, CPU)
        moments = clients.gradients(flat).moments
        with torch.no_grad():
            pixels = torch.cat([own.pixels for own in self.IMAGES])
            every = normalized(pixels)
            hidden = model[:2](every).double().transpose(0, 1).flatten(1)
        assert torch.allclose(moments[0][0].double(), hidden.mean(dim=1), rtol=1e-5)
        assert torch.allclose(moments[0][1].double(), hidden.var(dim=1, correction=0), rtol=1e-4)
        for norm, (mean, variance) in zip((model[2], model[6]), moments, strict=True):
            norm.running_mean, norm.running_var = mean.clone(), variance.clone()
        with torch.no_grad():
            wanted = model.eval()(every)
        assert torch.allclose(clients.logits(flat, pixels, moments), wanted, atol=1e-5)

    def test_the_centralised_client_has_all_images(self):
        spread, central = (Federation(DATA, SMALL, 0, one, CPU) for one in (False, True))
        flat = parameters_to_vector(cnn(0).parameters()).detach()
        assert len(spread.clients.gradients(flat).losses) == 10
        found = central.clients.gradients(flat)
        assert len(found.losses) == 1
        assert central.accuracies(flat, found.moments).shape == (10,)

    def test_accuracy_is_of_each_client_s_own_test_images(self, federation):
        flat = parameters_to_vector(cnn(0).parameters()).detach()
        moments = federation.clients.gradients(flat).moments
        dealt = partition(DATA, 0, shards=2, size=2, test_size=2)

        def share(pixels: torch.Tensor, labels: torch.Tensor) -> float:
            return float((federation.clients.logits(flat, pixels, moments).argmax(dim=1) == labels).double().mean())

        own = [share(DATA.test.pixels[numbers], DATA.test.labels[numbers]) for numbers in dealt.test]
        assert federation.accuracies(flat, moments).tolist() == pytest.approx(own)
        assert federation.accuracy(flat, moments) == pytest.approx(share(*DATA.test))


class TestTraining:
    @pytest.mark.parametrize(("rule", "setting"), [("dualproj*", ATTACK), ("median", ATTACK), ("mean", CLEAN)])
    def test_it_is_the_server_s_aggregation(self, federation, rule, setting):
        """Bit by bit a plain loop around `combine_updates`."""
        training = Training(SMALL, Run(rule, setting, 0), federation)
        training.advance(100)
        model = cnn(seed=0)
        point = parameters_to_vector(model.parameters()).detach()
        for epoch in range(3):
            vector_to_parameters(point, model.parameters())
            found = federation.clients.gradients(point)
            combined = combine_updates(attacked(found.gradients, setting, 0, epoch), rule_of(rule), bound="none")
            loss, norm, slope, gamma = training.records[epoch]
            assert loss == pytest.approx(float(found.losses.mean()), rel=1e-6)
            assert norm == pytest.approx(float(combined.direction.double().norm()), rel=1e-12)
            assert slope == pytest.approx(float((found.gradients.double() @ combined.direction.double()).min()))
            assert gamma == combined.gamma
            assert np.array_equal(training.weights[epoch], combined.weights.numpy(), equal_nan=True)
            point = point - 0.05 * combined.direction
        assert torch.equal(training.parameters, point)
        assert (training.reason, training.looks, training.epoch) == (Stop.STEPS, [0, 2, 3], 3)
        assert 0.0 <= training.overall <= 1.0
        assert np.isnan(training.weights).all() == (rule == "median")

    def test_a_run_that_diverges_counts_as_a_guess(self, federation, tmp_path):
        study = replace(SMALL, methods=("mean",), parts=("table",), lr=1e30, epochs=9)
        results = run(tmp_path, study)
        [found] = results.runs.values()
        assert found.reason is Stop.NOT_FINITE
        assert 0 < found.length < 9
        assert (found.accuracy, found.overall) == (pytest.approx(0.1), 0.1)
        assert "Mean, rho 0.15, seed 0: a loss or gradient is not finite" in (tmp_path / "table.md").read_text()
        assert write_federated(results, {})

    def test_the_state_of_a_run_at_any_time(self, federation):
        """Under way, at its end, and lost."""
        for lr, count, reason in ((0.05, 1, Stop.RUNNING), (0.05, 9, Stop.STEPS), (1e30, 9, Stop.NOT_FINITE)):
            study, one = replace(SMALL, lr=lr), Run("mean", CLEAN, 0)
            first, second = Training(study, one, federation), Training(study, one, federation)
            first.advance(count)
            assert first.reason is reason
            second.load_state_dict(first.state_dict())
            for training in (first, second):
                training.advance(9)
            assert (second.reason, second.looks) == (first.reason, first.looks)
            assert torch.equal(second.parameters, first.parameters)
            assert np.array_equal(second.accuracies, first.accuracies)
            assert second.overall == first.overall

    def test_a_rule_without_a_direction_ends_its_run(self, federation, monkeypatch):
        def fails(*_: object, **__: object) -> None:
            raise pg.ParameterError("no direction")

        monkeypatch.setattr("paretograd.experiments.federated.training.combine_updates", fails)
        training = Training(SMALL, Run("mean", CLEAN, 0), federation)
        training.advance(5)
        assert (training.reason, training.why, training.epoch) == (Stop.DEGENERATE, "no direction", 0)
        assert training.accuracies.tolist() == [[0.1] * 10]


class TestFolder:
    def test_holds_all(self, done):
        names = sorted(path.relative_to(done).as_posix() for path in done.rglob("*") if path.is_file())
        assert names == [
            "checkpoints/.gitignore", "config.json", "runs/capped-mgda-c-0.1-no-attack-seed-0.npz",
            "runs/capped-mgda-c-0.1-rho-0.15-seed-0.npz", "runs/mgda-no-attack-seed-0.npz",
            "runs/mgda-rho-0.15-seed-0.npz", "table.csv", "table.md",
        ]  # fmt: skip
        config = json.loads((done / "config.json").read_text())
        assert config["study"] == json.loads(json.dumps(SMALL.plain()))
        [session] = config["sessions"]
        assert session["device"].startswith("CPU")
        assert set(session["versions"]) == {"python", "torch", "numpy", "paretograd"}
        assert set(config["durations"]) == set(SMALL.labels())
        assert all(found["steps"] == 3 for found in config["durations"].values())

    @pytest.mark.parametrize("rule", ["dualproj*", "upgrad*", "mgda", "mean", "krum"])
    def test_conflicts_are_counted_beyond_rounding(self, federation, rule):
        """A direction that is orthogonal to a gradient is so to rounding, and in no conflict."""
        training = Training(replace(SMALL, epochs=5), Run(rule, ATTACK, 0), federation)
        training.advance(5)
        slopes, norms = training.records[:, 2], training.records[:, 1]
        assert training.conflicts <= int((slopes < 0.0).sum())
        assert training.conflicts >= int((slopes < -1e-3 * norms).sum())
        if rule in ("dualproj*", "upgrad*", "mgda"):
            assert training.conflicts == 0

    def test_results_are_the_training_s(self, done, federation):
        case = Run("mgda", ATTACK, 0)
        found = read_results(done).runs[case]
        training = Training(SMALL, case, federation)
        training.advance(3)
        assert found.epochs.tolist() == [0, 1, 2]
        assert np.array_equal(np.stack([found.losses, found.norms, found.slopes, found.gamma], 1),
                              training.records.astype(np.float32))  # fmt: skip
        assert found.looks.tolist() == [0, 2, 3]
        assert np.array_equal(found.weights, training.weights[[0, 2]].astype(np.float16))
        assert found.accuracy == pytest.approx(training.accuracies[-1].mean())

    def test_a_run_of_a_thousand_epochs_stays_small(self, tmp_path):
        example(0.5).save(tmp_path / "r.npz")
        assert (tmp_path / "r.npz").stat().st_size < 18_000
        assert RunResult.load(tmp_path / "r.npz").accuracy == pytest.approx(0.5)

    @pytest.mark.parametrize(
        "change",
        [{"format": "other"}, {"extra": 1}, {"losses": np.zeros((2, 2))}, {"reason": "WHY"}, {"epochs": 3},
         {"accuracies": np.full((101, 10), np.nan)}, {"overall": "good"}],
        ids=lambda change: next(iter(change)),
    )  # fmt: skip
    def test_a_result_that_is_none(self, change, tmp_path):
        example(0.5).save(tmp_path / "r.npz")
        archive.write(tmp_path / "r.npz", archive.read(tmp_path / "r.npz") | change, overwrite=True)
        with pytest.raises(pg.InputError, match=r"r\.npz (is damaged|holds no run)"):
            RunResult.load(tmp_path / "r.npz")

    def test_a_folder_that_holds_no_study(self, tmp_path):
        with pytest.raises(pg.InputError, match="holds no study"):
            read_results(tmp_path)


class TestResume:
    @pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
    def test_an_interrupt_loses_nothing(self, tmp_path, done, number):
        """A checkpoint of that epoch, then KeyboardInterrupt; the rest ends with the same bytes."""
        with pytest.raises(KeyboardInterrupt):
            run(tmp_path / "s", watch=Press("Capped", 1, number))
        [path] = (tmp_path / "s" / "checkpoints").glob("*.npz")
        assert archive.read(path)["0_epoch"] >= 1
        assert "Not trained yet: 3 of 4 runs." in (tmp_path / "s" / "table.md").read_text()
        run(tmp_path / "s", resume=True)
        assert results_in(tmp_path / "s") == results_in(done)
        assert len(json.loads((tmp_path / "s" / "config.json").read_text())["sessions"]) == 2

    def test_killed_at_every_write(self, tmp_path):
        study = replace(SMALL, methods=("mgda",), parts=("table",), epochs=2, seeds=(0, 1))
        assert killed_at_every_write(run, study, tmp_path, dense=4, stride=2) > 5

    def test_a_run_that_is_done_is_not_trained_again_and_needs_no_data(self, tmp_path, monkeypatch, done):
        shutil.copytree(done, tmp_path / "s")
        monkeypatch.setattr(run_module, "Training", lambda *_: 1 / 0)
        monkeypatch.setattr(run_module, "load_cifar10", lambda *_: 1 / 0)
        before = (tmp_path / "s" / "config.json").read_bytes()
        run(tmp_path / "s", data=None, resume=True)
        assert results_in(tmp_path / "s") == results_in(done)
        assert (tmp_path / "s" / "config.json").read_bytes() == before

    @pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.skipif(**NO_GPU))])
    def test_seeds_that_are_trained_together_end_as_alone(self, tmp_path, device):
        """On a GPU also in the sense that what runs side by side has nothing in common that it writes to."""
        epochs = 100 if device == "cuda" else 3
        study = replace(SMALL, methods=("mgda",), parts=("table",), seeds=(0, 1), epochs=epochs)
        together = run(tmp_path / "together", study, device=device).folder
        for seed in study.seeds:
            alone = run(tmp_path / str(seed), replace(study, seeds=(seed,)), device=device).folder
            [path] = (alone / "runs").iterdir()
            assert path.read_bytes() == (together / "runs" / path.name).read_bytes()

    def test_a_run_whose_file_was_removed_is_trained_again(self, tmp_path):
        study = replace(SMALL, methods=("mgda",), parts=("table",), seeds=(0, 1))
        before = results_in(run(tmp_path, study).folder)
        next((tmp_path / "runs").glob("*seed-1.npz")).unlink()
        assert results_in(run(tmp_path, study, resume=True).folder) == before

    def test_images_of_one_s_own_are_known_again(self, tmp_path):
        study = replace(SMALL, methods=("mgda",), parts=("table",), seeds=(0, 1))
        own = run(tmp_path, study, data=DATA)
        assert len(own.study.own_data) == 64
        assert "not the paper's protocol (seeds 0,1, " in (tmp_path / "table.md").read_text()
        assert "images of one's own" in (tmp_path / "table.md").read_text()
        assert own.study.command().endswith(", FOLDER, data=DATA)")
        assert read_results(tmp_path).study == own.study
        run(tmp_path, study, data=DATA, resume=True)
        other = DATA._replace(test=Images(DATA.test.pixels.flip(0), DATA.test.labels))
        for changed in ({"data": other}, {}):
            with pytest.raises(pg.InputError, match="own data"):
                run(tmp_path, study, resume=True, **changed)

    def test_nothing_is_overwritten_unless_asked(self, tmp_path, done):
        shutil.copytree(done, tmp_path / "s")
        with pytest.raises(pg.InputError, match="this study, finished"):
            run(tmp_path / "s")
        with pytest.raises(pg.InputError, match="epochs: 3 there, 4 here"):
            run(tmp_path / "s", replace(SMALL, epochs=4), resume=True)
        assert results_in(tmp_path / "s") == results_in(done)

    @pytest.mark.parametrize("damage", ["truncate", "nan", "shape", "epoch"])
    def test_a_damaged_checkpoint_is_refused(self, tmp_path, damage):
        study = replace(SMALL, methods=("mgda",), parts=("table",))
        with pytest.raises(KeyboardInterrupt):
            run(tmp_path, study, watch=Press("MGDA", 1))
        [path] = (tmp_path / "checkpoints").glob("*.npz")
        state = archive.read(path)
        changes = {"nan": {"0_parameters": state["0_parameters"] * np.nan}, "shape": {"0_weights": np.zeros(3)}}
        if damage == "truncate":
            path.write_bytes(path.read_bytes()[:100])
        else:
            archive.write(path, state | changes.get(damage, {"0_epoch": 99}), overwrite=True)
        with pytest.raises(pg.InputError, match=r"(?s)cannot be used.*--resume runs MGDA, rho 0.15 from its"):
            run(tmp_path, study, resume=True)

    def test_a_result_of_another_run_is_refused(self, tmp_path, done):
        shutil.copytree(done, tmp_path / "s")
        runs = tmp_path / "s" / "runs"
        shutil.copy(runs / "mgda-rho-0.15-seed-0.npz", runs / "mgda-no-attack-seed-0.npz")
        with pytest.raises(pg.InputError, match=r"of another study: MGDA, rho.*--resume runs MGDA, no attack"):
            run(tmp_path / "s", resume=True)

    def test_missing_data_are_told_before_anything_is_written(self, tmp_path):
        with pytest.raises(pg.DataError, match="empty holds neither"):
            run(tmp_path / "s", data=None, data_dir=tmp_path / "empty")
        assert not (tmp_path / "s").exists()
        assert not (tmp_path / "s").exists()


def example(accuracy: float, label: str = "r", epochs: int = 1000) -> RunResult:
    """A run with made numbers, as long as a real one."""
    kept, looks = np.arange(0, epochs, 3, dtype=np.int32), np.arange(0, epochs + 1, 10, dtype=np.int32)
    values = np.linspace(1.0, 0.1, len(kept), dtype=np.float32)
    shape = np.linspace(0.1, accuracy, len(looks))[:, None] + np.linspace(-0.05, 0.05, 10)
    return RunResult(
        label=label,
        reason=Stop.STEPS,
        why="",
        length=epochs,
        epochs=kept,
        losses=values,
        norms=values,
        slopes=values - 0.5,
        gamma=values,
        looks=looks,
        accuracies=shape.astype(np.float32),
        weights=np.full((len(looks) - 1, 11), 1 / 11, np.float16),
        conflicts=250,
        overall=accuracy - 0.02,
    )


#: Accuracies of made runs: the paper's ordering.
MADE = {"mgda": 0.2, "nash-mtl*": 0.44, "upgrad*": 0.52, "dualproj*": 0.54, CAPPED: 0.55, "mean": 0.56}
MADE |= dict.fromkeys((*CLIPS, *BASELINES), 0.3) | {CAPS[cap]: 0.55 - 0.3 * cap for cap in (0.15, 0.2, 0.3, 0.5)}


def made_runs(study: FederatedStudy) -> dict[Run, RunResult]:
    """All runs of a study; seeds differ by 0.01."""
    free = {CLEAN: 0.57, CENTRAL: 0.6}
    return {
        one: example(free.get(one.setting, MADE.get(one.rule, 0.0)) + 0.01 * one.seed, one.label)
        for one in study.runs()
    }


class TestTable:
    STUDY = FederatedStudy()
    RUNS = made_runs(STUDY)

    def row(self, rule: str, setting: Setting) -> dict[str, object]:
        noise = setting.noise if setting.attacked else None
        [found] = [
            row for row in rows(self.STUDY, self.RUNS)
            if (row["rule"], row["setting"], row["noise"]) == (rule, setting.kind, noise)
        ]  # fmt: skip
        return found

    def test_values(self):
        mgda = self.row("mgda", ATTACK)
        assert mgda["accuracy_mean"] == pytest.approx(0.21)
        assert mgda["accuracy_std"] == pytest.approx(0.01)
        assert (mgda["accuracy_min"], mgda["accuracy_max"]) == (pytest.approx(0.20), pytest.approx(0.22))
        assert mgda["worst_client_mean"] == pytest.approx(0.16)
        assert mgda["overall_mean"] == pytest.approx(0.19)
        assert mgda["difference_to_clean"] == pytest.approx(0.21 - 0.58)
        assert mgda["difference_to_clean_std"] == pytest.approx(0.0, abs=1e-7)  # seed by seed; accuracies are float32
        assert mgda["difference_to_clean_min"] == pytest.approx(0.21 - 0.58)
        assert (mgda["paper"], mgda["difference_to_paper"]) == (0.211, pytest.approx(-0.001))
        assert (mgda["conflicting_epochs"], mgda["epochs"], mgda["ended_by"]) == (750, 3000, "steps")
        assert self.row("mgda", attack_of(0.4))["paper"] is None
        assert self.row("mean", CLEAN)["paper"] == 0.541
        assert self.row(CENTRALISED, CENTRAL)["clean_mean"] is None

    def test_changes_are_those_of_the_seeds_that_both_have(self):
        some = {one: result for one, result in self.RUNS.items() if (one.setting, one.seed) != (CLEAN, 2)}
        mgda = next(row for row in rows(self.STUDY, some) if (row["rule"], row["setting"]) == ("mgda", "relative"))
        assert (mgda["seeds"], mgda["difference_to_clean"]) == (3, pytest.approx(0.20 - 0.57))

    def test_files(self, tmp_path):
        write(run_module.FederatedFolder(tmp_path), self.STUDY, self.RUNS)
        text = (tmp_path / "table.md").read_text()
        assert "| MGDA | 0.210 ± 0.010 | 0.580 ± 0.010 | -0.370 ± 0.000 | 0.190 ± 0.010 | 0.211 | -0.001 |" in text
        assert "| Nash-MTL\\* | 0.450 ± 0.010 |" in text
        assert "| No adversary (Mean) |  | 0.580 ± 0.010 |  |  | 0.541 | +0.039 |" in text
        assert "| Centralised |  | 0.610 ± 0.010 |  |  |  |  |" in text
        assert "| method | rho 0.01 | rho 0.05 | rho 0.15 | rho 0.4 | rho 1 | literal 0.01 |" in text
        assert "| Trimmed mean | 0.310 ± 0.010 | 0.260 | 0.290 ± 0.010 | 25% |" in text
        assert "Made by `paretograd reproduce federated`." in text
        assert "not the paper's protocol" not in text
        with (tmp_path / "table.csv").open() as file:
            found = list(csv.DictReader(file))
        assert len(found) == len(self.STUDY.cases())
        assert float(found[0]["accuracy_mean"]) == pytest.approx(0.21)

    def test_claims(self):
        found = claims(self.STUDY, rows(self.STUDY, self.RUNS))
        assert len(found) == 9
        assert all(claim.holds for claim in found)
        lower = {(one.rule, one.seed): result for one, result in self.RUNS.items() if one.setting == ATTACK}
        uneven = self.RUNS | {
            Run("upgrad*", ATTACK, 0): replace(lower["upgrad*", 0], accuracies=lower["mgda", 0].accuracies)
        }
        [text] = [claim.text for claim in claims(self.STUDY, rows(self.STUDY, uneven)) if "UPGrad* stays" in claim.text]
        assert "UPGrad* stays in the mean within 0.06 of its accuracy without the attack: " in text
        assert text.endswith("; worst seed: -0.370.")
        other = {one: replace(result, accuracies=result.accuracies * 0 + 0.4) for one, result in self.RUNS.items()}
        fails = [claim.text for claim in claims(self.STUDY, rows(self.STUDY, other)) if not claim.holds]
        assert [text.split(":")[0] for text in fails[:2]] == [
            "MGDA collapses, below 0.3", "Nash-MTL* is between MGDA and these",
        ]  # fmt: skip
        assert len(fails) == 5

    def test_where_nobody_learns_nothing_collapses(self):
        low = {one: replace(result, accuracies=result.accuracies * 0 + 0.12) for one, result in self.RUNS.items()}
        assert not [claim for claim in claims(self.STUDY, rows(self.STUDY, low)) if "collapses" in claim.text]

    def test_one_seed_and_another_protocol(self, done):
        text = (done / "table.md").read_text()
        assert "after 3 epochs: seed 0." in text
        assert "not the paper's protocol (seeds 0, epochs 3, lr 0.05, shards 2, size 2, test size 2)" in text

    def test_a_part_alone_has_a_table(self, tmp_path):
        for part in PARTS:
            study = FederatedStudy(parts=(part,))
            write(run_module.FederatedFolder(tmp_path), study, made_runs(study))
            assert "| method |" in (tmp_path / "table.md").read_text(), part


class TestSeries:
    def test_ends_of_running_means_are_those_of_what_is_there(self):
        result = example(0.5)
        values = np.arange(len(result.epochs), dtype=np.float32)
        found = record_series(replace(result, norms=values), "norms")
        width = int(found.high[len(values) // 2] - found.low[len(values) // 2]) + 1
        for k in (0, 1, len(values) // 2, len(values) - 2, len(values) - 1):
            window = values[max(0, k - width // 2) : k + width - width // 2]
            assert (found.middle[k], found.low[k], found.high[k]) == (window.mean(), window.min(), window.max())


class TestReport:
    STEMS = ("capped_mgda_results", "cap_vs_clip", "avg_acc_multiC", "noise_sweep", "final_accuracy")

    def test_figures_and_page(self, tmp_path):
        results = FederatedResults(TestTable.STUDY, tmp_path, TestTable.RUNS)
        paths = write_federated(results, {"command": "c"})
        assert [path.name for path in paths] == [f"{stem}.{kind}" for stem in self.STEMS for kind in ("png", "svg")] + [
            "report.html"
        ]
        page = paths[-1].read_text(encoding="utf-8")
        (text,) = re.findall(r'<script type="application/json" id="study">(.*?)</script>', page)
        data = json.loads(text)
        labels = [method["label"] for method in data["methods"]]
        assert labels[:2] == ["MGDA, rho 0.15", "Nash-MTL*, rho 0.15"]
        assert labels.count("Centralised") == 1
        assert [panel["kind"] for panel in data["panels"]] == ["loss"] * 4 + ["gamma"]
        assert data["objectives"] == ["accuracy", "loss", "|d|", "min d·g"]
        assert data["axes"][0] == "mean test accuracy of the clients"
        assert len(data["runs"]) == 3 * len(labels)
        assert "Conflict with the honest clients" in page

    def test_of_an_unfinished_study(self, done, tmp_path):
        shutil.copytree(done, tmp_path / "s")
        for path in (tmp_path / "s" / "runs").glob("capped*"):
            path.unlink()
        paths = write_federated(read_results(tmp_path / "s"), {})
        assert [path.name for path in paths] == ["final_accuracy.png", "final_accuracy.svg", "report.html"]

    def test_nothing_done_yet(self, tmp_path):
        with pytest.raises(pg.ParameterError, match="no run of the study"):
            write_federated(FederatedResults(SMALL, tmp_path, {}), {})


class TestCommands:
    ARGUMENTS = ("reproduce", "federated", "--small", "--methods", "mgda", "--epochs", "1", "--device", "cpu")

    @pytest.fixture
    def command(self, monkeypatch, tmp_path):
        monkeypatch.chdir(tmp_path)
        monkeypatch.setenv("COLUMNS", "100")
        sizes = replace(small_study(), shards=2, size=2, test_size=2)
        monkeypatch.setattr("paretograd.experiments.federated.study.small_study", lambda: sizes)
        monkeypatch.setattr(run_module, "load_cifar10", lambda data_dir: DATA)
        return lambda *given: CliRunner().invoke(app, list(given))

    def test_reproduce_and_report(self, command, tmp_path):
        first = command(*self.ARGUMENTS)
        assert first.exit_code == 0, first.output
        assert first.stderr == ""
        words = ("MGDA", "under attack", "With and without the attack", "runs/federated/report.html")
        assert all(word in first.stdout for word in words)
        assert max(map(len, map(str.rstrip, first.stdout.splitlines()))) <= 100
        (tmp_path / "runs/federated/report.html").unlink()
        drawn = command("report", "runs/federated")
        assert (drawn.exit_code, drawn.stdout.splitlines()[-1]) == (0, "runs/federated/report.html")
        assert (tmp_path / "runs/federated/report.html").exists()

    def test_the_module_writes_the_same_folder(self, command, tmp_path, capsys):
        assert command(*self.ARGUMENTS, "--no-report").exit_code == 0
        options = [*self.ARGUMENTS[2:], "--out", "other"]
        assert main(options) == 0
        told = capsys.readouterr().out
        assert "[2/2] MGDA, no attack: done, 1 steps" in told
        assert "paretograd report other" in told
        assert results_in(tmp_path / "other") == results_in(tmp_path / "runs/federated")
        assert main(options) == 2
        assert "this study, finished" in capsys.readouterr().err
        assert main([*options, "--resume"]) == 0

    @pytest.mark.parametrize(
        ("arguments", "message"),
        [
            (("vlmop2", "--small"), "reproduce vlmop2 has no --small"),
            (("fairness", "--noise", "1"), "reproduce fairness has no --noise"),
            (("federated", "--gaps", "means"), "reproduce federated has no --gaps"),
            (("federated", "--parts", "x"), "use some of table, clean"),
            (("federated", "--noise", "x"), "a number such as 0.15"),
            (("federated", "--device", "tpu"), "use one of auto, cpu, cuda"),
        ],
    )
    def test_mistakes(self, command, tmp_path, arguments, message):
        found = command("reproduce", *arguments)
        assert found.exit_code == 2
        assert message in found.stderr
        assert list(tmp_path.iterdir()) == []

    def test_an_interrupt_says_how_to_go_on(self, command, monkeypatch):
        interrupted = lambda *_, **__: (_ for _ in ()).throw(KeyboardInterrupt)  # noqa: E731
        monkeypatch.setitem(STUDIES, "federated", replace(FEDERATED, run=interrupted))
        found = command("reproduce", "federated", "--parts", "table", "--data-dir", "my data")
        assert found.exit_code == 130
        assert "federated --parts table --data-dir 'my data' --out runs/federated --resume" in found.stderr

    def test_the_module_needs_no_extra(self):
        code = (
            "import sys\n"
            "for extra in ('typer', 'rich', 'matplotlib', 'plotly', 'pandas'): sys.modules[extra] = None\n"
            "from paretograd.experiments.federated.__main__ import main\n"
            "sys.exit(main(['--data-dir', '/nowhere', '--out', '/nowhere/study']))"
        )
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
        assert done.returncode == 2
        assert done.stderr.startswith("error: /nowhere holds neither")
