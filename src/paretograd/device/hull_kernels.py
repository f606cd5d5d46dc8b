"""Kernels for points of least norm in the hull of the gradients, imported only if Triton is installed."""

# mypy: ignore-errors

import triton
import triton.language as tl

from paretograd.device.quadratic_kernels import ROUNDING, cosines_of, entry_of, matrix_of, pick, solve, sweep, times

#: Squared distances below this are mostly rounding, as on the host.
SINGULAR = tl.constexpr(1e-11)


@triton.jit
def hull_point(C, g, length, m, slack, B: tl.constexpr):
    # Weights on the simplex that minimise |J.T w|, and the residual. The weights y of the unit gradients minimise
    # y'Cy + (h'y - 1)^2. A negative y'Cy beyond the slack shows that C are no cosines.
    h = tl.min(length, axis=0) / tl.where(length > 0.0, length, 1.0)
    y, slope, residual = solve(C, g, h, -h, m, SINGULAR, 0.0, B)
    total, along = tl.sum(y, axis=0), tl.sum(h * y, axis=0)
    square = tl.sum(y * slope, axis=0) + along * (1.0 - along)
    residual = tl.where(square >= -slack * total * total, residual, float("inf"))
    zero = tl.where(length == 0.0, 1.0, 0.0).to(tl.float64)
    zeros = tl.sum(zero, axis=0)
    w = tl.where(zeros > 0.0, zero, y * h)
    return w / tl.sum(w, axis=0), tl.where(zeros > 0.0, 0.0, residual)


@triton.jit
def shortest(C, norms, weights, residual, m, slack, B: tl.constexpr):
    # Weights on the simplex that minimise |J.T w|.
    r = tl.arange(0, B)
    length = tl.load(norms + r, mask=r < m, other=float("inf"))
    w, left = hull_point(C, tl.full((B,), 1.0, tl.float64), length, m, slack, B)
    tl.store(weights + r, w, mask=r < m)
    tl.store(residual, left)


@triton.jit
def capped(C, norms, caps, weights, residual, m, slack, B: tl.constexpr):
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
    T = matrix_of(C, tl.full((B,), 1.0, tl.float64), h, m, B)
    first = tl.min(tl.where(state == 1, r, B), axis=0)
    T = sweep(T, tl.zeros((B,), tl.int32), first, B)
    refused = tl.zeros((B,), tl.int32)
    steps, searching, moved, entered = 0, tl.where((total > 0.0) & (count > 0), 1, 0), 1, 0
    worst = tl.full((), 0.0, tl.float64)
    while (searching == 1) & (steps < 8 * B + 50):
        cosines = cosines_of(C, m, B)
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
    sum_of_y = tl.sum(y, axis=0)
    square = tl.sum(y * times(cosines_of(C, m, B), y), axis=0)
    good = (searching == 0) & (worst <= 4.0 * ROUNDING) & (square >= -slack * sum_of_y * sum_of_y)
    tl.store(residual, tl.where(good, worst, float("inf")))


@triton.jit
def excess_of(w, m, B: tl.constexpr):
    # The chi-square divergence m |w|^2 - 1 from the uniform weights.
    u = tl.where(tl.arange(0, B) < m, w - tl.full((), 1.0, tl.float64) / m, 0.0)
    return tl.sum(u * u, axis=0) * m


@triton.jit
def least_size(length, radius, m, B: tl.constexpr):
    # The least weighted sum of lengths that weights in the ball can have, up to a factor: `chi_square._all_rows`.
    r = tl.arange(0, B)
    i, j = r[:, None], r[None, :]
    before = (length[None, :] < length[:, None]) | ((length[None, :] == length[:, None]) & (j < i))
    rank = tl.sum((before & (j < m)).to(tl.int32), axis=1)
    square = (1.0 + radius) / m
    k = tl.minimum(tl.ceil((1.0 - 1e-14) / square).to(tl.int32), m)
    last = tl.sum(tl.where((rank == k - 1) & (r < m), length, 0.0), axis=0)
    other = tl.sum(tl.where((rank == k - 2) & (r < m), length, 0.0), axis=0)
    rest = tl.maximum(k - 1, 1)
    equal = (1.0 + tl.sqrt(tl.maximum(k * square - 1.0, 0.0) / rest)) / k
    size = k * tl.maximum(equal * other, tl.maximum(1.0 - (k - 1) * equal, 1e-16) * last)
    return tl.where(k > 1, size, last)


