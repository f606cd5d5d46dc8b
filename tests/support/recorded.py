"""Recorded runs whose Jacobians are known: linear losses ``J w`` of a parameter, with other rows at each step."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np
import torch

import paretograd as pg
from paretograd.geometry.gramian import Array


def jacobians(steps: int, m: int = 3, n: int = 6, seed: int = 0) -> list[Array]:
    """Return random Jacobians, in which the first two rows conflict more and more, and the second is the longest."""
    random = np.random.default_rng(seed)
    found = []
    for number in range(steps):
        J = random.standard_normal((m, n))
        J[1:2] = 3.0 * (J[1:2] - 2.0 * number / steps * J[0])
        found.append(J)
    return found


def record(
    path: Path,
    rows: Iterable[Array],
    rule: object,
    names: Sequence[str] | None = None,
    update: bool = False,
    values: bool = True,
) -> list[pg.Step]:
    """Take a step with each Jacobian, and record it. The losses of step t are those of w = 0 plus 1 / (t + 1)."""
    steps = []
    with pg.Monitor(path, budget=None) as monitor:
        for number, J in enumerate(rows):
            w = torch.zeros(J.shape[1], dtype=torch.float64, requires_grad=True)
            losses = list((torch.from_numpy(J) @ w + 1.0 / (number + 1)).unbind())
            given = losses if names is None else dict(zip(names, losses, strict=True))
            step = pg.backward(given, rule, [w], keep_rows=update)
            if update:
                with step.of_update(), torch.no_grad():
                    w += w.grad  # the wrong way: raises every loss that the direction lowers
            monitor(step, given if values else None)
            steps.append(step)
    return steps
