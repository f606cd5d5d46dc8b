"""`Trajectory`: the record of a descent, with its table, its plot, its step certificates and its file format."""

from __future__ import annotations

from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray

from paretograd.certificates.step import StepCertificate
from paretograd.certification import certificate_of
from paretograd.checks import as_number
from paretograd.descent.plot import plot_trajectory
from paretograd.descent.records import NAMES, shapes
from paretograd.descent.stopping import Stop
from paretograd.disk import from_json, read_arrays, to_json, write_arrays
from paretograd.errors import InputError, ParameterError, ShapeError, needs
from paretograd.geometry import cones
from paretograd.geometry.cones import Rounding
from paretograd.geometry.gramian import Array, as_array, gramian
from paretograd.guarantees import MEAN, STEP, SUM, Guarantee, Surrogate
from paretograd.problems.base import Problem

if TYPE_CHECKING:
    from matplotlib.figure import Figure

#: Identifies a file as a trajectory, with the version of its content.
_FORMAT = "paretograd trajectory 1"
#: Those F that a file stores by their names.
_SYMBOLIC = (SUM, MEAN, STEP)
#: F of a rule with fixed weights in files of earlier versions.
_FIXED = "sum_k weights_k f_k"


@dataclass(frozen=True, eq=False, repr=False)
class Trajectory:
    """B runs of a descent over up to T steps. Arrays are float64, and NaN beyond the end of a run.

    Attributes:
        losses: losses at every visited point, the last one included, ``(T + 1, B, m)``.
        points: ``(T + 1, B, n)``.
        gamma: distance from Pareto stationarity at every visited point, ``(T + 1, B)``.
        weights: weights of the directions ``d = J.T w``, ``(T, B, m)``; NaN if d is no combination of the gradients.
        slopes: ``<g_k, d>``, ``(T, B, m)``; negative if an objective increases along ``-d``.
        norms: ``|d|``, ``(T, B)``.
        step_sizes: eta_t, ``(T, B)``.
        gradient_norms: ``|g_k|``, ``(T, B, m)``.
        lengths: number of steps taken by each run, ``(B,)``.
        left_box: index of the first point outside the problem's box, -1 if there is none, ``(B,)``.
        reasons: why each run stopped.
        seeds: seeds of the runs; empty if only starts were given.
        lr: the step size, as text.
        aggregator: the rule's name in the paper.
        guarantee: the rule's theoretical guarantee.
        problem: the problem's name; ``label`` is its name in figures.
        smoothness: the problem's L, or None; ``least`` and ``convex`` are its other declared properties.
        dtype: dtype of the computation, ``float32`` or ``float64``.
        front: points of the Pareto front ``(K, m)``; K = 0 if it is unknown.
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
        """Number of runs, B."""
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
        """Mask of the objectives that increase along ``-d``, to first order and beyond rounding, ``(T, B, m)``."""
        tol = cones.conflict_tolerance(float(np.finfo(self.dtype).eps))
        errors = cones.term_errors(self.gradient_norms, self.weights)
        return cones.conflicting(self.slopes, self.gradient_norms, self.norms, tol=tol, errors=errors)

    @property
    def alignment(self) -> Array:
        """c of condition (A) at every step, ``<d, grad F> / |d|^2`` for the F of the rule's guarantee, ``(T, B)``."""
        F = self.guarantee.F
        steep = (self.slopes * self.weights).sum(axis=2) if F == STEP else self.slopes @ F.phi(self.m)
        return np.asarray(steep / self.norms**2)

    def iterations_to(self, gamma: float = 0.01) -> NDArray[np.int64]:
        """Return the number of steps after which each run's gamma first falls below this, ``(B,)``; -1 if never."""
        below = self.gamma < as_number(gamma, "gamma")
        return np.where(below.any(axis=0), below.argmax(axis=0), -1)

    def run(self, number: int) -> Trajectory:
        """Return one run alone, cut to its length."""
        T = self._length(number)
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

    def _length(self, run: int) -> int:
        """Return the length of a run; raises if there is no such run."""
        if not 0 <= run < self.runs:
            raise ParameterError(f"there is no run {run}; the runs are numbered 0 to {self.runs - 1}")
        return int(self.lengths[run])

    def certificate(self, problem: Problem, step: int, run: int = 0) -> StepCertificate:
        """Check the theory on one step, from its recorded weights and the gradients at its point.

        Args:
            problem: the problem of the run; its gradients are recomputed.
            step: index of the step, from 0 to one less than the length of the run.
            run: index of the run.
        """
        length = self._length(run)
        if not 0 <= step < length:
            raise ParameterError(f"there is no step {step}; run {run} took {length} steps, numbered from 0")
        n, m = self.points.shape[2], self.m
        if (problem.name, problem.n, problem.m) != (self.problem, n, m):
            raise ParameterError(
                f"the run was made on {self.problem} with n={n} and m={m}; got {problem.name} with n={problem.n} and "
                f"m={problem.m}"
            )
        if np.isnan(self.weights[step, run]).any():
            raise ParameterError(
                f"the direction of step {step} is no combination of the gradients, so it has no certificate; slopes "
                "and conflicts say which objectives it decreases"
            )
        point = torch.from_numpy(self.points[step, run]).to(getattr(torch, self.dtype))
        _, J = problem.jacobian(point)
        # The Gramian is computed in float64, but gradients and weights have the precision of the run.
        rounding = Rounding(rows=0.0 if J.dtype is torch.float64 else torch.finfo(J.dtype).eps)
        return certificate_of(as_array(gramian(J)), self.weights[step, run], self.guarantee, rounding)

    def to_pandas(self) -> Any:
        """Return a data frame with one row per run and visited point. Needs the extra ``paretograd[pandas]``."""
        with needs("pandas", "a data frame needs", "pandas"):
            import pandas
        return pandas.DataFrame(to_columns(self))

    def plot(self, bound: Array | None = None) -> Figure:
        """Plot objective space with the Pareto front, and gamma on a log axis. Needs the extra ``paretograd[plot]``.

        Args:
            bound: a curve to add to the plot of gamma, one number per step, such as `TrajectoryCertificate.curve`.
        """
        return plot_trajectory(self, bound)

    def save(self, path: str | Path, overwrite: bool = False) -> Path:
        """Write an npz file atomically; an existing file is replaced only if ``overwrite`` is set."""
        words = {name: getattr(self, name) for name in _WORDS}
        promise = self.guarantee
        F = promise.F if promise.F in _SYMBOLIC else promise.F.phi(self.m).tolist()
        guarantee = asdict(replace(promise, F=SUM)) | {"F": F if isinstance(F, list) else str(F)}
        del guarantee["alternatives"]
        words |= {"reasons": [stop.name for stop in self.reasons], "guarantee": guarantee}
        arrays = {name: getattr(self, name) for name in _ARRAYS}
        return write_arrays(path, {"format": _FORMAT, "words": to_json(words), **arrays}, overwrite)

    @classmethod
    def load(cls, path: str | Path) -> Trajectory:
        """Read a file written by `save`. Nothing in it is executed; any other content raises an `InputError`."""
        found = read_arrays(path)
        wanted = {"format", "words", *_ARRAYS}
        if set(found) != wanted or found["format"] != _FORMAT:
            odd = sorted(set(found) ^ wanted) or [found["format"]]
            raise InputError(f"{path} is not a trajectory of this version; missing or unknown: {odd}")
        words = from_json(str(found["words"]))
        if not isinstance(words, dict) or set(words) != set(_WORDS):
            raise InputError(f"{path} is damaged: its words must be {', '.join(_WORDS)}")
        _check_arrays(found, str(path))
        try:
            made = Trajectory(**_read_words(words, found["weights"]), **{name: found[name] for name in _ARRAYS})
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise InputError(f"{path} is damaged: {error!r}") from None
        if len(made.reasons) != made.runs or len(made.least) != made.m or len(made.seeds) not in (0, made.runs):
            raise ShapeError(f"{path} is damaged: reasons, seeds or lower bounds do not match its {made.runs} runs")
        return made

    def __repr__(self) -> str:
        ends = ", ".join(sorted({stop.code for stop in self.reasons}))
        return (
            f"Trajectory({self.aggregator} on {self.label}, lr={self.lr}: {self.runs} runs, "
            f"{int(self.lengths.min())} to {int(self.lengths.max())} steps, ended by {ends})"
        )


