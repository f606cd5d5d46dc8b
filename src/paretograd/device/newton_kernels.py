"""Newton's method on logarithms of weights, as one Triton program. Imported only if Triton is installed.

Both kernels follow the host's solvers, `solvers/power.py` and `solvers/entropic.py`, which explain the method. The
matrix of a Newton step is held in registers. The cosines are read again at each step.
"""

# mypy: ignore-errors

import triton
import triton.language as tl

from paretograd.device.quadratic_kernels import pick


@triton.jit
def read_matrix(C, r, m):
    """Return the ``(m, m)`` matrix at C, padded with zeros."""
    i, j = r[:, None], r[None, :]
    return tl.load(C + i * m + j, mask=(i < m) & (j < m), other=0.0)


@triton.jit
def times(c, w):
    """Return ``c w`` for a symmetric c. Sums over rows need no exchange within a warp."""
    return tl.sum(c * w[:, None], axis=0)


@triton.jit
def is_square(c, y, eps):
    """Return 1 if ``y'Cy`` may be a squared length, and 0 if it is negative beyond rounding or not finite."""
    total = tl.sum(y, axis=0)
    return tl.where(tl.sum(y * times(c, y), axis=0) >= -(1e-9 + 64.0 * eps) * total * total, 1, 0)


@triton.jit
def eliminate(A, b, c, r, rows, least, TWO: tl.constexpr):
    """Solve ``A x = b``, and with TWO also ``A y = c``, by symmetric sweeps of the first ``rows`` rows.

    A is symmetric with a diagonal near one. A pivot below ``least`` is rounding and is raised to it, which shortens the
    step along directions that change nothing. The smallest pivot is returned, too.
    """
    smallest = tl.full((), 1.0, tl.float64)
    k = 0
    while k < rows:
        row = tl.sum(tl.where(r[:, None] == k, A, 0.0), axis=0)
        pivot = pick(row, r, k)
        smallest = tl.minimum(smallest, pivot)
        pivot = tl.maximum(pivot, least)
        factor = row / pivot
        # Column k becomes the factor. Row k is not used again.
        A -= factor[:, None] * tl.where(r == k, pivot - 1.0, row)[None, :]
        value = pick(b, r, k)
        b = tl.where(r == k, value / pivot, b - factor * value)
        if TWO:
            value = pick(c, r, k)
            c = tl.where(r == k, value / pivot, c - factor * value)
        k += 1
    return b, c, smallest


@triton.jit
def first_twins(C, r, m):
    """Return for each gradient the first one of the same direction up to rounding, which may be itself."""
    c = read_matrix(C, r, m)
    near = tl.sum(tl.sum(((1.0 - c) < 4e-15).to(tl.int32), axis=1), axis=0)
    first = r
    k = 0
    rows = tl.where(near > m, m, 0)
    while k < rows:
        row = tl.load(C + k * m + r, mask=r < m, other=0.0)
        apart = tl.max(tl.abs(read_matrix(C, r, m) - row[:, None]), axis=0)
        same = (apart <= 4e-15) & (first == r) & (r > k) & (r < m)
        first = tl.where(same, tl.sum(tl.where(r == k, first, 0), axis=0), first)
        k += 1
    return first


@triton.jit
def log_sums(each, first, r, rows):
    """Return ``log sum exp`` over the twins of each gradient that is the first of its direction."""
    sums = each
    k = 0
    while k < rows:
        head = tl.sum(tl.where(r == k, first, 0), axis=0)
        value = pick(each, r, k)
        top = tl.maximum(sums, value)
        joined = top + tl.log(tl.exp(sums - top) + tl.exp(value - top))
        sums = tl.where((r == head) & (head < k), joined, sums)
        k += 1
    return sums


@triton.jit
def log_shares(norms, omega, r, m, beta):
    """Return the logarithms of ``kappa ** (1 / beta)``, where ``C u = kappa u^(-beta)`` for ``u = norms * w``."""
    log_norm = tl.log(tl.maximum(tl.load(norms + r, mask=r < m, other=1.0), 1e-300))
    log_omega = tl.log(tl.load(omega + r, mask=r < m, other=1.0))
    return log_omega + (1.0 - 1.0 / beta) * log_norm, log_norm


