"""Checks of Theorem 4's hypotheses at sampled points, for an s or r that is an arbitrary function.

Such a check proves nothing, but a violation that it finds is real. It is reported with its point.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from paretograd.geometry.gramian import Array
from paretograd.guarantees import Evidence, Hypothesis

#: Number of sampled points.
POINTS = 96

#: Rounding error of values of s, relative to their size.
_ROUNDING = 1e-9


def sample_points(m: int) -> list[Array]:
    """Return fixed pseudo-random points of R^m at scales from 1e-2 to 1e2. Every second one is non-negative."""
    rng = np.random.default_rng(20260224)
    points = []
    for k in range(POINTS):
        x = rng.standard_normal(m) * 10.0 ** rng.uniform(-2.0, 2.0)
        points.append(np.abs(x) if k % 2 else x)
    return points


def check_convex(s: Callable[[Array], float], m: int, text: str) -> Hypothesis:
    """Check ``s((x + y) / 2) <= (s(x) + s(y)) / 2``. Points outside the domain, where s is infinite, do not count."""
    points = sample_points(m)
    for x, far in zip(points, points[2:] + points[:2], strict=True):
        for y in (far, x + 0.1 * (far - x)):
            at_x, at_y, middle = s(x), s(y), s(0.5 * (x + y))
            ends = 0.5 * (at_x + at_y)
            if ends < math.inf and not middle <= ends + _ROUNDING * (abs(at_x) + abs(at_y) + abs(middle)):
                detail = f"between {_show(x)} and {_show(y)} it is {middle:.6g}, above the mean {ends:.6g} of the two"
                return Hypothesis(text, False, Evidence.CHECKED, detail)
    return _passed(text, 2 * len(points))


def check_decreasing(s: Callable[[Array], float], m: int, text: str, rounding: float = _ROUNDING) -> Hypothesis:
    """Check ``s(x + e) <= s(x)`` for ``e >= 0``. ``rounding`` is the error of s relative to its values and to x."""
    rng = np.random.default_rng(20260225)
    points = sample_points(m)
    for x in points:
        for e in (np.abs(rng.standard_normal(m)) * np.abs(x).max(), np.eye(m)[rng.integers(m)] * np.abs(x).max()):
            before, after = s(x), s(x + e)
            if before < math.inf and not after <= before + rounding * (abs(before) + abs(after) + np.abs(x).max()):
                detail = f"it rises from {before:.6g} at {_show(x)} to {after:.6g} at {_show(x + e)}"
                return Hypothesis(text, False, Evidence.CHECKED, detail)
    return _passed(text, 2 * len(points))


def check_zero(at_zero: float, text: str) -> Hypothesis:
    """Check that the value at zero is zero, up to the rounding of float32. A constant does not change the direction."""
    holds = abs(at_zero) <= 1e-6
    return Hypothesis(text, holds, Evidence.CHECKED, "evaluated" if holds else f"it is {at_zero:.6g}")


def check_translation(s: Callable[[Array], float], m: int, text: str) -> Hypothesis:
    """Check ``s(x + c) = s(x) - c``."""
    points = sample_points(m)
    for x in points:
        for c in (0.5 * np.abs(x).max(), -0.25 * np.abs(x).max()):
            value, moved = s(x), s(x + c)
            if not abs(moved - (value - c)) <= _ROUNDING * (abs(value) + abs(c)):
                detail = f"for x = {_show(x)} and c = {c:.4g} it is {moved:.6g}, not {value - c:.6g}"
                return Hypothesis(text, False, Evidence.CHECKED, detail)
    return _passed(text, 2 * len(points))


def find_surrogate(s: Callable[[Array], float], m: int) -> Array | None:
    """Return equal phi_k with ``-s(x) <= <phi, x>`` at the sampled points, for an s not smooth at 0, or None."""
    along = s(np.ones(m))
    if not math.isfinite(along):
        return None
    phi = np.full(m, -along / m)
    for x in sample_points(m):
        bound = float(phi @ x)
        if not -s(x) <= bound + _ROUNDING * (abs(bound) + float(np.abs(phi) @ np.abs(x))):
            return None
    return phi


def check_radial(r: Callable[[float], float], texts: tuple[str, str, str, str]) -> tuple[Hypothesis, ...]:
    """Check r on a grid of lengths from 1e-6 to 1e6: convex, increasing, zero at zero, at least half the square."""
    convex, increasing, zero, above = texts
    grid = np.concatenate([[0.0], np.geomspace(1e-6, 1e6, 121)])
    values = [r(float(rho)) for rho in grid]
    found = {text: _passed(text, len(grid)) for text in texts}
    for i, (rho, value) in enumerate(zip(grid, values, strict=True)):
        slack = _ROUNDING * abs(value)
        if not value >= 0.5 * rho * rho - slack and found[above].holds:
            found[above] = _violated(above, f"r({rho:.4g}) = {value:.6g}")
        if i and not value >= values[i - 1] - slack and found[increasing].holds:
            found[increasing] = _violated(increasing, f"it falls from {values[i - 1]:.6g} to {value:.6g} at {rho:.4g}")
        if i > 1 and value < math.inf and found[convex].holds:
            middle = r(0.5 * float(grid[i - 1] + rho))
            if not middle <= 0.5 * (values[i - 1] + value) + slack:
                found[convex] = _violated(convex, f"r bends down between {grid[i - 1]:.4g} and {rho:.4g}")
    found[zero] = check_zero(values[0], zero)
    return tuple(found.values())


def _passed(text: str, count: int) -> Hypothesis:
    return Hypothesis(text, True, Evidence.CHECKED, f"{count} points")


def _violated(text: str, detail: str) -> Hypothesis:
    return Hypothesis(text, False, Evidence.CHECKED, detail)


def _show(x: Array) -> str:
    shown = ", ".join(f"{value:.4g}" for value in x[:6])
    return f"({shown}{', ...' if len(x) > 6 else ''})"
