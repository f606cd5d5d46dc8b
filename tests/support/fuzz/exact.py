"""Exact answers for a few objectives, in integers: by enumeration of supports, or by an active-set method.

Rows are scaled to integers, so that their Gramian G is one of integers. For every linearly independent set S of rows
the determinant and the adjugate of G_S are computed once, without fractions (Bareiss); an answer is the first, or the
smallest, support whose optimality conditions hold, and these are decided without rounding. CAGrad's level is the root
of a quadratic with rational coefficients, so that its numbers are p + q sqrt(D), whose signs are decided exactly, too.

Answers are weights, in rationals. They cost a few milliseconds for m = 4, and four times as much for each row more.
For more than `ENUMERATED` rows, projections and the point of least norm come from Lawson and Hanson's method. Without
rounding it ends at the optimum: a row of negative slope is independent of the active ones, to which the current point
is orthogonal.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from fractions import Fraction
from functools import cached_property
from itertools import combinations, product

Integers = list[int]
Weights = list[Fraction]
#: Rows whose supports are enumerated.
ENUMERATED = 5
_BITS = 300  # of a square root, where one is needed: far beyond what rounding to float64 can show


class Problem:
    """Rows in exact rationals, shape (m, n), scaled so that the longest has a norm between 1 and 2.

    Attributes:
        exponent: the rows given are ``2^exponent`` times those that the answers are for.
        answers: those found so far, for whoever asks for them again.
    """

    def __init__(self, rows: Sequence[Sequence[Fraction]]) -> None:
        largest = max((abs(x) for row in rows for x in row), default=Fraction(0))
        self.exponent = math.frexp(float(largest))[1] if largest else 0
        self.rows = [[x / Fraction(2) ** self.exponent for x in row] for row in rows]
        self.answers: dict[object, list[Weights | None]] = {}
        self.m = len(rows)
        denominator = math.lcm(*(x.denominator for row in self.rows for x in row))
        self._integers = [[int(x * denominator) for x in row] for row in self.rows]
        self._square = denominator * denominator  # G is in units of one over this
        self.G = [[sum(map(int.__mul__, a, b)) for b in self._integers] for a in self._integers]
        self.norms = [root_of(Fraction(self.G[k][k], self._square)) for k in range(self.m)]

    @cached_property
    def faces(self) -> list[tuple[tuple[int, ...], int, list[Integers]]]:
        """(S, det G_S, adj G_S) for every set S of independent rows, the empty one included."""
        return list(_invertible(self.G))

    def direction(self, weights: Weights) -> list[float]:
        """J.T w, rounded once, in the scale of ``rows``."""
        return [
            float(sum((w * row[j] for w, row in zip(weights, self.rows, strict=True) if w), Fraction(0)))
            for j in range(len(self.rows[0]))
        ]

    def square(self, weights: Weights) -> Fraction:
        """|J.T w|^2 in the scale of ``rows``."""
        return sum((x * w for x, w in zip(self._slopes(weights), weights, strict=True)), Fraction(0)) / self._square

    def size(self, weights: Weights) -> float:
        """sum_k |w_k| |g_k|, in the scale of ``rows``."""
        return float(sum(abs(w) * Fraction(norm) for w, norm in zip(weights, self.norms, strict=True) if w))

    def _slopes(self, weights: Weights) -> list[Fraction]:
        return [sum((g * w for g, w in zip(row, weights, strict=True) if w), Fraction(0)) for row in self.G]

    # Projection onto the dual cone.

    def project(self, u: Weights) -> Weights:
        """Weights of the projection of ``J.T u`` onto {d : J d >= 0}, the smallest ones by `size`.

        All basic multipliers are met on the way, and a linear function on the optimal ones is least at one of these.
        """
        scale = math.lcm(*(x.denominator for x in u))
        b = [int(s * scale) for s in self._slopes(u)]
        if self.m > ENUMERATED:
            return [x + y / scale for x, y in zip(u, _nonnegative(self.G, b), strict=True)]
        best: tuple[float, Weights] | None = None
        for S, det, adjugate in self.faces:
            part = [-sum(x * b[k] for x, k in zip(row, S, strict=True)) for row in adjugate]
            if any(x < 0 for x in part):
                continue
            if all(
                det * b[i] + sum(self.G[i][k] * x for k, x in zip(S, part, strict=True)) >= 0
                for i in range(self.m)
                if i not in S
            ):
                v = list(u)
                for k, x in zip(S, part, strict=True):
                    v[k] += Fraction(x, det * scale)
                if best is None or self.size(v) < best[0]:
                    best = self.size(v), v
        assert best is not None, "0 is in the cone"
        return best[1]

    # Least norm over the simplex.

    @cached_property
    def min_norm(self) -> Weights:
        """Weights of the point of least norm in the convex hull of the rows."""
        tau = min((self.G[k][k] for k in range(self.m) if self.G[k][k]), default=1)
        H = [
            [g + tau for g in row] for row in self.G
        ]  # a constant on the simplex; affinely independent sets are enough
        if self.m > ENUMERATED:
            found = _nonnegative(H, [-tau] * self.m)
            return [x / sum(found) for x in found]
        for S, _, adjugate in _invertible(H):
            y = [0] * self.m
            for k, row in zip(S, adjugate, strict=True):
                y[k] = sum(row)
            total = sum(y)
            if total <= 0 or min(y) < 0:
                continue
            slopes = [sum(map(int.__mul__, row, y)) for row in self.G]
            if min(slopes) * total >= sum(map(int.__mul__, slopes, y)):
                return [Fraction(x, total) for x in y]
        raise AssertionError("the simplex is compact")

    @property
    def gamma(self) -> float:
        """Distance from stationarity, in the scale of ``rows``."""
        return root_of(self.square(self.min_norm))

    @property
    def is_stationary(self) -> bool:
        """Return True if 0 is in the convex hull of the rows."""
        return self.square(self.min_norm) == 0

    def capped_min_norm(self, cap: Fraction) -> Weights:
        """As `min_norm`, with every weight at most ``cap``: all faces of the capped simplex."""
        if cap >= 1:
            return self.min_norm
        tau = min((self.G[k][k] for k in range(self.m) if self.G[k][k]), default=1)
        faces = {S: (det, adj) for S, det, adj in _invertible([[g + tau for g in row] for row in self.G])}
        for kinds in product("0fc", repeat=self.m):
            w = [cap if kind == "c" else Fraction(0) for kind in kinds]
            left = 1 - sum(w)
            S = tuple(k for k in range(self.m) if kinds[k] == "f")
            if left < 0 or S not in faces or (not S and left != 0):
                continue
            det, adjugate = faces[S]
            push = self._slopes(w)
            # tau * (sum of all weights) is the same constant for every row, and goes into the multiplier.
            x = [-sum((a * push[k] for a, k in zip(row, S, strict=True)), Fraction(0)) / det for row in adjugate]
            y = [Fraction(sum(row), det) for row in adjugate]
            share = (left - sum(x)) / sum(y) if S else Fraction(0)
            for k, a, b in zip(S, x, y, strict=True):
                w[k] = a + share * b
            if min(w) < 0 or max(w) > cap:
                continue
            slopes = self._slopes(w)
            low = max((slopes[k] for k in range(self.m) if kinds[k] != "0"), default=None)
            high = min((slopes[k] for k in range(self.m) if kinds[k] != "c"), default=None)
            if low is None or high is None or low <= high:
                return w
        raise AssertionError("the capped simplex is compact, and not empty")

    # CAGrad.

    def cagrad(self, c: Fraction) -> Weights | None:
        """Weights of CAGrad's direction to 300 bits, the smallest; None if no set of tight rows determines it.

        Also None for more than `ENUMERATED` rows.

        With the rows of A tight at the level t, ``d = g0 + J_A.T v`` and ``v = G_A^-1 (t 1 - J_A g0)``; the radius
        gives ``t = (h + sqrt(D)) / a`` with rational h, D and a.
        """
        u = [Fraction(1, self.m)] * self.m
        if c == 0:
            return u
        if self.m > ENUMERATED:
            return None
        slopes = self._slopes(u)
        radius = c * c * sum(slopes, Fraction(0)) / self.m  # squared
        projected = self.project(u)
        move = [a - b for a, b in zip(projected, u, strict=True)]
        if self.square(move) * self._square <= radius and self.is_stationary:
            return projected
        best: tuple[float, Weights] | None = None
        for S, det, adjugate in self.faces[1:]:
            x = [Fraction(sum(row), det) for row in adjugate]
            z = [sum((a * slopes[k] for a, k in zip(row, S, strict=True)), Fraction(0)) / det for row in adjugate]
            a, h = sum(x), sum(z)
            D = h * h - a * (sum((slopes[k] * y for k, y in zip(S, z, strict=True)), Fraction(0)) - radius)
            if D < 0 or a == 0:
                continue
            # Every number below is a pair (p, q) for p + q sqrt(D).
            v = [(h * s / a - y, s / a) for s, y in zip(x, z, strict=True)]
            if any(_is_negative(p, q, D) for p, q in v):
                continue
            if all(
                not _is_negative(
                    slopes[i] + sum(self.G[i][k] * p for k, (p, _) in zip(S, v, strict=True)) - h / a,
                    sum(self.G[i][k] * q for k, (_, q) in zip(S, v, strict=True)) - 1 / a,
                    D,
                )
                for i in range(self.m)
                if i not in S
            ):
                R, w = _root(D), list(u)
                for k, (p, q) in zip(S, v, strict=True):
                    w[k] += p + q * R
                if best is None or self.size(w) < best[0]:
                    best = self.size(w), w
        return None if best is None else best[1]

    # PCGrad and PCGrad+.

    def pcgrad(self) -> Weights:
        """Every row once made orthogonal to each row that it conflicts with, in order; the mean of these."""
        total = [Fraction(0)] * self.m
        for k in range(self.m):
            a = [Fraction(0)] * self.m
            a[k] = Fraction(1)
            for i in range(self.m):
                slope = sum((g * x for g, x in zip(self.G[i], a, strict=True) if x), Fraction(0))
                if slope < 0:
                    a[i] -= slope / self.G[i][i]
            total = [x + y for x, y in zip(total, a, strict=True)]
        return [x / self.m for x in total]

    def pcgrad_plus(self, sweeps: int = 1000) -> Weights | None:
        """The limit of PCGrad's sweeps, until conflicts are below 1e-20; None if they take too long.

        In fixed point with 300 bits, on rows scaled to unit norm: the sweeps do not depend on the norms.
        """
        unit = [Fraction(1 << _BITS, math.isqrt(self.G[k][k] << 2 * _BITS) or 1) for k in range(self.m)]
        C = [[int(unit[i] * unit[j] * self.G[i][j] * (1 << _BITS)) for j in range(self.m)] for i in range(self.m)]
        small = 1 << (_BITS - 66)
        total = [Fraction(0)] * self.m
        for k in range(self.m):
            added, slopes = [0] * self.m, [row[k] for row in C]
            for _ in range(sweeps):
                if min(slopes) >= -small:
                    break
                for i in range(self.m):
                    if slopes[i] < 0:
                        step = (-slopes[i] << _BITS) // C[i][i]
                        added[i] += step
                        slopes = [s + ((step * row[i]) >> _BITS) for s, row in zip(slopes, C, strict=True)]
            else:
                return None
            total[k] += 1
            for i in range(self.m):
                if added[i]:
                    total[i] += Fraction(added[i], 1 << _BITS) * unit[i] / unit[k]
        return [x / self.m for x in total]


def _invertible(G: list[Integers]) -> Iterator[tuple[tuple[int, ...], int, list[Integers]]]:
    """Every set S with a regular G_S: S, its determinant and its adjugate, the empty set first."""
    m = len(G)
    singular: set[tuple[int, ...]] = set()
    for size in range(m + 1):
        for S in combinations(range(m), size):
            if any(part in singular for part in combinations(S, size - 1)) if size else False:
                singular.add(S)
                continue
            found = _adjugate([[G[i][j] for j in S] for i in S])
            if found is None:
                singular.add(S)
            else:
                yield S, *found


def _nonnegative(H: list[Integers], q: Integers) -> Weights:
    """The ``a >= 0`` that minimises ``a'Ha/2 + q'a``, a problem that is bounded below."""
    m = len(q)
    a, active = [Fraction(0)] * m, set[int]()
    while True:
        slopes = [
            x + sum((h * y for h, y in zip(row, a, strict=True) if y), Fraction(0)) for x, row in zip(q, H, strict=True)
        ]
        waiting = [k for k in range(m) if k not in active and slopes[k] < 0]
        if not waiting:
            return a
        active.add(min(waiting, key=lambda k: slopes[k]))
        while True:
            rows = sorted(active)
            found = _adjugate([[H[i][j] for j in rows] for i in rows])
            assert found is not None, "active rows are independent"
            det, adjugate = found
            goal = [Fraction(-sum(x * q[k] for x, k in zip(row, rows, strict=True)), det) for row in adjugate]
            blocked = [(a[k] / (a[k] - x), k) for k, x in zip(rows, goal, strict=True) if x <= 0]
            step = min((share for share, _ in blocked), default=Fraction(1))
            for k, x in zip(rows, goal, strict=True):
                a[k] += step * (x - a[k])
            if not blocked:
                break
            active -= {k for share, k in blocked if share == step}


def _adjugate(H: list[Integers]) -> tuple[int, list[Integers]] | None:
    """Determinant and adjugate of a positive semidefinite matrix of integers; None if it is singular.

    Gauss-Jordan elimination without fractions: every division is exact.
    """
    size = len(H)
    M = [list(row) + [int(i == j) for j in range(size)] for i, row in enumerate(H)]
    last = 1
    for k in range(size):
        pivot, row = M[k][k], M[k]
        if pivot == 0:
            return None
        for i in range(size):
            if i != k:
                factor = M[i][k]
                M[i] = [(pivot * x - factor * y) // last for x, y in zip(M[i], row, strict=True)]
        last = pivot
    return last, [row[size:] for row in M]


def _is_negative(p: Fraction, q: Fraction, D: Fraction) -> bool:
    """Return True if p + q sqrt(D) < 0."""
    if p < 0 and q <= 0:
        return True
    if p >= 0 and q >= 0:
        return False
    return p * p > q * q * D if p < 0 else q * q * D > p * p


def _root(value: Fraction) -> Fraction:
    """The square root to `_BITS` bits."""
    if value <= 0:
        return Fraction(0)
    shift = 2 * max(_BITS, value.denominator.bit_length() - value.numerator.bit_length() + _BITS)
    return Fraction(math.isqrt((value.numerator << shift) // value.denominator), 1 << (shift // 2))


def root_of(value: Fraction) -> float:
    """The square root, rounded to float64."""
    return float(_root(value))
