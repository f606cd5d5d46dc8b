"""Kernels for cyclic projections onto half-spaces, one program per gradient, imported only if Triton is installed."""

# mypy: ignore-errors

import triton
import triton.language as tl

from paretograd.device.quadratic_kernels import APART, cosines_of, pick, solve, times

#: Lifts below this are rounding, relative to the coefficients, as on the host.
NOTHING = tl.constexpr(1e-14)

#: The set of half-spaces has settled if each lift shrinks by the same factor in so many passes, up to this difference.
CALM, DRIFT = tl.constexpr(8), tl.constexpr(1e-6)


@triton.jit
def pass_over(C, x, m, B: tl.constexpr):
    # One pass over all half-spaces, from the slopes x of a treated gradient: its lifts and its new slopes.
    r = tl.arange(0, B)
    lifts = tl.zeros((B,), tl.float64)
    for i in range(m):
        lift = tl.maximum(-pick(x, r, i), 0.0)
        lifts += tl.where(r == i, lift, 0.0)
        x += lift * tl.load(C + i * m + r, mask=r < m, other=0.0)
    return lifts, x


@triton.jit
def pass_once(C, A, residuals, m, B: tl.constexpr):
    # Row k of A is what one pass adds to unit gradient k.
    k = tl.program_id(0)
    r = tl.arange(0, B)
    lifts, _x = pass_over(C, tl.load(C + k * m + r, mask=r < m, other=0.0), m, B)
    tl.store(A + k * m + r, lifts, mask=r < m)
    tl.store(residuals + k, tl.full((), 0.0, tl.float64))


@triton.jit
def pass_until_calm(C, A, X, settled, m, limit, B: tl.constexpr):
    # The same for passes until nothing is lifted, or until the lifts have become geometric series; settled is then one.
    # X holds the slopes of all gradients, then their last lifts.
    k = tl.program_id(0)
    r = tl.arange(0, B)
    x = tl.load(C + k * m + r, mask=r < m, other=0.0)
    a = tl.zeros((B,), tl.float64)
    lifts, ratios = tl.zeros((B,), tl.float64), tl.zeros((B,), tl.float64)
    searching, calm, passes = 1, 0, 0
    while (searching == 1) & (passes < limit):
        before, ratios_before = lifts, ratios
        lifts, x = pass_over(C, x, m, B)
        a += lifts
        lifts = tl.where(lifts > NOTHING * (1.0 + tl.max(a, axis=0)), lifts, 0.0)
        ratios = tl.where(before > 0.0, lifts / tl.where(before > 0.0, before, 1.0), lifts)
        calm = tl.where(tl.max(tl.abs(ratios - ratios_before), axis=0) <= DRIFT, calm + 1, 0)
        searching = tl.where((tl.max(lifts, axis=0) > 0.0) & (calm < CALM), 1, 0)
        passes += 1
    tl.store(A + k * m + r, a, mask=r < m)
    tl.store(X + k * m + r, x, mask=r < m)
    tl.store(X + (tl.num_programs(0) + k) * m + r, lifts, mask=r < m)
    tl.store(settled + k, 1 - searching)


@triton.jit
def limit_of_passes(C, A, X, settled, residuals, m, resolution, B: tl.constexpr):
    # Add the sum of all further passes: the projection onto the half-spaces that they touch. In the limit, these have
    # the slope zero, and the others are not touched.
    k = tl.program_id(0)
    r = tl.arange(0, B)
    one, zero, least = tl.full((B,), 1.0, tl.float64), tl.zeros((B,), tl.float64), resolution * resolution
    a = tl.load(A + k * m + r, mask=r < m, other=0.0)
    x = tl.load(X + k * m + r, mask=r < m, other=0.0)
    touched = tl.load(X + (tl.num_programs(0) + k) * m + r, mask=r < m, other=0.0) > 0.0
    q = tl.where(touched, x, 1e30)
    added, _slope, residual = solve(C, one, zero, q, m, least, tl.maximum(least, APART), B)
    x += times(cosines_of(C, m, B), added)
    size = 1.0 + tl.max(a + added, axis=0)
    apart = tl.max(tl.where(touched, x, -x) * tl.where(r < m, 1.0, 0.0), axis=0) / size
    tl.store(A + k * m + r, a + added, mask=r < m)
    good = (tl.load(settled + k) == 1) & (apart <= 1e-10)
    tl.store(residuals + k, tl.where(good, tl.maximum(residual, apart), float("inf")))