#: Fields that a file stores as arrays.
_ARRAYS = ("lengths", "left_box", "front", *NAMES)
#: Fields that a file stores as JSON.
_WORDS = tuple(field.name for field in fields(Trajectory) if field.name not in _ARRAYS)


def to_columns(trajectory: Trajectory) -> dict[str, np.ndarray[Any, Any]]:
    """Return the columns of `Trajectory.to_pandas`: one row per run and visited point, run after run.

    Values of a step are in the row of the point where it starts, and NaN in the last row of a run.
    """
    B, lengths = trajectory.runs, trajectory.lengths
    steps = np.concatenate([np.arange(end + 1) for end in lengths]) if B else np.empty(0, dtype=np.int64)
    runs = np.repeat(np.arange(B), lengths + 1)
    columns: dict[str, np.ndarray[Any, Any]] = {"run": runs}
    if trajectory.seeds:
        columns["seed"] = np.array(trajectory.seeds)[runs]
    columns["step"] = steps
    columns["gamma"] = trajectory.gamma[steps, runs]

    def of_steps(values: Array) -> Array:
        padded = np.concatenate([values, np.full((1, *values.shape[1:]), np.nan)])  # one more point than steps
        return np.asarray(padded[steps, runs])

    columns["norm"] = of_steps(trajectory.norms)
    columns["step_size"] = of_steps(trajectory.step_sizes)
    for k in range(trajectory.m):
        columns[f"loss_{k}"] = trajectory.losses[steps, runs, k]
    for k in range(trajectory.m):
        columns[f"weight_{k}"] = of_steps(trajectory.weights[..., k])
        columns[f"slope_{k}"] = of_steps(trajectory.slopes[..., k])
    for i in range(trajectory.points.shape[2]):
        columns[f"x_{i}"] = trajectory.points[steps, runs, i]
    return columns


