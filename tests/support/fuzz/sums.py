"""Sums of float64 rows with float64 weights, without rounding and without overflow.

Every row is scaled by a power of two to a norm near one, and so are the weights' terms, which makes all lengths and
slopes numbers of order one, or smaller where the terms cancel, whatever the norms of the gradients are.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]


class Sum(NamedTuple):
    """``d = J.T w`` in units of ``2^exponent``, every number rounded once from its exact value.

    Attributes:
        exponent: of the unit: the largest term of the sum has a norm near 1.
        d: shape (n,).
        length: |d|.
        slopes: <d, g_k> / |g_k|, shape (m,); 0 for a zero row.
        terms: sum_k |w_k| |g_k|.
    """

    exponent: int
    d: Array
    length: float
    slopes: Array
    terms: float


class ExactRows:
    """The rows of a float64 matrix as integers: ``g_k = 2^(exponents_k - bits) * integers_k``."""

    def __init__(self, J: Array) -> None:
        ratios = [[x.as_integer_ratio() for x in row] for row in J.tolist()]
        self.exponents = [math.frexp(max(map(abs, row)))[1] for row in J.tolist()]
        self.bits = max(
            (q.bit_length() - 1 + e for row, e in zip(ratios, self.exponents, strict=True) for p, q in row if p),
            default=0,
        )
        self.integers = [
            [p << (self.bits - e - q.bit_length() + 1) if p else 0 for p, q in row]
            for row, e in zip(ratios, self.exponents, strict=True)
        ]
        #: |g_k| / 2^exponents_k, between 1/2 and sqrt(n); 0 for a zero row.
        self.norms = np.array([_length(row, 1 << self.bits) for row in self.integers])

    def sum(self, weights: Array) -> Sum:
        """The sum of the rows with these weights, all finite."""
        parts = []
        for k, w in enumerate(weights.tolist()):
            if w and self.norms[k]:
                p, q = w.as_integer_ratio()
                parts.append((k, p, q.bit_length() - 1, math.frexp(w)[1] + self.exponents[k]))
        n, m = len(self.integers[0]), len(self.integers)
        if not parts:
            return Sum(0, np.zeros(n), 0.0, np.zeros(m), 0.0)
        unit = max(part[3] for part in parts)
        shift = max(0, *(q - self.exponents[k] + unit for k, _, q, _ in parts))
        v = {k: p << (shift - q + self.exponents[k] - unit) for k, p, q, _ in parts}
        d = [sum(x * self.integers[k][j] for k, x in v.items()) for j in range(n)]
        one = 1 << (self.bits + shift)
        slopes = [sum(map(int.__mul__, d, row)) / (one << self.bits) for row in self.integers]
        terms = sum(abs(x) / (1 << shift) * float(self.norms[k]) for k, x in v.items())
        with np.errstate(invalid="ignore", divide="ignore"):
            cosines = np.where(self.norms > 0.0, np.array(slopes) / self.norms, 0.0)
        return Sum(unit, np.array([x / one for x in d]), _length(d, one), cosines, terms)

    def lengths(self, exponent: int) -> Array:
        """The norms of the rows in units of ``2^exponent``; infinite where they overflow."""
        with np.errstate(over="ignore"):
            return np.ldexp(self.norms, np.array(self.exponents) - exponent)


def _length(values: list[int], one: int) -> float:
    """The Euclidean norm of integers in units of ``one``, rounded once but for the last bit."""
    return math.isqrt(sum(x * x for x in values) << 128) / (one << 64)
