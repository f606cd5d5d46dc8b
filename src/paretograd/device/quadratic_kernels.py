"""Kernels for ``min a'Ha/2 + q'a  subject to  a >= 0``, one program for each q, imported only if Triton is installed.

Lawson and Hanson's method on a tableau. The tableau holds H after a symmetric sweep of the active entries: minus the
inverse of their block, and the Schur complement of the others, whose diagonal holds the squared distances from the span
of the active vectors. An entry enters or leaves by one rank-one update of the whole tableau, which stays in registers.
Whenever a minimiser is accepted, its slopes are computed anew from H, and one step of refinement removes the rounding
of the updates.

H is ``D C D + (I - D^2) + h h'`` with cosines C and ``D = diag(g)``. The vector g is one, or less if the gradients have
been shifted away from each other. The vector h is zero for projections onto the dual cone, and holds the inverse norms
for points of the hull.
"""

# mypy: ignore-errors

import triton
import triton.language as tl

#: Rounding of a slope, per unit of the multipliers that it sums, as on the host.
ROUNDING = tl.constexpr(4e-15)

#: Multipliers up to this are trusted even if the active gradients are nearly dependent, as on the host.
TRUSTED = tl.constexpr(30.0)

#: Larger multipliers are trusted if the squared distances from each other's spans exceed this: the rounding of the
#: cosines, 2e-16, then changes the direction by at most 1e-8.
APART = tl.constexpr(2e-8)


@triton.jit
def pick(values, r, k):
    # values[k]; zero if there is no such entry.
    return tl.sum(tl.where(r == k, values, 0.0), axis=0)


@triton.jit
def times(matrix, x):
    return tl.sum(matrix * x[None, :], axis=1)


@triton.jit
def cosines_of(C, m, B: tl.constexpr):
    # C, with ones on the diagonal beyond m.
    i, j = tl.arange(0, B)[:, None], tl.arange(0, B)[None, :]
    padding = tl.where((i == j) & (i >= m), 1.0, 0.0).to(tl.float64)
    return tl.load(C + i * m + j, mask=(i < m) & (j < m), other=0.0) + padding


@triton.jit
def matrix_of(C, g, h, m, B: tl.constexpr):
    # H.
    i, j = tl.arange(0, B)[:, None], tl.arange(0, B)[None, :]
    scaled = cosines_of(C, m, B) * g[:, None] * g[None, :]
    return tl.where(i == j, 1.0, scaled) + h[:, None] * h[None, :]


@triton.jit
def product(C, g, h, x, m, B: tl.constexpr):
    # H x.
    return g * times(cosines_of(C, m, B), g * x) + (1.0 - g * g) * x + h * tl.sum(h * x, axis=0)


@triton.jit
def entry_of(T, k, B: tl.constexpr):
    # T[k, k].
    i, j = tl.arange(0, B)[:, None], tl.arange(0, B)[None, :]
    return tl.sum(tl.sum(tl.where((i == k) & (j == k), T, 0.0), axis=1), axis=0)


@triton.jit
def sweep(T, active, k, B: tl.constexpr):
    # Entry k enters if it is not active and leaves if it is.
    r = tl.arange(0, B)
    i, j = r[:, None], r[None, :]
    column = tl.sum(tl.where(j == k, T, 0.0), axis=1)
    row = tl.sum(tl.where(i == k, T, 0.0), axis=0)
    pivot = pick(column, r, k)
    inverse = 1.0 / tl.where(pivot == 0.0, 1.0, pivot)
    scale = pick(1.0 - 2.0 * active.to(tl.float64), r, k) * inverse
    T = T - column[:, None] * (row * inverse)[None, :]
    T = tl.where(j == k, (column * scale)[:, None], T)
    T = tl.where(i == k, (row * scale)[None, :], T)
    return tl.where((i == k) & (j == k), -inverse, T)


@triton.jit
def moved_by_sweep(T, v, active, k, B: tl.constexpr):
    # v after the sweep of entry k: the minimiser on the active entries, and the slopes of the others.
    r = tl.arange(0, B)
    column = tl.sum(tl.where(r[None, :] == k, T, 0.0), axis=1)
    side = 1.0 - 2.0 * active.to(tl.float64)
    value = pick(v, r, k) * pick(side, r, k) / pick(column, r, k)
    return tl.where(r == k, -value, v - side * column * value)


