"""The result of one method, and the folder of the study: small results to share, large checkpoints beside them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn.utils import vector_to_parameters

from paretograd.descent import Stop
from paretograd.disk import read_arrays, write_arrays
from paretograd.errors import InputError
from paretograd.experiments.fairness.study import FairnessStudy
from paretograd.experiments.fairness.training import Training
from paretograd.experiments.folder import TrainingFolder
from paretograd.experiments.study import file_names
from paretograd.geometry.gramian import Array
from paretograd.problems.fairness import Adult, FairnessMetrics, Rows, classifier, fairness_losses, fairness_metrics

#: Marks a file as a method of this study, with the version of its content.
_FORMAT = "paretograd fairness 1"
#: Recorded steps: some on a log scale, to show the start, and some evenly spaced.
_EARLY, _EVENLY = 250, 750
#: Accuracy, two gaps, four rates.
_MEASURES = 7


#: float32, which is enough for pictures.
Floats = NDArray[np.floating[Any]]


@dataclass(frozen=True)
class MethodResult:
    """Result of one method, with S seeds and K recorded steps.

    Attributes:
        label: of the method.
        seeds: one for each run.
        reasons: why each run ended.
        lengths: steps that each run took, ``(S,)``.
        conflicts: steps along which some objective goes up, ``(S,)``.
        steps: the steps that were kept, ``(K,)``, the last of each run among them.
        losses: ``(K, S, 3)``, and so on: at the point from which the step was taken; NaN after a run's end.
        gamma: distance to Pareto stationarity, ``(K, S)``.
        norms: lengths of the directions, ``(K, S)``.
        weights: of the three gradients, ``(K, S, 3)``.
        finals: the three losses at the end, ``(S, 3)``.
        train, validation, test: what the classifiers are judged by, ``(S, 7)``; see `judged`. NaN for runs that are
            not judged: a loss or gradient was not finite on their way, or their logits are NaN at the end.
    """

    label: str
    seeds: tuple[int, ...]
    reasons: tuple[Stop, ...]
    lengths: NDArray[np.int64]
    conflicts: NDArray[np.int64]
    steps: NDArray[np.int64]
    losses: Floats
    gamma: Floats
    norms: Floats
    weights: Floats
    finals: Array
    train: Array
    validation: Array
    test: Array

    def judged(self, part: str = "test") -> list[FairnessMetrics]:
        """Return the metrics of each seed on the ``train``, ``validation`` or ``test`` rows."""
        return [_metrics(row) for row in getattr(self, part).tolist()]

    def save(self, path: Path) -> None:
        """Write the file, completely or not at all."""
        words = {"format": _FORMAT, "label": self.label, "reasons": [stop.name for stop in self.reasons]}
        write_arrays(path, words | {name: getattr(self, name) for name in ("seeds", *_ARRAYS)}, overwrite=True)

    @classmethod
    def load(cls, path: Path) -> MethodResult:
        """Read what `save` wrote; raises `InputError` if the file is damaged or of another kind."""
        found = read_arrays(path)
        if set(found) != {"format", "label", "seeds", "reasons", *_ARRAYS} or found["format"] != _FORMAT:
            raise InputError(f"{path} holds no method of a fairness study of this version")
        try:
            reasons = tuple(Stop[str(name)] for name in found["reasons"])
            seeds = tuple(int(seed) for seed in found["seeds"])
        except (KeyError, TypeError, ValueError) as error:
            raise InputError(f"{path} is damaged: {error!r}") from None
        _check(found, len(seeds), path)
        return cls(label=str(found["label"]), seeds=seeds, reasons=reasons, **{name: found[name] for name in _ARRAYS})


_ARRAYS = tuple(entry.name for entry in fields(MethodResult))[3:]


def result_of(training: Training, label: str, adult: Adult) -> MethodResult:
    """Make the result of a finished training."""
    kept = kept_steps(training.step, training.lengths)
    records = {name: values[kept].astype(np.float32) for name, values in training.records.items()}
    logits = {name: training.logits(getattr(adult, name).features) for name in ("train", "validation", "test")}
    rows: dict[str, Rows] = {name: getattr(adult, name).to("cpu") for name in logits}
    finals = fairness_losses(logits["train"], rows["train"].labels, rows["train"].groups, training.setting.gaps)
    lost = [stop is Stop.NOT_FINITE for stop in training.reasons]
    judged = {
        name: np.array([_judged(*run, rows[name]) for run in zip(z, lost, strict=True)]) for name, z in logits.items()
    }
    return MethodResult(
        label=label,
        seeds=training.setting.seeds,
        reasons=tuple(training.reasons),
        lengths=training.lengths,
        conflicts=training.conflicts,
        steps=kept,
        losses=records["losses"],
        gamma=records["gamma"][..., 0],
        norms=records["norms"][..., 0],
        weights=records["weights"],
        finals=finals.double().numpy(),
        **judged,
    )


def kept_steps(count: int, lengths: Sequence[int] | NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the indices of the steps to keep, for runs of these lengths."""
    last = max(count - 1, 0)
    spaced = np.concatenate([np.geomspace(1.0, max(last, 1), _EARLY), np.linspace(0.0, last, _EVENLY)])
    ends = np.minimum(np.asarray(lengths), last)
    return np.unique(np.concatenate([np.rint(spaced).clip(0, last), ends])).astype(np.int64)


