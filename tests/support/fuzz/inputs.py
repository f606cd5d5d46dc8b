"""The fuzzer's inputs: a Jacobian as the library sees it, and the rows whose exact answers count as right.

A seed determines an input: family, sizes and entries. Most inputs come from the hard families (`families.HARD`), one in
eight from the others, and most have two to four rows.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import combinations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from support.families import FAMILIES, HARD, Family, Rows
from support.families.cancelling import SAFE_ANGLE, exact
from support.families.extreme import LEAST_NORM

from .exact import Problem

ALL: dict[str, Family] = FAMILIES | HARD
#: Singular values of unit rows below this are zero: they are rounding.
_DEPENDENT = 1e-13
#: A third of the angle below which a Gramian's rows count as dependent.
LEAST_ANGLE = 3e-7
#: Direction errors that are allowed, relative to the longest gradient, for rows known to float32 and to float64.
SINGLE, DOUBLE = 1e-5, 1e-7


@dataclass(frozen=True)
class Input:
    """A Jacobian to try the rules on.

    Attributes:
        family: the name of its family.
        rows: the stored numbers, shape (m, n).
        single: whether the library gets them as float32.
        ideals: row sets in exact rationals whose answers count as right, or None for the stored rows alone.
    """

    family: str
    rows: tuple[tuple[float, ...], ...]
    single: bool
    ideals: tuple[Rows, ...] | None = None

    @classmethod
    def of(cls, family: Family, m: int, n: int, seed: int) -> Input:
        rows = tuple(map(tuple, family.make(m, n, seed).tolist()))
        ideals = None if family.ideals is None else tuple(family.ideals(m, n, seed))
        return cls(family.name, rows, family.name.endswith("_single"), ideals)

    @property
    def m(self) -> int:
        return len(self.rows)

    @property
    def n(self) -> int:
        return len(self.rows[0])

    @cached_property
    def jacobian(self) -> Tensor:
        """In the dtype that the library gets."""
        return torch.tensor(self.rows, dtype=torch.float32 if self.single else torch.float64)

    @cached_property
    def enlargement(self) -> int:
        """Exponent of the power of two that brings rows out of the range in which all their squares underflow, or 0."""
        largest = max(abs(x) for row in self.rows for x in row)
        return -math.frexp(largest)[1] if 0.0 < largest < 1e-140 else 0

    @cached_property
    def enlarged(self) -> NDArray[np.float64]:
        """The stored rows times ``2^enlargement``, in float64."""
        return np.ldexp(np.array(self.rows), self.enlargement)

    @cached_property
    def problems(self) -> list[Problem]:
        """The exact problems whose answers count as right."""
        return [Problem(rows) for rows in self.ideals or (exact(torch.tensor(self.rows, dtype=torch.float64)),)]

    @cached_property
    def angles(self) -> list[float]:
        """For each problem the smallest angle at which rows meet a span: see `_smallest_angle`."""
        return [_smallest_angle(_unit_rows(problem.rows)) for problem in self.problems]

    @property
    def angle(self) -> float:
        """That of the first problem, whose answer is the one to expect."""
        return self.angles[0]

    @property
    def is_rounded(self) -> bool:
        """Whether the rows are known up to rounding only, or meet at an angle that a Gramian need not resolve."""
        return self.ideals is not None and self.family != "subnormal" and (self.single or self.angle < SAFE_ANGLE)

    @property
    def has_truth(self) -> bool:
        """Return False for angles that nobody planned: too small to resolve, and without an ideal to compare with.

        Around the angle at which rows begin to count as dependent, each projection decides by itself, together with
        the other rows that it needs: there the direction may be a mixture of both answers.
        """
        return not self.is_between and (self.angle >= SAFE_ANGLE or self.ideals is not None)

    @property
    def is_between(self) -> bool:
        """Whether rows meet at an angle that some projections resolve and others do not."""
        return self.angle < SAFE_ANGLE and self._closest > LEAST_ANGLE

    @property
    def blur(self) -> float:
        """Error of a direction by the rounding of the Gramian."""
        return 1e-14 / self.angle**2

    @cached_property
    def _closest(self) -> float:
        """The smallest distance between two unit rows, or a row and the opposite of another, that is no rounding."""
        units = _unit_rows(self.problems[0].rows)
        apart = [np.linalg.norm(a + sign * b) for a, b in combinations(units, 2) for sign in (1.0, -1.0)]
        return float(min((x for x in apart if x > _DEPENDENT), default=1.0))

    def allowed(self, which: int) -> float:
        """How far a direction may be from the exact answer of a problem, relative to the longest gradient.

        Rounding of float32 rows enters as eps / angle. Rounding of a float64 Gramian enters as 1e-14 / angle^2, down to
        angles of 1e-6, below which rows count as dependent: then the answer of some rows within 1e-5 is right.
        """
        angle = self.angles[which]
        if angle < LEAST_ANGLE or (self.angle < SAFE_ANGLE and which > 0):
            return SINGLE
        single = self.single and self.ideals is not None
        return max(
            SINGLE if single else DOUBLE,
            (2e-7 if single else 0.0) / angle,
            1e-14 / angle**2,
        )

    @property
    def accuracy(self) -> float:
        """The largest of what is `allowed`, for comparisons other than with an exact answer."""
        return max(map(self.allowed, range(len(self.problems))))

    @cached_property
    def live(self) -> NDArray[np.bool_]:
        """The rows that do not count as zero: their squares are normal numbers."""
        return np.abs(self.enlarged).max(axis=1) > LEAST_NORM

    def take(self, rows: list[int], columns: list[int] | None = None) -> Input:
        """The input with these rows (in this order) and columns only."""
        keep = range(self.n) if columns is None else columns

        def part(full: object) -> Rows:
            return [[full[k][j] for j in keep] for k in rows]  # type: ignore[index]

        ideals = None if self.ideals is None else tuple(part(ideal) for ideal in self.ideals)
        return replace(self, rows=tuple(map(tuple, part(self.rows))), ideals=ideals)


def _smallest_angle(units: NDArray[np.float64]) -> float:
    """The smallest non-zero singular value of any set of unit rows."""
    smallest, m = 1.0, len(units)
    for size in range(2, m + 1):
        values = np.linalg.svd(np.array([units[list(S)] for S in combinations(range(m), size)]), compute_uv=False)
        smallest = min(smallest, float(values[values > _DEPENDENT].min(initial=1.0)))
    return smallest


def _unit_rows(rows: Rows) -> NDArray[np.float64]:
    """Rows of norm one, rounded; scaled exactly first, so that nothing overflows."""
    units = []
    for row in rows:
        largest = max(map(abs, row))
        scaled = np.array([float(x / largest) if largest else 0.0 for x in row])
        units.append(scaled / (np.linalg.norm(scaled) or 1.0))
    return np.array(units)


def draw(seed: int, families: list[str] | None = None) -> Input:
    """The input that belongs to a seed."""
    rng = np.random.default_rng(seed)
    names = families or list(HARD if rng.random() < 0.875 else FAMILIES)
    family = ALL[names[int(rng.integers(len(names)))]]
    m = int(rng.choice([1, 2, 3, 4, 5, 8], p=[0.02, 0.18, 0.35, 0.35, 0.07, 0.03]))
    m = min(max(m, family.min_m), family.max_m or 8)
    low, high = family.columns(m)
    n = int(rng.integers(low, max(low, m) + 4))
    return Input.of(family, m, n if high is None else min(n, high), int(rng.integers(2**31)))
