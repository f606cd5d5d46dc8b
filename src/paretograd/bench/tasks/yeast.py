"""Yeast: fourteen functional classes of genes, each an objective."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from paretograd.bench.auc import auc
from paretograd.bench.task import Batch, Data, Metric, Source, Task
from paretograd.errors import DataError
from paretograd.problems.sources import DataFile, read

_URL = "https://raw.githubusercontent.com/tsoumakas/mulan/master/data/multi-label/yeast/"
_CHECKSUMS = {
    "yeast-train.arff": (1_501_117, "e759dc991ff54694a4ff9c4314f3be0d6fd2b1994a4b563f57e416394c6aebbd"),
    "yeast-test.arff": (918_515, "4aaac102bff9669a765bf0b378602e5cc8c3b181048282e2f003117b496d552a"),
}
FILES = tuple(DataFile(name, size, digest, f"{_URL}{name}") for name, (size, digest) in _CHECKSUMS.items())

_FEATURES, _LABELS = 103, 14
#: Training rows that are kept for validation.
_HELD = 500
#: Rows of each part of made data.
_MADE = (600, 200, 200)
_SEED = 0


class Yeast(Task):
    """Fourteen labels of a gene.

    **Set-up.** Elisseeff and Weston (2001) predict the functional classes of genes of yeast from 103 features:
    expression levels on microarrays and a phylogenetic profile. A gene has 4.2 of the 14 classes on average. Each
    class is an objective, with a binary cross entropy of its own, and its metric is the area under the ROC curve. The
    network is a small perceptron with shared hidden layers. The paper trains support vector machines instead and
    reports losses on sets of labels.

    **Rows.** The publisher's 1,500 training and 917 test rows. 500 of the training rows, drawn by a fixed seed, serve
    for validation. Classes are of very different size: class 12 has three genes in four, class 14 has 14 of 1,000
    training rows, 7 of 500 validation rows and 13 test rows. The area of class 14, and to a lesser extent that of
    class 9, is therefore noisy. Networks overfit after a few hundred steps; the search of the learning rate decides
    how far they get.

    **Data.** The Mulan project publishes the files; no licence is stated. They were rebuilt from a copy that holds
    all rows, and have the same SHA-1 as the published files in git; no download was tried.
    """

    name = "yeast"
    title = "Yeast"
    summary = "Fourteen functional classes of genes, an objective each."
    rates: ClassVar[Mapping[str, tuple[float, float]]] = {"sgd": (1e-2, 3.0), "adamw": (1e-4, 1e-2)}
    sources = (
        Source(
            title="Yeast",
            folder="yeast",
            files=FILES,
            licence="none stated",
            citation="Elisseeff and Weston (2001). A kernel method for multi-labelled classification. NIPS",
        ),
    )

    def __init__(self, *, small: bool = False) -> None:
        super().__init__(small=small)
        self.objectives = tuple(f"class {k}" for k in range(1, _LABELS + 1))
        self.metrics = tuple(Metric(f"{name}, AUC", k) for k, name in enumerate(self.objectives))
        self.steps, self.batch_size = (200, 64) if small else (600, 128)

    def load(self, data_dir: str | Path | None = None) -> Data:
        """Read and verify the data, or make them. The split is the same in every call.

        The rows are features of shape ``(N, 103)``, standardised with the mean and the deviation of training rows, and
        labels of shape ``(N, 14)``.
        """
        rows, test = (decoded(content.decode("ascii").splitlines()) for content in read(FILES, "yeast", data_dir))
        order = torch.from_numpy(np.random.default_rng(_SEED).permutation(len(rows)))
        train, validation = rows[order[_HELD:]], rows[order[:_HELD]]
        mean, deviation = train[:, :_FEATURES].mean(dim=0), train[:, :_FEATURES].std(dim=0)
        return Data(
            *(((part[:, :_FEATURES] - mean) / deviation, part[:, _FEATURES:]) for part in (train, validation, test))
        )

    def made(self) -> Data:
        """Return random features; each label is the sign of a random linear function of them."""
        generator = torch.Generator().manual_seed(_SEED)
        features = torch.randn((sum(_MADE), _FEATURES), generator=generator, device="cpu")
        weights = torch.randn((_FEATURES, _LABELS), generator=generator, device="cpu")
        labels = (features @ weights > 0.0).float()
        return Data(*zip(torch.split(features, list(_MADE)), torch.split(labels, list(_MADE)), strict=True))

    def network(self) -> nn.Module:
        return Perceptron(32 if self.small else 128)

    def losses(self, network: nn.Module, batch: Batch) -> Sequence[Tensor]:
        features, labels = batch
        pairs = zip(network(features), labels.unbind(1), strict=True)
        return [functional.binary_cross_entropy_with_logits(*pair) for pair in pairs]

    def scores(self, network: nn.Module, rows: Batch) -> Sequence[float]:
        features, labels = rows
        return [auc(*columns) for columns in zip(network(features), labels.unbind(1), strict=True)]


class Perceptron(nn.Module):
    """Two shared layers with ReLU, and a linear head for each class, whose logits have shape ``(N,)``.

    Args:
        width: units of the first layer; the second has half as many.
    """

    def __init__(self, width: int) -> None:
        super().__init__()
        self.shared = nn.Sequential(nn.Linear(_FEATURES, width), nn.ReLU(), nn.Linear(width, width // 2), nn.ReLU())
        self.heads = nn.ModuleList(nn.Linear(width // 2, 1) for _ in range(_LABELS))

    def forward(self, features: Tensor) -> list[Tensor]:
        shared = self.shared(features)
        return [head(shared)[:, 0] for head in self.heads]


def decoded(lines: Iterable[str]) -> Tensor:
    """Return features and labels of the rows of an ARFF file, shape ``(N, 117)``."""
    data = [line for line in lines if line and not line.startswith("@")]
    try:
        rows = torch.tensor([[float(value) for value in line.split(",")] for line in data], device="cpu")
    except ValueError as error:
        raise DataError(f"these are not the rows of Yeast: {error}") from error
    if rows.shape[1:] != (_FEATURES + _LABELS,):
        raise DataError(
            f"a row of Yeast has {_FEATURES} features and {_LABELS} labels; the shape is {tuple(rows.shape)}"
        )
    return rows
