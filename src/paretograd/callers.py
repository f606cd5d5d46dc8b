"""Stack level of the user's code, for warnings that should point to it."""

from __future__ import annotations

import sys

#: Packages whose frames lie between the user's line and the warning.
_INSIDE = ("paretograd", "torch")


def callers_level() -> int:
    """Return the ``stacklevel``, seen from the calling function, of the first frame outside this library and torch."""
    level, frame = 1, sys._getframe(1)
    while frame.f_back is not None and frame.f_globals.get("__name__", "").partition(".")[0] in _INSIDE:
        level, frame = level + 1, frame.f_back
    return level
