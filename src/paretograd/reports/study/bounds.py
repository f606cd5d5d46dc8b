"""What Theorem 1 and Corollary 1 promise about the least gamma of the runs, where they cover them."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from paretograd.descent.certify import TrajectoryCertificate, certify_run
from paretograd.descent.trajectory import Trajectory
from paretograd.reports.study.content import seeds_of
from paretograd.reports.words import short_name


@dataclass(frozen=True)
class Bound:
    """``min_{s <= t} gamma_s <= level / sqrt(t + 1)``, one curve for all methods that share it.

    Attributes:
        seed: of the runs.
        result: ``Corollary 1`` or ``Theorem 1``.
        level: of the curve.
        last: the last iteration.
        methods: labels of the methods.
    """

    seed: int
    result: str
    level: float
    last: int
    methods: tuple[str, ...]

    def at(self, iteration: int) -> float:
        """The bound on the least gamma of the iterations up to this one."""
        return self.level / math.sqrt(iteration + 1.0)


@dataclass(frozen=True)
class Finding:
    """What the theory says about one run.

    Attributes:
        method: its label.
        seed: of the start.
        bound: its bound; None where no result covers it.
        least: the least gamma of the iterations that the bound speaks about.
        why: the hypothesis that does not hold, where there is no bound.
    """

    method: str
    seed: int
    bound: Bound | None
    least: float
    why: str


def find_bounds(trajectories: Mapping[str, Trajectory], smoothness: float | None) -> list[Finding]:
    """One finding for each run, by `certify_run`."""
    return [
        _finding(label, trajectory, certificate, number)
        for label, trajectory in trajectories.items()
        for certificate in [certify_run(trajectory, smoothness)]
        for number in range(trajectory.runs)
    ]


def merged(findings: Sequence[Finding]) -> list[Bound]:
    """Bounds that coincide as one: they depend on start, L and c, which many methods share."""
    groups: dict[tuple[int, str, str], list[Bound]] = {}
    for finding in findings:
        bound = finding.bound
        if bound is not None:
            groups.setdefault((bound.seed, bound.result, f"{bound.level:.6g}"), []).append(bound)
    return [
        Bound(seed, result, group[0].level, max(bound.last for bound in group), tuple(b.methods[0] for b in group))
        for (seed, result, _), group in groups.items()
    ]


def _finding(label: str, trajectory: Trajectory, certificate: TrajectoryCertificate, number: int) -> Finding:
    seed, steps = seeds_of(trajectory)[number], int(trajectory.lengths[number])
    curve, checks = certificate.curve(number), certificate.runs[number]
    least = float(trajectory.gamma[: max(steps, 1), number].min())
    corollary = next(check for check in checks if check.label == "thm:PS-cvx")
    if steps == 0 or math.isnan(float(curve[0])):
        return Finding(label, seed, None, least, str(corollary.missing or "the run has no steps"))
    result = short_name(corollary.label if corollary.covered else "thm:PS-fd")
    return Finding(label, seed, Bound(seed, result, float(curve[0]), steps - 1, (label,)), least, "")