@triton.jit
def power(C, norms, omega, exponent, weights, residual, m, eps, MEAN: tl.constexpr, B: tl.constexpr):
    """Solve ``(G w)_k = (omega_k / w_k) ** beta``; with MEAN, scale w to maximise the power mean (eq. pmean).

    The weights of a Pareto stationary point are zero. Each iterate bounds the squared distance from stationarity: it
    is at most ``y'Cy`` for y on the simplex, and at least ``(min x)^2 / w'x`` for positive slopes x. If neither bound
    decides, the residual is infinite.
    """
    r = tl.arange(0, B)
    real = r < m
    beta = tl.load(exponent)
    norm = tl.load(norms + r, mask=real, other=1.0)
    zero_row = tl.min(norm, axis=0) == 0.0
    each, _lengths = log_shares(norms, omega, r, m, beta)
    first = first_twins(C, r, m)
    active = real & (first == r)
    rows = tl.where(tl.min(tl.where(first == r, 1, 0), axis=0) == 1, 0, m)
    growth = tl.maximum(beta, 1.0)

    zero = beta * 0.0
    z = tl.zeros((B,), tl.float64)
    v = tl.zeros((B,), tl.float64)
    before = tl.zeros((B,), tl.float64)
    current = zero + 1.0
    reached = zero
    best_error = zero + float("inf")
    steps = 0
    stationary = zero_row.to(tl.int32)
    resolved = 0
    finished = 0
    # Gramians that are not finite take no step.
    going = (tl.abs(tl.sum(each, axis=0)) < float("inf")).to(tl.int32) * (1 - stationary)
    while going == 1:
        each, _lengths = log_shares(norms, omega, r, m, current)
        log_kappa = current * log_sums(each, first, r, rows)
        shift = tl.max(tl.where(active, log_kappa / (1.0 + current), -float("inf")), axis=0)
        target = tl.where(active, log_kappa - (1.0 + current) * shift, 0.0)
        lowest = -300.0 * tl.maximum(current, 1.0)
        spread = tl.min(target, axis=0) / lowest
        reached = tl.minimum(spread, reached + 0.4)
        last = (current == beta) & (reached >= tl.minimum(spread, 1.0))
        target = tl.where(last | (reached >= spread), target, target * (reached / tl.maximum(spread, 1e-300)))
        target = tl.maximum(target, lowest)
        steep = tl.where(current > 1.0, 1, 0)
        # Move each almost zero unknown to its value in the new equation, if the other of its pair is not small.
        moved_z = tl.where((steps > 0) & (z < -30.0) & (v > -6.0), tl.maximum((target - v) / current, -340.0), z)
        v = tl.where((steps > 0) & (v < -30.0) & (z > -6.0), tl.maximum(v + target - before, -340.0), v)
        z = moved_z
        before = target

        best_z, best_v = z, v
        best_error = zero + float("inf")
        stalled = 0
        unscaled = 0
        done = 0
        while done == 0:
            c = read_matrix(C, r, m)
            w = tl.where(active, tl.exp(z), 0.0)
            x = tl.exp(v)
            slope = times(c, w)
            size = tl.where(active, times(tl.abs(c), w), 1.0)

            total, square = tl.sum(w, axis=0), tl.sum(w * slope, axis=0)
            least = tl.min(tl.where(active, slope - 1e-15 * size, float("inf")), axis=0)
            resolved = tl.where((least > 0.0) & (least * least >= 20.0 * eps * square), 1, resolved)
            lost = is_square(c, w, eps) == 0
            resolved = tl.where(lost, 0, resolved)
            going = tl.where(lost, 0, going)
            vanishes = (square <= 12.0 * eps * total * total) & (resolved == 0) & (going == 1)
            stationary = tl.where(vanishes, 1, stationary)

            lack = tl.exp(tl.minimum(target - current * z, 340.0)) - slope
            errors = tl.where(z <= -340.0, lack, tl.abs(lack)) / size
            error = tl.max(tl.where(active, errors, 0.0), axis=0)
            better = error < best_error
            stalled = tl.where(better, 0, stalled + tl.where((best_error < 1e-3) & (unscaled == 1), 1, 0))
            best_z, best_v = tl.where(better, z, best_z), tl.where(better, v, best_v)
            best_error = tl.where(better, error, best_error)
            goal = tl.where(last | (resolved == 0), 1e-15 * growth, 1e-2)
            enough = (best_error < goal) | (stalled >= tl.where(best_error < 1e-12, 2, 40))
            done = (enough | (stationary == 1) | (steps >= 300) | (going == 0)).to(tl.int32)

            # Relative changes dw = w xi, dx = x eta:  C dw - dx = gap,  beta xi + eta = miss; eliminate eta, and
            # scale the system to a unit diagonal.
            miss = tl.where(active, target - current * z - v, 0.0)
            gap = x - slope
            gap = tl.where((stalled > 0) & (tl.abs(gap) <= 1e-15 * size), 0.0, gap)
            barrier = current * tl.maximum(x, 4e-15 * size)
            scale = tl.where(active, tl.sqrt(w / (w + barrier)), 0.0)
            A = tl.where(r[:, None] == r[None, :], 1.0, c * scale[:, None] * scale[None, :])
            b = scale * (gap + x * miss)
            b, _same, _smallest = eliminate(A, b, b, r, tl.where(done == 1, 0, m), 4e-16 * m, False)
            xi = tl.where(active, b / tl.sqrt(tl.maximum(w * (w + barrier), 1e-300)), 0.0)
            eta = miss - current * xi
            falling = tl.where(current <= 1.0, tl.min(eta, axis=0), tl.min(xi, axis=0))
            longest = tl.maximum(tl.maximum(tl.max(xi, axis=0), tl.max(eta, axis=0)), -falling)
            factor = 2.0 / tl.maximum(longest, 2.0)
            xi, eta = factor * xi, factor * eta
            unscaled = (factor == 1.0).to(tl.int32)
            # Newton's step for the logarithm of an almost zero value is -1: enlarge large decreases.
            fall = tl.minimum(eta, tl.log(tl.maximum(1.0 + eta, 0.005)))
            eta = tl.where((steep == 1) & (eta < -0.7), fall, eta)
            short = tl.where((stalled > 0) & (longest < 0.1), 1, 0)
            xi = tl.where((short == 1) & (xi > -0.1), tl.log(1.0 + tl.maximum(xi, -0.1)), xi)
            eta = tl.where((short == 1) & (eta > -0.1), tl.log(1.0 + tl.maximum(eta, -0.1)), eta)
            z = tl.where(done == 1, z, tl.minimum(tl.maximum(z + xi, -340.0), 340.0))
            v = tl.where(done == 1, v, tl.minimum(tl.maximum(v + eta, -340.0), 340.0))
            steps += 1 - done

        z, v = best_z, best_v
        finished = tl.where(last, 1, 0)
        going = tl.where(last | (stationary == 1) | (steps >= 300), 0, going)
        if going == 1:
            rises = beta > current
            current = tl.where(rises, tl.minimum(beta, current * 4.0), tl.maximum(beta, current * 0.25))
            # From below, Newton's method on the steeper equation takes fewer steps.
            z = tl.where(rises, z - 1.0, z)
            v = tl.where(rises, v - 1.0, v)

    solved = (finished == 1) & (resolved == 1) & (best_error <= 2e-16 * (1000.0 + 100.0 * m) * growth)
    each, log_norm = log_shares(norms, omega, r, m, beta)
    log_kappa = beta * log_sums(each, first, r, rows)
    shift = tl.max(tl.where(active, log_kappa / (1.0 + beta), -float("inf")), axis=0)
    target = log_kappa - (1.0 + beta) * shift
    z = tl.where((z < -30.0) & (v > -30.0), (target - v) / beta, z) + shift
    # Twins split their common weight in a fixed ratio.
    own = r[:, None] == first[None, :]
    logs = tl.sum(tl.where(own, (z - log_kappa / beta)[:, None], 0.0), axis=0) + each - log_norm
    if MEAN:
        # The weights are x^(p - 1) so far, p = 1 - 1 / beta. The factor M_p(x)^(1 - p) / m is missing.
        p = 1.0 - 1.0 / beta
        part = tl.where(real, (1.0 - beta) * logs, -float("inf"))
        top = tl.max(part, axis=0)
        log_mean = (top + tl.log(tl.sum(tl.exp(part - top), axis=0) / m)) / tl.where(p == 0.0, 1.0, p)
        log_mean = tl.where(p == 0.0, -tl.sum(tl.where(real, logs, 0.0), axis=0) / m, log_mean)
        logs += log_mean / beta - tl.log(zero + m)
    finite = tl.max(tl.where(real, logs, 0.0), axis=0) < 700.0
    w = tl.where(stationary == 1, 0.0, tl.exp(tl.minimum(logs, 700.0)))
    tl.store(weights + r, w, mask=real)
    outcome = tl.where(solved & finite, best_error, float("inf"))
    tl.store(residual, tl.where(stationary == 1, 0.0, outcome))


