"""Training on the clock: the work of one method or run, with the seconds it took over all sessions."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any, Generic, TypeVar

import torch

from paretograd.descent.interrupts import Interrupt
from paretograd.experiments.checkpoint import Checkpoints, Work, load, work_to_the_end
from paretograd.experiments.device import device_name

Trained = TypeVar("Trained", bound=Work)


class Timed(Generic[Trained]):
    """Some work, whose checkpoints also hold the seconds.

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
        """Go on from the checkpoint, if there is one; what is not finite in it is refused on loading."""
        if checkpoints.path.exists():
            load(self, checkpoints.path, label, lambda: True)

    def finish(self, checkpoints: Checkpoints, interrupt: Interrupt, tell: Callable[[], None]) -> None:
        """Work to the end, with checkpoints; an interrupt is obeyed after one."""
        work_to_the_end(self, checkpoints, interrupt, tell)

    def duration(self, steps: int, device: torch.device) -> dict[str, Any]:
        """Seconds, steps, milliseconds a step, and what it was done on."""
        per_step = round(1e3 * self.seconds / max(steps, 1), 4)
        return {
            "seconds": round(self.seconds, 3),
            "steps": steps,
            "ms_per_step": per_step,
            "device": device_name(device),
        }
