"""Progress of a study: the events it reports, and two displays, bars in a terminal and plain lines."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from datetime import timedelta
from types import TracebackType

#: Width of a terminal that has room for all texts of the bars.
_WIDE = 120
#: Seconds between two lines.
_EVERY = 10.0


class Watch:
    """Receives the progress of a study. This class ignores it; subclasses show it."""

    def begin(self, labels: Sequence[str], steps: int) -> None:
        """A study begins: its methods, and how many steps each of them takes at most."""

    def method(self, label: str, resumed_at: int) -> None:
        """A method begins, or resumes after this many steps."""

    def steps(self, taken: int, running: int, gamma: float) -> None:
        """State of the method: steps, number of runs that have not stopped, and their largest gamma; NaN if unknown."""

    def losses(self, means: Sequence[float]) -> None:
        """Mean losses of the runs that have not stopped; optional, before `steps`."""

    def note(self, text: str) -> None:
        """A note for the user."""

    def finished(self, label: str, before: bool) -> None:
        """A method is done, or was done before."""


class Pace:
    """Estimates the remaining time: an upper bound, for runs that take all their steps at the present pace."""

    def __init__(self) -> None:
        self._most, self._left, self._taken, self._first, self._begun = 0, 0, 0, 0, 0.0

    def begin(self, methods: int, steps: int) -> None:
        """A study begins, with this many methods and steps for each."""
        self._most, self._left = steps, methods

    def method(self, resumed_at: int) -> None:
        """A method begins, or resumes after this many steps."""
        self._first = self._taken = resumed_at
        self._begun = time.monotonic()

    def steps(self, taken: int) -> None:
        """Record the number of steps."""
        self._taken = taken

    def finished(self) -> None:
        """A method is done."""
        self._left -= 1
        self._taken = self._first = 0

    @property
    def seconds_per_step(self) -> float | None:
        """Seconds per step of the current method in this session; None before its first step."""
        taken = self._taken - self._first
        return (time.monotonic() - self._begun) / taken if taken > 0 else None

    def left_here(self) -> str:
        """Remaining time of the current method, such as ``0:01:20``; empty before its first step."""
        return self._in_words(self._most - self._taken)

    def left_in_all(self) -> str:
        """Remaining time of this and all later methods."""
        return self._in_words(self._most * self._left - self._taken) if self._left else ""

    def _in_words(self, steps: int) -> str:
        pace = self.seconds_per_step
        return "" if pace is None else str(timedelta(seconds=round(pace * steps)))


class Display(Watch):
    """A watch that keeps the state of the study. Subclasses show it."""

    #: Format of a loss.
    _digits = "{:.5f}"

    def __init__(self) -> None:
        self._pace, self._label, self._losses = Pace(), "", ""
        self._count = self._most = self._done = self._step = 0

    def begin(self, labels: Sequence[str], steps: int) -> None:
        self._count, self._most, self._done = len(labels), steps, 0
        self._pace.begin(len(labels), steps)

    def method(self, label: str, resumed_at: int) -> None:
        self._label, self._step = label, resumed_at
        self._pace.method(resumed_at)

    def losses(self, means: Sequence[float]) -> None:
        self._losses = " ".join(self._digits.format(loss) for loss in means)

    def steps(self, taken: int, running: int, gamma: float) -> None:
        self._step = taken
        self._pace.steps(taken)

    def finished(self, label: str, before: bool) -> None:
        self._done += 1
        self._pace.finished()


class Lines(Display):
    """Writes a line every few seconds, and one for every finished method. Needs no extra.

    Args:
        write: is given each line, without its end.
    """

    def __init__(self, write: Callable[[str], None]) -> None:
        super().__init__()
        self._write, self._last = write, 0.0

    def method(self, label: str, resumed_at: int) -> None:
        super().method(label, resumed_at)
        self._last = time.monotonic()
        self._write(f"{self._head()}: " + (f"goes on after step {resumed_at:,}" if resumed_at else "begins"))

    def steps(self, taken: int, running: int, gamma: float) -> None:
        super().steps(taken, running, gamma)
        if running and time.monotonic() - self._last >= _EVERY:
            self._last = time.monotonic()
            losses = f", losses {self._losses}" if self._losses else ""
            where = f"step {taken:,} of {self._most:,}, {_runs(running)}{losses}{_gamma(gamma, 5)}"
            left = f"at most {self._pace.left_here()} left, {self._pace.left_in_all()} for all"
            self._write(f"{self._head()}: {where}, {self._speed()}, {left}")

    def note(self, text: str) -> None:
        self._write(f"note: {text}")

    def finished(self, label: str, before: bool) -> None:
        self._label = label
        done = "was done before" if before else f"done, {self._step:,} steps, {self._speed()}"
        self._write(f"{self._head()}: {done}")
        super().finished(label, before)

    def _head(self) -> str:
        return f"[{self._done + 1}/{self._count}] {self._label}"

    def _speed(self) -> str:
        pace = self._pace.seconds_per_step
        return "no step" if pace is None else f"{1e3 * pace:.1f} ms a step"


class Bars(Display):
    """Two bars on standard error, over the methods and over the steps of the method at work. Needs rich.

    Nothing is drawn unless standard error is a terminal. The bars disappear at the end.
    """

    _digits = "{:.3f}"

    def __init__(self) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn

        super().__init__()
        console = Console(stderr=True)
        self._wide = console.width >= _WIDE
        self._bars = Progress(
            TextColumn("{task.description}"),
            BarColumn(24 if self._wide else 6),
            TextColumn("{task.fields[state]}"),
            *([TimeElapsedColumn()] if self._wide else []),
            console=console,
            transient=True,
            disable=not console.is_terminal,
        )
        self._methods, self._steps = TaskID(0), TaskID(0)

    def __enter__(self) -> Bars:
        self._bars.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._bars.stop()

    def begin(self, labels: Sequence[str], steps: int) -> None:
        super().begin(labels, steps)
        width = max(len("methods"), *map(len, labels))
        self._methods = self._bars.add_task("methods".ljust(width), total=len(labels), state=f"0 of {len(labels)}")
        self._steps = self._bars.add_task("".ljust(width), total=steps, state="")

    def method(self, label: str, resumed_at: int) -> None:
        super().method(label, resumed_at)
        self._bars.reset(self._steps, description=label, total=self._most, completed=resumed_at, state="")

    def steps(self, taken: int, running: int, gamma: float) -> None:
        super().steps(taken, running, gamma)
        losses = f", f {self._losses}" if self._losses else ""
        left = self._pace.left_here() if self._wide else ""
        state = f"step {taken:,}, {_runs(running)}{losses}{_gamma(gamma, 4)}{left and f', {left} left'}"
        self._bars.update(self._steps, completed=taken, state=state if running else "")
        self._bars.update(self._methods, state=self._so_far())

    def note(self, text: str) -> None:
        self._bars.console.print(f"note: {text}", markup=False, highlight=False, soft_wrap=True)

    def finished(self, label: str, before: bool) -> None:
        super().finished(label, before)
        self._bars.advance(self._methods)
        self._bars.update(self._methods, state=self._so_far())

    def _so_far(self) -> str:
        left = self._pace.left_in_all()
        return f"{self._done} of {self._count}{left and f', at most {left} left'}"


def _gamma(value: float, digits: int) -> str:
    return "" if math.isnan(value) else f", gamma {value:.{digits}f}"


def _runs(count: int) -> str:
    return f"{count} run{'' if count == 1 else 's'}"