@triton.jit
def solve(C, g, h, q, m, least, apart, B: tl.constexpr):
    # Returns a, its slopes, and the residual: infinite if the limit was hit, or if the answer depends on distances
    # that are not known. Squared distances below `least` count as zero. For large multipliers they must exceed `apart`.
    r = tl.arange(0, B)
    T = matrix_of(C, g, h, m, B)
    v, a = q, tl.zeros((B,), tl.float64)
    active, refused = tl.zeros((B,), tl.int32), tl.zeros((B,), tl.int32)
    slope = q
    steps, searching, moved, entered = 0, 1, 1, 0
    while (searching == 1) & (steps < 8 * B + 50):
        k = -1
        wrong = (active == 1) & (v <= 0.0)
        if tl.max(wrong.to(tl.int32), axis=0) == 1:
            # Walk towards the minimiser until an entry reaches zero. It leaves.
            room = tl.where(wrong, a / tl.where(a > v, a - v, 1.0), float("inf"))
            step = tl.min(room, axis=0)
            k = tl.min(tl.where(room == step, r, B), axis=0)
            a = tl.where(active == 1, a + step * (v - a), a)
            a = tl.where(r == k, 0.0, a)
            moved = tl.where(step > 0.0, 1, moved)
            # An entry that leaves as soon as it has entered had a slope that was rounding.
            refused = tl.where((r == entered) & (moved == 0), 1, refused)
        else:
            a = tl.where(active == 1, v, 0.0)
            slope = product(C, g, h, a, m, B) + q
            move = times(T, tl.where(active == 1, slope, 0.0))
            a = tl.where(active == 1, tl.maximum(a + move, 0.0), 0.0)
            slope = product(C, g, h, a, m, B) + q
            v = tl.where(active == 1, a, slope)
            refused = tl.where(moved == 1, 0, refused)
            waiting = tl.where((active == 1) | (refused == 1) | (r >= m), float("inf"), slope)
            lowest = tl.min(waiting, axis=0)
            if lowest < -ROUNDING * (1.0 + tl.max(a, axis=0)):
                entered = tl.min(tl.where(waiting == lowest, r, B), axis=0)
                moved = 0
                if entry_of(T, entered, B) >= least:
                    k = entered
                else:
                    refused = tl.where(r == entered, 1, refused)
            else:
                searching = 0
        if k >= 0:
            v = moved_by_sweep(T, v, active, k, B)
            T = sweep(T, active, k, B)
            active = tl.where(r == k, 1 - active, active)
        steps += 1
    size = tl.max(a, axis=0)
    wrong = tl.where(a > 0.0, tl.abs(slope), tl.maximum(-slope, 0.0))
    wrong = tl.where(r < m, wrong, 0.0)
    residual = tl.max(wrong, axis=0) / (1.0 + size)
    # A vector in the span of the active ones has the slope zero. A slope that is not shows a distance below `least`.
    lost = (searching == 1) | (residual > 4.0 * ROUNDING)
    # The inverse has the inverse squared distances of the active vectors from each other's spans on its diagonal.
    i, j = r[:, None], r[None, :]
    inverse = tl.max(tl.max(tl.where((i == j) & (active == 1)[:, None], -T, 0.0), axis=1), axis=0)
    lost = lost | ((size > TRUSTED) & (inverse * apart > 1.0))
    return a, slope, tl.where(lost, float("inf"), residual)


@triton.jit
def project_each(C, A, squares, residuals, m, resolution, B: tl.constexpr):
    # Program k: the projection of unit gradient k onto the dual cone adds row k of A to it; and its squared length.
    k = tl.program_id(0)
    r = tl.arange(0, B)
    q = tl.load(C + k * m + r, mask=r < m, other=0.0)
    one, zero, least = tl.full((B,), 1.0, tl.float64), tl.zeros((B,), tl.float64), resolution * resolution
    a, slope, residual = solve(C, one, zero, q, m, least, tl.maximum(least, APART), B)
    tl.store(A + k * m + r, a, mask=r < m)
    tl.store(squares + k, pick(slope, r, k) + tl.sum(a * slope, axis=0))
    tl.store(residuals + k, residual)


@triton.jit
def project_sum(C, norms, u, weights, residual, m, resolution, B: tl.constexpr):
    # Weights of the projection of J.T u onto the dual cone.
    r = tl.arange(0, B)
    length = tl.load(norms + r, mask=r < m, other=0.0)
    share = tl.load(u + r, mask=r < m, other=0.0)
    scaled = share * length
    size = tl.max(tl.abs(scaled), axis=0)
    one, zero, least = tl.full((B,), 1.0, tl.float64), tl.zeros((B,), tl.float64), resolution * resolution
    q = times(cosines_of(C, m, B), scaled / tl.where(size > 0.0, size, 1.0))
    a, _slope, left = solve(C, one, zero, q, m, least, tl.maximum(least, APART), B)
    tl.store(weights + r, share + a * (size / tl.where(length > 0.0, length, 1.0)), mask=r < m)
    tl.store(residual, left)


