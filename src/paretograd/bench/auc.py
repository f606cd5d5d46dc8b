"""The area under the ROC curve, exactly."""

from __future__ import annotations

import math

import torch
from torch import Tensor


def auc(scores: Tensor, positive: Tensor) -> float:
    """Return the area under the ROC curve in percent: of all pairs of a positive and a negative row, those in order.

    Pairs with equal scores count one half. The area is NaN if a score is NaN, or if all rows are positive, or none.

    Args:
        scores: shape ``(N,)``; higher for rows that are likelier positive.
        positive: not zero for positive rows, shape ``(N,)``.
    """
    chosen = positive != 0
    above, below = scores[chosen], scores[~chosen].sort().values
    if not len(above) or not len(below) or bool(scores.isnan().any()):
        return math.nan
    lower, upper = (torch.searchsorted(below, above, right=right) for right in (False, True))
    return 50.0 * float((lower + upper).double().mean()) / len(below)
