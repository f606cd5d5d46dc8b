"""The file of a `Monitor`: a line of JSON about the losses, then one for each recorded step. Nothing is pickled.

A line counts once its end is written. So a file can be read while a run writes to it, and after the run was killed.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from paretograd.disk import from_json, to_json
from paretograd.errors import DataError, InputError
from paretograd.geometry.gramian import Array

#: Name of the file, if a folder is given.
FILE = "monitor.jsonl"
_FORMAT, _VERSION = "paretograd monitor", 1
#: A first line longer than this belongs to another file.
_LONGEST_HEAD = 1 << 20
#: Most losses of a file that is read: more than fit the memory are refused before anything is allocated.
_MOST_LOSSES = 4096


@dataclass(frozen=True)
class Head:
    """The first line of a file.

    Attributes:
        m: number of losses.
        names: their names; None if they have numbers.
        stride: least number of steps between two records.
    """

    m: int
    names: tuple[str, ...] | None
    stride: int = 1

    @property
    def labels(self) -> tuple[str, ...]:
        """The names of the losses, or ``loss 0``, ``loss 1`` and so on."""
        return self.names or tuple(f"loss {k}" for k in range(self.m))

    def line(self) -> bytes:
        """Return the line, without its end."""
        names = None if self.names is None else list(self.names)
        found = {"format": _FORMAT, "version": _VERSION, "m": self.m, "names": names, "stride": self.stride}
        return json.dumps(found).encode()


@dataclass(frozen=True)
class Motion:
    """A direction that is no combination of the gradients, or the change that an optimizer made.

    Attributes:
        slopes: of all losses, shape ``(m,)``.
        norm: its length.
        conflicts: numbers of the losses that it increases.
    """

    slopes: Array
    norm: float
    conflicts: tuple[int, ...]


@dataclass(frozen=True)
class Record:
    """One recorded step.

    Attributes:
        step: its number, from 0.
        rule: label of the rule.
        eps: rounding of the Gramian's entries.
        weights: shape ``(groups, m)``; one group if all parameters were aggregated together.
        gramians: shape ``(groups, m, m)``; None for a rule that sees the losses.
        losses: shape ``(m,)``; None if they were not given.
        direction: for a rule whose direction is no combination of the gradients; else None.
        update: the change that the optimizer made; None if it was not measured.
    """

    step: int
    rule: str
    eps: float
    weights: Array
    gramians: Array | None
    losses: Array | None
    direction: Motion | None
    update: Motion | None


@dataclass(frozen=True)
class Recording:
    """A file in memory."""

    head: Head
    records: tuple[Record, ...]


def file_of(path: str | Path) -> Path:
    """Return the file of a recording: the path itself if it ends in .jsonl, else `FILE` in that folder."""
    found = Path(path)
    return found if found.suffix == ".jsonl" else found / FILE


def packed(gramians: Array) -> Array:
    """Return the upper triangles of Gramians, shape ``(..., m (m + 1) / 2)``; rounding may leave them not symmetric."""
    return np.ascontiguousarray(0.5 * (gramians + gramians.swapaxes(-1, -2))[..., *_triangle(gramians.shape[-1])])


def _unpacked(triangles: Array, m: int) -> Array:
    upper = _triangle(m)
    full = np.empty((*triangles.shape[:-1], m, m))
    full[..., *upper] = triangles
    full[..., upper[1], upper[0]] = triangles
    return full


def _triangle(m: int) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
    found = _TRIANGLES.get(m)
    if found is None:
        found = _TRIANGLES[m] = np.triu_indices(m)
    return found


_TRIANGLES: dict[int, tuple[NDArray[np.intp], NDArray[np.intp]]] = {}


def line_of(values: Mapping[str, Any]) -> bytes:
    """Return the line of a record, without its end. Gramians are `packed`."""
    return to_json(values).encode()


def head_of(path: Path) -> Head:
    """Read the first line of a file."""
    try:
        with path.open("rb") as file:
            line = file.readline(_LONGEST_HEAD)
    except FileNotFoundError:
        raise DataError(f"there is no recording {path}; give the folder or the file of a paretograd.Monitor") from None
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error.strerror or error}") from None
    try:
        found = json.loads(line) if line.endswith(b"\n") else None
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, dict) or found.get("format") != _FORMAT:
        raise DataError(f"{path} is not a file of paretograd.Monitor; give the folder or the file of one")
    if found.get("version") != _VERSION:
        raise DataError(
            f"{path} has version {found.get('version')!r} of the format; this version of paretograd reads {_VERSION}. "
            "Use the version that wrote it, or record to another file"
        )
    m, names, stride = found.get("m"), found.get("names"), found.get("stride")
    named = names is None or (isinstance(names, list) and all(isinstance(name, str) for name in names))
    if type(m) is not int or not 1 <= m <= _MOST_LOSSES or not named or (names is not None and len(names) != m):
        raise DataError(f"{path}: its first line is damaged; record to another file")
    if type(stride) is not int or stride < 1:
        raise DataError(f"{path}: its first line is damaged; record to another file")
    return Head(m, None if names is None else tuple(names), stride)


def whole_lines(path: Path) -> list[bytes]:
    """Return the lines of a file that were written completely, without their ends."""
    try:
        return path.read_bytes().split(b"\n")[:-1]
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error.strerror or error}") from None


def read_recording(path: str | Path) -> Recording:
    """Read the file of a `Monitor`, or its folder. A last line without its end is left out.

    The file is not trusted: nothing in it is executed, and every value is checked.
    """
    file = file_of(path)
    head = head_of(file)
    records = []
    for number, line in enumerate(whole_lines(file)[1:], start=2):
        try:
            records.append(_record(from_json(line.decode()), head.m))
        except (InputError, ValueError, TypeError, KeyError, AttributeError):
            raise DataError(
                f"{file}, line {number}: this is no record of {head.m} losses; the file was changed or damaged. Delete "
                "the line to read the others"
            ) from None
    return Recording(head, tuple(records))


def _record(found: Mapping[str, Any], m: int) -> Record:
    step, rule = found["step"], found["rule"]
    if type(step) is not int or step < 0 or not isinstance(rule, str):
        raise ValueError
    weights = np.atleast_2d(_array(found["weights"]))
    triangles, losses = found.get("gramian"), found.get("losses")
    if weights.ndim != 2 or weights.shape[1] != m:
        raise ValueError
    gramians = None
    if triangles is not None:
        triangles = np.atleast_2d(_array(triangles))
        if triangles.shape != (len(weights), m * (m + 1) // 2):
            raise ValueError
        gramians = _unpacked(triangles, m)
    return Record(
        step=step,
        rule=rule,
        eps=float(found["eps"]),
        weights=weights,
        gramians=gramians,
        losses=None if losses is None else _vector(losses, m),
        direction=_motion(found.get("direction"), m),
        update=_motion(found.get("update"), m),
    )


def _motion(found: Mapping[str, Any] | None, m: int) -> Motion | None:
    if found is None:
        return None
    conflicts = tuple(found["conflicts"])
    if not all(type(k) is int and 0 <= k < m for k in conflicts):
        raise ValueError
    return Motion(_vector(found["slopes"], m), float(found["norm"]), conflicts)


def _array(value: object) -> Array:
    if not isinstance(value, np.ndarray) or value.dtype != np.float64:
        raise TypeError
    return value


def _vector(value: object, m: int) -> Array:
    found = _array(value) if isinstance(value, np.ndarray) else np.array(value, dtype=np.float64)
    if found.shape != (m,):
        raise ValueError
    return found


def labels_in_words(labels: Sequence[str], most: int = 6) -> str:
    """Return names for an error message, shortened."""
    return ", ".join(labels[:most]) + (", ..." if len(labels) > most else "")
