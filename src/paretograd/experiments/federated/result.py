"""What is kept of one run, and the folder that keeps it."""

from __future__ import annotations

from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from paretograd.descent import Stop, archive
from paretograd.errors import InputError
from paretograd.experiments.federated.plan import Run
from paretograd.experiments.federated.training import RECORDED, Training
from paretograd.experiments.folder import TrainingFolder

#: Marks a file as a run of this study, with the version of its content.
_FORMAT = "paretograd federated 1"
#: Most epochs to record, besides the last.
_KEPT = 350

Floats = NDArray[np.float32]
Numbers = NDArray[np.int32]


@dataclass(frozen=True)
class RunResult:
    """Result of one run, with K recorded epochs and A evaluations.

    Attributes:
        label: of the run.
        reason: why it ended.
        why: details, if something went wrong.
        length: epochs that were taken.
        epochs: those that were kept, ``(K,)``, the first and the last among them.
        losses: mean loss of the clients, ``(K,)``, at the point from which the step was taken; the same for the others.
        norms: lengths of the directions, ``(K,)``.
        slopes: the least inner product of the direction with an honest client's gradient, ``(K,)``.
        gamma: distance of all updates, the attacker's among them, from Pareto stationarity, ``(K,)``.
        looks: epochs before which the network was judged, ``(A,)``; the last is the end of the run.
        accuracies: of each client on its own test images then, ``(A, clients)``.
        weights: of all updates in the epochs of the looks but the last, ``(A - 1, m)``, the attacker's last; NaN for a
            rule that has none.
        conflicts: epochs in which the direction was against the gradient of some honest client.
        overall: accuracy on all test images at the end.
    """

    label: str
    reason: Stop
    why: str
    length: int
    epochs: Numbers
    losses: Floats
    norms: Floats
    slopes: Floats
    gamma: Floats
    looks: Numbers
    accuracies: Floats
    weights: NDArray[np.float16]
    conflicts: int
    overall: float

    @property
    def accuracy(self) -> float:
        """Mean accuracy of the clients at the end: the number in the paper's table."""
        return float(self.accuracies[-1].mean(dtype=np.float64))

    def save(self, path: Path) -> None:
        """Write the file, whole or not at all."""
        values = {entry.name: getattr(self, entry.name) for entry in fields(self)}
        archive.write(path, values | {"format": _FORMAT, "reason": self.reason.name}, overwrite=True)

    @classmethod
    def load(cls, path: Path) -> RunResult:
        """Read what `save` wrote; raises `InputError` if the file is damaged or of another kind."""
        found = archive.read(path)
        if set(found) != {"format", *_NAMES} or found.pop("format") != _FORMAT:
            raise InputError(f"{path} holds no run of a federated study of this version")
        _check(found, path)
        return cls(**found | {"reason": Stop[found["reason"]]})


_NAMES = tuple(entry.name for entry in fields(RunResult))


def result_of(training: Training, run: Run) -> RunResult:
    """The result of a finished training."""
    length = training.epoch
    kept = np.unique(np.append(np.arange(0, length, -(-max(length, 1) // _KEPT)), max(length - 1, 0)))[: max(length, 0)]
    records = dict(zip(RECORDED, training.records[kept].T.astype(np.float32), strict=True))
    before = [epoch for epoch in training.looks if epoch < length]
    return RunResult(
        label=run.label,
        reason=training.reason,
        why=training.why,
        length=length,
        epochs=kept.astype(np.int32),
        **records,
        looks=np.array(training.looks, dtype=np.int32),
        accuracies=training.accuracies.astype(np.float32),
        weights=training.weights[before].astype(np.float16),
        conflicts=training.conflicts,
        overall=float(training.overall),
    )


def _check(found: dict[str, Any], path: Path) -> None:
    K, A = (np.shape(found[name])[0] if np.ndim(found[name]) == 1 else -1 for name in ("epochs", "looks"))
    shapes = dict.fromkeys(("epochs", *RECORDED), (K,)) | {"looks": (A,)}
    shapes |= {"accuracies": (A, *np.shape(found["accuracies"])[1:])}
    wrong = [name for name, shape in shapes.items() if np.shape(found[name]) != shape]
    wrong += [name for name in ("accuracies", "weights") if np.ndim(found[name]) != 2]
    kinds = {"label": str, "reason": str, "why": str, "length": int, "conflicts": int, "overall": float}
    wrong += [name for name, kind in kinds.items() if type(found[name]) is not kind]
    if wrong or A < 1 or found["reason"] not in Stop.__members__ or not np.isfinite(found["accuracies"]).all():
        raise InputError(f"{path} is damaged: {', '.join(wrong) or 'its numbers'} cannot be right")


class FederatedFolder(TrainingFolder[RunResult]):
    """Paths of its files."""

    results = "runs"

    def _read(self, path: Path, label: str, study: object) -> RunResult:
        found = RunResult.load(path)
        if found.label != label:
            raise InputError(f"{path} is of another study: {found.label}")
        return found
