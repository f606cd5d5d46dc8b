"""Adult: being right about incomes, and treating men and women alike."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits

from paretograd.bench.task import Batch, Data, Metric, Source, Task
from paretograd.problems.fairness import Rows, classifier, fairness_losses, fairness_metrics, load_adult
from paretograd.problems.fairness.adult import FILES

#: Rows of each part of the small variant and of made data, and features of the latter.
_SMALL, _MADE, _FEATURES = (6_000, 2_000, 2_000), (4_000, 1_000, 1_000), 88
#: Number of combinations of label and group.
_CELLS = 4


class AdultFairness(Task):
    r"""Accuracy against equalized odds.

    **Set-up.** The Adult data as LibMOON encodes and splits them (Zhang et al., 2024), with the three objectives of the
    paper's fairness study and its classifier M4, a perceptron with three hidden layers of 256 units; here 128. Gender
    is not a feature. Three things differ:

    - The gaps compare *means* over the groups (``gaps="means"``), the rates of Hardt et al. (2016). LibMOON's sums over
      the groups do not vanish for a fair classifier.
    - A step sees 1,024 rows, not all: 256 of each combination of label and gender. Only 3.6% of the rows are women with
      a high income, so a plain sample would hold too few for a gap between means. The cross entropy weights each row
      by the share of its combination among the training rows. So its expectation is the mean over these rows.
    - Features are standardised by the training rows alone.

    **Losses.** The cross entropy, and the smoothed gaps $|S_0^y - S_1^y|$ for $y = 1$ and $y = 0$ of `fairness_losses`.

    **Metrics.** The accuracy; the gaps between the rates of positive predictions of men and women, among high incomes
    (DEO1) and low ones (DEO2), in points; and the balanced accuracy for the worse group,
    $\frac12 \sum_y \min_a P(\hat Y = y \mid Y = y, A = a)$. The latter chooses hyper-parameters. It is the balanced
    accuracy, averaged over men and women, minus half the mean gap. A constant classifier has no gap and 76% accuracy,
    so accuracy minus gaps would reward it; it gets 50 here, as does every classifier that ignores the features.

    A network that is trained with one gap alone becomes constant, and is no reference for anything. So the reference
    is the mean of the losses. Gaps are small numbers with large sampling errors: only 359 of the test rows and 169 of
    the validation rows are women with a high income. Read relative changes of gaps with care.

    **Rows.** 34,188 for training, 4,885 for validation and 9,769 for tests, as in LibMOON.

    **Data.** UCI Adult (Becker and Kohavi, 1996), CC BY 4.0, verified as in `paretograd.problems.fairness`.
    """

    name = "adult"
    title = "Adult"
    summary = "Income prediction against equalized odds of men and women, on a small perceptron."
    sources = (
        Source(
            title="Adult",
            folder="adult",
            files=FILES,
            licence="CC BY 4.0",
            citation="Becker and Kohavi (1996). Adult. UCI Machine Learning Repository. doi 10.24432/C5XW20",
        ),
    )
    single = False
    objectives = ("cross entropy", "gap among high incomes", "gap among low incomes")
    metrics = (
        Metric("accuracy", 0),
        Metric("DEO1", None, higher=False, unit="points", relative=False),
        Metric("DEO2", None, higher=False, unit="points", relative=False),
        Metric("balanced accuracy, worse group", None),
    )

    def __init__(self, *, small: bool = False) -> None:
        super().__init__(small=small)
        self.steps, self.batch_size, self._width = (200, 256, 16) if small else (1_000, 1_024, 128)

    def load(self, data_dir: str | Path | None = None) -> Data:
        adult = load_adult(data_dir, scaling="train")
        parts = (adult.train, adult.validation, adult.test)
        return _data(tuple(_first(*pair) for pair in zip(parts, _SMALL, strict=True)) if self.small else parts)

    def made(self) -> Data:
        """Return people whose income depends on five features, of which one is higher for men."""
        generator = torch.Generator().manual_seed(0)
        return _data([_people(count, generator) for count in _MADE])

    def network(self) -> nn.Module:
        return classifier(_FEATURES, self._width)

    def losses(self, network: nn.Module, batch: Batch) -> Sequence[Tensor]:
        features, labels, groups, weights = batch
        logits = network(features).squeeze(1)
        entropy = binary_cross_entropy_with_logits(logits, labels.to(logits), reduction="none")
        gaps = fairness_losses(logits, labels, groups, gaps="means")[1:]
        return ((weights * entropy).mean(), *gaps)

    def scores(self, network: nn.Module, rows: Batch) -> Sequence[float]:
        features, labels, groups, _ = rows
        logits = network(features).squeeze(1)
        if bool(logits.isnan().any()):
            return [math.nan] * len(self.metrics)
        found = fairness_metrics(logits, labels, groups)
        low, high = found.rates
        worse = (min(high) + min(1.0 - rate for rate in low)) / 2.0
        return [100.0 * value for value in (found.accuracy, found.deo1, found.deo2, worse)]

    def batch(self, data: Data, generator: torch.Generator, network: nn.Module) -> Batch:
        """Draw the same number of rows of each label and group, with replacement."""
        _, labels, groups, _ = data.train
        ends = torch.searchsorted(_cells(labels, groups), torch.arange(_CELLS + 1, device=labels.device))
        draws = torch.rand(_CELLS, self.batch_size // _CELLS, generator=generator, dtype=torch.float64, device="cpu")
        places = draws.to(labels.device, non_blocking=True) * ends.diff().unsqueeze(1)
        chosen = (ends[:-1].unsqueeze(1) + places.long()).flatten()
        return tuple(part[chosen] for part in data.train)

    def quality(self, scores: Sequence[float]) -> float:
        """Return the balanced accuracy for the worse group."""
        return scores[3]


def _cells(labels: Tensor, groups: Tensor) -> Tensor:
    """Number the combinations of label and group: 2 y + a."""
    return 2 * labels.long() + groups.long()


def _data(parts: Sequence[Rows]) -> Data:
    """Add a weight to each row. Sort the training rows by label and group, which `AdultFairness.batch` relies on."""
    train, *others = parts
    cells = _cells(train.labels, train.groups)
    order = cells.argsort(stable=True)
    weights = _CELLS * cells.bincount(minlength=_CELLS)[cells] / len(cells)
    first = (train.features, train.labels > 0, train.groups > 0, weights)
    rest = [
        (part.features, part.labels > 0, part.groups > 0, torch.ones_like(part.labels, dtype=torch.float32))
        for part in others
    ]
    return Data(tuple(part[order] for part in first), *rest)


def _first(rows: Rows, count: int) -> Rows:
    return Rows(*(part[:count] for part in rows))


def _people(count: int, generator: torch.Generator) -> Rows:
    features = torch.randn((count, _FEATURES), generator=generator, device="cpu")
    groups = (torch.rand(count, generator=generator, device="cpu") < 0.3).float()
    features[:, 0] += 0.5 - groups
    income = features[:, 0] + features[:, 1:5].sum(dim=1) + 0.5 * torch.randn(count, generator=generator, device="cpu")
    return Rows(features, (income > 1.0).float(), groups)
