"""Ctrl-C and the polite kill, handled between two pieces of work instead of in the middle of one."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

_USUAL = {signal.SIGINT: signal.default_int_handler, signal.SIGTERM: signal.SIG_DFL}


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
