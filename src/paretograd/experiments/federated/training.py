"""Training: in each epoch a rule turns the updates of all clients, honest or not, into one step; and the results."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.utils import parameters_to_vector

from paretograd.descent import Stop
from paretograd.disk import read_arrays, write_arrays
from paretograd.errors import InputError, NonFiniteGradientError, ParetogradError
from paretograd.experiments.federated.clients import CHANCE, Federation, Pass
from paretograd.experiments.federated.study import FederatedStudy, Run, Setting, rule_of
from paretograd.experiments.folder import TrainingFolder
from paretograd.experiments.work import full_or_tf32
from paretograd.federated.aggregation import combine_updates
from paretograd.federated.attacks import Noise, sign_flip
from paretograd.geometry.cones import FLOAT32_ROWS, conflicting
from paretograd.geometry.gramian import Array
from paretograd.problems.cifar10 import cnn

#: What is recorded in every epoch: mean loss of the clients, length of the direction, the least of its inner products
#: with the honest gradients, and gamma.
RECORDED = ("losses", "norms", "slopes", "gamma")
#: Marks a file as a run of this study, with the version of its content.
_FORMAT = "paretograd federated 1"
#: Most epochs to keep of a run, besides the last.
_KEPT = 350

Floats = NDArray[np.float32]
Numbers = NDArray[np.int32]


class Draw(NamedTuple):
    """Random draws of an epoch: the client whose gradient is flipped, and the seed of the noise."""

    target: int
    noise_seed: int


def draw(seed: int, epoch: int, clients: int) -> Draw:
    """Return the random draws of an epoch, the same on every device; all clients are equally likely."""
    rng = np.random.default_rng([seed, epoch])
    return Draw(int(rng.integers(clients)), int(rng.integers(2**62)))


def attacked(gradients: Tensor, setting: Setting, seed: int, epoch: int) -> Tensor:
    """Append the attacker's update to the gradients of the honest clients ``(K, n)``, if the setting has an attacker.

    A GPU draws other noise than a CPU.
    """
    if not setting.attacked:
        return gradients
    target, noise_seed = draw(seed, epoch, len(gradients))
    generator = torch.Generator(gradients.device).manual_seed(noise_seed)
    kind: Noise = "literal" if setting.kind == "literal" else "relative"
    return sign_flip(gradients, target, generator, noise=setting.noise, kind=kind)


class Training:
    """One run, a few epochs at a time.

    Attributes:
        epoch: how many are done.
        reason: why the run ended, or `Stop.RUNNING`.
        why: details, if something went wrong.
        parameters: flat, ``(n,)``.
        records: of each epoch done, at the point that it left, ``(epochs, 4)``: see `RECORDED`.
        weights: of all updates, ``(epochs, m)``; NaN for a rule that has none.
        conflicts: epochs in which the direction was against the gradient of some honest client, beyond rounding.
        looks: epochs before which the accuracies were looked at; the last is after all of them.
        accuracies: of each client then, ``(looks, clients)``.
        overall: accuracy on all test images at the end; NaN before it.
    """

    def __init__(self, study: FederatedStudy, run: Run, federation: Federation) -> None:
        self.study, self.run = study, run
        self._federation, self._rule = federation, rule_of(run.rule)
        honest = 1 if run.setting.kind == "central" else study.clients
        self.epoch, self.conflicts, self.reason, self.why = 0, 0, Stop.RUNNING, ""
        self.parameters = parameters_to_vector(cnn(run.seed).parameters()).detach().to(federation.device)
        self.records = np.full((study.epochs, len(RECORDED)), np.nan)
        self.weights = np.full((study.epochs, honest + run.setting.attacked), np.nan)
        self.looks: list[int] = []
        self.accuracies = np.empty((0, study.clients))
        self.overall = np.nan

    @property
    def running(self) -> int:
        """1 until the run is done."""
        return int(self.reason is Stop.RUNNING)

    def advance(self, count: int) -> None:
        """Take this many epochs, or as many as are left."""
        while count > 0 and self.running:
            count -= 1
            self._advance()

    def _advance(self) -> None:
        clients, run = self._federation.clients, self.run
        found = clients.gradients(self.parameters)
        updates = attacked(found.gradients, run.setting, run.seed, self.epoch)
        try:
            combined = combine_updates(updates, self._rule, bound="none")
        except NonFiniteGradientError as error:
            return self._lose(Stop.NOT_FINITE, str(error))
        except ParetogradError as error:
            return self._lose(Stop.DEGENERATE, str(error))
        slopes = found.gradients.double() @ combined.direction.double()
        numbers = torch.stack([found.losses.double().mean(), combined.direction.double().norm(), *slopes])
        loss, norm, *products = numbers.tolist()  # wait for the GPU only once
        record = [loss, norm, min(products), combined.gamma]
        if not np.isfinite(record[:3]).all():
            return self._lose(Stop.NOT_FINITE, "the loss or the direction is not finite")
        lengths = combined.norms[: len(products)].numpy()
        self.conflicts += bool(conflicting(np.array(products), lengths, norm, tol=FLOAT32_ROWS).any())
        if self.epoch % self.study.every == 0:
            self._look(found)
        self.records[self.epoch] = record
        self.weights[self.epoch] = combined.weights.double().numpy()
        self.parameters = self.parameters - self.study.lr * combined.direction
        self.epoch += 1
        if self.epoch == self.study.epochs:
            self._finish()
        return None

    def _finish(self) -> None:
        """Evaluate the network after the last step, with the clients' batch statistics there."""
        found = self._federation.clients.gradients(self.parameters)
        if not bool(torch.isfinite(found.losses).all()):
            return self._lose(Stop.NOT_FINITE, "the loss is not finite after the last epoch")
        self._look(found)
        self.overall = self._federation.accuracy(self.parameters, found.moments)
        self.reason = Stop.STEPS
        return None

    def _look(self, found: Pass) -> None:
        self._add(self._federation.accuracies(self.parameters, found.moments))

    def _lose(self, reason: Stop, why: str) -> None:
        """End the run; its network counts as a guess."""
        self.reason, self.why, self.overall = reason, why, CHANCE
        self._add(np.full(self.study.clients, CHANCE))

    def _add(self, accuracies: Array) -> None:
        if self.looks[-1:] == [self.epoch]:  # a run that failed right after an evaluation
            self.looks, self.accuracies = self.looks[:-1], self.accuracies[:-1]
        self.looks.append(self.epoch)
        self.accuracies = np.concatenate([self.accuracies, accuracies[None]])

    @property
    def latest(self) -> tuple[float, float]:
        """Mean loss and gamma of the last epoch."""
        loss, _, _, gamma = self.records[max(self.epoch - 1, 0)].tolist()
        return loss, gamma

    def state_dict(self) -> dict[str, Any]:
        """Return plain arrays and numbers from which the run resumes exactly."""
        return {
            "epoch": self.epoch,
            "reason": self.reason.name,
            "why": self.why,
            "overall": float(self.overall),
            "conflicts": self.conflicts,
            "parameters": self.parameters.cpu().numpy(),
            "records": self.records[: self.epoch],
            "weights": self.weights[: self.epoch],
            "looks": np.array(self.looks, dtype=np.int64),
            "accuracies": self.accuracies,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Resume from the result of `state_dict`. If it does not fit, an error is raised and nothing changes."""
        epoch, looks = int(state["epoch"]), np.array(state["looks"], dtype=np.int64)
        found = {name: np.array(state[name], dtype=np.float64) for name in ("records", "weights", "accuracies")}
        parameters = torch.from_numpy(np.array(state["parameters"], dtype=np.float32))
        reason, conflicts = Stop[str(state["reason"])], int(state["conflicts"])
        expected = list(range(0, epoch, self.study.every)) + [epoch] * (reason is not Stop.RUNNING)
        if not 0 <= epoch <= self.study.epochs - (reason is Stop.RUNNING) or looks.tolist() != expected:
            raise InputError(f"its epoch {epoch} or its looks do not fit {self.study.epochs} epochs")
        shapes = {"records": (epoch, len(RECORDED)), "weights": (epoch, self.weights.shape[1])}
        shapes["accuracies"] = (len(looks), self.study.clients)
        wrong = [name for name, shape in shapes.items() if found[name].shape != shape]
        if wrong or parameters.shape != self.parameters.shape:
            raise InputError(f"its {', '.join(wrong) or 'parameters'} do not fit the study")
        if reason is Stop.RUNNING and not bool(torch.isfinite(parameters).all()):
            raise InputError("its parameters are not finite")
        self.epoch, self.conflicts, self.looks, self.accuracies = epoch, conflicts, looks.tolist(), found["accuracies"]
        self.reason, self.why, self.overall = reason, str(state["why"]), float(state["overall"])
        self.records[:epoch], self.weights[:epoch] = found["records"], found["weights"]
        self.parameters = parameters.to(self._federation.device)


class Together:
    """Several runs, a few epochs at a time; each gives the same result as alone.

    Attributes:
        trainings: the runs, of one case, one for each seed.
    """

    def __init__(self, trainings: Sequence[Training]) -> None:
        self.trainings = list(trainings)
        self._device = self.trainings[0].parameters.device
        self._streams: list[torch.cuda.Stream] = []
        if self._device.type == "cuda":
            self._streams = [torch.cuda.Stream(self._device) for _ in self.trainings]  # type: ignore[no-untyped-call]

    @property
    def running(self) -> int:
        """Number of runs that are not done."""
        return sum(training.running for training in self.trainings)

    @property
    def epoch(self) -> int:
        """Epoch of the unfinished run that is furthest behind; of the last run if all are done."""
        every = [training for training in self.trainings if training.running] or self.trainings
        return min(training.epoch for training in every)

    def advance(self, count: int) -> None:
        """Take this many epochs in each run, or as many as are left."""
        if not self._streams:
            for training in self.trainings:
                training.advance(count)
            return
        # One switch for all threads: torch has one for the process.
        with full_or_tf32(self.trainings[0].study.tf32), ThreadPoolExecutor(len(self.trainings)) as pool:
            list(pool.map(self._advance, self.trainings, self._streams, [count] * len(self.trainings)))

    def _advance(self, training: Training, stream: torch.cuda.Stream, count: int) -> None:
        stream.wait_stream(torch.cuda.default_stream(self._device))  # which has made what this one reads
        with torch.cuda.stream(stream):
            training.advance(count)
        stream.synchronize()

    def state_dict(self) -> dict[str, Any]:
        """Plain arrays and numbers, from which the runs resume exactly."""
        states = {training.run.seed: training.state_dict() for training in self.trainings}
        return {f"{seed}_{name}": value for seed, state in states.items() for name, value in state.items()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Resume from what `state_dict` returned."""
        for training in self.trainings:
            start = f"{training.run.seed}_"
            training.load_state_dict(
                {name.removeprefix(start): value for name, value in state.items() if name.startswith(start)}
            )


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
        write_arrays(path, values | {"format": _FORMAT, "reason": self.reason.name}, overwrite=True)

    @classmethod
    def load(cls, path: Path) -> RunResult:
        """Read what `save` wrote; raises `InputError` if the file is damaged or of another kind."""
        found = read_arrays(path)
        if set(found) != {"format", *_NAMES} or found.pop("format") != _FORMAT:
            raise InputError(f"{path} holds no run of a federated study of this version")
        _check(found, path)
        return cls(**found | {"reason": Stop[found["reason"]]})


_NAMES = tuple(entry.name for entry in fields(RunResult))


def result_of(training: Training, run: Run) -> RunResult:
    """Make the result of a finished training."""
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
    """The folder of a federated study."""

    results = "runs"

    def _read(self, path: Path, label: str, study: object) -> RunResult:
        found = RunResult.load(path)
        if found.label != label:
            raise InputError(f"{path} is of another study: {found.label}")
        return found
