"""Newton's method for spectral MGDA, as one Triton program. Imported only if Triton is installed.

The kernel follows the first two methods of the host's solver, `solvers/spectral.py`: Newton's method, and ADMM for new
starts if that does not settle. A face is an ordered partition of the
gradients into blocks: for each gradient, the place in the spectrum where its block begins, and the size of the block. A
block is flexible if its part of the spectrum has different numbers.
"""

# mypy: ignore-errors

import triton
import triton.language as tl

from paretograd.device.newton_kernels import eliminate, is_square, read_matrix, times

#: Rounding allowed in a sum of weights, relative to its terms, as on the host.
SLACK = tl.constexpr(4e-15)

#: Well above any weight, as on the host.
FAR = tl.constexpr(100.0)

#: ADMM's penalty and over-relaxation, as on the host.
RHO = tl.constexpr(0.3)
RELAX = tl.constexpr(1.9)


@triton.jit
def sum_where(mask, values):
    """Return for each column the sum of the values of the rows in the mask."""
    return tl.sum(tl.where(mask, values[:, None], 0.0), axis=0)


@triton.jit
def precedes(values, r):
    """Return True at (i, j) if value i comes before value j in decreasing order."""
    i, j = values[:, None], values[None, :]
    return (i > j) | ((i == j) & (r[:, None] > r[None, :]))


@triton.jit
def places(before, m):
    """Return the places in decreasing order, below m even for values that are not finite."""
    return tl.minimum(tl.sum(before.to(tl.int32), axis=0), m - 1)


@triton.jit
def part_of(mu, begin, count, r, m):
    """Return the sum of each block's part of the spectrum, and its first and last number."""
    levels = tl.load(mu + r, mask=r < m, other=0.0)
    inside = (r[:, None] >= begin[None, :]) & (r[:, None] < (begin + count)[None, :])
    first = tl.load(mu + begin, mask=r < m, other=0.0)
    last = tl.load(mu + begin + count - 1, mask=r < m, other=0.0)
    return sum_where(inside, levels), first, last


@triton.jit
def block_sizes(begin):
    return tl.sum((begin[:, None] == begin[None, :]).to(tl.int32), axis=0)


@triton.jit
def exact_sums(values, begin, mu, r, m):
    """Return the weights with the sums of their blocks corrected for rounding."""
    total, first, last = part_of(mu, begin, block_sizes(begin), r, m)
    kept = tl.maximum(values, 0.0)
    size = sum_where(begin[:, None] == begin[None, :], kept)
    return tl.where(first == last, first, kept * (total / tl.maximum(size, 1e-300)))


@triton.jit
def project(point, square, mu, r, m, B: tl.constexpr):
    """Return the weights with the least ``sum (w - point)^2 / square``, and where the blocks of their face begin.

    This is `permutahedron.project`, with all blocks split at the same time.
    """
    real = r < m
    begin = tl.where(real, 0, B)
    values = point
    splitting = 1
    while splitting == 1:
        same = begin[:, None] == begin[None, :]
        total, first, last = part_of(mu, begin, block_sizes(begin), r, m)
        level = (sum_where(same, point) - total) / tl.maximum(sum_where(same, square), 1e-300)
        values = point - square * level
        before = precedes(values, r)
        rank = tl.sum((same & before).to(tl.int32), axis=0)
        share = tl.load(mu + begin + rank, mask=real, other=0.0)
        tail = same & (before == 0)
        bound = sum_where(tail, share)
        gap = sum_where(tail, values) - bound
        violated = real & (first != last) & (rank > 0) & (gap < -SLACK * (bound + sum_where(tail, tl.abs(values))))
        gap = tl.where(violated, gap, 1e300)
        least = tl.min(tl.where(same, gap[:, None], 1e300), axis=0)
        worst = tl.where(violated & (gap <= least * (1.0 - SLACK)), rank, 0)
        split = tl.max(tl.where(same, worst[:, None], 0), axis=0)
        begin = tl.where((split > 0) & (rank >= split), begin + split, begin)
        splitting = tl.where(tl.max(split, axis=0) > 0, 1, 0)
    # Neighbouring blocks that cannot move and have equal weights are one.
    _total, first, last = part_of(mu, begin, block_sizes(begin), r, m)
    rigid = real & (first == last)
    equal = rigid[:, None] & (first[:, None] == first[None, :])
    begin = tl.where(rigid, tl.min(tl.where(equal, begin[:, None], B), axis=0), begin)
    return exact_sums(values, begin, mu, r, m), begin


@triton.jit
def contains(w, mu, r, m):
    """Return 1 if w, of the right sum, is in the permutahedron up to rounding, and 0 otherwise."""
    before = precedes(tl.where(r < m, w, -1e300), r)
    share = tl.load(mu + places(before, m), mask=r < m, other=0.0)
    tail = (before == 0) & (r < m)[:, None]
    inside = sum_where(tail, w) >= sum_where(tail, share) * (1.0 - SLACK)
    return tl.min(tl.where((r < m) & (inside == 0), 0, 1), axis=0)


@triton.jit
def violation(c, y, a, begin, mu, r, m):
    """Return the violation of the optimality conditions, relative to ``1 + |y|``.

    Slopes are equal within a flexible block, and those of a block do not exceed those of the next.
    """
    count = block_sizes(begin)
    _total, first, last = part_of(mu, begin, count, r, m)
    norm = 1e-100 / a
    rate = times(c, y) * norm
    within = (begin[:, None] == begin[None, :]) & (first != last)[None, :]
    ordered = (within | ((begin + count)[:, None] == begin[None, :])) & (r < m)[:, None] & (r < m)[None, :]
    excess = (rate[:, None] - rate[None, :]) / (norm[:, None] + norm[None, :])
    worst = tl.max(tl.max(tl.where(ordered, excess, 0.0), axis=0), axis=0)
    return worst / (1.0 + tl.max(tl.abs(y), axis=0))


