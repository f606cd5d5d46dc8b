"""Losses, metrics and classifiers of fair classification, against slow and simple references."""

from __future__ import annotations

import math

import pytest
import torch
from support.fairness import GAPS, rows_of
from torch import nn

import paretograd as pg
from paretograd.problems.fairness import classifier, fairness_losses, fairness_metrics


class TestObjectives:
    @pytest.mark.parametrize("gaps", GAPS)
    @pytest.mark.parametrize("seed", range(3))
    def test_against_a_loop_over_the_rows(self, gaps, seed):
        rows = rows_of(37, 1, seed)
        z = 3.0 * rows.features[:, 0]
        entropy, sums, counts = 0.0, {}, {}
        for logit, y, a in zip(z.tolist(), rows.labels.tolist(), rows.groups.tolist(), strict=True):
            chance = 1.0 / (1.0 + math.exp(-logit))
            entropy -= math.log(chance if y else 1.0 - chance)
            sums[y, a] = sums.get((y, a), 0.0) + math.tanh(max(chance, 0.0))
            counts[y, a] = counts.get((y, a), 0) + 1
        size = {key: len(z) if gaps == "sums" else count for key, count in counts.items()}
        slow = [entropy / len(z), *(abs(sums[y, 0] / size[y, 0] - sums[y, 1] / size[y, 1]) for y in (1.0, 0.0))]
        assert fairness_losses(z, rows.labels, rows.groups, gaps).tolist() == pytest.approx(slow, rel=1e-12)

    def test_several_classifiers_at_once(self):
        rows = rows_of(20, 6, 0)
        many = fairness_losses(rows.features.T.reshape(2, 3, 20), rows.labels, rows.groups)
        assert many.shape == (2, 3, 3)
        assert torch.allclose(many[1, 2], fairness_losses(rows.features[:, 5], rows.labels, rows.groups), rtol=1e-12)

    def test_means_vanish_for_a_fair_classifier_and_sums_do_not(self):
        """All get the same logit: both groups are treated alike, but one is larger."""
        rows = rows_of(101, 1, 0)
        z = torch.full((101,), 0.3, dtype=torch.float64)
        assert fairness_losses(z, rows.labels, rows.groups, "means")[1:].abs().max() < 1e-15
        assert fairness_losses(z, rows.labels, rows.groups, "sums")[1:].min() > 0.01

    def test_half_precision_and_whole_numbers_as_labels(self):
        rows = rows_of(30, 1, 0)
        z = rows.features[:, 0].float()
        found = fairness_losses(z, rows.labels.long(), rows.groups.bool())
        assert found.dtype == torch.float32
        assert torch.allclose(found.double(), fairness_losses(z.double(), rows.labels, rows.groups), atol=1e-6)

    def test_mistakes(self):
        z = torch.zeros(4)
        with pytest.raises(pg.ParameterError, match="gaps='both': use one of sums, means"):
            fairness_losses(z, z, z, "both")
        with pytest.raises(pg.ShapeError, match=r"got \(4,\), \(3,\) and \(4,\)"):
            fairness_losses(z, z[:3], z)
        with pytest.raises(pg.ShapeError, match="have shape"):
            fairness_losses(z[:, None], z, z)

    @pytest.mark.parametrize("measure", [fairness_losses, fairness_metrics])
    @pytest.mark.parametrize("name", ["labels", "groups"])
    @pytest.mark.parametrize(
        ("values", "told"),
        [
            ([1, 2, 1, 2], r"2 of 4 are not: 2\."),
            ([-1.0, 1.0, 1.0, 1.0], r"1 of 4 are not: -1\."),
            ([0.0, math.nan, math.nan, 0.5], r"3 of 4 are not: 0\.5, nan\."),
            (list(range(2, 14)), r"12 of 12 are not: 2, 3, 4, 5, 6, \.\.\."),
        ],
    )
    def test_labels_and_groups_other_than_zeros_and_ones(self, measure, name, values, told):
        given = torch.tensor(values)
        sound = torch.zeros(len(values), dtype=torch.bool)
        parts = {"labels": sound, "groups": sound, name: given}
        with pytest.raises(pg.InputError, match=rf"{name} must be bool or hold only 0 and 1; {told}.*{name} == "):
            measure(torch.zeros(len(values)), **parts)

    def test_a_graph_that_is_compiled_is_not_stopped_by_the_check(self, monkeypatch):
        monkeypatch.setattr(torch.compiler, "is_compiling", lambda: True)
        z = torch.zeros(2)
        fairness_losses(z, z + 2, z)


class TestMetrics:
    @pytest.mark.parametrize("seed", range(3))
    def test_against_counting(self, seed):
        rows = rows_of(53, 1, seed)
        z = rows.features[:, 0]
        people = list(zip((z > 0).tolist(), rows.labels.tolist(), rows.groups.tolist(), strict=True))

        def rate(y: int, a: int) -> float:
            answers = [said for said, label, group in people if (label, group) == (y, a)]
            return sum(answers) / len(answers)

        found = fairness_metrics(z, rows.labels, rows.groups)
        assert found.accuracy == pytest.approx(sum(said == bool(y) for said, y, _ in people) / len(people))
        assert found.rates == tuple(tuple(pytest.approx(rate(y, a)) for a in (0, 1)) for y in (0, 1))
        assert found.deo1 == pytest.approx(abs(rate(1, 0) - rate(1, 1)))
        assert found.deo2 == pytest.approx(abs(rate(0, 0) - rate(0, 1)))

    def test_an_empty_group_has_no_rate(self):
        found = fairness_metrics(torch.ones(3), torch.tensor([1.0, 0.0, 1.0]), torch.zeros(3))
        assert found.rates[1] == (1.0, pytest.approx(float("nan"), nan_ok=True))
        assert math.isnan(found.deo1)
        assert found.accuracy == pytest.approx(2 / 3)

    def test_mistakes(self):
        with pytest.raises(pg.ShapeError, match=r"have shape \(N,\)"):
            fairness_metrics(torch.zeros(2, 3), torch.zeros(3), torch.zeros(3))

    def test_logits_that_are_no_numbers_are_no_answers(self):
        z, ones = torch.tensor([math.nan, 1.0, math.nan]), torch.ones(3)
        with pytest.raises(pg.InputError, match="2 of 3 logits are NaN"):
            fairness_metrics(z, ones, ones)
        z = torch.tensor([math.inf, -math.inf, 1.0])
        assert fairness_metrics(z, ones, ones).accuracy == pytest.approx(2 / 3)


class TestModel:
    def test_the_benchmark_s_parameters_and_torch_s_stream(self):
        state = torch.random.get_rng_state()
        model = classifier(seed=24)
        assert torch.equal(torch.random.get_rng_state(), state)
        assert sum(param.numel() for param in model.parameters()) == 154_625
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(24)
            first = nn.Linear(88, 256)
        assert torch.equal(model[0].weight, first.weight)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(24)
            assert torch.equal(classifier(seed=None)[-1].weight, model[-1].weight)
