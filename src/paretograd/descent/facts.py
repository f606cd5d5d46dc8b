"""What a trajectory keeps of its problem and its rule."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import torch

from paretograd.aggregators.base import Aggregator
from paretograd.problems.base import Problem

#: Points of the Pareto front that a trajectory carries for its picture.
_FRONT = 200


def facts_of(problem: Problem, aggregator: Aggregator, dtype: torch.dtype) -> dict[str, Any]:
    """What a trajectory keeps of its problem and its rule, so that a file of it can be certified and drawn."""
    known, promise = problem.pareto_front, aggregator.guarantee
    return {
        "problem": problem.name,
        "label": problem.label,
        "smoothness": problem.smoothness,
        "convex": problem.convex,
        "least": tuple(problem.least),
        "aggregator": aggregator.label,
        "guarantee": replace(promise, F=promise.F.at(problem.m), hypotheses=()),
        "dtype": str(dtype).removeprefix("torch."),
        "front": known(_FRONT).double().numpy() if known is not None else np.empty((0, problem.m)),
    }
