"""Ctrl-C and the polite kill, heard between two parts of the work instead of in the middle of one."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType


class Wish:
    """Whether someone wants the study to stop."""

    asked = False

    def __call__(self, number: int, frame: FrameType | None) -> None:
        if self.asked:  # whoever asks twice does not want to wait for a checkpoint
            raise KeyboardInterrupt
        self.asked = True

    def obey(self) -> None:
        """Stop here, if asked to."""
        if self.asked:
            raise KeyboardInterrupt


@contextmanager
def wish_to_stop() -> Iterator[Wish]:
    """Hear SIGINT and SIGTERM for a while. Handlers of someone else, and threads but the main one, are left alone."""
    wish, before = Wish(), {}
    if threading.current_thread() is threading.main_thread():
        for number, usual in ((signal.SIGINT, signal.default_int_handler), (signal.SIGTERM, signal.SIG_DFL)):
            if signal.getsignal(number) is usual:
                before[number] = signal.signal(number, wish)
    try:
        yield wish
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
