"""What a descent leaves behind: every point, loss, direction and step size of every run."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from paretograd.checks import as_number
from paretograd.descent.records import Stop, shapes
from paretograd.errors import ParameterError
from paretograd.geometry.gramian import Array
from paretograd.guarantees import Guarantee

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from paretograd.certificates.step import StepCertificate
    from paretograd.problems.base import Problem


@dataclass(frozen=True, eq=False, repr=False)
class Trajectory:
    """B runs of a descent over up to T steps. Arrays are float64; NaN after a run has stopped.

    Attributes:
        losses: ``(T + 1, B, m)``, at every visited point, the last one included.
        points: ``(T + 1, B, n)``.
        gamma: distance from Pareto stationarity at every visited point, ``(T + 1, B)``.
        weights: of the directions ``d = J.T w``, ``(T, B, m)``.
        slopes: ``<g_k, d>``, ``(T, B, m)``; below 0 where an objective goes up along ``-d``.
        norms: ``|d|``, ``(T, B)``.
        step_sizes: eta_t, ``(T, B)``.
        gradient_norms: ``|g_k|``, ``(T, B, m)``.
        lengths: steps taken by each run, ``(B,)``.
        left_box: number of the first point outside of the problem's box, -1 where there is none, ``(B,)``.
        reasons: why each run stopped.
        seeds: of the runs; empty where starts were given without.
        lr: the step size, in words.
        aggregator: the rule's name in the paper.
        guarantee: what the theory promises about the rule.
        problem: the problem's name, and ``label`` in figures.
        smoothness: the problem's L, or None; ``least``, ``convex``: what else it declares.
        dtype: of the computation, ``float32`` or ``float64``.
        front: points of the Pareto front ``(K, m)``, K = 0 where it is not known.
    """

    losses: Array
    points: Array
    gamma: Array
    weights: Array
    slopes: Array
    norms: Array
    step_sizes: Array
    gradient_norms: Array
    lengths: NDArray[np.int64]
    left_box: NDArray[np.int64]
    front: Array
    reasons: tuple[Stop, ...]
    seeds: tuple[int, ...]
    lr: str
    aggregator: str
    guarantee: Guarantee
    problem: str
    label: str
    smoothness: float | None
    convex: bool
    least: tuple[float, ...]
    dtype: str

    @property
    def runs(self) -> int:
        """B."""
        return len(self.lengths)

    @property
    def m(self) -> int:
        """Number of objectives."""
        return int(self.losses.shape[2])

    @property
    def finals(self) -> Array:
        """Losses at the last point of each run, ``(B, m)``."""
        return self.losses[self.lengths, np.arange(self.runs)]

    @property
    def conflicts(self) -> NDArray[np.bool_]:
        """Which objectives go up along each direction, to first order and beyond rounding, ``(T, B, m)``."""
        sizes = np.abs(self.weights) * self.gradient_norms
        eps = float(np.finfo(self.dtype).eps)
        slack = max(1e-10, 64.0 * eps) * self.norms[..., None] + 1e-15 * self.m * sizes.sum(axis=-1, keepdims=True)
        return np.asarray(self.slopes < -slack * self.gradient_norms)

    @property
    def alignment(self) -> Array:
        """c of condition (A) at every step, ``<d, grad F> / |d|^2`` for the F of the rule's guarantee, ``(T, B)``."""
        return np.asarray((self.slopes @ self.guarantee.F.phi(self.m)) / self.norms**2)

    def iterations_to(self, gamma: float = 0.01) -> NDArray[np.int64]:
        """Number of steps after which each run first has a gamma below this, ``(B,)``; -1 where it never has."""
        below = self.gamma < as_number(gamma, "gamma")
        return np.where(below.any(axis=0), below.argmax(axis=0), -1)

    def run(self, number: int) -> Trajectory:
        """One run alone, cut to its length."""
        if not 0 <= number < self.runs:
            raise ParameterError(f"run {number} is not there; the runs are numbered 0 to {self.runs - 1}")
        T = int(self.lengths[number])
        ends = {name: shape[0] for name, shape in shapes(T, 1, 1, 1).items()}
        cut = {name: getattr(self, name)[:end, [number]] for name, end in ends.items()}
        return replace(
            self,
            **cut,
            lengths=self.lengths[[number]],
            left_box=self.left_box[[number]],
            reasons=(self.reasons[number],),
            seeds=self.seeds[number : number + 1],
        )

    def certificate(self, problem: Problem, step: int, run: int = 0) -> StepCertificate:
        """What the theory says about one step, checked from the gradients at its point.

        Args:
            problem: on which the run was made; its gradients are computed anew.
            step: from 0 to one less than the length of the run.
            run: its number.
        """
        from paretograd.descent.step_certificate import step_certificate

        return step_certificate(self, problem, step, run)

    def to_pandas(self) -> Any:
        """A data frame with one row for each run and visited point. Needs the extra ``paretograd[pandas]``."""
        from paretograd.descent.frame import to_pandas

        return to_pandas(self)

    def plot(self, bound: Array | None = None) -> Figure:
        """Objective space with the Pareto front, beside gamma on a log axis. Needs the extra ``paretograd[plot]``.

        Args:
            bound: a curve for the right picture, one number per step, such as `CertifiedRun.curve`.
        """
        from paretograd.descent.plot import plot

        return plot(self, bound)

    def save(self, path: str | Path, overwrite: bool = False) -> Path:
        """Write an npz file, whole or not at all; an existing one is replaced only if asked for."""
        from paretograd.descent.files import save

        return save(self, path, overwrite)

    @classmethod
    def load(cls, path: str | Path) -> Trajectory:
        """Read what `save` wrote. Nothing in the file is executed; anything else is an `InputError`."""
        from paretograd.descent.files import load

        return load(path)

    def __repr__(self) -> str:
        ends = ", ".join(sorted({stop.code for stop in self.reasons}))
        return (
            f"Trajectory({self.aggregator} on {self.label}, lr={self.lr}: {self.runs} runs, "
            f"{int(self.lengths.min())} to {int(self.lengths.max())} steps, ended by {ends})"
        )
