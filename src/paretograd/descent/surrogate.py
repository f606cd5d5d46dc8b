"""The function F of the theorems, as weights of the objectives: ``F = sum_k phi_k f_k``."""

from __future__ import annotations

import numpy as np

from paretograd.geometry.gramian import Array
from paretograd.guarantees import MEAN


def surrogate_of(F: str, m: int) -> Array:
    """phi for the F that a `Guarantee` names: the mean of the objectives, or else their sum.

    The sum serves every rule whose F is neither: what then holds with which constant is measured on the run.
    """
    return np.full(m, 1.0 / m) if F == MEAN else np.ones(m)
