"""Adult as accuracy against equalized odds, on made people and on the real ones."""

from __future__ import annotations

import math
import os

import pytest
import torch
from support.stacked import check_stacked, drawn, same, trained
from torch import nn

from paretograd.bench.tasks.adult import AdultFairness
from paretograd.problems.fairness import fairness_losses

SMALL = AdultFairness(small=True)


@pytest.fixture(scope="module")
def made():
    return SMALL.made()


class First(nn.Module):
    """Returns the first feature as the logit."""

    def forward(self, features):
        return features[:, :1]


def rows(logits, labels, groups):
    features = torch.tensor(logits, dtype=torch.float64).unsqueeze(1)
    return features, torch.tensor(labels) > 0, torch.tensor(groups) > 0, torch.ones(len(labels))


def counts(batch):
    return [int(((batch[1] == y) & (batch[2] == a)).sum()) for y in (0, 1) for a in (0, 1)]


def test_stacked_networks_have_the_losses_and_gradients_of_each(made):
    check_stacked(SMALL, made)


def test_sizes_of_the_networks():
    for task, size in ((SMALL, 1_985), (AdultFairness(), 44_545)):
        assert sum(param.numel() for param in task.network().parameters()) == size


def test_a_step_has_as_many_rows_of_each_label_and_group(made):
    for seed in range(3):
        assert counts(drawn(SMALL, made, nn.Identity(), seed)) == [64] * 4


def test_weights_undo_the_choice_of_rows(made):
    """With every row of a combination once, weighted, the losses are those of all training rows."""
    features, labels, groups, weights = made.train
    assert float(weights.mean()) != pytest.approx(1.0, abs=0.01)
    cells = 2 * labels.long() + groups.long()
    assert torch.equal(cells, cells.sort().values)
    sizes = cells.bincount()
    assert [float(weights[cells == cell][0]) for cell in range(4)] == pytest.approx((4 * sizes / len(cells)).tolist())
    logits = features[:, 0].double()
    entropy = float(fairness_losses(logits, labels, groups, "means")[0])
    by_cell = [
        float(SMALL.losses(First(), tuple(part[cells == cell].double() for part in made.train))[0]) for cell in range(4)
    ]
    assert sum(by_cell) / 4 == pytest.approx(entropy, rel=1e-6)  # weights are in float32


def test_the_gaps_are_those_of_the_fairness_study(made):
    features, labels, groups, weights = (part[::5] for part in made.train)
    found = SMALL.losses(First(), (features.double(), labels, groups, weights))
    slow = fairness_losses(features[:, 0].double(), labels, groups, "means")
    torch.testing.assert_close(torch.stack(list(found[1:])), slow[1:])


def test_every_row_is_drawn():
    """Some forty rows, numbered by their feature, and 20 steps of 256 rows."""
    data = SMALL.made()
    few = tuple(part[:: len(part) // 40] for part in data.train)
    few = (torch.arange(len(few[0])).float().unsqueeze(1), *few[1:])
    seen = torch.cat([drawn(SMALL, data._replace(train=few), nn.Identity(), seed)[0] for seed in range(20)])
    assert len(seen.unique()) == len(few[0])


def test_scores_of_known_logits():
    labels, groups = [1, 1, 1, 1, 0, 0, 0, 0], [0, 0, 1, 1, 0, 0, 1, 1]
    perfect = SMALL.scores(First(), rows([1, 1, 1, 1, -1, -1, -1, -1], labels, groups))
    assert perfect == pytest.approx([100.0, 0.0, 0.0, 100.0])
    constant = SMALL.scores(First(), rows([-1] * 8, labels, groups))
    assert constant == pytest.approx([50.0, 0.0, 0.0, 50.0])
    unfair = SMALL.scores(First(), rows([1, 1, 1, -1, 1, -1, -1, -1], labels, groups))
    assert unfair == pytest.approx([75.0, 50.0, 50.0, 50.0])
    diverged = SMALL.scores(First(), rows([math.nan] * 8, labels, groups))
    assert all(math.isnan(value) for value in diverged)
    fairer = SMALL.scores(First(), rows([1, 1, 1, 1, 1, -1, 1, -1], labels, groups))  # as accurate as the unfair one
    assert fairer == pytest.approx([75.0, 0.0, 0.0, 75.0])
    assert SMALL.quality(perfect) > SMALL.quality(fairer) > SMALL.quality(constant)


def test_quality_is_balanced_accuracy_minus_half_the_mean_gap(made):
    features, labels, groups, _ = made.test
    scores = SMALL.scores(First(), made.test)
    answers = features[:, 0] > 0
    rates = [float((answers == labels)[(labels == y) & (groups == a)].float().mean()) for y in (0, 1) for a in (0, 1)]
    assert SMALL.quality(scores) == pytest.approx(25.0 * sum(rates) - (scores[1] + scores[2]) / 4.0, rel=1e-5)


def test_made_people_can_be_learned(made):
    assert same(made, SMALL.made())
    scores = SMALL.scores(trained(SMALL, made, 60, 1e-2), made.validation)
    assert SMALL.quality(scores) > 60.0


@pytest.mark.skipif(not os.environ.get("PARETOGRAD_DATA"), reason="PARETOGRAD_DATA names no folder with the Adult data")
class TestRealData:
    def test_split(self):
        data = AdultFairness().load()
        assert [len(part[1]) for part in data] == [34_188, 4_885, 9_769]
        assert counts(data.train) == [15_879, 10_153, 6_915, 1_241]
        assert [counts(part)[3] for part in data[1:]] == [169, 359]
        spread = data.train[0].std(dim=0, correction=0)
        assert torch.allclose(data.train[0].mean(dim=0), torch.zeros(88), atol=1e-4)  # a mean of 34,188 float32
        assert torch.allclose(spread[spread > 0], torch.ones(1), atol=1e-4)

    def test_small_variant(self):
        data = SMALL.load()
        assert [len(part[1]) for part in data] == [6_000, 2_000, 2_000]
        scores = SMALL.scores(trained(SMALL, data, SMALL.steps, 3e-3, (1.0, 0.1, 0.1)), data.validation)
        assert scores[0] > 78.0  # a constant classifier has 76
        assert SMALL.quality(scores) > 60.0
