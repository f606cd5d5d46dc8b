"""The folder of a task: its protocol, one result for each setting, and locks for processes that work side by side."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from paretograd.bench.protocol import Protocol, Setting
from paretograd.bench.training import Curves, Trial
from paretograd.disk import read_arrays, write_arrays
from paretograd.errors import InputError
from paretograd.experiments.folder import versions, write_text

_SCHEMA = 1
#: Name of the folder with locks, and with what is not finished.
_WORKING = "working"
#: What is trained for a setting: the trials, then the reported networks.
STAGES = SEARCH, REPORT = ("search", "report")


class Tuning(NamedTuple):
    """The trials of a setting.

    Attributes:
        trials: what was tried.
        scores: metrics on validation rows, ``(T, metrics)``; NaN for networks that stopped early.
        quality: the number that chooses, ``(T,)``.
        reasons: why a network stopped early; empty if it did not.
        seconds: of training.
    """

    trials: list[Trial]
    scores: np.ndarray
    quality: np.ndarray
    reasons: list[str]
    seconds: float

    @property
    def best(self) -> int | None:
        """The index of the best trial; None if none came to its end."""
        return int(np.nanargmax(self.quality)) if np.isfinite(self.quality).any() else None


class Outcome(NamedTuple):
    """The result of a setting.

    Attributes:
        tuning: the search.
        validation, test: metrics of the reported networks, ``(S, metrics)``; NaN for networks that stopped early.
        reasons: why a network stopped early.
        curves: measured during training.
        seconds: of training the reported networks.
    """

    tuning: Tuning
    validation: np.ndarray
    test: np.ndarray
    reasons: list[str]
    curves: Curves
    seconds: float

    @property
    def quality(self) -> float:
        """The quality of the chosen trial on validation rows; -inf if there is none."""
        best = self.tuning.best
        return -np.inf if best is None else float(self.tuning.quality[best])


@dataclass(frozen=True)
class TaskFolder:
    """Files of one task. Each is written completely or not at all.

    Attributes:
        path: of the folder.
    """

    path: Path

    @property
    def config(self) -> Path:
        """The protocol and the sessions."""
        return self.path / "config.json"

    @property
    def packed(self) -> Path:
        """All results in one file."""
        return self.path / "runs.npz"

    def result(self, setting: Setting) -> Path:
        """Return the path of a result."""
        return self.path / "settings" / f"{setting.file}.npz"

    def tuned(self, setting: Setting) -> Path:
        """Return the path of the finished search of a setting that is not finished."""
        return self.path / _WORKING / f"{setting.file}.tuned.npz"

    def checkpoint(self, setting: Setting, stage: str) -> Path:
        """Return the path of a checkpoint of the search or of the reported networks."""
        return self.path / _WORKING / f"{setting.file}.{stage}.npz"

    def open(self, protocol: Protocol, device: str) -> None:
        """Write the protocol, or check that the folder has the same; note the session."""
        with self._locked("config", wait=True):
            sessions = self._sessions_of(protocol)
            session = {"versions": versions(), "device": device}
            if any(known.items() >= session.items() for known in sessions):
                return
            sessions = [*sessions, {"time": datetime.now(UTC).isoformat(timespec="seconds"), **session}]
            content = {"schema": _SCHEMA, "protocol": protocol.plain(), "sessions": sessions}
            write_text(self.config, json.dumps(content, indent=1).splitlines())

    def _sessions_of(self, protocol: Protocol) -> list[dict[str, Any]]:
        """Return the earlier sessions, after a check that they had the same protocol."""
        if self.config.exists():
            found, plain = self._read(), protocol.plain()
            known = found["protocol"]
            differing = [name for name, value in plain.items() if known.get(name) != value]
            if differing:
                shown = ", ".join(f"{name}={known.get(name)!r} instead of {plain[name]!r}" for name in differing)
                raise InputError(
                    f"{self.path} has results of another protocol: {shown}. Choose another folder with --out"
                )
            return list(found["sessions"])
        if any(not entry.name.endswith(".part") and entry.name != _WORKING for entry in self.path.iterdir()):
            raise InputError(f"{self.path} is not empty and has no benchmark in it; choose another folder with --out")
        return []

    def _read(self) -> dict[str, Any]:
        try:
            found = json.loads(self.config.read_text(encoding="utf-8"))
            if found["schema"] != _SCHEMA or not isinstance(found["protocol"], dict):
                raise ValueError("another schema")
            return {"protocol": found["protocol"], "sessions": list(found["sessions"])}
        except (OSError, ValueError, LookupError, TypeError) as error:
            raise InputError(f"{self.config} is not the configuration of a benchmark ({error})") from None

    def protocol(self) -> Protocol:
        """Read the protocol."""
        return Protocol.from_plain(self._read()["protocol"])

    def sessions(self) -> list[dict[str, Any]]:
        """Read when, with which versions and on which device the results were made."""
        found: list[dict[str, Any]] = self._read()["sessions"]
        return found

    @contextmanager
    def claimed(self, setting: Setting) -> Iterator[bool]:
        """Lock a setting for this process; yields False if another has it."""
        with self._locked(setting.file, wait=False) as mine:
            yield mine

    @contextmanager
    def _locked(self, name: str, wait: bool) -> Iterator[bool]:
        """Lock a name in this folder. The lock ends with the process, however that ends."""
        place = self.path / _WORKING / f"{name}.lock"
        try:
            place.parent.mkdir(parents=True, exist_ok=True)
            handle = os.open(place, os.O_RDWR | os.O_CREAT)
        except OSError as error:
            raise InputError(f"{place} cannot be used: {error.strerror or error}") from None
        try:
            yield _lock(handle, wait)
        finally:
            os.close(handle)

    def save_tuning(self, setting: Setting, tuning: Tuning) -> None:
        """Write the search of a setting."""
        write_arrays(self.tuned(setting), _tuning_arrays(setting, tuning), overwrite=True)

    def load_tuning(self, setting: Setting) -> Tuning:
        """Read the search of a setting."""
        return _tuning(setting, self.tuned(setting), read_arrays(self.tuned(setting)))

    def save(self, setting: Setting, outcome: Outcome) -> None:
        """Write the result of a setting, and remove what it needed on the way."""
        write_arrays(self.result(setting), _arrays(setting, outcome), overwrite=True)
        for path in (self.tuned(setting), *(self.checkpoint(setting, stage) for stage in STAGES)):
            path.unlink(missing_ok=True)

    def load(self, setting: Setting) -> Outcome:
        """Read the result of a setting."""
        return _outcome(setting, self.result(setting), read_arrays(self.result(setting)))

    def done(self) -> list[Setting]:
        """Return the settings with a result, in the order of their names."""
        found = []
        for path in sorted((self.path / "settings").glob("*.npz")):
            values = read_arrays(path)
            setting = Setting(str(values.get("rule")), str(values.get("optimizer")))
            if setting.file != path.stem:
                raise InputError(f"{path} is no result of a benchmark, or was renamed. Remove it")
            found.append(setting)
        return found

    def outcomes(self) -> dict[Setting, Outcome]:
        """Read all results: those of ``runs.npz``, and those of ``settings``, which replace them."""
        return self.kept() | {setting: self.load(setting) for setting in self.done()}

    def kept(self) -> dict[Setting, Outcome]:
        """Read the results of ``runs.npz``; none if there is no such file."""
        found: dict[Setting, Outcome] = {}
        if not self.packed.exists():
            return found
        columns = read_arrays(self.packed)
        try:
            names = zip(columns["rule"].tolist(), columns["optimizer"].tolist(), strict=True)
            for place, (rule, optimizer) in enumerate(names):
                values = {name: column[place] for name, column in columns.items()}
                values |= {"rule": str(rule), "optimizer": str(optimizer)}
                setting = Setting(str(rule), str(optimizer))
                found[setting] = _outcome(setting, self.packed, values)
        except (LookupError, AttributeError, TypeError) as error:
            raise InputError(f"{self.packed} does not hold the results of a benchmark: {error}") from None
        return found

    def pack(self) -> Path:
        """Write all results to ``runs.npz``, with a row for each setting: a compact form to keep or to publish."""
        found = self.outcomes()
        if not found:
            raise InputError(f"{self.path} has no result to pack")
        rows = [_arrays(setting, outcome) for setting, outcome in found.items()]
        longest = max(rows, key=lambda row: len(row["curve_steps"]))
        for row in rows:
            for name in (name for name in row if name.startswith("curve_")):
                if row[name].shape != longest[name].shape:  # no network was trained
                    row[name] = np.full_like(longest[name], np.nan)
        return write_arrays(self.packed, {name: np.stack([row[name] for row in rows]) for name in rows[0]}, True)


def _arrays(setting: Setting, outcome: Outcome) -> dict[str, Any]:
    curves = {f"curve_{name}": np.asarray(value, np.float32) for name, value in outcome.curves._asdict().items()}
    return {
        **_tuning_arrays(setting, outcome.tuning),
        "validation": outcome.validation,
        "test": outcome.test,
        "final_reasons": np.array(outcome.reasons, dtype=str),
        "final_seconds": outcome.seconds,
        **curves,
    }


def _outcome(setting: Setting, path: Path, found: dict[str, Any]) -> Outcome:
    try:
        curves = Curves(*(np.asarray(found[f"curve_{name}"], float) for name in Curves._fields))
        return Outcome(
            _tuning(setting, path, found),
            found["validation"],
            found["test"],
            [str(reason) for reason in found["final_reasons"]],
            curves if np.isfinite(curves.steps).all() else Curves(*(part[:0] for part in curves)),
            float(found["final_seconds"]),
        )
    except LookupError as error:
        raise InputError(f"{path} is no result of a benchmark: it has no {error}") from None


def _tuning_arrays(setting: Setting, tuning: Tuning) -> dict[str, Any]:
    return {
        "rule": setting.rule,
        "optimizer": setting.optimizer,
        "rules": np.array([trial.rule for trial in tuning.trials], dtype=str),
        "rates": np.array([trial.rate for trial in tuning.trials]),
        "trial_seeds": np.array([trial.seed for trial in tuning.trials]),
        "scores": tuning.scores,
        "quality": tuning.quality,
        "reasons": np.array(tuning.reasons, dtype=str),
        "seconds": tuning.seconds,
    }


def _tuning(setting: Setting, path: Path, found: dict[str, Any]) -> Tuning:
    if (found.get("rule"), found.get("optimizer")) != (setting.rule, setting.optimizer):
        raise InputError(f"{path} does not belong to {setting.label}. Remove it, and the next run makes it again")
    try:
        columns = zip(found["rules"].tolist(), found["rates"].tolist(), found["trial_seeds"].tolist(), strict=True)
        trials = [Trial(str(rule), float(rate), int(seed)) for rule, rate, seed in columns]
        reasons = [str(reason) for reason in found["reasons"]]
        return Tuning(trials, found["scores"], found["quality"], reasons, float(found["seconds"]))
    except (LookupError, ValueError, AttributeError) as error:
        raise InputError(f"{path} is no result of a benchmark: {error}. Remove it") from None


def _lock(handle: int, wait: bool) -> bool:
    """Lock an open file; returns False if another process has it and this one does not wait."""
    if sys.platform == "win32":  # there are no such locks on Windows
        return True
    import fcntl

    try:
        fcntl.flock(handle, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
    except BlockingIOError:
        return False
    except OSError:
        pass  # a file system without locks
    return True