@triton.jit
def spectral(C, norms, mu, plain, plain_residual, weights, residual, m, eps, B: tl.constexpr):
    """Minimise ``|J.T w|`` over the permutahedron of mu. ``plain`` are the weights of MGDA, the answer if they fit.

    C has zero rows for zero gradients.
    """
    r = tl.arange(0, B)
    real = r < m
    norm = tl.load(norms + r, mask=real, other=0.0)
    live = norm > 0.0
    shortest = tl.min(tl.where(live, norm, float("inf")), axis=0)
    # Errors of a slope count in proportion to the norm, so that of a zero gradient is set well below the others.
    norm = tl.where(live, norm, 1e-3 * tl.where(shortest < float("inf"), shortest, 1.0))
    order = precedes(tl.where(real, -norm, -float("inf")), r)
    share = tl.load(mu + places(order, m), mask=real, other=0.0)
    size = tl.maximum(tl.max(norm * share, axis=0), tl.max(norm, axis=0) * 1e-300)
    a = tl.where(real, 1.0 / tl.maximum(norm / size, 1e-100), 1.0)

    w = tl.load(plain + r, mask=real, other=0.0)
    left = tl.load(plain_residual)
    solved = tl.where((left <= 1e-9) & (contains(w, mu, r, m) == 1), 1, 0)
    y, begin = share / a, tl.where(real, 0, B)
    u, dual = y, tl.zeros((B,), tl.float64)
    shift = 0.0 * size
    last_step = 5 + tl.minimum(m // 16, 8)
    phase = -1  # of a round: -1 is the start, up to `last_step` follow Newton steps, then eight steps of ADMM
    rounds = 0
    while (solved == 0) & (rounds < 5):
        newton = tl.where(phase < last_step, 1, 0)
        started = tl.where(phase >= 0, 1, 0)
        # Minimise on the affine hull of the face. In each flexible block, the shortest gradient keeps the sum constant.
        same = begin[:, None] == begin[None, :]
        _total, first, last = part_of(mu, begin, block_sizes(begin), r, m)
        top = tl.max(tl.where(same, a[:, None], 0.0), axis=0)
        chosen = same & (a[:, None] == top[None, :])
        pivot = tl.min(tl.where(chosen, r[:, None], B - 1), axis=0)
        moves = real & (first != last) & (r != pivot)
        ratio = tl.where(moves, a / top, 0.0)
        c = read_matrix(C, r, m)
        slope = times(c, y)
        force = tl.where(moves, ratio * sum_where(r[:, None] == pivot[None, :], slope) - slope, 0.0)
        both = moves[:, None] & moves[None, :]
        i, j = r[:, None], r[None, :]
        p, q = pivot[:, None], pivot[None, :]
        M = c - ratio[:, None] * tl.load(C + p * m + j, mask=both, other=0.0)
        M -= ratio[None, :] * tl.load(C + i * m + q, mask=both, other=0.0)
        cross = tl.load(C + p * m + q, mask=both, other=0.0)
        M += ratio[:, None] * ratio[None, :] * (cross + tl.where(p == q, shift, 0.0))
        M = tl.where(both, M + tl.where(i == j, shift, 0.0), tl.where(i == j, 1.0, 0.0))
        M = tl.where(newton == 1, M, c / RHO + tl.where(i == j, 1.0, 0.0))
        b = tl.where(newton == 1, force, u - dual)
        x, _same, smallest = eliminate(M, b, b, r, m * started, 1e-12, False)
        # Singular: a small shift leads to one of the minima, and the next step removes the bias.
        singular = tl.where((newton * started == 1) & (smallest < 1e-11) & (shift == 0.0), 1, 0)
        change = tl.where(tl.abs(x) <= 1e-15 * y, 0.0, x)
        change -= sum_where((p == j) & moves[:, None], ratio * change)
        moved = newton * started * (1 - singular)
        y = tl.where(moved == 1, y + change, y)
        error = violation(c, y, a, begin, mu, r, m)
        fits = (moved == 1) & (contains(a * y, mu, r, m) == 1) & (error <= 1e-15 * (8.0 + m))
        if fits:
            solved = 2
            left = error
            w = exact_sums(a * y, begin, mu, r, m)
        # The projection of y - C y, in a metric that keeps short gradients from moving far, or of ADMM's point.
        force = a * times(c, y)
        metric = tl.where(newton == 1, FAR / tl.maximum(tl.abs(force), FAR), 1.0)
        point = RELAX * x + (1.0 - RELAX) * u + dual
        goal = tl.minimum(tl.maximum(a * point, -FAR), FAR)
        goal = tl.where(newton == 1, a * y - metric * force, goal)
        near, face = project(goal, metric * a * a, mu, r, m, B)
        y = tl.where(singular == 1, y, near / a)
        begin = tl.where(singular == 1, begin, face)
        u = tl.where(newton == 1, u, y)
        dual = tl.where(newton == 1, dual, point - y)
        shift = tl.where(singular == 1, 1e-9, shift)
        phase += 1
        if phase == last_step + 8:
            phase = 0
            rounds += 1
            shift = 0.0 * shift
    solved *= is_square(read_matrix(C, r, m), w / a, eps)
    tl.store(weights + r, w, mask=real)
    tl.store(residual, tl.where(solved > 0, left, float("inf")))
