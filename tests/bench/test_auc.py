"""The area under the ROC curve, against scikit-learn."""

from __future__ import annotations

import math

import pytest
import torch
from sklearn.metrics import roc_auc_score

from paretograd.bench.auc import auc


@pytest.mark.parametrize("levels", [1, 3, 50, 10_000])
@pytest.mark.parametrize("share", [0.02, 0.5])
def test_is_scikit_learn_s_with_and_without_ties(levels, share):
    draw = torch.Generator().manual_seed(levels)
    scores = torch.randint(levels, (700,), generator=draw).float()
    positive = (torch.rand(700, generator=draw) < share).float()
    # Both are sums of integers, divided once or twice in float64.
    assert auc(scores, positive) == pytest.approx(100.0 * roc_auc_score(positive, scores), rel=1e-12)


def test_order_and_direction():
    scores = torch.tensor([0.1, 0.2, 0.3, 0.4])
    assert auc(scores, torch.tensor([0, 0, 1, 1])) == 100.0
    assert auc(scores, torch.tensor([1, 1, 0, 0])) == 0.0
    assert auc(scores, torch.tensor([1, 0, 1, 0])) == 25.0
    assert auc(torch.full((4,), math.inf), torch.tensor([1, 0, 1, 0])) == 50.0


def test_is_nan_if_it_is_not_defined():
    labels = torch.tensor([0, 1, 1])
    assert math.isnan(auc(torch.tensor([0.0, math.nan, 1.0]), labels))
    assert math.isnan(auc(torch.zeros(3), torch.ones(3)))
    assert math.isnan(auc(torch.zeros(3), torch.zeros(3)))
