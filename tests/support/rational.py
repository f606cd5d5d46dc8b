"""The truth about a direction in exact rational arithmetic: slopes, squared lengths and gamma, of a few objectives."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from itertools import combinations

Vector = list[Fraction]


def exact(values: Sequence[float]) -> Vector:
    """Floats as the fractions that they are."""
    return [Fraction(value) for value in values]


def inner(a: Sequence[Fraction], b: Sequence[Fraction]) -> Fraction:
    """``<a, b>``."""
    return sum((x * y for x, y in zip(a, b, strict=True)), start=Fraction(0))


def combine(weights: Sequence[Fraction], rows: Sequence[Vector]) -> Vector:
    """``J.T w``."""
    return [inner(weights, column) for column in zip(*rows, strict=True)]


def min_norm_square(rows: Sequence[Vector]) -> Fraction:
    """``gamma^2``: the least squared length in the convex hull of the rows, by trying every set of rows.

    A set of affinely independent rows has a point of least norm on its affine hull, from linear equations. It is that
    of the convex hull if its weights are positive and no row has an inner product with it below its square.
    """
    for size in range(1, len(rows) + 1):
        for support in combinations(range(len(rows)), size):
            weights = _least_on_affine_hull([rows[k] for k in support])
            if weights is None or min(weights) < 0:
                continue
            point = combine(weights, [rows[k] for k in support])
            square = inner(point, point)
            if all(inner(point, row) >= square for row in rows):
                return square
    raise AssertionError("some set of rows holds the point of least norm")


def _least_on_affine_hull(rows: Sequence[Vector]) -> Vector | None:
    """Weights that sum to one and minimise ``|J.T w|``; None if the rows are affinely dependent."""
    one, zero = Fraction(1), Fraction(0)
    system = [[inner(a, b) for b in rows] + [one, zero] for a in rows]
    system.append([one] * len(rows) + [zero, one])
    for column in range(len(system)):
        pivot = next((row for row in range(column, len(system)) if system[row][column]), None)
        if pivot is None:
            return None
        system[column], system[pivot] = system[pivot], system[column]
        lead = system[column][column]
        system[column] = [value / lead for value in system[column]]
        for row in range(len(system)):
            factor = system[row][column]
            if row != column and factor:
                system[row] = [a - factor * b for a, b in zip(system[row], system[column], strict=True)]
    return [row[-1] for row in system[: len(rows)]]