def _judged(logits: Tensor, lost: bool, rows: Rows) -> list[float]:
    """Return the metrics of a classifier; all NaN if its run failed or its logits are NaN."""
    if lost or logits.isnan().any():
        return [math.nan] * _MEASURES
    return _flat(fairness_metrics(logits, rows.labels, rows.groups))


def _flat(metrics: FairnessMetrics) -> list[float]:
    return [metrics.accuracy, metrics.deo1, metrics.deo2, *metrics.rates[0], *metrics.rates[1]]


def _metrics(row: Sequence[float]) -> FairnessMetrics:
    return FairnessMetrics(row[0], row[1], row[2], ((row[3], row[4]), (row[5], row[6])))


def _check(found: dict[str, Any], S: int, path: Path) -> None:
    K = len(found["steps"]) if np.ndim(found["steps"]) == 1 else -1
    parts = dict.fromkeys(("train", "validation", "test"), (S, _MEASURES))
    three, one = dict.fromkeys(("losses", "weights"), (K, S, 3)), dict.fromkeys(("gamma", "norms"), (K, S))
    shapes = {"reasons": (S,), "lengths": (S,), "conflicts": (S,), "steps": (K,), "finals": (S, 3)}
    for name, shape in (shapes | parts | three | one).items():
        kind = "U" if name == "reasons" else "i" if name in ("lengths", "conflicts", "steps") else "f"
        if np.shape(found[name]) != shape or found[name].dtype.kind != kind:
            raise InputError(f"{path} is damaged: {name} must have the shape {shape}")


class FairnessFolder(TrainingFolder[MethodResult]):
    """The folder of a fairness study."""

    results = "methods"

    def final(self, name: str) -> Path:
        """Return the path of the trained classifiers of a method."""
        return self.path / "checkpoints" / f"{name}.final.npz"

    def _read(self, path: Path, label: str, study: FairnessStudy) -> MethodResult:
        found = MethodResult.load(path)
        if (found.label, found.seeds) != (label, study.seeds):
            raise InputError(f"{path} is of another study: {found.label}, seeds {found.seeds}")
        return found

    def save_classifiers(self, name: str, parameters: torch.Tensor, features: int, width: int) -> None:
        """Write the final parameters, ``(S, n)``."""
        shape = {"features": features, "width": width}
        write_arrays(self.final(name), {"parameters": parameters.numpy(), **shape}, overwrite=True)


def load_classifiers(folder: str | Path, label: str) -> list[nn.Sequential]:
    """Load the trained classifiers of a method, one for each seed, from the folder of a study.

    Args:
        folder: of the study; its checkpoints must be there.
        label: of the method, such as ``UPGrad*``.
    """
    path = FairnessFolder(folder).final(file_names([label])[0])
    found = read_arrays(path)
    try:
        parameters = torch.from_numpy(found["parameters"])
        made = []
        for row in parameters:
            model = classifier(found["features"], found["width"], seed=0)
            count = sum(entry.numel() for entry in model.parameters())
            vector_to_parameters(row[:count].clone(), model.parameters())
            made.append(model)
    except (LookupError, TypeError, ValueError, RuntimeError) as error:
        raise InputError(f"{path} holds no classifiers: {error}") from None
    return made
