"""When a residual counts as rounding."""

from __future__ import annotations

from paretograd.solution import Status

#: However much a formula magnifies rounding, an answer that is further off than this is not solved.
_MOST = 1e-7


def status_of(residual: float, m: int, amplification: float = 1.0) -> Status:
    """OPTIMAL where a residual is within rounding, INACCURATE otherwise.

    Residuals are relative to terms of order one, each a sum of m products: a thousand units of float64, plus a
    few for each objective, separate rounding from a solve that failed.

    Args:
        residual: from a solver.
        m: number of objectives.
        amplification: factor by which the method's formula magnifies rounding.
    """
    rounding = 2e-16 * (1000 + 100 * m) * amplification
    return Status.OPTIMAL if residual <= min(rounding, _MOST) else Status.INACCURATE
