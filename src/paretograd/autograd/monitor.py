"""`Monitor`: records weights, Gramians and losses of a training run to a small file, at a bounded cost."""

from __future__ import annotations

import os
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from time import perf_counter
from types import TracebackType
from typing import Any

import numpy as np
import torch
from torch import Tensor

from paretograd.autograd.recording import Head, file_of, head_of, labels_in_words, line_of, packed, whole_lines
from paretograd.autograd.step import Step
from paretograd.callers import callers_level
from paretograd.certificates.update import UpdateCertificate
from paretograd.checks import as_number
from paretograd.disk import from_json, replacing
from paretograd.errors import DataError, InputError, ParameterError, ShapeError
from paretograd.geometry.gramian import as_array

#: Most bytes of a file. Many losses have fewer records than few.
_MOST_BYTES = 32 << 20
#: Least number of records that are kept, however large.
_FEWEST = 16

Losses = Mapping[str, Tensor] | Sequence[Tensor] | Tensor


class Monitor:
    """Records what the steps of a training run know about its losses: weights, Gramians and, if given, their values.

    ```python
    monitor = pg.Monitor("runs/mine")
    for x, y in batches:
        step = pg.backward(losses_of(x, y), pg.UPGrad())
        optimizer.step()
        monitor(step)
    ```

    ``paretograd watch runs/mine`` then says who conflicts with whom, also while the run goes on.

    A monitor measures its own cost and leaves steps out, so that it stays within its budget. If the file is full, it
    drops every second record, and records half as often from then on. So the file stays small, and covers the whole
    run. A run that is killed loses no record that was complete. A monitor of an existing file continues it.

    Numbers on a GPU are copied without waiting for them, and written one call later. On several processes, the first
    one records.

    Attributes:
        path: the file.
        steps: number of steps that the monitor has seen, in earlier runs, too.
        records: number of records in the file.
        spent: seconds that recording has taken, without the creation of the file.
    """

    def __init__(self, path: str | Path, *, budget: float | None = 0.01, keep: int = 2000) -> None:
        """Open a file, or choose one that the first step creates.

        Args:
            path: a file that ends in ``.jsonl``, or a folder for ``monitor.jsonl``. Missing folders are created.
            budget: share of the time between steps that recording may take; None records every step. A pause, such as
                an evaluation, pays for one record at most.
            keep: most records of the file, at least 16. A file is at most 32 MB: many losses have fewer.
        """
        if budget is not None and not 0.0 < as_number(budget, "budget") <= 1.0:
            raise ParameterError(f"budget={budget!r}: give a share of the time above 0, such as 0.01, or None")
        if type(keep) is not int or keep < _FEWEST:
            raise ParameterError(f"keep={keep!r}: give a whole number of records, at least {_FEWEST}")
        self.path, self.steps, self.records, self.spent = file_of(path), 0, 0, 0.0
        self._budget, self._keep = budget, keep
        self._head: Head | None = None
        self._due, self._size = 0, 0
        self._cost, self._credit, self._last = 0.0, 0.0, 0.0
        self._waiting: tuple[dict[str, Any], torch.cuda.Event] | None = None
        self._off = _is_second_process()
        if self.path.exists() and not self._off:
            self._resume()

    def __call__(self, step: Step, losses: Losses | None = None) -> None:
        """Record a step, if it is due.

        Args:
            step: of `backward`, `Accumulation.step` or a `CapturedStep`. Call this after the optimizer's step, if
                `Step.of_update` looks at it.
            losses: values of the losses, as for `backward`. Steps of `capture` and of rules that see the losses have
                them; None then records those.
        """
        begun = perf_counter()
        number, self.steps = self.steps, self.steps + 1
        if not self._last and _is_second_process():  # the processes may have met after this was made
            self._off = True
        if self._off:
            return
        self._earn(begun)
        if self._waiting is not None and self._waiting[1].query():  # type: ignore[no-untyped-call]
            self._write_waiting()
        if number >= self._due and (self._budget is None or self._credit >= self._cost):
            is_new = self._head is None
            self._take(step, losses, number)
            cost = perf_counter() - begun
            self._cost = 0.5 * (self._cost + cost) if self._cost else cost
            if is_new:  # the creation of the file does not count
                self._cost = 0.0
                self._last = perf_counter()
                return
        self._last = perf_counter()
        self.spent += self._last - begun
        self._credit -= self._last - begun

    def close(self) -> None:
        """Write a record that waits for the GPU."""
        if self._waiting is not None:
            self._waiting[1].synchronize()
            self._write_waiting()

    def __enter__(self) -> Monitor:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"Monitor({str(self.path)!r}, records={self.records}, steps={self.steps})"

    def _earn(self, now: float) -> None:
        """Turn the time since the last call into seconds that recording may take, up to those of one record."""
        if self._budget is not None and self._last:
            self._credit = min(self._credit + self._budget * (now - self._last), self._cost)

    # ---- what a step knows -------------------------------------------------------------------------------------------

    def _take(self, step: Step, losses: Losses | None, number: int) -> None:
        """Read a step, and write its record or let it wait for the GPU."""
        parts = step.groups or (step,)
        m = step.weights.shape[-1]
        self._due = number + self._check(m, step.names or _names_of(losses)).stride
        values = _values_of(losses, m) if losses is not None else step.losses
        tensors = {"weights": [part.weights for part in parts], "losses": [] if values is None else [values]}
        if step.gramian is not None:  # a rule that sees the losses has none
            tensors["gramian"] = [part.gramian for part in parts]
        found: dict[str, Any] = {"step": number, "rule": step._aggregator.label, "eps": step._eps, "tensors": tensors}
        update = None if step.update is None else step.update.certificate
        for key, certificate in (("direction", step.direction), ("update", update)):
            if certificate is not None:
                found[key] = _motion(certificate)
        on_gpu = [tensor for every in tensors.values() for tensor in every if tensor.is_cuda]
        if not on_gpu:
            self._append(found)
            return
        self.close()  # of the record before, which is long done
        found["tensors"] = {
            key: [each.detach().to("cpu", non_blocking=True) for each in every] for key, every in tensors.items()
        }
        event = torch.cuda.Event()  # type: ignore[no-untyped-call]
        event.record(torch.cuda.current_stream(on_gpu[0].device))
        self._waiting = found, event

    def _write_waiting(self) -> None:
        assert self._waiting is not None
        found, self._waiting = self._waiting[0], None
        self._append(found)

    # ---- the file ----------------------------------------------------------------------------------------------------

    def _check(self, m: int, names: tuple[str, ...] | None) -> Head:
        """Compare the losses of a step with those of the file, and return its head."""
        if self._head is None:
            self._head = Head(m, names)
        if (m, names) == (self._head.m, self._head.names):
            return self._head
        theirs, ours = labels_in_words(self._head.labels), labels_in_words(Head(m, names).labels)
        raise ParameterError(
            f"{self.path} has {self._head.m} losses ({theirs}), and this step has {m} ({ours}). A file is about one "
            "set of losses: record to another one"
        )

    def _resume(self) -> None:
        """Continue a file: count its records, and cut off a line that was not written completely."""
        head, lines = head_of(self.path), whole_lines(self.path)
        if len(lines) > 1:
            try:
                self.steps = int(from_json(lines[-1].decode())["step"]) + 1
            except (InputError, ValueError, TypeError, KeyError):
                raise DataError(f"{self.path}: its last record is damaged; record to another file") from None
        size = sum(map(len, lines)) + len(lines)
        try:
            if size < self.path.stat().st_size:
                with self.path.open("r+b") as file:
                    file.truncate(size)
        except OSError as error:
            raise DataError(f"{self.path} cannot be written: {error.strerror or error}") from None
        self._head, self.records, self._due = head, len(lines) - 1, self.steps
        self._size = max(map(len, lines[1:]), default=0)

    def _append(self, found: dict[str, Any]) -> None:
        """Write a record. If the disk is full or gone, warn and record nothing more: training goes on."""
        assert self._head is not None
        tensors = found.pop("tensors")
        for key, every in tensors.items():
            if every:
                array = np.stack([as_array(each) for each in every]).astype(np.float64, copy=False)
                found[key] = packed(array) if key == "gramian" else array[0] if key == "losses" else array
        line = line_of(found) + b"\n"
        self._size = max(self._size, len(line))
        try:
            if self.records >= min(self._keep, max(_FEWEST, _MOST_BYTES // self._size)):
                self._thin()
            if self.records:
                with self.path.open("r+b", buffering=0) as file:  # not "ab", which would create a file without a head
                    file.seek(0, os.SEEK_END)
                    if file.write(line) != len(line):
                        raise OSError("the disk is full")
            else:
                with replacing(self.path) as draft:  # head and record appear together
                    draft.write(self._head.line() + b"\n" + line)
        except (OSError, InputError) as error:
            self._off = True
            warnings.warn(
                f"the monitor stops, and training goes on: {self.path} cannot be written ({error})",
                UserWarning,
                stacklevel=callers_level(),
            )
            return
        self.records += 1
        self._due = max(self._due, found["step"] + self._head.stride)  # the stride may have changed

    def _thin(self) -> None:
        """Drop every second record, and double the stride."""
        assert self._head is not None
        lines = whole_lines(self.path)[1::2]
        head = replace(self._head, stride=2 * self._head.stride)
        with replacing(self.path) as file:
            file.write(b"".join(each + b"\n" for each in (head.line(), *lines)))
        self._head, self.records = head, len(lines)


def _motion(found: UpdateCertificate) -> dict[str, Any]:
    return {"slopes": np.array(found.slopes), "norm": found.norm, "conflicts": list(found.conflicts)}


def _names_of(losses: Losses | None) -> tuple[str, ...] | None:
    return tuple(map(str, losses)) if isinstance(losses, Mapping) else None


def _values_of(losses: Losses, m: int) -> Tensor:
    """Return the values of losses, shape ``(m,)``, without waiting for them."""
    if isinstance(losses, Tensor):
        values = losses.detach()
    else:
        items = [loss.detach() for loss in (losses.values() if isinstance(losses, Mapping) else losses)]
        values = (
            torch.stack([item.reshape(()).to(items[0].device) for item in items])
            if items
            else torch.empty(0, device="cpu")
        )
    if tuple(values.shape) != (m,):
        raise ShapeError(f"losses must be the {m} losses of the step; got shape {tuple(values.shape)}")
    return values.double()


def _is_second_process() -> bool:
    """Return True on all processes but the first."""
    return torch.distributed.is_available() and torch.distributed.is_initialized() and torch.distributed.get_rank() > 0
