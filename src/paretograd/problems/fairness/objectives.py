"""Objectives and metrics of a fair classifier: being right, and treating two groups alike among Y = 1 and Y = 0.

Both take labels and groups as bool or as 0 and 1. Other values would be miscounted silently, so they are rejected.
"""

from __future__ import annotations

from typing import Literal, NamedTuple, get_args

import torch
from torch import Tensor
from torch.nn.functional import binary_cross_entropy_with_logits

from paretograd.errors import InputError, ParameterError, ShapeError

Gaps = Literal["sums", "means"]

#: Number of values shown in an error message.
_SHOWN = 5


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


def check_binary(**parts: Tensor) -> None:
    """Raise if an entry is neither 0 nor 1 nor a bool.

    On a GPU this synchronises once per call, which a rule does for the Gramian in every step anyway. The check is
    skipped while a graph is compiled or captured, when synchronising is not allowed.

    Args:
        **parts: the tensors, by their names in error messages.
    """
    numbers = {name: values for name, values in parts.items() if values.dtype is not torch.bool}
    if not numbers or torch.compiler.is_compiling():
        return
    if any(values.is_cuda for values in numbers.values()) and torch.cuda.is_current_stream_capturing():
        return
    wrong = {name: (values != 0) & (values != 1) for name, values in numbers.items()}  # NaN is neither
    if not torch.stack([entries.any() for entries in wrong.values()]).any():
        return
    for name, entries in wrong.items():
        if entries.any():
            values = numbers[name][entries].double().sort().values
            found = list(dict.fromkeys(f"{value:g}" for value in values.tolist()))
            more = ", ..." if len(found) > _SHOWN else "."
            raise InputError(
                f"{name} must be bool or hold only 0 and 1; {int(entries.sum())} of {entries.numel()} are not: "
                f"{', '.join(found[:_SHOWN])}{more} Give {name} == X, where X is the value that stands for 1"
            )
