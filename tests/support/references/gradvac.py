"""GradVac, literally as in its paper: one pair of gradients after the other, on the rows themselves."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from .float64 import unit_rows
from .qp import Array

#: A treated gradient shorter than this, relative to the gradient, is rounding: the two were opposite.
_NOTHING = 1e-12


def gradvac(
    J: Array, targets: Array, beta: float = 0.0, orders: Sequence[Sequence[int]] | None = None
) -> tuple[Array, Array]:
    """The sum of the treated gradients, and the targets after the step.

    Args:
        J: one gradient per row.
        targets: shape (m, m).
        beta: the share of new cosines in the targets.
        orders: for each k the order in which it meets the others; 0, 1, ..., m - 1 for every k by default.
    """
    m, units, norms, after = len(J), *unit_rows(J), targets.copy()
    treated = units.copy()
    for k in range(m):
        for i in range(m) if orders is None else orders[k]:
            length = float(np.linalg.norm(treated[k]))
            if i == k or norms[i] == 0.0 or norms[k] == 0.0 or length <= _NOTHING:
                continue
            cosine = float(np.clip(treated[k] @ units[i] / length, -1.0, 1.0))
            sine = float(np.linalg.norm(treated[k] / length - cosine * units[i]))  # accurate for small angles, too
            wanted = targets[k, i]
            if cosine < wanted:
                root = np.sqrt(1.0 - wanted**2)
                treated[k] += length * (wanted * sine - cosine * root) / root * units[i]
            after[k, i] = (1.0 - beta) * after[k, i] + beta * cosine
    return np.asarray(norms @ treated), after
