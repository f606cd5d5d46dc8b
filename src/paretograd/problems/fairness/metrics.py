"""Metrics of a fair classifier: accuracy, and the differences of equalized odds between two groups."""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor

from paretograd.errors import InputError, ShapeError
from paretograd.problems.fairness.binary import check_binary


class FairnessMetrics(NamedTuple):
    """Shares of rows, from 0 to 1.

    Attributes:
        accuracy: accuracy over all rows.
        deo1: difference between the two groups' rates of positive predictions among Y = 1 (equal opportunity).
        deo2: the same among Y = 0.
        rates: ``rates[y][a]`` is the rate of positive predictions among the rows of group a with Y = y.
    """

    accuracy: float
    deo1: float
    deo2: float
    rates: tuple[tuple[float, float], tuple[float, float]]


def fairness_metrics(logits: Tensor, labels: Tensor, groups: Tensor) -> FairnessMetrics:
    """Compute the metrics of one classifier.

    Args:
        logits: shape ``(N,)``; a positive logit predicts 1. NaN raises an error.
        labels: bool, or zeros and ones, shape ``(N,)``.
        groups: bool, or zeros and ones, shape ``(N,)``.
    """
    if not logits.shape == labels.shape == groups.shape or logits.ndim != 1:
        raise ShapeError(
            f"logits, labels and groups have shape (N,); got {tuple(logits.shape)}, {tuple(labels.shape)} and "
            f"{tuple(groups.shape)}"
        )
    check_binary(labels=labels, groups=groups)
    unknown = int(logits.isnan().sum())
    if unknown:
        raise InputError(
            f"{unknown} of {len(logits)} logits are NaN; every one must be a number. Check the features and the "
            "classifier's parameters"
        )
    answers = logits > 0
    right = float((answers == (labels > 0)).double().mean())

    def rate(y: int, a: int) -> float:
        chosen = answers[(labels == y) & (groups == a)]
        return float(chosen.double().mean()) if len(chosen) else float("nan")

    rates = ((rate(0, 0), rate(0, 1)), (rate(1, 0), rate(1, 1)))
    return FairnessMetrics(right, abs(rates[1][0] - rates[1][1]), abs(rates[0][0] - rates[0][1]), rates)
