"""Kernels for points of least norm in the hull of the gradients, imported only if Triton is installed."""

# mypy: ignore-errors

import triton
import triton.language as tl

from paretograd.device.quadratic_kernels import ROUNDING, entry_of, matrix_of, pick, solve, sweep, times

#: Squared distances below this are mostly rounding, as on the host.
SINGULAR = tl.constexpr(1e-11)


@triton.jit
def shortest(C, norms, weights, residual, m, eps, B: tl.constexpr):
    # Weights on the simplex that minimise |J.T w|. The weights y of the unit gradients minimise y'Cy + (h'y - 1)^2.
    r = tl.arange(0, B)
    length = tl.load(norms + r, mask=r < m, other=float("inf"))
    h = tl.min(length, axis=0) / tl.where(length > 0.0, length, 1.0)
    y, _slope, left = solve(C, h, -h, m, 0.0, SINGULAR, B)
    # Negative squares beyond rounding: the matrix is no Gramian.
    total = tl.sum(y, axis=0)
    square = tl.sum(y * times(matrix_of(C, tl.zeros((B,), tl.float64), m, B), y), axis=0)
    left = tl.where(square >= -(1e-9 + 64.0 * eps) * total * total, left, float("inf"))
    w = y * h
    zero = tl.where(length == 0.0, 1.0, 0.0).to(tl.float64)
    zeros = tl.sum(zero, axis=0)
    w = tl.where(zeros > 0.0, zero, w)
    w = w / tl.sum(w, axis=0)
    tl.store(weights + r, w, mask=r < m)
    tl.store(residual, tl.where(zeros > 0.0, 0.0, left))


@triton.jit
def capped(C, norms, caps, weights, residual, m, B: tl.constexpr):
    # Weights that minimise |J.T w| over the simplex with w <= cap: a primal active-set method from the vertex with the
    # largest weights on the shortest gradients. In terms of y = w / h the objective is y'Cy / 2 with h'y = total and
    # y <= top. Entries are free (1), at zero (0) or at the cap (2). At least one is free.
    r = tl.arange(0, B)
    i, j = r[:, None], r[None, :]
    cap = tl.load(caps)
    length = tl.load(norms + r, mask=r < m, other=0.0)
    live = length > 0.0
    count = tl.sum(live.to(tl.int32), axis=0)
    zeros = (m - count).to(tl.float64)
    # Zero gradients cost nothing: they take all that they may.
    total = 1.0 - cap * zeros
    before = (length[None, :] < length[:, None]) | ((length[None, :] == length[:, None]) & (j < i))
    rank = tl.sum((before & live[None, :]).to(tl.int32), axis=1)
    full = tl.minimum((total / cap * (1.0 + 1e-14)).to(tl.int32), count - 1)
    w = tl.where(live & (rank < full), cap, 0.0)
    w = tl.where(live & (rank == full), total - cap * full, w)
    size = tl.max(w * length, axis=0)
    length = tl.maximum(length, 1e-100 * size)
    h = tl.where(live, size / tl.where(live, length, 1.0), 0.0)
    top = tl.where(h > 0.0, cap / tl.where(h > 0.0, h, 1.0), 0.0)
    y = tl.where(h > 0.0, w / tl.where(h > 0.0, h, 1.0), 0.0)
    state = tl.where(live & (rank < full), 2, tl.where(live & (rank == full), 1, 0))
    T = matrix_of(C, h, m, B)
    first = tl.min(tl.where(state == 1, r, B), axis=0)
    T = sweep(T, tl.zeros((B,), tl.int32), first, B)
    refused = tl.zeros((B,), tl.int32)
    steps, searching, moved, entered = 0, tl.where((total > 0.0) & (count > 0), 1, 0), 1, 0
    worst = tl.full((), 0.0, tl.float64)
    while (searching == 1) & (steps < 8 * B + 50):
        cosines = matrix_of(C, tl.zeros((B,), tl.float64), m, B)
        free = state == 1
        # The minimiser on the face: inverse (t h - C y_fixed), with the t for which the weights have their sum.
        along = -times(T, tl.where(free, h, 0.0))
        along = tl.where(free, along, 0.0)
        fixed = tl.where(free, 0.0, y)
        goal = times(T, tl.where(free, times(cosines, fixed), 0.0))
        goal = tl.where(free, goal, 0.0)
        rise = tl.sum(h * along, axis=0)
        wanted = total - tl.sum(h * fixed, axis=0)
        goal = goal + along * ((wanted - tl.sum(h * goal, axis=0)) / rise) + fixed
        # One step of refinement.
        slope = times(cosines, goal)
        squares = tl.sum(tl.where(free, h * h, 0.0), axis=0)
        rate = tl.sum(tl.where(free, h * slope, 0.0), axis=0) / squares
        shift = times(T, tl.where(free, slope - rate * h, 0.0))
        shift = tl.where(free, shift, 0.0)
        shift = shift + along * ((wanted - tl.sum(tl.where(free, h * (goal + shift), 0.0), axis=0)) / rise)
        goal = goal + shift
        below = tl.where(free & (goal < 0.0), y / tl.where(y > goal, y - goal, 1.0), float("inf"))
        above = tl.where(free & (goal > top), (top - y) / tl.where(goal > y, goal - y, 1.0), float("inf"))
        room = tl.minimum(below, above)
        step = tl.min(room, axis=0)
        alone = tl.sum(free.to(tl.int32), axis=0) == 1
        if (step < float("inf")) & (alone == 0):
            k = tl.min(tl.where(room == step, r, B), axis=0)
            y = tl.where(free, tl.minimum(tl.maximum(y + step * (goal - y), 0.0), top), y)
            high = pick(tl.where(above < below, 1, 0), r, k)
            y = tl.where(r == k, tl.where(high == 1, top, 0.0), y)
            T = sweep(T, free.to(tl.int32), k, B)
            state = tl.where(r == k, tl.where(high == 1, 2, 0), state)
            moved = tl.where(step > 0.0, 1, moved)
            refused = tl.where(r == tl.where(moved == 0, entered, -1), 1, refused)
        else:
            y = tl.where(free, tl.minimum(tl.maximum(goal, 0.0), top), y)
            slope = times(cosines, y)
            rate = tl.sum(tl.where(free, h * slope, 0.0), axis=0) / squares
            slope = (slope - rate * h) / (1.0 + h)
            wrong = tl.where(free, tl.abs(slope), tl.where(state == 2, slope, -slope))
            wrong = tl.where(live, wrong, 0.0)
            worst = tl.max(wrong, axis=0) / (1.0 + tl.max(y, axis=0))
            refused = tl.where(moved == 1, 0, refused)
            waiting = tl.where(free | (refused == 1) | (live == 0), 0.0, wrong)
            largest = tl.max(waiting, axis=0)
            if largest > ROUNDING * (1.0 + tl.max(y, axis=0)):
                entered = tl.min(tl.where(waiting == largest, r, B), axis=0)
                moved = 0
                if entry_of(T, entered, B) >= SINGULAR:
                    T = sweep(T, free.to(tl.int32), entered, B)
                    state = tl.where(r == entered, 1, state)
                else:
                    refused = tl.where(r == entered, 1, refused)
            else:
                searching = 0
        steps += 1
    w = tl.where(live, h * y, cap)
    w = tl.where(total > 0.0, w, tl.where(live, 0.0, 1.0 / tl.maximum(zeros, 1.0)))
    tl.store(weights + r, w, mask=r < m)
    lost = (searching == 1) | (worst > 4.0 * ROUNDING)
    tl.store(residual, tl.where(lost, float("inf"), worst))
