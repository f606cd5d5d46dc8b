"""What a study tells while it runs."""

from __future__ import annotations

from collections.abc import Sequence


class Watch:
    """Told what happens; this one does nothing with it. The command line draws bars."""

    def begin(self, labels: Sequence[str], steps: int) -> None:
        """A study begins: its methods, and how many steps each of them takes at most."""

    def method(self, label: str, resumed_at: int) -> None:
        """A method begins, or goes on after this many steps."""

    def steps(self, taken: int, running: int, gamma: float) -> None:
        """Where the method stands: steps, runs that have not stopped, and the largest gamma among them."""

    def note(self, text: str) -> None:
        """Something that a user should know."""

    def finished(self, label: str, before: bool) -> None:
        """A method is done, or was done before."""
