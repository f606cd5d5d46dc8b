"""Krum and Multi-Krum, with exact distances."""

from __future__ import annotations

import numpy as np

from .fixed import answer, dot, lift
from .qp import Array


def krum(J: Array, attackers: int | None = None, selected: int | None = 1) -> Array:
    """The mean of the gradients with the best scores; ties go to the first."""
    rows, m = lift(J), len(J)
    hostile = max((m - 3) // 2, 0) if attackers is None else attackers
    scores = []
    for k in range(m):
        apart = sorted(int(dot(rows[k] - rows[i], rows[k] - rows[i])) for i in range(m) if i != k)
        scores.append(sum(apart[: max(m - hostile - 2, 0)]))
    best = sorted(range(m), key=lambda k: (scores[k], k))[: m - hostile if selected is None else selected]
    return np.asarray(answer(rows[best].sum(axis=0)) / len(best))
