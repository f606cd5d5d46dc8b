"""Ctrl-C between two steps instead of in the middle of one."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType


class Interrupt:
    """Whether Ctrl-C was pressed."""

    came = False

    def __call__(self, number: int, frame: FrameType | None) -> None:
        if self.came:  # whoever presses it twice does not want to wait
            raise KeyboardInterrupt
        self.came = True


@contextmanager
def interrupts_between_steps() -> Iterator[Interrupt]:
    """Hold Ctrl-C back; it is raised as KeyboardInterrupt on leaving.

    Only Python's own handler is replaced, and only in the main thread: elsewhere Ctrl-C is someone else's to handle.
    """
    interrupt = Interrupt()
    ours = threading.current_thread() is threading.main_thread()
    if not ours or signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
        yield interrupt
        return
    signal.signal(signal.SIGINT, interrupt)
    try:
        yield interrupt
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    if interrupt.came:
        raise KeyboardInterrupt
