"""The training of many classifiers at once, against autograd and a simple loop."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import pytest
import torch
from support.fairness import ADULT, GAPS, rows_of
from torch import Tensor, nn

import paretograd as pg
from paretograd.aggregators.base import GramianAggregator
from paretograd.descent import Stop
from paretograd.disk import read_arrays, write_arrays
from paretograd.experiments.fairness import ensemble
from paretograd.experiments.fairness.ensemble import Ensemble, gramians, sort_rows
from paretograd.experiments.fairness.training import Setting, Training
from paretograd.problems.fairness import Rows, classifier, fairness_losses
from paretograd.solution import Outcome

TRAIN = ADULT.train.to(torch.float64)


def setting(**changes: object) -> Setting:
    return Setting(**({"seeds": (24, 42), "lr": 0.05, "steps": 20, "stop": 0.0, "width": 8} | changes))


def trained(given: Setting, aggregator: pg.Aggregator, rows: Rows = TRAIN) -> Training:
    made = Training(given, aggregator, rows)
    made.advance(given.steps)
    return made


def networks(widths: Sequence[int], seeds: Sequence[int]) -> list[nn.Sequential]:
    made = []
    for seed in seeds:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            layers: list[nn.Module] = []
            for width, out in zip(widths, [*widths[1:], 1], strict=True):
                layers += [nn.Linear(width, out), nn.ReLU()]
            made.append(nn.Sequential(*layers[:-1]).double())
    return made


def by_autograd(model: nn.Sequential, rows: Rows, gaps: str) -> tuple[Tensor, Tensor]:
    """Losses ``(3,)`` and the Jacobian ``(3, n)``."""
    losses = fairness_losses(model(rows.features)[:, 0], rows.labels, rows.groups, gaps)
    grads = [torch.autograd.grad(loss, list(model.parameters()), retain_graph=True) for loss in losses]
    return losses.detach(), torch.stack([torch.cat([part.reshape(-1) for part in grad]) for grad in grads])


class TestEnsemble:
    @pytest.mark.parametrize("gaps", GAPS)
    @pytest.mark.parametrize(
        ("widths", "count", "options"),
        [
            ((3,), 20, {}),
            ((4, 5), 33, {}),
            ((7, 6, 9), 257, {}),
            ((2, 3, 4, 5), 90, {}),
            ((5, 8), 2600, {}),  # several pieces of each label, the last of them filled up
            ((5, 8), 1024, {"labels": 1.0}),  # one piece, just full
            ((4, 6), 50, {"groups": 0.0}),  # no women
            ((4, 6), 50, {"groups": 1.0, "labels": 0.0}),
        ],
    )
    def test_gradients_are_autograd_s(self, widths, count, options, gaps):
        rows = rows_of(count, widths[0], seed=count, **options)
        models = networks(widths, seeds=(1, 2, 3))
        found = Ensemble(models).slopes(sort_rows(rows, gaps, copies=3))
        for number, model in enumerate(models):
            losses, jacobian = by_autograd(model, rows, gaps)
            n = jacobian.shape[1]
            assert torch.allclose(found.losses[number], losses, rtol=1e-12, atol=1e-15)
            assert torch.allclose(found.jacobian[number, :, :n], jacobian, rtol=1e-10, atol=1e-14)
            assert not found.jacobian[number, :, n:].any()
        J = found.jacobian
        assert torch.allclose(gramians(J), J @ J.mT, rtol=1e-12)

    def test_logits_are_the_models(self):
        rows, models = rows_of(40, 6, 0), networks((6, 7), (1, 2))
        expected = torch.stack([model(rows.features)[:, 0] for model in models])
        assert torch.allclose(Ensemble(models).logits(rows.features), expected, rtol=1e-12)

    def test_float32_is_as_good_as_autograd_s(self):
        """Both are off from float64 by rounding, and by about as much."""
        models = [classifier(TRAIN.features.shape[1], 16, seed=3)]
        exact = by_autograd(classifier(TRAIN.features.shape[1], 16, seed=3).double(), TRAIN, "sums")[1]
        plain = by_autograd(models[0], ADULT.train, "sums")[1].double()
        ours = Ensemble(models).slopes(sort_rows(ADULT.train, "sums", 1)).jacobian[0, :, : exact.shape[1]].double()
        assert (ours - exact).norm() <= 4.0 * (plain - exact).norm() + 1e-9


class TestTraining:
    @pytest.fixture(autouse=True)
    def small_slices(self, monkeypatch):
        """Less to fill up with zeros, for so few rows."""
        monkeypatch.setattr(ensemble, "_SLICE", 256)

    @pytest.mark.parametrize("gaps", GAPS)
    @pytest.mark.parametrize("rule", ["mgda", "upgrad*", "dualproj", "nash-mtl", "mas-rr(3)", "mas-rand(seed=7)"])
    def test_is_a_plain_loop_with_backward(self, rule, gaps):
        """The same models, the same rule, one pg.backward for each step: parameters and losses to 1e-9 after 20."""
        found = trained(setting(gaps=gaps), pg.get(rule))
        for number, seed in enumerate((24, 42)):
            model = classifier(TRAIN.features.shape[1], 8, seed).double()
            aggregator = pg.get(rule)
            for step in range(20):
                losses = fairness_losses(model(TRAIN.features)[:, 0], TRAIN.labels, TRAIN.groups, gaps)
                model.zero_grad()
                taken = pg.backward(losses, aggregator)
                record = {name: values[step, number] for name, values in found.records.items()}
                assert record["losses"].tolist() == pytest.approx(losses.tolist(), rel=1e-9)
                assert record["weights"].tolist() == pytest.approx(taken.weights.tolist(), rel=1e-6, abs=1e-9)
                assert record["norms"][0] == pytest.approx(_length(model), rel=1e-7)
                with torch.no_grad():
                    for param in model.parameters():
                        param -= 0.05 * param.grad
            plain = torch.cat([param.detach().reshape(-1) for param in model.parameters()])
            assert torch.allclose(found.parameters()[number, : len(plain)], plain, rtol=0.0, atol=1e-9)
            logits = model(ADULT.test.features.double())[:, 0]
            assert torch.allclose(found.logits(ADULT.test.features.double())[number], logits, atol=1e-8)
        assert found.reasons == [Stop.STEPS] * 2
        assert found.lengths.tolist() == [20, 20]

    def test_gamma_is_the_distance_to_stationarity(self):
        model = classifier(TRAIN.features.shape[1], 8, 42).double()
        J = by_autograd(model, TRAIN, "sums")[1]
        for rule in ("mgda", "upgrad"):  # the first has it from its own direction
            found = trained(setting(steps=1), pg.get(rule))
            assert found.records["gamma"][0, 1, 0] == pytest.approx(float(pg.stationarity(J @ J.T)), rel=1e-6)

    def test_runs_stop_at_different_steps_and_stay_there(self):
        """Each is where it is after as many steps without a stop; those that do not get there take all steps."""
        wide = {"seeds": tuple(range(6)), "lr": 2.0, "steps": 30}
        gamma = trained(setting(**wide), pg.UPGrad()).records["gamma"][..., 0]
        firsts = {limit: [_first_below(gamma[:, run], limit) for run in range(6)] for limit in gamma.ravel()[::5]}
        limit, lengths = max(firsts.items(), key=lambda found: len(set(found[1])))
        assert len(set(lengths)) >= 3
        found = trained(setting(**wide, stop=limit), pg.UPGrad())
        assert found.lengths.tolist() == lengths
        assert found.reasons == [Stop.STEPS if length == 30 else Stop.GAMMA for length in lengths]
        assert found.running == 0
        for run, length in enumerate(lengths):
            assert np.isnan(found.records["losses"][length + 1 :, run]).all()
            if length:
                same = trained(setting(**wide | {"steps": length}), pg.UPGrad())
                assert torch.allclose(found.finals[run], same.parameters()[run], rtol=0.0, atol=1e-11)

    def test_a_short_direction_stops_a_run(self):
        class Tiny(GramianAggregator):
            name = label = "tiny"

            @property
            def guarantee(self):
                return pg.Mean().guarantee

            def _solve(self, unit):
                return Outcome(np.full(3, 1e-9))

        found = trained(setting(stop=1e-6), Tiny())
        assert found.reasons == [Stop.NORM] * 2
        assert found.lengths.tolist() == [0, 0]
        start = Training(setting(), Tiny(), TRAIN)
        assert torch.equal(found.finals, start.finals)

    def test_a_loss_that_is_not_finite_sends_the_run_back(self):
        """A step far too long: the next losses overflow, and the run stays at its last good point."""
        found = trained(setting(lr=1e200), pg.Mean())
        assert found.reasons == [Stop.NOT_FINITE] * 2
        assert found.lengths.tolist() == [0, 0]
        assert torch.equal(found.parameters(), Training(setting(), pg.Mean(), TRAIN).finals)
        assert np.isfinite(found.records["losses"][0]).all()
        assert not np.isfinite(found.records["losses"][1]).all()

    def test_the_others_go_on_when_one_is_not_finite(self):
        """NaN features of the first classifier cannot be: break its parameters instead, one step before the end."""
        broken, whole = (Training(setting(), pg.MGDA(), TRAIN) for _ in range(2))
        for training in (broken, whole):
            training.advance(7)
        good = broken.parameters()[0].clone()
        broken._groups[0].ensemble.parameters[0] = math.nan
        broken._groups[0].start()
        broken.advance(20)
        whole.advance(20)
        assert broken.reasons == [Stop.NOT_FINITE, Stop.STEPS]
        assert broken.lengths.tolist() == [6, 20]
        assert torch.isfinite(broken.parameters()).all()
        assert not torch.equal(broken.parameters()[0], good)  # where it was at step 6, the last good point
        assert torch.allclose(broken.parameters()[1], whole.parameters()[1], rtol=0.0, atol=1e-12)
        fresh = Training(setting(), pg.MGDA(), TRAIN)
        fresh.load_state_dict(broken.state_dict())

    @pytest.mark.parametrize("rule", ["mgda", "mas-rr(4)", "mas-rand(seed=3)", "rgw(seed=1)"])
    @pytest.mark.parametrize("precision", [torch.float32, torch.float64])
    def test_resumed_bit_by_bit(self, rule, precision, tmp_path):
        """Through a file, at a moment when one seed has stopped; the position of a schedule comes along."""
        rows = ADULT.train.to(precision)
        gamma = trained(setting(steps=16), pg.get(rule), rows).records["gamma"][..., 0]
        limit = float(gamma[:10].min()) * (1.0 + 1e-6)
        whole = trained(setting(steps=16, stop=limit), pg.get(rule), rows)
        for cut in (1, 11):
            before = Training(setting(steps=16, stop=limit), pg.get(rule), rows)
            before.advance(cut)
            write_arrays(tmp_path / f"{cut}.npz", before.state_dict(), overwrite=True)
            after = Training(setting(steps=16, stop=limit), pg.get(rule), rows)
            after.load_state_dict(read_arrays(tmp_path / f"{cut}.npz"))
            assert (after.step, after.running) == (before.step, before.running)
            after.advance(16)
            states = [training.state_dict() for training in (whole, after)]
            assert all(np.array_equal(states[0][key], states[1][key], **_nan(states[0][key])) for key in states[0])

    @pytest.mark.parametrize(
        "damage",
        [
            {"parameters": np.zeros((1, 4))},
            {"parameters": np.full((2, 512), np.nan)},
            {"before": np.zeros((1, 512))},
            {"active": [0]},
            {"active": [0, 5]},
            {"step": 10**6},
            {"step": 3},
            {"step": -1},
            {"lengths": [0]},
            {"reasons": ["RUNNING"]},
            {"record_gamma": np.zeros((1, 2, 1))},
            {"aggregator": '{"position": -1}'},
        ],
        ids=lambda damage: next(iter(damage)),
    )
    def test_a_state_that_does_not_fit_is_refused_and_changes_nothing(self, damage):
        training = Training(setting(), pg.get("mas-rr(4)"), TRAIN)
        training.advance(5)
        other = Training(setting(), pg.get("mas-rr(4)"), TRAIN)
        assert training.parameters().shape == (2, 512)
        with pytest.raises(pg.InputError):
            other.load_state_dict(training.state_dict() | damage)
        other.advance(5)
        assert torch.equal(other.parameters(), training.parameters())

    def test_conflicts_are_counted(self):
        """By the slopes of each step: the mean goes against an objective, UPGrad never does."""
        counts = {}
        for rule in ("mean", "upgrad"):
            found = trained(setting(steps=40, lr=0.5), pg.get(rule))
            below = (found.records["slopes"] < -1e-9).any(axis=2).sum(axis=0)
            assert found.conflicts.tolist() == below.tolist()
            counts[rule] = int(below.sum())
        assert counts["upgrad"] == 0 < counts["mean"]

    def test_progress(self):
        training = Training(setting(), pg.MGDA(), TRAIN)
        assert math.isnan(training.latest[1])
        training.advance(3)
        losses, gamma = training.latest
        assert losses == pytest.approx(training.records["losses"][2].mean(axis=0).tolist())
        assert gamma == training.records["gamma"][2].max()
        training.advance(100)
        assert math.isnan(training.latest[1])


def _first_below(gamma: np.ndarray, limit: float) -> int:
    return int(next(iter(np.flatnonzero(gamma < limit)), len(gamma)))


def _length(model: nn.Module) -> float:
    return math.sqrt(sum(float((param.grad**2).sum()) for param in model.parameters()))


def _nan(value: object) -> dict[str, bool]:
    return {"equal_nan": True} if getattr(value, "dtype", np.dtype(int)).kind == "f" else {}
