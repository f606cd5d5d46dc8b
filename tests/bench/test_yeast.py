"""Yeast: how rows are read and divided, and that all labels can be learned."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch
from sklearn.metrics import roc_auc_score
from support.stacked import check_stacked, same, trained
from torch import nn

from paretograd.bench.tasks.yeast import Yeast, decoded
from paretograd.errors import DataError
from paretograd.problems.sources import VARIABLE

SMALL = Yeast(small=True)


@pytest.fixture(scope="module")
def made():
    return SMALL.made()


class Fixed(nn.Module):
    """Answers with the first fourteen features."""

    def forward(self, features):
        return features[:, :14].unbind(1)


def test_stacked_networks_have_the_losses_and_gradients_of_each(made):
    check_stacked(SMALL, made)


def test_sizes_of_the_networks():
    assert [sum(p.numel() for p in Yeast(small=s).network().parameters()) for s in (False, True)] == [22_478, 4_094]
    assert len(SMALL.metrics) == len(SMALL.objectives) == 14


def test_something_is_learned_from_made_data(made):
    """Chance is 50 %."""
    scores = {steps: SMALL.scores(trained(SMALL, made, steps, 1e-2), made.validation) for steps in (0, 60)}
    assert min(scores[60]) > 65.0
    assert SMALL.quality(scores[60]) > SMALL.quality(scores[0])


def test_made_data_have_the_form_of_the_real_ones(made):
    for (features, labels), count in zip(made, (600, 200, 200), strict=True):
        assert (features.shape, features.dtype) == ((count, 103), torch.float32)
        assert (labels.shape, labels.dtype) == ((count, 14), torch.float32)
        assert set(labels.unique().tolist()) == {0.0, 1.0}
    assert same(made, SMALL.made())


def test_scores_are_areas_in_percent(made):
    features, labels = made.test
    expected = [100.0 * roc_auc_score(labels[:, k], features[:, k]) for k in range(14)]
    assert SMALL.scores(Fixed(), made.test) == pytest.approx(expected)


class TestDecoded:
    def test_headers_are_skipped(self):
        row = ",".join(["0.5"] * 103 + ["1"] * 14)
        rows = decoded(["@relation r", "", "@attribute a numeric", "@data", row, row])
        assert rows.tolist() == [[0.5] * 103 + [1.0] * 14] * 2

    @pytest.mark.parametrize("row", ["1,2,3", "a" + ",0" * 116])
    def test_rows_of_something_else(self, row):
        with pytest.raises(DataError, match="Yeast"):
            decoded(["@data", row])


@pytest.mark.skipif(
    not (Path(os.environ.get(VARIABLE, "/nowhere")) / "yeast").is_dir(), reason=f"{VARIABLE} has no folder yeast"
)
def test_the_real_rows():
    data = SMALL.load()
    assert [len(part[0]) for part in data] == [1_000, 500, 917]
    assert torch.unique(torch.cat([part[0] for part in data]), dim=0).shape == (2_417, 103)  # no row is in two parts
    assert [int(part[1][:, 13].sum()) for part in data] == [14, 7, 13]  # the rarest class
    together = torch.cat([part[1] for part in data])
    assert float(together.sum(dim=1).mean()) == pytest.approx(4.237, abs=5e-4)  # as published with the data
    assert min(int(part[1].sum(dim=0).min()) for part in data) > 0
    # float32 means of 1,000 numbers of order one.
    assert data.train[0].mean(dim=0).abs().max() < 1e-5
    assert same(data, Yeast().load())
    assert SMALL.quality(SMALL.scores(trained(SMALL, data, 100, 3e-3), data.validation)) > 60.0