@triton.jit
def in_ball(C, norms, radii, weights, residual, m, slack, B: tl.constexpr):
    # Weights that minimise |J.T w| over the simplex with m |w|^2 - 1 <= radius. Outside of the ball they are the
    # shortest for G + mu I, with the mu that puts them on its boundary. 1 / |w - 1/m| is nearly linear in mu, so that
    # secants find it.
    r = tl.arange(0, B)
    radius = tl.load(radii)
    length = tl.load(norms + r, mask=r < m, other=float("inf"))
    w, left = hull_point(C, tl.full((B,), 1.0, tl.float64), length, m, slack, B)
    rounding = 8e-16 * tl.sqrt(radius * (1.0 + radius))
    goal = radius + 16.0 * rounding
    excess = excess_of(w, m, B)
    searching = tl.where(excess > goal, 1, 0)
    top = tl.max(tl.where(r < m, length, 0.0), axis=0)
    size = tl.maximum(least_size(length, radius, m, B), 1e-150 * top)
    length = tl.minimum(length / tl.where(size > 0.0, size, 1.0), 1e150)
    # |w(mu) - 1/m| is at most |pull| / mu, with pull the slope of |J.T w|^2 / 2 along the simplex.
    pull = tl.where(r < m, tl.minimum(length, 100.0), 0.0)
    pull = pull * times(cosines_of(C, m, B), pull) / m
    pull = tl.where(r < m, pull - tl.sum(pull, axis=0) / m, 0.0)
    reach = tl.sqrt(radius / m)
    strength = tl.sqrt(tl.sum(pull * pull, axis=0))
    # The mean, if nothing pulls the weights away from it or if they may not move.
    mean = (searching == 1) & ((reach <= 1e-15) | (strength <= 1e-10 * reach))
    w = tl.where(mean, tl.full((B,), 1.0, tl.float64) / m, w)
    searching = tl.where(mean, 0, searching)
    outside = searching
    off = tl.where(outside == 1, excess, 0.0)
    wanted = 1.0 / tl.sqrt(tl.where(outside == 1, goal, 1.0))
    low, low_value = tl.full((), 0.0, tl.float64), 1.0 / tl.sqrt(tl.where(outside == 1, excess, 1.0)) - wanted
    high, high_value = tl.full((), 0.0, tl.float64), tl.full((), 0.0, tl.float64)
    mu = tl.where(outside == 1, strength / tl.where(reach > 0.0, reach, 1.0), 1.0)
    # The largest change of a term of the direction with the excess, relative to all terms. It magnifies the error of
    # the excess, by a lot if the ball touches a face of the simplex.
    steep, before, excess_before = tl.full((), 0.0, tl.float64), w, excess
    length_or_zero = tl.where(r < m, length, 0.0)
    steps, side = 0, 0
    while (searching == 1) & (steps < 80):
        lengths = tl.where(r < m, tl.sqrt(length * length + mu), float("inf"))
        g = tl.where(r < m, length / lengths, 0.0)
        point, wrong = hull_point(C, g, lengths, m, slack, B)
        excess = excess_of(point, m, B)
        value = 1.0 / tl.sqrt(tl.maximum(excess, 1e-300)) - wanted
        error = tl.abs(excess - goal)
        change = tl.max(tl.abs(point - before) * length_or_zero, axis=0) / tl.sum(point * length_or_zero, axis=0)
        steep = tl.maximum(steep, change / tl.maximum(tl.abs(excess - excess_before), 64.0 * rounding))
        before, excess_before = point, excess
        if error < off:
            w, left, off = point, wrong, error
        if excess > goal:
            # Illinois: an end that stays for a second time counts half.
            high_value = tl.where(side == 1, 0.5 * high_value, high_value)
            low, low_value, side = mu, value, 1
        else:
            low_value = tl.where(side == 2, 0.5 * low_value, low_value)
            high, high_value, side = mu, value, 2
        between = low + (high - low) * (-low_value / tl.where(high_value > low_value, high_value - low_value, 1.0))
        middle = tl.sqrt(low) * tl.sqrt(high)
        guess = tl.where((low > 0.0) & (high > 100.0 * low), middle, between)
        guess = tl.where((low == 0.0) & (guess < 1e-3 * high), 1e-3 * high, guess)
        guess = tl.where(high == 0.0, 1e4 * low, guess)
        settled = (error <= rounding) | ((high > 0.0) & (high * (1.0 - 4e-16) <= low)) | (guess == mu)
        # Below this, the shortest point itself may be in the ball.
        searching = tl.where(settled | (mu < 1e-10), 0, 1)
        mu = guess
        steps += 1
    lost = (outside == 1) & ((mu < 1e-10) | ((off <= 1e-12 * (1.0 + radius)) == 0))
    tl.store(weights + r, w, mask=r < m)
    tl.store(residual, tl.where(lost, float("inf"), tl.maximum(left, steep * (off + rounding))))
