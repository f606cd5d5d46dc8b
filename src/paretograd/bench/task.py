"""What the benchmark needs of a task: data, a network, a few losses, and the metrics that people report."""

from __future__ import annotations

import statistics
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor, nn

from paretograd.problems.sources import DataFile

#: Tensors with the same number of rows: inputs, then labels.
Batch = tuple[Tensor, ...]


class Metric(NamedTuple):
    """A number that people report for a trained network.

    Attributes:
        name: in tables: "left digit, accuracy".
        objective: index of the loss that alone should give the best value, for the single-task network; None if no
            single loss does.
        higher: True if a higher value is better.
        unit: behind the number.
        relative: True if Delta m takes the change relative to the reference. If not, it takes points: for numbers in
            percent that may vanish, such as gaps between rates.
    """

    name: str
    objective: int | None
    higher: bool = True
    unit: str = "%"
    relative: bool = True


class Source(NamedTuple):
    """Where the data of a task come from.

    Attributes:
        title: of the data set.
        folder: name of its folder below ``--data-dir``.
        files: its files, with checksums.
        licence: under which it is published.
        citation: whom to cite.
    """

    title: str
    folder: str
    files: tuple[DataFile, ...]
    licence: str
    citation: str


class Data(NamedTuple):
    """The rows of a task. Choices are made on the validation rows; the test rows are used once, at the end."""

    train: Batch
    validation: Batch
    test: Batch

    def to(self, device: torch.device) -> Data:
        """Return the same rows on a device."""
        return Data(*(tuple(part.to(device) for part in rows) for rows in self))


class Task(ABC):
    """A problem with m losses.

    Many networks of a task are trained at once: `torch.vmap` runs `losses` over stacked parameters and stacked batches.
    So `losses` is a function of the network and the batch, without side effects, branches on values, or BatchNorm.

    Args:
        small: take the variant for two CPU cores: fewer rows, a narrower network, fewer steps.

    Attributes:
        name: on the command line.
        title: in tables.
        summary: one sentence for ``paretograd bench list``.
        sources: the data sets; none if the data are made.
        single: True if a network that is trained with one loss alone is a sensible reference for its metrics. If not,
            the reference is the tuned mean.
        acts: True if the rows of a step depend on the network, as in control.
        positive: True if the losses are positive, and lower for better networks. If not, only their gradients mean
            something, and rules that read the losses themselves cannot be used.
        objectives: a name for each loss.
        metrics: what `scores` returns.
        steps: number of training steps.
        batch_size: number of rows in a step.
        rates: smallest and largest learning rate of the search, for each optimizer.
    """

    name: ClassVar[str]
    title: ClassVar[str]
    summary: ClassVar[str]
    sources: ClassVar[tuple[Source, ...]] = ()
    single: ClassVar[bool] = True
    acts: ClassVar[bool] = False
    positive: ClassVar[bool] = True
    objectives: tuple[str, ...]
    metrics: tuple[Metric, ...]
    steps: int
    batch_size: int
    rates: ClassVar[Mapping[str, tuple[float, float]]] = {"sgd": (1e-3, 1.0), "adamw": (1e-4, 1e-2)}

    def __init__(self, *, small: bool = False) -> None:
        self.small = small

    @abstractmethod
    def load(self, data_dir: str | Path | None = None) -> Data:
        """Read and verify the data, or make them. The split is the same in every call.

        Args:
            data_dir: a folder with the files, or with the folders of the sources; None looks where
                `paretograd.problems.sources.read` does.
        """

    def made(self) -> Data:
        """Return invented rows of the same form, to try the benchmark without the data; the same in every call."""
        return self.load()

    @abstractmethod
    def network(self) -> nn.Module:
        """Return a new network. Torch's generator has been seeded."""

    @abstractmethod
    def losses(self, network: nn.Module, batch: Batch) -> Sequence[Tensor]:
        """Return the m losses of a batch, as scalars."""

    @abstractmethod
    def scores(self, network: nn.Module, rows: Batch) -> Sequence[float]:
        """Return the metrics of one network on validation or test rows. Gradients are off."""

    def batch(self, data: Data, generator: torch.Generator, network: nn.Module) -> Batch:
        """Draw the rows of a step; by default from the training rows, with replacement.

        Args:
            data: on the device to train on.
            generator: on the CPU; seeded anew for every step, so that a run can continue anywhere.
            network: as it is before the step; used only by tasks that act.
        """
        chosen = torch.randint(len(data.train[0]), (self.batch_size,), generator=generator, device="cpu")
        chosen = chosen.to(data.train[0].device, non_blocking=True)
        return tuple(part[chosen] for part in data.train)

    def quality(self, scores: Sequence[float]) -> float:
        """Return the number that chooses hyper-parameters on validation rows; the highest wins.

        By default the mean of the metrics, which should then have one unit; those where lower is better count
        negatively.
        """
        return statistics.fmean(
            value if metric.higher else -value for metric, value in zip(self.metrics, scores, strict=True)
        )
