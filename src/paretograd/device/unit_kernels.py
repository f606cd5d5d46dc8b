"""Kernels that split a Gramian into cosines and norms, imported only if Triton is installed."""

# mypy: ignore-errors

import triton
import triton.language as tl

#: Squared norms below float64's smallest normal number count as zero, as on the host.
ZERO = tl.constexpr(2.2250738585072014e-308)


@triton.jit
def split(G, C, norms, faults, m, slack, B: tl.constexpr):
    # Program i: cosines of gradient i with a one on the diagonal, its norm, and infinity if its row is not that of a
    # Gramian. A zero gradient has the cosine zero with all others.
    i = tl.program_id(0)
    r = tl.arange(0, B)
    inside = r < m
    row = tl.load(G + i * m + r, mask=inside, other=0.0)
    column = tl.load(G + r * m + i, mask=inside, other=0.0)
    squares = tl.load(G + r * (m + 1), mask=inside, other=0.0)
    live = squares >= ZERO
    lengths = tl.sqrt(tl.where(live, squares, 1.0))
    here = tl.sum(tl.where((r == i) & live, lengths, 0.0), axis=0)
    both = tl.where(live, here, 0.0) > 0.0
    scale = tl.where(here > 0.0, here, 1.0)
    along, across = row / lengths / scale, column / lengths / scale
    cosines = 0.5 * (along + across)
    skew = tl.max(tl.where(both, tl.abs(along - across), 0.0), axis=0)
    size = tl.max(tl.where(both, tl.abs(cosines), 0.0), axis=0)
    # A zero gradient has no other entries. Comparisons with NaN are false, so each test states what must hold.
    beside = tl.max(tl.where(inside & (both == 0), tl.abs(row), 0.0), axis=0)
    most = 3e-154 * tl.max(tl.where(live, lengths, 0.0), axis=0)
    bad = tl.sum(tl.where(inside & (((tl.abs(row) < float("inf")) & (squares >= 0.0)) == 0), 1, 0), axis=0)
    good = (size <= 1.0 + slack) & (skew <= 2.0 * slack) & (beside <= most) & (bad == 0)
    cosines = tl.where(both, tl.minimum(tl.maximum(cosines, -1.0), 1.0), 0.0)
    tl.store(C + i * m + r, tl.where(r == i, 1.0, cosines), mask=inside)
    tl.store(norms + i, here)
    tl.store(faults + i, tl.where(good, 0.0, float("inf")).to(tl.float64))


@triton.jit
def dependence(C, found, m, shift, B: tl.constexpr):
    # Cholesky's method on C - shift: zero if every pivot is positive, infinity if not.
    r = tl.arange(0, B)
    i, j = r[:, None], r[None, :]
    left = tl.load(C + i * m + j, mask=(i < m) & (j < m), other=0.0)
    left = left - tl.where(i == j, shift, 0.0)
    k, pivot = 0, tl.full((), 1.0, tl.float64)
    while (k < m) & (pivot > 0.0):
        column = tl.sum(tl.where(j == k, left, 0.0), axis=1)
        row = tl.sum(tl.where(i == k, left, 0.0), axis=0)
        pivot = tl.sum(tl.where(r == k, column, 0.0), axis=0)
        left = left - column[:, None] * row[None, :] / tl.where(pivot > 0.0, pivot, 1.0)
        k += 1
    tl.store(found, tl.where(pivot > 0.0, 0.0, float("inf")).to(tl.float64))
