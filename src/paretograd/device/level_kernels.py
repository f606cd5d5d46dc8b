"""The kernel for CAGrad: the best worst-case decrease within a ball, imported only if Triton is installed.

For a level t, the point of ``{d : J d >= t}`` nearest to g0 is ``g0 + J.T a``, with ``a >= 0`` from a quadratic program
whose linear term is linear in t. Its solution is piecewise linear in t. The kernel follows it from the level at which
``a = 0``, one piece after the other (Markowitz' critical line), until the distance from g0 is the radius of the ball.
At the end of a piece one entry enters or leaves the support, by a sweep of the tableau in `quadratic_kernels`.
"""

# mypy: ignore-errors

import triton
import triton.language as tl

from paretograd.device.quadratic_kernels import APART, ROUNDING, TRUSTED, cosines_of, entry_of, pick, sweep, times


@triton.jit
def conflict_averse(C, norms, radii, dependent, weights, residual, m, resolution, B: tl.constexpr):
    # Weights of the d with |d - g0| <= c |g0| that maximises min_k <d, g_k>; g0 is the mean. `dependent` is zero if no
    # gradients are close to dependent.
    r = tl.arange(0, B)
    least = resolution * resolution
    length = tl.load(norms + r, mask=r < m, other=0.0)
    live = length > 0.0
    top = tl.max(length, axis=0)
    top = tl.where(top > 0.0, top, 1.0)
    bottom = tl.min(tl.where(live, length, top), axis=0)
    share = tl.where(r < m, 1.0, 0.0).to(tl.float64) / m
    pull = share * (length / top)
    zero = tl.zeros((B,), tl.float64)
    T = cosines_of(C, m, B)
    base = times(T, pull)
    radius = tl.load(radii) * tl.sqrt(tl.maximum(tl.sum(pull * base, axis=0), 0.0))
    tilt = tl.where(live, bottom / tl.where(live, length, 1.0), 0.0)
    # A zero gradient allows no level above zero.
    count = tl.sum(live.to(tl.int32), axis=0)
    limit = tl.where(count < m, 0.0, float("inf"))
    level = tl.min(tl.where(live, base / tl.where(live, tilt, 1.0), float("inf")), axis=0)
    level = tl.minimum(level, limit)
    active = tl.zeros((B,), tl.int32)
    a, slope = zero, base
    steps, pending, unbounded = 0, -1, 0
    searching = tl.where((count > 0) & (radius > 0.0), 1, 0)
    while (searching == 1) & (steps < 8 * B + 50):
        k = -1
        if pending >= 0:
            k = pending
        else:
            # The piece: a = a0 + level a1 on the support, each with one step of refinement.
            cosines = cosines_of(C, m, B)
            inside = active == 1
            a0 = tl.where(inside, times(T, tl.where(inside, base, 0.0)), 0.0)
            a1 = tl.where(inside, -times(T, tl.where(inside, tilt, 0.0)), 0.0)
            a0 += tl.where(inside, times(T, tl.where(inside, times(cosines, a0) + base, 0.0)), 0.0)
            a1 += tl.where(inside, times(T, tl.where(inside, times(cosines, a1) - tilt, 0.0)), 0.0)
            a = a0 + level * a1
            lift, rise = times(cosines, a), times(cosines, a1)
            slope = lift + base - level * tilt
            # Each entry reaches zero at its own level, a slope or a coefficient.
            value = tl.where(inside, a, slope)
            rate = tl.where(inside, a1, rise - tilt)
            noise = ROUNDING * (tilt + tl.max(tl.abs(a1), axis=0))
            falls = live & (rate < -noise)
            ends = tl.where(falls, level + tl.maximum(value, 0.0) / tl.where(falls, -rate, 1.0), float("inf"))
            end = tl.min(ends, axis=0)
            # The distance grows along the piece: |a + s a1|^2 = square + 2 s slant + s^2 curve.
            square, slant, curve = tl.sum(a * lift, axis=0), tl.sum(a * rise, axis=0), tl.sum(a1 * rise, axis=0)
            gap = square - radius * radius
            root = slant + tl.sqrt(tl.maximum(slant * slant - curve * gap, 0.0))
            reach = level + tl.where(root > 0.0, tl.maximum(-gap, 0.0) / tl.where(root > 0.0, root, 1.0), float("inf"))
            stop = tl.minimum(tl.minimum(reach, limit), end)
            if (stop < end) | (stop >= float("inf")):
                searching = 0
                unbounded = tl.where(stop >= float("inf"), 1, 0)
                stop = tl.where(stop < float("inf"), stop, level)
            else:
                # The least index among ties, so that no tie recurs without end.
                k = tl.min(tl.where(ends <= end + ROUNDING * (1.0 + tl.abs(end)), r, B), axis=0)
            a = tl.maximum(a + (stop - level) * a1, 0.0)
            slope = slope + (stop - level) * (rise - tilt)
            level = stop
        if k >= 0:
            if (pick(active, r, k) == 0) & (entry_of(T, k, B) < least):
                # Entry k lies in the span of the active ones. It replaces one of them, if that can be.
                pending = k
                column = tl.sum(tl.where(r[None, :] == k, T, 0.0), axis=1)
                share_of = tl.where(active == 1, column, 0.0)
                falling = share_of > 1e-9 * tl.max(tl.abs(share_of), axis=0)
                room = tl.where(falling, a / tl.where(falling, share_of, 1.0), float("inf"))
                step = tl.min(room, axis=0)
                k = tl.min(tl.where(room == step, r, B), axis=0)
                if step < float("inf"):
                    a = tl.where(active == 1, tl.maximum(a - step * share_of, 0.0), a)
                    a = tl.where(r == k, 0.0, tl.where(r == pending, a + step, a))
                else:
                    # No higher level is possible: the point is stationary.
                    searching = 0
                    unbounded = 1
            else:
                pending = -1
            if searching == 1:
                T = sweep(T, active, k, B)
                active = tl.where(r == k, 1 - active, active)
        steps += 1
    size = tl.max(a, axis=0)
    cosines = cosines_of(C, m, B)
    slope = times(cosines, a) + base - level * tilt
    wrong = tl.where(a > 0.0, tl.abs(slope), tl.maximum(-slope, 0.0)) / (1.0 + size + tl.abs(level) * tilt)
    worst = tl.max(tl.where(live, wrong, 0.0), axis=0)
    distance = tl.sqrt(tl.maximum(tl.sum(a * times(cosines, a), axis=0), 0.0))
    # Inside the ball only if no higher level is possible.
    worst = tl.maximum(worst, (distance - radius) / tl.where(radius > 0.0, radius, 1.0))
    i, j = r[:, None], r[None, :]
    inverse = tl.max(tl.max(tl.where((i == j) & (active == 1)[:, None], -T, 0.0), axis=1), axis=0)
    lost = (searching == 1) | (worst > 1e-10) | ((size > TRUSTED) & (inverse * tl.maximum(least, APART) > 1.0))
    # The host allows no level above zero if the gradients almost cancel. A high level shows that they do not.
    whole = tl.sqrt(tl.maximum(tl.sum((pull + a) * (base + times(cosines, a)), axis=0), 0.0))
    high = level * (bottom / top) > 4.0 * resolution * whole
    doubtful = (unbounded == 0) & (level > 0.0) & (high == 0) & (tl.load(dependent) > 0.0)
    lost = lost | doubtful | ((unbounded == 1) & (tl.abs(level) > 1e-12))
    share += a * tl.where(live, top / tl.where(live, length, 1.0), 0.0)
    tl.store(weights + r, share, mask=r < m)
    tl.store(residual, tl.where(lost, float("inf"), worst))
