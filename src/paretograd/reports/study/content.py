"""Content of a study's figures and page, before anything is drawn: runs and their curves, front, and bounds."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from paretograd.descent.certify import TrajectoryCertificate, certify_run
from paretograd.descent.trajectory import Trajectory
from paretograd.errors import ParameterError
from paretograd.geometry.gramian import Array
from paretograd.problems.base import Problem
from paretograd.reports.palette import COLOURS, MARKERS, ON_DARK
from paretograd.reports.words import short_name

#: Approximate number of points of a curve; its extremes are added.
COUNT = 320
#: Largest number of objectives with a panel.
PANELS = 8
#: Points of the Pareto front in a picture: of a curve, and of a surface.
_FRONT_POINTS = {2: 400, 3: 600}
_FEW_FRONT_POINTS = 40
#: A gap this many times as wide as its neighbours separates two pieces of a front.
_GAP = 5.0
#: Markers of the ends of curves, one for each colour.
_ENDS = (*MARKERS, "p", "*")
#: Numbers of the colours that the paper's methods have in every figure.
_OWN = {"MGDA": 0, "UPGrad": 1, "DualProj": 2, "Nash-MTL": 3, "MAS-Rand": 7}
#: Numbers for the others, in the order in which they are given out; no schedule looks like a rule of its pool.
_SCHEDULES = (6, 5, 4, 8)
_OTHERS = (4, 5, 8, 6, 7, 0, 1, 2, 3)
#: Line styles of methods and of their starred variants; the later pairs are for more methods than there are colours.
_DASHES = (("solid", "dash"), ("dashdot", "longdash"), ("longdashdot", "dot"))


@dataclass(frozen=True)
class Curve:
    """How a method's line is drawn in every figure of a study.

    Attributes:
        colour: on a light ground.
        on_dark: the same hue on a dark ground.
        dash: plotly's name of the line style.
        symbol: matplotlib's marker of the line's end.
    """

    colour: str
    on_dark: str
    dash: str
    symbol: str


def curves(labels: Sequence[str]) -> dict[str, Curve]:
    """A curve for each method of a study, no two alike (up to 27 methods and their stars).

    The paper's methods have the same colour everywhere. A starred variant has the colour of its method and another
    line style; a mixed schedule has a colour that is no rule's of its pool.
    """
    methods = list(dict.fromkeys(label.removesuffix("*") for label in labels))
    numbers = {method: _OWN[method] for method in methods if method in _OWN}
    for method in methods:
        if method not in numbers:
            wanted = (*(_SCHEDULES if method.startswith("MAS-") else ()), *_OTHERS)
            used = [number % len(COLOURS) for number in numbers.values()]
            rounds = min(used.count(number) for number in wanted)
            found = next(number for number in wanted if used.count(number) == rounds)
            numbers[method] = found + rounds * len(COLOURS)
    return {label: _curve(numbers[label.removesuffix("*")], label.endswith("*")) for label in labels}


def _curve(number: int, starred: bool) -> Curve:
    turn, hue = divmod(number, len(COLOURS))
    dash = _DASHES[turn % len(_DASHES)][starred]
    return Curve(COLOURS[hue], ON_DARK[hue], dash, _ENDS[(hue + turn) % len(_ENDS)])


def thin(gamma: Array, losses: Array, count: int = COUNT) -> NDArray[np.int64]:
    """Choose the iterations to draw of a run with ``gamma`` (T + 1,) and ``losses`` (T + 1, m), in order.

    All if there are few. Otherwise a quarter of them lies on a log scale, to show the start, and a quarter is evenly
    spaced. Between two of these the least and the largest gamma are kept, so that no jump of a switching rule is
    lost. The least and the largest value of every loss are kept, too.
    """
    last = len(gamma) - 1
    if last < count:
        return np.arange(last + 1)
    evenly = np.linspace(0.0, last, count // 4)
    edges = np.unique(np.rint(np.concatenate([np.geomspace(1.0, last, count // 4), evenly])).astype(np.int64))
    kept = [edges]
    for start, end in pairwise(edges):
        piece = gamma[start : end + 1]  # both ends: a falling curve then adds nothing
        kept.append(start + np.array([piece.argmin(), piece.argmax()]))
    kept += [losses.argmin(axis=0), losses.argmax(axis=0)]
    return np.unique(np.concatenate(kept))


def spaced(last: int, count: int = 80) -> NDArray[np.int64]:
    """Return iterations 0 to ``last`` on a log scale, for a smooth curve."""
    return np.unique(np.rint(np.geomspace(1.0, last + 1.0, count)).astype(np.int64)) - 1


@dataclass(frozen=True)
class Run:
    """One run of one method, thinned to K points.

    Attributes:
        method: its label.
        seed: of the start.
        iterations: of the points that are kept, ``(K,)``, the first and the last among them.
        losses: ``(K, m)``.
        gamma: ``(K,)``.
    """

    method: str
    seed: int
    iterations: NDArray[np.int64]
    losses: Array
    gamma: Array


@dataclass(frozen=True)
class Quantity:
    """A quantity other than an objective that a panel shows over the iterations.

    Attributes:
        symbol: in the text beside a point.
        axis: title of the axis.
        heading: of the panel.
        text: what the panel shows, for someone who sees it for the first time.
    """

    symbol: str
    axis: str
    heading: str
    text: str


@dataclass(frozen=True)
class Content:
    """A study, ready to be drawn.

    Attributes:
        title: of the report.
        problem: its label in figures.
        lr: the step size in words; several if the methods differ.
        m: number of objectives.
        methods: label and look of each method, in the order of the table.
        seeds: the shown one first.
        runs: every method and seed.
        front: points of the Pareto front ``(K, m)``, rows of NaN between its pieces; K = 0 if it is unknown.
        stop_gamma: gamma at which runs stop; None if they have no such rule.
        names: short descriptions of the objectives, if there are any.
        quantities: what the columns of ``losses`` are, if they are not objectives.
        one: what the numbers in ``seeds`` are, in a word.
    """

    title: str
    problem: str
    lr: str
    m: int
    methods: dict[str, Curve]
    seeds: tuple[int, ...]
    runs: tuple[Run, ...]
    front: Array
    stop_gamma: float | None
    names: tuple[str, ...] = ()
    quantities: tuple[Quantity, ...] = ()
    one: str = "seed"

    @property
    def shown(self) -> list[Run]:
        """The runs of the shown seed."""
        return [run for run in self.runs if run.seed == self.seeds[0]]

    @property
    def panels(self) -> int:
        """Number of objectives that have a panel."""
        return min(self.m, PANELS)

    def scaled(self, losses: Array) -> Array:
        """Scale losses ``(..., m)`` to [0, 1], the range of starts, ends and front: for parallel coordinates."""
        ends = [point for run in self.runs for point in (run.losses[0], run.losses[-1])]
        every = np.concatenate([ends, self.front])
        low, span = every.min(axis=0), np.ptp(every, axis=0)
        return np.asarray((losses - low) / np.where(span > 0.0, span, 1.0))


def compose(
    title: str,
    trajectories: Mapping[str, Trajectory],
    problem: Problem,
    shown_seed: int,
    stop_gamma: float | None,
) -> Content:
    """Thin the runs, give each method its look, and find the front."""
    if not trajectories:
        raise ParameterError("a report needs at least one trajectory; got none")
    for label, trajectory in trajectories.items():
        if trajectory.m != problem.m:
            raise ParameterError(
                f"the trajectory of {label} has {trajectory.m} objectives, {problem.label} has {problem.m}"
            )
    known = dict.fromkeys(seed for trajectory in trajectories.values() for seed in seeds_of(trajectory))
    if shown_seed not in known:
        raise ParameterError(f"no run has the seed {shown_seed}; the seeds are {', '.join(map(str, known))}")
    runs = tuple(run for label, trajectory in trajectories.items() for run in thinned_runs(label, trajectory))
    return Content(
        title=title,
        problem=problem.label,
        lr=", ".join(dict.fromkeys(trajectory.lr for trajectory in trajectories.values())),
        m=problem.m,
        methods=curves(list(trajectories)),
        seeds=(shown_seed, *(seed for seed in known if seed != shown_seed)),
        runs=runs,
        front=_front(problem, runs),
        stop_gamma=stop_gamma,
    )


def seeds_of(trajectory: Trajectory) -> Sequence[int]:
    """Return the seeds of the runs, or their numbers if they have no seeds."""
    return trajectory.seeds or range(trajectory.runs)


def thinned_runs(label: str, trajectory: Trajectory) -> list[Run]:
    """Return the runs of a method, each with the points that are drawn."""
    return [_run(label, trajectory, number) for number in range(trajectory.runs)]


def _run(label: str, trajectory: Trajectory, number: int) -> Run:
    end = int(trajectory.lengths[number]) + 1
    losses, gamma = trajectory.losses[:end, number], trajectory.gamma[:end, number]
    kept = thin(gamma, losses[:, :PANELS])
    return Run(label, seeds_of(trajectory)[number], kept, losses[kept], gamma[kept])


def _front(problem: Problem, runs: Sequence[Run]) -> Array:
    """Return the front without points so far away that the runs would shrink to a dot."""
    if problem.pareto_front is None or problem.m == 1:
        return np.empty((0, problem.m))
    front = problem.pareto_front(_FRONT_POINTS.get(problem.m, _FEW_FRONT_POINTS)).double().cpu().numpy()
    seen = np.concatenate([run.losses for run in runs])
    low, high = seen.min(axis=0), seen.max(axis=0)
    near = ((front >= low - (high - low)) & (front <= high + (high - low))).all(axis=1)
    front = front[near] if near.sum() >= 2 else front
    return _pieces(front[np.argsort(front[:, 0], kind="stable")]) if problem.m == 2 else front


def _pieces(front: Array) -> Array:
    """Insert a row of NaN wherever a curve of two objectives jumps."""
    span = np.ptp(front, axis=0)
    steps = np.linalg.norm(np.diff(front, axis=0) / np.where(span > 0.0, span, 1.0), axis=1)
    beside = np.maximum(np.append(steps[1:], 0.0), np.append(0.0, steps[:-1]))
    return np.insert(front, 1 + np.flatnonzero((steps > 0.01) & (steps > _GAP * beside)), np.nan, axis=0)


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
    """Comparison of one run with a theorem.

    Attributes:
        method: its label.
        seed: of the start.
        bound: its bound; None if no result covers it.
        least: the least gamma of the iterations that the bound covers.
        why: the hypothesis that fails, if there is no bound.
    """

    method: str
    seed: int
    bound: Bound | None
    least: float
    why: str


def find_bounds(trajectories: Mapping[str, Trajectory], smoothness: float | None) -> list[Finding]:
    """Return one finding for each run, by `certify_run`."""
    return [
        _finding(label, trajectory, certificate, number)
        for label, trajectory in trajectories.items()
        for certificate in [certify_run(trajectory, smoothness)]
        for number in range(trajectory.runs)
    ]


def merged(findings: Sequence[Finding]) -> list[Bound]:
    """Merge bounds that coincide: they depend on start, L and c, which many methods share."""
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
