"""How runs end: the reason why a run stopped, and signals such as Ctrl-C, held back until the current work is done."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from enum import Enum
from types import FrameType

_USUAL = {signal.SIGINT: signal.default_int_handler, signal.SIGTERM: signal.SIG_DFL}


class Stop(Enum):
    """Why a run ended. The value is the message a user reads."""

    RUNNING = "still running"
    GAMMA = "gamma fell below stop_gamma"
    NORM = "the direction became shorter than stop_norm"
    STEPS = "all steps were taken"
    STATIONARY = "Pareto stationary to rounding: the rule's direction is zero"
    DEGENERATE = "the rule has no direction at this point"
    NO_STEP = "no step size decreases the objectives as the step-size rule asks"
    NOT_FINITE = "a loss or gradient is not finite at the next point, so the run stays at the last good one"
    INTERRUPTED = "interrupted"

    @property
    def code(self) -> str:
        """A short name for tables and files, such as ``not-finite``."""
        return self.name.lower().replace("_", "-")


class Interrupt:
    """Signal handler that remembers the first signal and raises KeyboardInterrupt on the second.

    Attributes:
        came: whether a signal arrived.
    """

    came = False

    def __call__(self, number: int, frame: FrameType | None) -> None:
        if self.came:  # whoever asks twice does not want to wait
            raise KeyboardInterrupt
        self.came = True

    def obey(self) -> None:
        """Raise KeyboardInterrupt if a signal arrived."""
        if self.came:
            raise KeyboardInterrupt


@contextmanager
def held_interrupts(*signals: signal.Signals) -> Iterator[Interrupt]:
    """Hold these signals back until the caller obeys them.

    Only Python's own handlers are replaced, and only in the main thread. Other handlers are left alone.
    """
    interrupt, before = Interrupt(), {}
    if threading.current_thread() is threading.main_thread():
        for number in signals:
            if signal.getsignal(number) is _USUAL[number]:
                before[number] = signal.signal(number, interrupt)
    try:
        yield interrupt
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextmanager
def interrupts_between_steps() -> Iterator[Interrupt]:
    """Hold Ctrl-C back; it is raised as KeyboardInterrupt on leaving."""
    with held_interrupts(signal.SIGINT) as interrupt:
        yield interrupt
    interrupt.obey()
