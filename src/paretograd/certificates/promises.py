"""Whether a step keeps what its rule promises."""

from __future__ import annotations

from dataclasses import dataclass

from paretograd.certificates.direction import Direction, Verdict
from paretograd.guarantees import Guarantee


@dataclass(frozen=True)
class Promise:
    """One property that a rule promises of every direction, at one step.

    Attributes:
        text: the property.
        verdict: whether it holds here, as far as rounding lets one see.
    """

    text: str
    verdict: Verdict

    def __str__(self) -> str:
        return f"{self.text}: {self.verdict.value}"


def check_promises(guarantee: Guarantee, direction: Direction) -> tuple[Promise, ...]:
    """Every property of a direction that the guarantee promises; of hull and cone the smallest that it names."""
    found = []
    if guarantee.non_conflicting:
        found.append(Promise("non-conflicting", direction.non_conflicting))
    if guarantee.in_cone:
        text, holds = "in the cone", direction.in_cone
        if guarantee.in_hull:
            text, holds = "in the convex hull", direction.in_hull
        elif guarantee.beyond_hull:
            text, holds = "weights >= 0 that sum to 1 or more", direction.beyond_hull
        found.append(Promise(text, Verdict.of(holds, not holds)))
    if guarantee.alignment is not None:
        c, phi = guarantee.alignment, guarantee.F.phi(len(direction.weights))
        found.append(Promise(f"(A) with c = {c:.4g}", direction.is_aligned(phi, c)))
    return tuple(found)
