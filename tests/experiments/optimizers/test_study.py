"""The study of rules with optimizers: its settings, one run, the choice of learning rates, and its folder."""

from __future__ import annotations

import json
import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from support.killing import Press, killed_at_every_write
from typer.testing import CliRunner

from paretograd.cli.app import app
from paretograd.errors import InputError, ParameterError
from paretograd.experiments import Watch
from paretograd.experiments.optimizers import OptimizerStudy, read_results, run_optimizers, training
from paretograd.experiments.optimizers.physics import PHYSICS
from paretograd.experiments.optimizers.study import OPTIMIZERS, TUNING_SEED, Case
from paretograd.experiments.optimizers.task import Batch
from paretograd.experiments.optimizers.training import Outcome, best_rate, next_run, train

BURGERS = PHYSICS["burgers"]
CASE = Case("burgers", "fresh", "upgrad", "adam", "plain", "UPGrad")


def outcome(lr: float, seed: int, loss: float = 1.0) -> Outcome:
    return Outcome(lr, seed, 100, 1.0, (0.25 * loss, 0.75 * loss), 0.5, 5, 2)


class Seeing:
    """Burgers' equation that keeps the batches of which a loss is asked."""

    def __init__(self, seen: list[Batch]) -> None:
        self.seen, self.network, self.batch, self.scores = seen, BURGERS.network, BURGERS.batch, BURGERS.scores

    def losses(self, network, batch):
        self.seen.append(batch)
        return BURGERS.losses(network, batch)


class TestSettings:
    def test_modes_that_coincide_with_plain_are_not_run(self):
        """The mean has two modes with each optimizer; the others two with SGD, three with Adam and AdamW."""
        cases = OptimizerStudy().cases()
        assert len(cases) == 3 * 2 * (3 * 2 + 3 * (2 + 3 + 3))
        assert not [case for case in cases if case.mode == "metric" and "sgd" in case]
        assert not [case for case in cases if case.mode == "metric" and "mean" in case]

    def test_digits_have_fresh_batches_only(self):
        cases = OptimizerStudy(problems=("helmholtz", "multi-mnist")).cases()
        assert {case.task for case in cases} == {
            "Helmholtz, fresh batches", "Helmholtz, full batches", "Multi-MNIST, fresh batches",
        }  # fmt: skip

    def test_labels(self):
        assert CASE._replace(mode="metric").label == "Burgers, fresh batches: UPGrad, Adam, in the metric"
        assert OptimizerStudy().files()[0] == "burgers-fresh-batches-mean-sgd-plain"

    def test_every_optimizer_has_as_many_rates(self):
        assert len({len(optimizer.rates) for optimizer in OPTIMIZERS.values()}) == 1

    @pytest.mark.parametrize(
        ("change", "message"),
        [
            ({"problems": ("navier-stokes",)}, "use some of burgers, helmholtz, klein-gordon"),
            ({"batches": ()}, "use some of fresh, full"),
            ({"problems": ("multi-mnist",), "batches": ("full",)}, "multi-mnist has fresh batches only"),
            ({"optimizers": ("adam", "adam")}, "each once"),
            ({"modes": "plain"}, "use some of plain, metric, projected"),
            ({"seeds": (0, TUNING_SEED)}, "chooses the learning rates"),
            ({"budget": 0.0}, "above 0"),
            ({"budget": math.inf}, "finite"),
            ({"methods": ()}, "at least one method"),
        ],
    )
    def test_mistakes(self, change, message):
        with pytest.raises(ParameterError, match=message):
            OptimizerStudy(**change)

    def test_a_rule_that_cannot_run_is_found_before_anything_is_written(self, tmp_path):
        with pytest.raises(ParameterError, match="smallest feasible cap"):
            run_optimizers(OptimizerStudy(methods=("capped-mgda(cap=0.1)",)), tmp_path / "study")
        assert not (tmp_path / "study").exists()


class TestTuning:
    def test_rates_are_tried_on_a_seed_of_their_own_and_the_best_is_kept(self):
        rates, done = OPTIMIZERS["adam"].rates, []
        for lr in rates:
            assert next_run(CASE, (0, 1), done) == (lr, TUNING_SEED)
            done.append(outcome(lr, TUNING_SEED, 0.1 if lr == rates[2] else 0.2))
        assert best_rate(done) == rates[2]
        for seed in (0, 1):
            assert next_run(CASE, (0, 1), done) == (rates[2], seed)
            done.append(outcome(rates[2], seed, 9.0))
        assert next_run(CASE, (0, 1), done) is None

    def test_a_rate_that_diverges_is_not_chosen(self):
        assert best_rate([outcome(1.0, TUNING_SEED, math.nan), outcome(2.0, TUNING_SEED, 1e9)]) == 2.0


