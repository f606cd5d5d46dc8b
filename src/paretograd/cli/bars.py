"""Progress of a study in a terminal: a bar over the methods, and one over the steps of the method at work."""

from __future__ import annotations

from collections.abc import Sequence
from types import TracebackType

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn

from paretograd.experiments.progress import Pace, Watch

#: Columns of a terminal that has room for all.
_WIDE = 120


class Bars(Watch):
    """Draws on standard error while it is a terminal, and nothing elsewhere. The bars go when they are done."""

    def __init__(self) -> None:
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
        self._most = self._count = self._done = 0
        self._pace, self._losses = Pace(), ""

    def __enter__(self) -> Bars:
        self._bars.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._bars.stop()

    def begin(self, labels: Sequence[str], steps: int) -> None:
        width = max(len("methods"), *map(len, labels))
        self._most, self._count, self._done = steps, len(labels), 0
        self._pace.begin(len(labels), steps)
        self._methods = self._bars.add_task("methods".ljust(width), total=len(labels), state=f"0 of {len(labels)}")
        self._steps = self._bars.add_task("".ljust(width), total=steps, state="")

    def method(self, label: str, resumed_at: int) -> None:
        self._pace.method(resumed_at)
        self._bars.reset(self._steps, description=label, total=self._most, completed=resumed_at, state="")

    def losses(self, means: Sequence[float]) -> None:
        self._losses = f", f {' '.join(f'{loss:.3f}' for loss in means)}"

    def steps(self, taken: int, running: int, gamma: float) -> None:
        self._pace.steps(taken)
        count = f"{running} run{'' if running == 1 else 's'}"
        left = self._pace.left_here() if self._wide else ""
        state = (
            f"step {taken:,}, {count}{self._losses}, gamma {gamma:.4f}{left and f', {left} left'}" if running else ""
        )
        self._bars.update(self._steps, completed=taken, state=state)
        self._bars.update(self._methods, state=self._so_far())

    def note(self, text: str) -> None:
        self._bars.console.print(f"note: {text}", markup=False, highlight=False, soft_wrap=True)

    def finished(self, label: str, before: bool) -> None:
        self._pace.finished()
        self._bars.advance(self._methods)
        self._done += 1
        self._bars.update(self._methods, state=self._so_far())

    def _so_far(self) -> str:
        left = self._pace.left_in_all()
        return f"{self._done} of {self._count}{left and f', at most {left} left'}"
