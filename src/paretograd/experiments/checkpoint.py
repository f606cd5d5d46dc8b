"""A descent under way on disk, and when it is time to write it."""

from __future__ import annotations

import time
from pathlib import Path

import numpy as np

from paretograd.descent import archive
from paretograd.descent.run import Descent
from paretograd.errors import InputError, ParetogradError

#: Writing takes at most this share of the time, however large a checkpoint becomes.
_SHARE = 0.1


def load(descent: Descent, path: Path, label: str) -> None:
    """Go on from a checkpoint; a damaged one is refused with the way out, and the descent is where it was."""
    try:
        descent.load_state_dict(archive.read(path))
        if len(descent.gamma) != descent.running or not np.isfinite(descent.gamma).all():
            raise InputError("its points are not finite")
    except (ParetogradError, LookupError, TypeError, ValueError, AttributeError, OverflowError, RuntimeError) as error:
        raise InputError(
            f"the checkpoint {path} cannot be used: {error}\nRemove it, and --resume runs {label} from its start"
        ) from None


class Checkpoints:
    """Writes the state of a descent when enough time has passed.

    Args:
        path: of the file.
        every: seconds of work between two checkpoints.
    """

    def __init__(self, path: Path, every: float) -> None:
        self.path, self.every = path, every
        self._last, self._cost = time.monotonic(), 0.0

    @property
    def due(self) -> bool:
        """Whether the interval is over."""
        return time.monotonic() - self._last >= max(self.every, self._cost / _SHARE)

    def write(self, descent: Descent) -> None:
        """Replace the checkpoint by one of this moment."""
        begun = time.monotonic()
        archive.write(self.path, descent.state_dict(), overwrite=True)
        self._last = time.monotonic()
        self._cost = self._last - begun