@triton.jit
def entropic(C, norms, temperature, weights, residual, m, eps, B: tl.constexpr):
    """Minimise ``t mean(norms^2) KL(w || uniform) + |J.T w|^2 / 2`` over the simplex."""
    r = tl.arange(0, B)
    real = r < m
    norm = tl.load(norms + r, mask=real, other=0.0)
    largest = tl.max(norm, axis=0)
    norm = norm / tl.where(largest > 0.0, largest, 1.0)
    tau = tl.load(temperature) * tl.sum(norm * norm, axis=0) / m
    tau = tl.minimum(tl.maximum(tau, 1e-280), 1e280)
    log_prior = -tl.log(tau * 0.0 + m)
    z = tl.where(real, log_prior, -690.0)  # padding has no weight
    w = tl.where(real, tl.exp(z), 0.0)
    best, least = w, tau * 0.0 + float("inf")
    stalled = 0
    steps = 0
    done = 0
    while done == 0:
        c = read_matrix(C, r, m)
        value = norm * times(c, w * norm)
        square = tl.sum(w * value, axis=0)
        length = tl.sqrt(tl.maximum(square, 0.0))
        value += tau * (z - log_prior)
        force = tl.where(real, tl.sum(w * value, axis=0) - value, 0.0)
        size = tl.maximum(tl.sum(norm * w, axis=0), 1e-300)
        barrier = tl.maximum(tau, 1e-14 * size * (norm + size))
        # The largest error of the direction due to one row. The entropy or the row's own curvature stops its weight.
        power = tl.minimum(force / barrier, 690.0)
        change = tl.where(tl.abs(power) < 1e-5, power + 0.5 * power * power, tl.exp(power) - 1.0)
        change = tl.minimum(tl.abs(change * w), tl.abs(force) / tl.maximum(norm * norm, 1e-280))
        error = tl.max(tl.minimum(change, 1.0) * (norm + length), axis=0) / size
        finite = tl.abs(square) < float("inf")
        error = tl.where(finite, error, float("inf"))
        stalled = tl.where(error < 0.5 * least, 0, stalled + 1)
        best = tl.where(error < least, w, best)
        least = tl.where(error < least, error, least)
        enough = (least < 4e-16) | (stalled > tl.where(least < 1e-13, 1, 40))
        done = (enough | (steps >= 200) | (finite == 0)).to(tl.int32)

        # Scale the system to a unit diagonal. The multiplier of sum(w) = 1 makes the changes w * xi add up to zero.
        root = tl.sqrt(w)
        scale = tl.where(real, 1.0 / tl.sqrt(norm * norm * w + barrier), 0.0)
        q = norm * root * scale
        A = tl.where(r[:, None] == r[None, :], 1.0, c * q[:, None] * q[None, :])
        right = root * scale
        x, y, _smallest = eliminate(A, right * force, right, r, tl.where(done == 1, 0, m), 4e-16 * m, True)
        x -= (tl.sum(right * x, axis=0) / tl.maximum(tl.sum(right * y, axis=0), 1e-300)) * y
        xi = tl.where(real, x * scale / tl.where(real, root, 1.0), 0.0)
        # Steps in w do not overshoot upwards, steps in log w not downwards. A negligible weight takes the full step.
        change = tl.minimum(tl.log(tl.maximum(1.0 + xi, 2e-3)), xi)
        room = -30.0 - z
        change = tl.where((room > 0.0) & (xi > 0.0), tl.maximum(change, tl.minimum(xi, room)), change)
        z = tl.where(real, z + change, -690.0)
        z = tl.maximum(z - tl.max(z, axis=0), -690.0)
        w = tl.where(real, tl.exp(z), 0.0)
        total = tl.sum(w, axis=0)
        w = w / total
        z -= tl.log(total)
        steps += 1
    solved = (least <= 2e-16 * (1000.0 + 100.0 * m)) & (is_square(read_matrix(C, r, m), best * norm, eps) == 1)
    solved = solved | (largest == 0.0)
    tl.store(weights + r, best, mask=real)
    tl.store(residual, tl.where(solved, tl.where(largest == 0.0, 0.0, least), float("inf")))
