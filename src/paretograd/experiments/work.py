"""The work of one job: advanced a few steps at a time, timed, saved in checkpoints; and its device."""

from __future__ import annotations

import math
import platform
import time
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Generic, Literal, Protocol, TypeVar, get_args

import numpy as np
import torch

from paretograd.checks import as_number
from paretograd.descent import DescentWarning
from paretograd.descent.run import Descent
from paretograd.descent.stopping import Interrupt
from paretograd.descent.trajectory import Trajectory
from paretograd.disk import read_arrays, write_arrays
from paretograd.errors import InputError, ParameterError, ParetogradError
from paretograd.experiments.progress import Watch

#: Seconds between two checks of the clock, the display and the interrupt.
_LOOK = 0.1
#: Writing takes at most this share of the time, however large a checkpoint becomes.
_SHARE = 0.1
Device = Literal["auto", "cpu", "cuda"]


class Work(Protocol):
    """The runs of one job, advanced some steps at a time."""

    @property
    def running(self) -> int:
        """Number of unfinished runs."""

    def advance(self, count: int, /) -> object:
        """Take this many steps."""

    def state_dict(self) -> Mapping[str, Any]:
        """Return the state as plain arrays, numbers and text."""

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore the result of `state_dict`."""


def load(work: Work, path: Path, label: str, sound: Callable[[], bool]) -> None:
    """Resume from a checkpoint. A damaged one raises an error with the remedy and leaves the work unchanged.

    Args:
        work: the work to resume.
        path: of the checkpoint.
        label: of the method.
        sound: called afterwards; returns True if the points are finite.
    """
    try:
        work.load_state_dict(read_arrays(path))
        if not sound():
            raise InputError("its points are not finite")
    except (ParetogradError, LookupError, TypeError, ValueError, AttributeError, OverflowError, RuntimeError) as error:
        raise InputError(
            f"the checkpoint {path} cannot be used: {error}\nRemove it, and --resume runs {label} from its start"
        ) from None


def work_to_the_end(work: Work, checkpoints: Checkpoints, interrupt: Interrupt, tell: Callable[[], None]) -> None:
    """Advance until all runs are done, with checkpoints; an interrupt stops the work after the next one."""
    steps = 1
    while work.running:
        begun = time.monotonic()
        work.advance(steps)
        steps = _next_steps(steps, time.monotonic() - begun)
        tell()
        if work.running and (interrupt.came or checkpoints.due):
            checkpoints.write(work)
            interrupt.obey()


def _next_steps(steps: int, seconds: float) -> int:
    """Return the number of steps to take before the next look."""
    return steps * 2 if seconds < 0.5 * _LOOK else max(1, steps // 2) if seconds > 2.0 * _LOOK else steps


def run_descent(
    descent: Descent, label: str, checkpoint: Path, every: float, told: Watch, interrupt: Interrupt
) -> Trajectory:
    """Run a descent to its end, from its checkpoint if there is one.

    Args:
        descent: before its first step.
        label: of the method.
        checkpoint: path of its checkpoint.
        every: seconds of work between two checkpoints.
        told: where it stands.
        interrupt: stops it after the next checkpoint.
    """
    if checkpoint.exists():
        load(descent, checkpoint, label, lambda: _sound(descent))
    told.method(label, descent.step)

    def tell() -> None:
        gamma = float(descent.gamma.max()) if descent.running else math.nan
        told.steps(descent.step, descent.running, gamma)

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DescentWarning)  # the table shows runs that left their box
        work_to_the_end(descent, Checkpoints(checkpoint, every), interrupt, tell)
    return descent.trajectory()


def _sound(descent: Descent) -> bool:
    return len(descent.gamma) == descent.running and bool(np.isfinite(descent.gamma).all())


def checked_interval(seconds: float) -> float:
    """Validate the seconds between two checkpoints."""
    every = as_number(seconds, "checkpoint_every")
    if not 0.0 <= every < math.inf:
        raise ParameterError(f"checkpoint_every={every:g}: seconds, finite and at least 0")
    return every


class Checkpoints:
    """Writes checkpoints of some work, at intervals.

    Args:
        path: of the file.
        every: seconds of work between two checkpoints.
    """

    def __init__(self, path: Path, every: float) -> None:
        self.path, self.every = path, every
        self._last, self._cost = time.monotonic(), 0.0

    @property
    def due(self) -> bool:
        """Return True if the interval is over."""
        return time.monotonic() - self._last >= max(self.every, self._cost / _SHARE)

    def write(self, work: Work) -> None:
        """Replace the checkpoint with the present state."""
        begun = time.monotonic()
        write_arrays(self.path, work.state_dict(), overwrite=True)
        self._last = time.monotonic()
        self._cost = self._last - begun


Trained = TypeVar("Trained", bound=Work)


class Timed(Generic[Trained]):
    """Work whose checkpoints also hold its duration.

    Attributes:
        work: what is done.
        seconds: time spent on it, over all sessions.
    """

    def __init__(self, work: Trained) -> None:
        self.work, self.seconds = work, 0.0

    @property
    def running(self) -> int:
        return self.work.running

    def advance(self, count: int) -> None:
        begun = time.perf_counter()
        self.work.advance(count)
        self.seconds += time.perf_counter() - begun

    def state_dict(self) -> dict[str, Any]:
        return {**self.work.state_dict(), "seconds": self.seconds}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.work.load_state_dict(state)
        self.seconds = float(state["seconds"])

    def resume(self, checkpoints: Checkpoints, label: str) -> None:
        """Resume from the checkpoint, if there is one; loading refuses non-finite values."""
        if checkpoints.path.exists():
            load(self, checkpoints.path, label, lambda: True)

    def finish(self, checkpoints: Checkpoints, interrupt: Interrupt, tell: Callable[[], None]) -> None:
        """Work to the end, with checkpoints; an interrupt stops the work after the next one."""
        work_to_the_end(self, checkpoints, interrupt, tell)

    def duration(self, steps: int, device: torch.device) -> dict[str, Any]:
        """Return seconds, steps, milliseconds per step, and the device."""
        per_step = round(1e3 * self.seconds / max(steps, 1), 4)
        return {
            "seconds": round(self.seconds, 3),
            "steps": steps,
            "ms_per_step": per_step,
            "device": device_name(device),
        }


def find_device(name: str) -> torch.device:
    """Resolve ``auto``, ``cpu`` or ``cuda``."""
    if name not in get_args(Device):
        raise ParameterError(f"device={name!r}: use one of {', '.join(get_args(Device))}")
    if name == "cuda" and not torch.cuda.is_available():
        raise ParameterError("device='cuda', but torch sees no GPU here; use cpu or auto")
    return torch.device("cuda" if name != "cpu" and torch.cuda.is_available() else "cpu")


def device_name(device: torch.device) -> str:
    """Return the name of the device for files."""
    if device.type == "cuda":
        return str(torch.cuda.get_device_name(device))
    return f"CPU ({platform.machine()}, {torch.get_num_threads()} threads)"


@contextmanager
def full_or_tf32(tf32: bool) -> Iterator[None]:
    """Allow or forbid TF32 products on a GPU, and restore the setting afterwards."""
    products, layers = torch.backends.cuda.matmul, torch.backends.cudnn
    before = (products.allow_tf32, layers.allow_tf32)
    products.allow_tf32 = layers.allow_tf32 = tf32
    try:
        yield
    finally:
        products.allow_tf32, layers.allow_tf32 = before
