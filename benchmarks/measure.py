"""Compare the time and accuracy of one method at one size between the two libraries, on the same matrices."""

from __future__ import annotations

import gc
import statistics
from dataclasses import dataclass
from time import perf_counter, process_time
from typing import NamedTuple

import numpy as np
import torch
from methods import SEED, Call, Method
from torch import Tensor

#: A timed block repeats a call for about this long, to hide the resolution of the clock and cold caches.
BLOCK_S = 1e-2


@dataclass(frozen=True)
class Cell:
    """Results for one (method, m, family): microseconds, and the worst errors and cosines over the matrices.

    ``spread`` is the interquartile range of our blocks over their median: the noise of the run.
    """

    method: str
    m: int
    family: str
    ours_us: float
    theirs_us: float
    ours_min_us: float
    theirs_min_us: float
    ratio: float
    spread: float
    ours_error32: float | None
    theirs_error32: float | None
    ours_error64: float | None
    theirs_error64: float | None
    ours_cosine: float
    theirs_cosine: float
    matrices: int


def measure(method: Method, m: int, family: str, matrices: list[Tensor], budget: float) -> Cell:
    ours, theirs = method.ours(m), method.theirs(m)
    # Accuracy first: it also warms up both. Two matrices suffice in float64 if calls take seconds.
    judged = ours if method.judged is None else method.judged(m)
    single = [_accuracy(method, judged, theirs, J, torch.float32) for J in matrices]
    double = [_accuracy(method, judged, theirs, J, torch.float64) for J in matrices[: 8 if m < 32 else 2]]
    errors = [_worst([answer.errors[side] for answer in answers]) for answers in (single, double) for side in (0, 1)]
    cosines = [min(answer.cosines[side] for answer in single) for side in (0, 1)]
    times = _race(ours, theirs, matrices, budget)
    ours_us, theirs_us = (statistics.median(statistics.median(t) for t in side) for side in times)
    low = [statistics.median(min(t) for t in side) for side in times]
    spread = statistics.median(_relative_range(t) for t in times[0])
    # The machine's speed drifts by a factor of two, but is the same for blocks timed back to back.
    ratio = statistics.median(
        statistics.median(b / a for a, b in zip(*pair, strict=True)) for pair in zip(*times, strict=True)
    )
    return Cell(
        *(method.name, m, family),
        *(ours_us, theirs_us, *low, ratio, spread),
        *errors,
        *cosines,
        len(matrices),
    )


class _Accuracy(NamedTuple):
    """For (ours, theirs): relative error of the direction (None for a random rule), and smallest cosine."""

    errors: list[float | None]
    cosines: list[float]


def _accuracy(method: Method, ours: Call, theirs: Call, J: Tensor, dtype: torch.dtype) -> _Accuracy:
    exact = J.double().numpy()
    wanted = None if method.exact is None else method.exact(exact)
    wanted_theirs = wanted if method.exact_theirs is None else method.exact_theirs(exact)
    result = _Accuracy([], [])
    method.reset(theirs)  # a stateful rule must not start from another matrix's solution
    for call, expected in ((ours, wanted), (theirs, wanted_theirs)):
        torch.manual_seed(SEED)
        answer = call(J.to(dtype), J.to(dtype) @ J.to(dtype).T).double().numpy()
        d = answer if method.direct else exact.T @ answer
        size = np.linalg.norm(d) * np.linalg.norm(exact, axis=1)
        result.cosines.append(float((exact @ d / np.maximum(size, 1e-300)).min()))
        error = None if expected is None else float(np.linalg.norm(d - expected) / np.linalg.norm(expected))
        result.errors.append(error)
    return result


def _worst(errors: list[float | None]) -> float | None:
    known = [error for error in errors if error is not None]
    return max(known) if known else None


def _race(ours: Call, theirs: Call, matrices: list[Tensor], budget: float) -> list[list[list[float]]]:
    """Return microseconds per call, by side, matrix and round. Sides alternate; there are 1 (slow calls) to 40 rounds.

    A round visits every matrix before any is repeated, so a rule with a warm start never gets the
    matrix that it has just solved.
    """
    inputs = [(J, J @ J.T) for J in matrices]
    times: list[list[list[float]]] = [[[] for _ in matrices] for _ in range(2)]
    repeats = [_repeats(call, *inputs[-1]) for call in (ours, theirs)]
    gc.collect()
    gc.disable()
    started = perf_counter()
    for _ in range(40):
        for k, (J, G) in enumerate(inputs):
            for side, call in enumerate((ours, theirs)):
                times[side][k].append(1e6 * _block(call, J, G, repeats[side]))
        elapsed = perf_counter() - started
        if elapsed > 4.0 * budget or (elapsed > budget and len(times[0][0]) >= 3):
            break
    gc.enable()
    return times


def _repeats(call: Call, J: Tensor, G: Tensor) -> int:
    first = _block(call, J, G, 1)
    return 1 if first > BLOCK_S else round(BLOCK_S / max(_block(call, J, G, 10), 1e-6))


def _block(call: Call, J: Tensor, G: Tensor, repeats: int) -> float:
    start = process_time()
    for _ in range(repeats):
        call(J, G)
    return (process_time() - start) / repeats


def _relative_range(times: list[float]) -> float:
    if len(times) < 2:
        return 0.0
    low, middle, high = statistics.quantiles(times, n=4)
    return (high - low) / middle
