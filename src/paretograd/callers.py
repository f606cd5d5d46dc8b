"""Who called: where a warning should point."""

from __future__ import annotations

import sys

#: Packages whose frames lie between a person's line and the warning.
_INSIDE = ("paretograd", "torch")


def callers_level() -> int:
    """The stacklevel, for the function that asks, of the first frame that is neither of this library nor of torch."""
    level, frame = 1, sys._getframe(1)
    while frame.f_back is not None and frame.f_globals.get("__name__", "").partition(".")[0] in _INSIDE:
        level, frame = level + 1, frame.f_back
    return level