def _check_arrays(found: dict[str, Any], path: str) -> None:
    """Validate shapes and dtypes of the arrays in a file."""
    losses, points = found["losses"], found["points"]
    if np.ndim(losses) != 3 or np.ndim(points) != 3 or not len(losses):
        raise ShapeError(f"{path} is damaged: losses and points must have three dimensions (T + 1, B, ...)")
    T, B, m = len(losses) - 1, losses.shape[1], losses.shape[2]
    wanted = shapes(T, B, m, points.shape[2]) | {"lengths": (B,), "left_box": (B,)}
    wanted["front"] = (len(found["front"]) if np.ndim(found["front"]) else 0, m)
    for name, shape in wanted.items():
        kind = "i" if name in ("lengths", "left_box") else "f"
        if np.shape(found[name]) != shape or found[name].dtype.kind != kind or found[name].dtype.itemsize != 8:
            raise ShapeError(f"{path} is damaged: {name} must be an array of shape {shape} with 8 bytes per number")
    if B and not (found["lengths"].min() >= 0 and found["lengths"].max() <= T and found["left_box"].max() <= T):
        raise ShapeError(f"{path} is damaged: the lengths of the runs exceed the {T} recorded steps")


def _read_words(words: dict[str, Any], weights: Array) -> dict[str, Any]:
    """Convert the JSON values to the types of the fields; raises if one does not fit."""
    for name in ("lr", "aggregator", "problem", "label"):
        if not isinstance(words[name], str):
            raise TypeError(f"{name} must be text")
    if words["dtype"] not in ("float32", "float64"):
        raise ValueError(f"dtype {words['dtype']!r}")
    smoothness = words["smoothness"]
    return words | {
        "reasons": tuple(Stop[name] for name in words["reasons"]),
        "seeds": tuple(int(seed) for seed in words["seeds"]),
        "least": tuple(float(bound) for bound in words["least"]),
        "smoothness": None if smoothness is None else float(smoothness),
        "convex": bool(words["convex"]),
        "guarantee": _read_guarantee(words["guarantee"], weights),
    }


def _read_guarantee(found: dict[str, Any], weights: Array) -> Guarantee:
    """Return the guarantee with its F.

    Earlier versions wrote F as text; for fixed weights, F is recovered from the weights of the run.
    """
    F = found["F"]
    promise = Guarantee(**(found | {"F": SUM, "hypotheses": ()}))
    named = {str(surrogate): surrogate for surrogate in _SYMBOLIC}
    if isinstance(F, str):
        if F in named:
            return replace(promise, F=named[F])
        steps = weights[np.isfinite(weights).all(axis=2)]
        if F == _FIXED and len(steps):
            return replace(promise, F=Surrogate(tuple(steps[0].tolist())))
        return replace(promise, alignment=None, note=f"Its constant is for F = {F}, which the file does not hold.")
    phi = tuple(float(weight) for weight in F)
    if len(phi) != weights.shape[2]:
        raise ValueError(f"F weighs {len(phi)} objectives of {weights.shape[2]}")
    return replace(promise, F=Surrogate(phi))
