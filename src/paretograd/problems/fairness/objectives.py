"""Three objectives of a fair classifier: cross entropy, and equal treatment of two groups among Y = 1 and Y = 0."""

from __future__ import annotations

from typing import Literal, get_args

import torch
from torch import Tensor
from torch.nn.functional import binary_cross_entropy_with_logits

from paretograd.errors import ParameterError, ShapeError
from paretograd.problems.fairness.binary import check_binary

Gaps = Literal["sums", "means"]


def fairness_losses(logits: Tensor, labels: Tensor, groups: Tensor, gaps: Gaps = "sums") -> Tensor:
    r"""Cross entropy, and the smoothed differences of equalized odds for Y = 1 and Y = 0.

    With $p = \tanh(\operatorname{relu}(\operatorname{sigmoid}(z)))$ and $S_a^y = \sum_{A = a, Y = y} p$, the latter are
    $|S_0^y - S_1^y| / N$: sums over the groups divided by all N rows, as the LibMOON benchmark defines them. A larger
    group weighs more in them, so they do not vanish for a fair classifier. ``gaps="means"`` uses the groups' means
    instead, which do vanish: the equalized odds of Hardt et al. (2016), smoothed.

    Args:
        logits: z, shape ``(..., N)``.
        labels: Y, bool, or zeros and ones, shape ``(N,)``.
        groups: A, bool, or zeros and ones, shape ``(N,)``.
        gaps: ``sums`` or ``means``.

    Returns:
        shape ``(..., 3)``.
    """
    if gaps not in get_args(Gaps):
        raise ParameterError(f"gaps={gaps!r}: use one of {', '.join(get_args(Gaps))}")
    if logits.shape[-1:] != labels.shape or labels.shape != groups.shape:
        raise ShapeError(
            f"logits have shape (..., N), labels and groups (N,); got {tuple(logits.shape)}, {tuple(labels.shape)} and "
            f"{tuple(groups.shape)}"
        )
    check_binary(labels=labels, groups=groups)
    target = labels.to(logits).expand_as(logits)
    entropy = binary_cross_entropy_with_logits(logits, target, reduction="none").mean(dim=-1)
    positive = torch.tanh(torch.relu(torch.sigmoid(logits)))
    signs = gap_signs(labels, groups, gaps).to(logits)
    return torch.stack([entropy, *((positive * sign).sum(dim=-1).abs() for sign in signs)], dim=-1)


def gap_signs(labels: Tensor, groups: Tensor, gaps: Gaps) -> Tensor:
    """Return the coefficient of each row in the gaps among Y = 1 and Y = 0, shape ``(2, N)``; zero for other rows."""
    members = [[((labels == y) & (groups == a)).double() for a in (0, 1)] for y in (1, 0)]
    if gaps == "sums":
        rows = [(first - second) / len(labels) for first, second in members]
    else:
        rows = [first / first.sum().clamp(min=1.0) - second / second.sum().clamp(min=1.0) for first, second in members]
    return torch.stack(rows)
