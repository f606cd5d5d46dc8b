"""Jacobians whose rows cancel or coincide up to rounding, or up to a small angle.

Gradients of ``a - b``, ``b - c`` and ``c - a`` depend on each other; as stored they do not, since every entry was
rounded. The exact answer for the stored rows may then be far from the one for the rows before rounding, and may need
weights as large as one over the rounding. Rows are only known to their own rounding, so the answer that is wanted is
the one for the *ideal* rows. A family of this module therefore has two functions: ``make``, the stored rows, and
``ideals``, the row sets in exact rationals whose answers count as right. For rows at a small but genuine angle these
are the rows as stored and, where the angle is below what a Gramian resolves safely (`SAFE_ANGLE`), the rows with that
angle closed.
"""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction

import torch
from torch import Generator, Tensor

from .family import Rows, generator, integers, normal, shuffled, uniform

#: Angles of at least this much are resolved: rounding of a float64 Gramian enters a direction as 1e-16 / angle^2.
SAFE_ANGLE = 1e-5
#: Factors of rows that are parallel: none is a power of two, so that the product is rounded.
_FACTORS = [Fraction(3, 10), Fraction(7, 10), Fraction(1, 3), Fraction(11, 5), Fraction(1)]


def exact(J: Tensor) -> Rows:
    """The stored numbers as rationals."""
    return [[Fraction(value) for value in row] for row in J.tolist()]


def _stored(rows: Sequence[Sequence[Fraction]], single: bool) -> Tensor:
    """Every entry rounded once, to float32 if ``single``; always returned as float64."""
    J = torch.tensor([[float(value) for value in row] for row in rows], dtype=torch.float64)
    return J.float().double() if single else J


def _shuffle(rng: Generator, rows: Rows) -> Rows:
    return [rows[k] for k in torch.randperm(len(rows), generator=rng).tolist()]


def _factor(rng: Generator) -> Fraction:
    return _FACTORS[int(integers(rng, 0, len(_FACTORS) - 1, 1))]


def _single(rng: Generator, *size: int) -> Tensor:
    """Gaussian entries that float32 holds."""
    return normal(rng, *size).float().double()


def _gaps(m: int, n: int, seed: int) -> Rows:
    """a - b, b - c, c - a and m - 3 Gaussian rows, in exact arithmetic."""
    rng = generator(m, n, seed)
    a, b, c, *rest = exact(_single(rng, m, n))
    pairs = ((a, b), (b, c), (c, a))
    return _shuffle(rng, [[x - y for x, y in zip(u, v, strict=True)] for u, v in pairs] + rest)


def _multiples(m: int, n: int, seed: int) -> Rows:
    """a, -s a and m - 2 Gaussian rows, in exact arithmetic; with four rows and more also s' b for one of these."""
    rng = generator(m, n, seed)
    a, *rest = exact(_single(rng, m - 1, n))
    s = _factor(rng)
    rows = [a, [-s * x for x in a], *rest]
    if m >= 4:
        s = _factor(rng)
        rows[-1] = [s * x for x in rows[-2]]
    return _shuffle(rng, rows)


def _dependent(m: int, n: int, seed: int) -> Rows:
    """A B with integers A of shape (m, r) and Gaussian B of shape (r, n), r < m, in exact arithmetic."""
    rng = generator(m, n, seed)
    r = int(integers(rng, 1, min(m - 1, n), 1))
    A, B = integers(rng, -3, 3, m, r).tolist(), exact(_single(rng, r, n))
    return [[sum((int(x) * B[i][j] for i, x in enumerate(row)), Fraction(0)) for j in range(n)] for row in A]


def cancelling_gaps(m: int, n: int, seed: int) -> Tensor:
    """Differences of three gradients, a - b, b - c and c - a, among Gaussian rows, rounded to float64."""
    return _stored(_gaps(m, n, seed), single=False)


def cancelling_gaps_single(m: int, n: int, seed: int) -> Tensor:
    """As `cancelling_gaps`, rounded to float32."""
    return _stored(_gaps(m, n, seed), single=True)


def rounded_multiples(m: int, n: int, seed: int) -> Tensor:
    """A row, a negative multiple of it such as -0.3 a, and others, rounded to float64."""
    return _stored(_multiples(m, n, seed), single=False)


