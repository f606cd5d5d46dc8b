"""Running a fairness study: method after method, all seeds of one at once, in a folder that can be resumed."""

from __future__ import annotations

import math
import platform
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args

import torch

from paretograd.checks import as_number
from paretograd.errors import InputError, ParameterError
from paretograd.experiments.checkpoint import Checkpoints, load, work_to_the_end
from paretograd.experiments.config import read_config
from paretograd.experiments.fairness import table
from paretograd.experiments.fairness.folder import FairnessFolder
from paretograd.experiments.fairness.result import MethodResult, result_of
from paretograd.experiments.fairness.study import FairnessStudy
from paretograd.experiments.fairness.training import Training
from paretograd.experiments.progress import Watch
from paretograd.experiments.stopping import Wish, wish_to_stop
from paretograd.problems.fairness import Adult, Rows, load_adult

Device = Literal["auto", "cpu", "cuda"]


@dataclass(frozen=True)
class FairnessResults:
    """A study, or the part of it that is done.

    Attributes:
        study: what was run.
        folder: where it lies.
        methods: by label, those that are done.
    """

    study: FairnessStudy
    folder: Path
    methods: dict[str, MethodResult]

    @property
    def rows(self) -> list[dict[str, Any]]:
        """The table: one dictionary of plain values for each method, shares in percent."""
        return table.rows(self.study, self.methods)


def run_fairness(
    study: FairnessStudy,
    folder: str | Path,
    *,
    data: Adult | None = None,
    data_dir: str | Path | None = None,
    device: Device = "auto",
    resume: bool = False,
    overwrite: bool = False,
    checkpoint_every: float = 10.0,
    watch: Watch | None = None,
) -> FairnessResults:
    """Train with every method that is not done yet, and write results and table.

    What cannot work (an unknown rule, missing data, a folder in use) raises before anything is written. Killed at any
    moment, it loses at most the work since the last checkpoint; on a CPU what ``resume`` makes of the rest is bit by
    bit what it would have been. Ctrl-C writes a checkpoint first and then raises KeyboardInterrupt.

    Args:
        study: what to run.
        folder: where; made if it is missing.
        data: to train and test on; None reads Adult, if any method is left to train.
        data_dir: folder with the files of Adult; see `load_adult`.
        device: ``cpu``, ``cuda``, or ``auto``: a GPU if there is one.
        resume: go on with what is there. Methods that are done are not run again. Another study is refused.
        overwrite: remove the study that is there, and start anew.
        checkpoint_every: seconds of work between two checkpoints; more if writing one takes over a tenth of it.
        watch: is told what happens.
    """
    every = as_number(checkpoint_every, "checkpoint_every")
    if not 0.0 <= every < math.inf:
        raise ParameterError(f"checkpoint_every={every:g}: seconds, finite and at least 0")
    place, told, target = FairnessFolder(folder), watch or Watch(), find_device(device)
    place.check(study, resume, overwrite)
    study.rehearse()
    if overwrite or not place.finished(study):
        data = load_adult(data_dir, study.scaling) if data is None else data
    with place.locked(), wish_to_stop() as wish:
        place.check(study, resume, overwrite)  # it may have been someone else's until now
        place.open(study, overwrite, _device_name(target), told)
        labels = study.labels()
        told.begin(labels, study.steps)
        on_device = data.train.to(target) if data is not None else None
        for rule, label, name in zip(study.methods, labels, study.files(), strict=True):
            before = place.result(name).exists()
            if before:
                place.checkpoint(name).unlink(missing_ok=True)
            elif data is not None and on_device is not None:
                _Method(study, rule, label, name, place).train(data, on_device, every, told, wish)
            results = read_results(place.path)
            table.write(place, study, results.methods)
            told.finished(label, before)
            wish.obey()
    return results


def read_results(folder: str | Path) -> FairnessResults:
    """A study from its folder, with the methods that are done; nothing is trained."""
    place = FairnessFolder(folder)
    if not place.config.exists():
        raise InputError(f"{place.path} holds no study: there is no {place.config.name} in it")
    study = FairnessStudy.from_plain(read_config(place.config)["study"])
    names = zip(study.labels(), study.files(), strict=True)
    done = {label: place.load(name, label, study) for label, name in names if place.result(name).exists()}
    return FairnessResults(study, place.path, done)


class _Method:
    """The training of one method, with its time."""

    def __init__(self, study: FairnessStudy, rule: str, label: str, name: str, place: FairnessFolder) -> None:
        self._study, self._rule, self._label, self._name, self._place = study, rule, label, name, place
        self._seconds = 0.0

    def train(self, data: Adult, rows: Rows, every: float, told: Watch, wish: Wish) -> None:
        """To its end, from its checkpoint if there is one."""
        place, name, path = self._place, self._name, self._place.checkpoint(self._name)
        self._training = training = Training(self._study.setting(), self._study.aggregator(self._rule), rows)
        if path.exists():
            load(self, path, self._label, lambda: True)  # what is not finite is refused on loading
        told.method(self._label, training.step)
        work_to_the_end(self, Checkpoints(path, every), wish, lambda: self._tell(told))
        place.save_classifiers(name, training.parameters(), rows.features.shape[1], self._study.width)
        duration = {"seconds": round(self._seconds, 3), "steps": training.step}
        per_step = {"ms_per_step": round(1e3 * self._seconds / max(training.step, 1), 4)}
        place.took(self._study, self._label, duration | per_step | {"device": _device_name(rows.features.device)})
        result_of(training, self._label, data).save(place.result(name))
        path.unlink(missing_ok=True)

    @property
    def running(self) -> int:
        return self._training.running

    def advance(self, count: int) -> None:
        begun = time.perf_counter()
        self._training.advance(count)
        self._seconds += time.perf_counter() - begun

    def state_dict(self) -> dict[str, Any]:
        return self._training.state_dict() | {"seconds": self._seconds}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._training.load_state_dict(state)
        self._seconds = float(state["seconds"])

    def _tell(self, told: Watch) -> None:
        losses, gamma = self._training.latest
        told.losses(losses)
        told.steps(self._training.step, self._training.running, gamma)


def find_device(name: str) -> torch.device:
    """The device that ``auto``, ``cpu`` or ``cuda`` stands for."""
    if name not in get_args(Device):
        raise ParameterError(f"device={name!r}: use one of {', '.join(get_args(Device))}")
    if name == "cuda" and not torch.cuda.is_available():
        raise ParameterError("device='cuda', but torch sees no GPU here; use cpu or auto")
    return torch.device("cuda" if name != "cpu" and torch.cuda.is_available() else "cpu")


def _device_name(device: torch.device) -> str:
    if device.type == "cuda":
        return str(torch.cuda.get_device_name(device))
    return f"CPU ({platform.machine()}, {torch.get_num_threads()} threads)"
