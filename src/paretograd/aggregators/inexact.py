"""A word to those who ask for weights alone where a solve did not end as it should."""

from __future__ import annotations

import math
import warnings

from paretograd.callers import callers_level
from paretograd.solution import Status

#: Residuals up to this stay below what a float64 Gramian resolves of lengths: they change no step that is taken.
_NEGLIGIBLE = 1e-8


def warn_if_inexact(rule: object, status: Status, residual: float, eps: float) -> None:
    """Warn where a solve ended INACCURATE by more than `_NEGLIGIBLE` and than the rounding of its Gramian.

    The residual is told by its power of ten: Python shows the same words once for each place, so that a training loop
    gets a few lines and not one for each step.

    Args:
        rule: whose weights they are.
        status: of the solve.
        residual: of the solve.
        eps: relative rounding of the Gramian's entries.
    """
    if status is not Status.INACCURATE or residual <= max(_NEGLIGIBLE, eps):
        return
    size = f"up to 1e{math.ceil(math.log10(residual)):+03d}" if math.isfinite(residual) else str(residual)
    warnings.warn(
        f"inexact weights: {rule!r} did not solve its problem to rounding, the residual is {size}, and the direction "
        "may be off by as much. rule.solve(G) on the Gramian tells more, and pg.certify(G, weights) what still holds",
        stacklevel=callers_level(),
    )