@triton.jit
def gather(A, residuals, norms, u, weights, residual, m, B: tl.constexpr):
    # Weights of the sum of u_k (g_k + what row k of A adds to it, in unit gradients), and the largest residual.
    r = tl.arange(0, B)
    i, j = r[:, None], r[None, :]
    rows = tl.load(A + i * m + j, mask=(i < m) & (j < m), other=0.0)
    length = tl.load(norms + r, mask=r < m, other=0.0)
    share = tl.load(u + r, mask=r < m, other=0.0)
    extra = tl.sum((share * length)[:, None] * rows, axis=0) / tl.where(length > 0.0, length, 1.0)
    tl.store(weights + r, share + extra, mask=r < m)
    tl.store(residual, tl.max(tl.load(residuals + r, mask=r < m, other=0.0), axis=0))


@triton.jit
def longest(A, squares, residuals, norms, weights, residual, m, B: tl.constexpr):
    # Weights of the longest projection. Lengths that differ by rounding are ties, which go to the first.
    r = tl.arange(0, B)
    length = tl.load(norms + r, mask=r < m, other=0.0)
    top = tl.max(length, axis=0)
    share = length / tl.where(top > 0.0, top, 1.0)
    square = share * share * tl.maximum(tl.load(squares + r, mask=r < m, other=0.0), 0.0)
    most = tl.max(square, axis=0)
    k = tl.min(tl.where((square >= most - 1e-12 * most) & (r < m), r, B), axis=0)
    row = tl.load(A + k * m + r, mask=r < m, other=0.0)
    extra = row * (pick(length, r, k) / tl.where(length > 0.0, length, 1.0))
    tl.store(weights + r, tl.where(r == k, 1.0, 0.0) + extra, mask=r < m)
    tl.store(residual, tl.max(tl.load(residuals + r, mask=r < m, other=0.0), axis=0))


@triton.jit
def equal_angles(C, norms, weights, residual, m, resolution, noise, IMPARTIAL: tl.constexpr, B: tl.constexpr):
    # Weights of a direction with equal inner products with all unit gradients, C y = 1. They sum to one (IMTL-G), or
    # the length of the direction is the sum of the gradients' projections onto it (ConFIG). Dependent gradients, for
    # which a squared distance is below 1e-6 in the order of the rows, are left to the host.
    r = tl.arange(0, B)
    length = tl.load(norms + r, mask=r < m, other=0.0)
    live = length > 0.0
    ones = tl.where(live, 1.0, 0.0).to(tl.float64)
    T = cosines_of(C, m, B)
    least = tl.maximum(1e-6, 100.0 * resolution * resolution)
    k, distance = 0, tl.full((), 1.0, tl.float64)
    active = tl.zeros((B,), tl.int32)
    while (k < m) & (distance >= least):
        distance = entry_of(T, k, B)
        T = sweep(T, active, k, B)
        active = tl.where(r == k, 1, active)
        k += 1
    y = tl.where(r < m, -times(T, ones), 0.0)
    cosines = cosines_of(C, m, B)
    y += tl.where(r < m, times(T, times(cosines, y) - ones), 0.0)
    wrong = tl.max(tl.where(r < m, tl.abs(times(cosines, y) - ones), 0.0), axis=0) / (1.0 + tl.max(tl.abs(y), axis=0))
    top = tl.max(length, axis=0)
    safe = tl.where(live, length, tl.where(top > 0.0, top, 1.0))
    if IMPARTIAL:
        w = tl.where(live, y * (tl.min(safe, axis=0) / safe), 0.0)
        total, size = tl.sum(w, axis=0), tl.sum(tl.abs(w), axis=0)
        # If the sum is rounding, the formula has no value, and the weights are zero.
        w = tl.where(tl.abs(total) > noise * size, w / tl.where(total == 0.0, 1.0, total), 0.0)
    else:
        total = tl.sum(y, axis=0)
        w = tl.where(live, y * (tl.sum(length, axis=0) / tl.where(total > 0.0, total, 1.0) / safe), 0.0)
    tl.store(weights + r, w, mask=r < m)
    tl.store(residual, tl.where(distance >= least, wrong, float("inf")))
