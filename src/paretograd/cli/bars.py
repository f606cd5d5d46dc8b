"""Progress of a study in a terminal: a bar over the methods, and one over the steps of the method at work."""

from __future__ import annotations

from collections.abc import Sequence
from types import TracebackType

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn

from paretograd.experiments.progress import Watch


class Bars(Watch):
    """Draws on standard error while it is a terminal, and nothing elsewhere. The bars go when they are done."""

    def __init__(self) -> None:
        console = Console(stderr=True)
        self._bars = Progress(
            TextColumn("{task.description}"),
            BarColumn(24),
            TextColumn("{task.fields[state]}"),
            TimeElapsedColumn(),
            console=console,
            transient=True,
            disable=not console.is_terminal,
        )
        self._methods, self._steps = TaskID(0), TaskID(0)
        self._most = 0

    def __enter__(self) -> Bars:
        self._bars.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._bars.stop()

    def begin(self, labels: Sequence[str], steps: int) -> None:
        width = max(len("methods"), *map(len, labels))
        self._most = steps
        self._methods = self._bars.add_task("methods".ljust(width), total=len(labels), state=f"0 of {len(labels)}")
        self._steps = self._bars.add_task("".ljust(width), total=steps, state="")

    def method(self, label: str, resumed_at: int) -> None:
        self._bars.reset(self._steps, description=label, total=self._most, completed=resumed_at, state="")

    def steps(self, taken: int, running: int, gamma: float) -> None:
        state = f"step {taken:,}, {running} runs left, gamma {gamma:.4f}" if running else f"step {taken:,}"
        self._bars.update(self._steps, completed=taken, state=state)

    def note(self, text: str) -> None:
        self._bars.console.print(f"note: {text}", markup=False, highlight=False, soft_wrap=True)

    def finished(self, label: str, before: bool) -> None:
        self._bars.advance(self._methods)
        task = next((task for task in self._bars.tasks if task.id == self._methods), None)
        if task is not None:
            self._bars.update(self._methods, state=f"{task.completed:.0f} of {task.total:.0f}")
