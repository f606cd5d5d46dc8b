"""Trajectories on disk: npz without pickle, read with suspicion."""

from __future__ import annotations

from dataclasses import asdict, fields, replace
from pathlib import Path
from typing import Any

import numpy as np

from paretograd.descent import archive
from paretograd.descent.records import NAMES, Stop, shapes
from paretograd.descent.trajectory import Trajectory
from paretograd.errors import InputError, ShapeError
from paretograd.geometry.gramian import Array
from paretograd.guarantees import MEAN, SUM, Guarantee, Surrogate
from paretograd.plain import from_json, to_json

#: Marks a file as a trajectory, with the version of its content.
_FORMAT = "paretograd trajectory 1"
_ARRAYS = ("lengths", "left_box", "front", *NAMES)
#: F of a rule with fixed weights in files of earlier versions.
_FIXED = "sum_k weights_k f_k"
#: What is no array.
_WORDS = tuple(field.name for field in fields(Trajectory) if field.name not in _ARRAYS)


def save(trajectory: Trajectory, path: str | Path, overwrite: bool) -> Path:
    """See `Trajectory.save`."""
    words = {name: getattr(trajectory, name) for name in _WORDS}
    promise = trajectory.guarantee
    F = promise.F if promise.F in (SUM, MEAN) else promise.F.phi(trajectory.m).tolist()
    guarantee = asdict(replace(promise, F=SUM)) | {"F": F if isinstance(F, list) else str(F)}
    words |= {"reasons": [stop.name for stop in trajectory.reasons], "guarantee": guarantee}
    arrays = {name: getattr(trajectory, name) for name in _ARRAYS}
    return archive.write(path, {"format": _FORMAT, "words": to_json(words), **arrays}, overwrite)


def load(path: str | Path) -> Trajectory:
    """See `Trajectory.load`."""
    found = archive.read(path)
    wanted = {"format", "words", *_ARRAYS}
    if set(found) != wanted or found["format"] != _FORMAT:
        odd = sorted(set(found) ^ wanted) or [found["format"]]
        raise InputError(f"{path} holds no trajectory of this version; missing or unknown: {odd}")
    words = from_json(str(found["words"]))
    if not isinstance(words, dict) or set(words) != set(_WORDS):
        raise InputError(f"{path} is damaged: it must say {', '.join(_WORDS)}")
    _check_arrays(found, str(path))
    try:
        made = Trajectory(**_read(words, found["weights"]), **{name: found[name] for name in _ARRAYS})
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise InputError(f"{path} is damaged: {error!r}") from None
    if len(made.reasons) != made.runs or len(made.least) != made.m or len(made.seeds) not in (0, made.runs):
        raise ShapeError(f"{path} is damaged: reasons, seeds or lower bounds do not fit {made.runs} runs")
    return made


def _read(words: dict[str, Any], weights: Array) -> dict[str, Any]:
    """The values in the types of the fields; raises on others."""
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
    """The guarantee with its F. Earlier versions wrote it as text; the run's weights tell that of a fixed weighting."""
    F = found["F"]
    promise = Guarantee(**(found | {"F": SUM, "hypotheses": ()}))
    named = {str(surrogate): surrogate for surrogate in (SUM, MEAN)}
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


def _check_arrays(found: dict[str, Any], path: str) -> None:
    losses, points = found["losses"], found["points"]
    if np.ndim(losses) != 3 or np.ndim(points) != 3 or not len(losses):
        raise ShapeError(f"{path} is damaged: losses and points have three dimensions (T + 1, B, ...)")
    T, B, m = len(losses) - 1, losses.shape[1], losses.shape[2]
    wanted = shapes(T, B, m, points.shape[2]) | {"lengths": (B,), "left_box": (B,)}
    wanted["front"] = (len(found["front"]) if np.ndim(found["front"]) else 0, m)
    for name, shape in wanted.items():
        kind = "i" if name in ("lengths", "left_box") else "f"
        if np.shape(found[name]) != shape or found[name].dtype.kind != kind or found[name].dtype.itemsize != 8:
            raise ShapeError(f"{path} is damaged: {name} must be an array of shape {shape} with 8 bytes a number")
    if B and not (found["lengths"].min() >= 0 and found["lengths"].max() <= T and found["left_box"].max() <= T):
        raise ShapeError(f"{path} is damaged: the lengths of the runs exceed the {T} steps that it holds")
