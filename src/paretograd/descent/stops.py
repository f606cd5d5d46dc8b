"""Why a run of the descent loop ended, and the warning it may give on the way."""

from __future__ import annotations

from enum import Enum


class DescentWarning(UserWarning):
    """Something about a run that its result also says: it left its box, or it was interrupted."""


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