@pytest.mark.usefixtures("ticking")
class TestRun:
    def test_the_budget_counts_steps_alike_whether_they_are_measured_or_not(self):
        """64 steps of 1/128 s and five of warm-up; every twentieth is measured."""
        found = train(CASE, BURGERS, 1e-3, 0, 0.5, lambda: False)
        assert (found.steps, found.measured, found.seconds) == (69, 3, 0.5)

    @pytest.mark.parametrize(("batches", "sizes"), [("fresh", {256}), ("full", {1024})])
    def test_fresh_batches_differ_and_full_ones_do_not(self, batches, sizes, monkeypatch):
        seen = []
        monkeypatch.setattr(training, "_backward", lambda case, losses, *rest: losses[0].backward())
        task = Seeing(seen)
        train(CASE._replace(batches=batches), task, 1e-3, 0, 0.05, lambda: False)
        assert {len(batch[0]) for batch in seen} == sizes
        assert len({batch[0].sum().item() for batch in seen}) == (len(seen) if batches == "fresh" else 1)

    def test_the_loss_decreases(self):
        first, last = (train(CASE, BURGERS, 1e-2, 0, budget, lambda: False) for budget in (0.005, 1.0))
        assert last.validation < first.validation - 0.2

    @pytest.mark.parametrize("optimizer", OPTIMIZERS)
    def test_a_projected_update_on_a_full_batch_raises_no_loss(self, optimizer):
        case = CASE._replace(batches="full", optimizer=optimizer, mode="projected")
        found = train(case, BURGERS, OPTIMIZERS[optimizer].rates[1], 0, 0.5, lambda: False)
        assert (found.measured, found.conflicting) == (3, 0)

    def test_the_mean_may_take_the_usual_way(self, monkeypatch):
        """Measured steps go through the library, and the others need not: the network is the same."""
        case = CASE._replace(rule="mean", batches="full")
        usual = train(case, BURGERS, 1e-3, 0, 0.1, lambda: False)
        monkeypatch.setattr(training, "EVERY", 2)
        assert train(case, BURGERS, 1e-3, 0, 0.1, lambda: False).losses == pytest.approx(usual.losses, rel=1e-3)

    def test_a_run_that_diverges_ends_and_says_so(self):
        found = train(CASE._replace(optimizer="sgd"), BURGERS, 1e4, 0, 2.0, lambda: False)
        assert found.steps < 100
        assert found.validation == math.inf

    def test_stopped(self):
        assert train(CASE, BURGERS, 1e-3, 0, 1e9, lambda: True) is None

    def test_threads_are_restored(self, small, tmp_path):
        before = torch.get_num_threads()
        run_optimizers(replace(small, modes=("plain",)), tmp_path, jobs=1)
        assert torch.get_num_threads() == before


class TestFolder:
    @pytest.mark.usefixtures("ticking")
    def test_killed_at_every_write_it_resumes(self, small, tmp_path):
        def run(folder, study, checkpoint_every=5.0, resume=False):
            return run_optimizers(study, folder, jobs=1, resume=resume, checkpoint_every=checkpoint_every)

        assert killed_at_every_write(run, replace(small, modes=("plain",)), tmp_path, dense=1, stride=4) > 9

    @pytest.mark.usefixtures("ticking")
    def test_ctrl_c_keeps_the_finished_setting(self, small, tmp_path):
        with pytest.raises(KeyboardInterrupt):
            run_optimizers(small, tmp_path, jobs=1, watch=Press("2 settings", 1))
        [done] = read_results(tmp_path).outcomes
        assert done.mode == "plain"
        assert "Not run yet: 1 of 2 settings" in (tmp_path / "table.md").read_text()
        before = {path: path.read_bytes() for path in (tmp_path / "runs").iterdir()}
        assert len(run_optimizers(small, tmp_path, jobs=1, resume=True).outcomes) == 2
        assert all(path.read_bytes() == content for path, content in before.items())

    def test_processes_share_the_settings(self, small, tmp_path):
        class Notebook(Watch):
            def __init__(self):
                self.taken = []

            def steps(self, taken, running, gamma):
                self.taken.append(taken)

        watch = Notebook()
        results = run_optimizers(replace(small, budget=0.05), tmp_path, jobs=2, watch=watch)
        assert watch.taken[-1] == 12
        for case, runs in results.outcomes.items():
            assert [run.seed for run in runs] == [TUNING_SEED] * 4 + [0, 1]
            assert all(run.steps > 0 and math.isfinite(run.validation) for run in runs), case
        config = json.loads((tmp_path / "config.json").read_text())
        assert "2 processes with one thread each" in config["durations"]["all settings"]["device"]
        assert not list((tmp_path / "checkpoints").glob("*.npz"))

    def test_a_damaged_file(self, small, tmp_path):
        run_optimizers(replace(small, modes=("plain",), budget=0.01), tmp_path, jobs=1)
        [path] = (tmp_path / "runs").iterdir()
        for content in (b"", path.read_bytes()[:200]):
            path.write_bytes(content)
            with pytest.raises(InputError, match="Remove it, and --resume runs Helmholtz, fresh batches: UPGrad, Adam"):
                read_results(tmp_path)
        np.savez(path, label="another")
        with pytest.raises(InputError, match="does not hold the runs of"):
            read_results(tmp_path)

    def test_the_command(self, small, tmp_path, monkeypatch):
        monkeypatch.setenv("COLUMNS", "120")
        arguments = small.command().split()[1:]
        result = CliRunner().invoke(
            app, [*arguments, "--budget", "0.05", "--jobs", "1", "--out", str(tmp_path / "s"), "--no-report"]
        )
        assert result.exit_code == 0, result.output
        assert all(word in result.stdout for word in ("UPGrad, Adam, projected", "log10 loss", "conflicts"))
        drawn = CliRunner().invoke(app, ["report", str(tmp_path / "s")])
        assert drawn.stdout.split() == [
            str(tmp_path / "s/figures" / f"conflicts_and_losses.{end}") for end in ("png", "svg")
        ]
