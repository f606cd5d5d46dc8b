"""Linear algebra in fixed point with hundreds of digits, on numpy arrays of Python integers.

The number v is stored as the integer v * 2^BITS, so that a float64 of any usual size is stored without
rounding and the only error is an absolute one of about 1e-300. Why not float64: a reference must be better
than what it judges, and with row norms over 12 decades the Gramian spans 24. Why not fractions or mpmath:
both are 20 times slower.

Products need one shift, ``(a * b) >> BITS``; sums, comparisons and ``max`` are those of integers.
"""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

BITS = 1000
ONE = 1 << BITS
# Ratios below this are zero: far above the arithmetic's own error, far below what rounding to float64
# could have left in the data (two rows that differ in the last bit give (2^-53)^2 in their Gramian).
NOTHING = ONE >> 400

Fixed = NDArray[Any]


def lift(values: ArrayLike) -> Fixed:
    """Floats, or fractions in an array of objects, to fixed point; exact for floats of magnitudes above 2^-900."""
    array = np.asarray(values)
    if array.dtype != object:
        array = array.astype(np.float64)
    return np.array([_lift(v) for v in array.ravel().tolist()], dtype=object).reshape(array.shape)


def _lift(value: float | Fraction) -> int:
    numerator, denominator = value.as_integer_ratio()
    return (numerator << BITS) // denominator


def lower(values: Fixed) -> NDArray[np.float64]:
    """Fixed point to float64, rounded once."""
    array = np.asarray(values, dtype=object)
    return np.array([to_float(v) for v in array.ravel().tolist()], dtype=np.float64).reshape(array.shape)


def to_float(value: int) -> float:
    spare = max(value.bit_length() - 80, 0)
    return math.ldexp(float(value >> spare), spare - BITS)


def answer(values: Fixed) -> NDArray[np.float64]:
    """As `lower`, for results: what is below 1e-120, so only the arithmetic's own error, becomes 0.0."""
    array = np.asarray(values, dtype=object)
    return lower(np.where(np.abs(array) > NOTHING, array, 0))


def times(a: Any, b: Any) -> Any:
    """Elementwise product."""
    return (a * b) >> BITS


def over(a: Any, b: Any) -> Any:
    """Elementwise quotient."""
    return (a << BITS) // b


def dot(A: Fixed, B: Fixed) -> Any:
    """Matrix product (or inner product) with a single rounding."""
    return (A @ B) >> BITS


def root(value: int) -> int:
    """Square root."""
    return math.isqrt(max(value, 0) << BITS)


def gram(J: Fixed) -> Fixed:
    """J J.T, shape (m, m), exact for a lifted J; its entries end in many zeros and are shortened first."""
    zeros = min(((v & -v).bit_length() - 1 for v in J.ravel().tolist() if v), default=0)
    short = J >> zeros
    excess = 2 * zeros - BITS
    return (short @ short.T) << excess if excess >= 0 else (short @ short.T) >> -excess


def solve(H: Fixed, b: Fixed) -> Fixed | None:
    """x with H x = b for a positive semidefinite H, or None where H is singular.

    A float64 Cholesky factor with residuals in fixed point refines itself to full precision (a few cheap
    sweeps) unless H is nearly singular in float64; elimination in fixed point then decides.
    """
    return np.zeros(0, dtype=object) if len(H) == 0 else _refined(H, b) if len(H) > 8 else _eliminated(H, b)


def _refined(H: Fixed, b: Fixed) -> Fixed | None:
    diagonal = lower(np.diag(H))
    if not (diagonal > 0).all():
        return None
    scale = diagonal**-0.5
    try:
        inverse = np.linalg.inv(np.linalg.cholesky(lower(H) * np.outer(scale, scale)))
    except np.linalg.LinAlgError:
        return _eliminated(H, b)
    size = float(np.abs(scale * lower(b)).max()) or 1.0
    x = np.zeros_like(b)
    left = np.inf
    for _ in range(60):
        residual = scale * lower(b - dot(H, x))
        before, left = left, float(np.abs(residual).max()) / size
        if left < 2.0**-600:
            return x
        if left > before / 2**12:
            break
        x = x + lift(scale * (inverse.T @ (inverse @ residual)))
    return _eliminated(H, b)


def _eliminated(H: Fixed, b: Fixed) -> Fixed | None:
    """Gaussian elimination without pivoting, stable because H is positive semidefinite."""
    A = np.column_stack([H, b])
    size = len(H)
    for k in range(size):
        # The pivot over the diagonal entry is sin^2 of the angle of row k with the span of those before.
        if A[k, k] <= times(NOTHING, H[k, k]):
            return None
        for i in range(k + 1, size):
            A[i, k:] -= times(over(A[i, k], A[k, k]), A[k, k:])
    x = np.zeros(size, dtype=object)
    for k in reversed(range(size)):
        x[k] = over(A[k, size] - ((A[k, k + 1 : size] @ x[k + 1 :]) >> BITS), A[k, k])
    return x


def independent(H: Fixed) -> list[int]:
    """Indices of a maximal linearly independent set of rows, given their Gramian H."""
    chosen: list[int] = []
    A = H.copy()
    for k in range(len(H)):
        if A[k, k] > times(NOTHING, H[k, k]):
            chosen.append(k)
            factor = over(A[:, k], A[k, k])
            A = A - times(factor[:, None], A[k][None, :])
    return chosen