def rounded_multiples_single(m: int, n: int, seed: int) -> Tensor:
    """As `rounded_multiples`, rounded to float32."""
    return _stored(_multiples(m, n, seed), single=True)


def rounded_dependent(m: int, n: int, seed: int) -> Tensor:
    """Small integer combinations of fewer Gaussian rows, rounded to float64."""
    return _stored(_dependent(m, n, seed), single=False)


def rounded_dependent_single(m: int, n: int, seed: int) -> Tensor:
    """As `rounded_dependent`, rounded to float32."""
    return _stored(_dependent(m, n, seed), single=True)


def ideal_gaps(m: int, n: int, seed: int) -> list[Rows]:
    """The gaps before rounding."""
    return [_gaps(m, n, seed)]


def ideal_multiples(m: int, n: int, seed: int) -> list[Rows]:
    """The multiples before rounding."""
    return [_multiples(m, n, seed)]


def ideal_dependent(m: int, n: int, seed: int) -> list[Rows]:
    """The combinations before rounding."""
    return [_dependent(m, n, seed)]


def _nearly(m: int, n: int, seed: int, sign: int, single: bool) -> tuple[Rows, Rows | None]:
    """Rows a and sign s (a + t |a| e) for a unit vector e and t = 10^U(-12, -1), among Gaussian rows, as stored; and
    with the angle closed, if it is below `SAFE_ANGLE`."""
    rng = generator(m, n, seed)
    J = _single(rng, m, n)
    t = float(10 ** uniform(rng, -12.0, -1.0, 1))
    e = normal(rng, n)
    e -= (e @ J[0]) / (J[0] @ J[0]) * J[0]
    s = sign * float(uniform(rng, 0.1, 10.0, 1))
    J[1] = s * (J[0] + t * J[0].norm() * e / e.norm())
    order = torch.randperm(m, generator=rng).tolist()
    rows = exact(_stored(exact(J), single))
    closed = [rows[0], [Fraction(s) * x for x in rows[0]], *rows[2:]]
    return [rows[k] for k in order], [closed[k] for k in order] if t < SAFE_ANGLE else None


def nearly_opposite(m: int, n: int, seed: int) -> Tensor:
    """Two rows at an angle of 1e-12 to 1e-1 from being opposite, among Gaussian ones (n >= 2)."""
    return _stored(_nearly(m, n, seed, -1, single=False)[0], single=False)


def nearly_opposite_single(m: int, n: int, seed: int) -> Tensor:
    """As `nearly_opposite`, rounded to float32, so that the angle is 1e-8 at least."""
    return _stored(_nearly(m, n, seed, -1, single=True)[0], single=True)


def nearly_parallel(m: int, n: int, seed: int) -> Tensor:
    """Two rows at an angle of 1e-12 to 1e-1, among Gaussian ones (n >= 2)."""
    return _stored(_nearly(m, n, seed, 1, single=False)[0], single=False)


def ideal_nearly_opposite(m: int, n: int, seed: int) -> list[Rows]:
    """The rows as stored, and for a small angle also the opposite ones."""
    return [rows for rows in _nearly(m, n, seed, -1, single=False) if rows is not None]


def ideal_nearly_opposite_single(m: int, n: int, seed: int) -> list[Rows]:
    """The rows as stored, and for a small angle also the opposite ones."""
    return [rows for rows in _nearly(m, n, seed, -1, single=True) if rows is not None]


def ideal_nearly_parallel(m: int, n: int, seed: int) -> list[Rows]:
    """The rows as stored, and for a small angle also the parallel ones."""
    return [rows for rows in _nearly(m, n, seed, 1, single=False) if rows is not None]


def gaussian_single(m: int, n: int, seed: int) -> Tensor:
    """Gaussian entries rounded to float32: rows as they come from a network, with nothing special about them."""
    return _single(generator(m, n, seed), m, n)


def crowd(m: int, n: int, seed: int) -> Tensor:
    """Rows close to each other, as of clients that agree, and one nearly opposite to the first."""
    rng = generator(m, n, seed)
    spread, angle = (float(10 ** uniform(rng, low, -0.5, 1)) for low in (-2.0, -4.0))
    J = normal(rng, n) + spread * normal(rng, m, n)
    J[1] = -(J[0] + angle * normal(rng, n))
    return shuffled(rng, J)
