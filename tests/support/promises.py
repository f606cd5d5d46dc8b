"""What a guarantee promises about one direction, as assertions with derived tolerances."""

from __future__ import annotations

import torch
from torch import Tensor

import paretograd as pg

#: The issue of rounding, once: a direction shorter than this, relative to the gradients that it is a sum of, is
#: rounding of the Gramian, which resolves lengths to the square root of float64's 2e-16.
NEGLIGIBLE = 1e-7
#: <d, g_k> / |d||g_k| of a direction that promises not to conflict may be off by rounding only.
CONFLICT = 1e-10
#: Sums of m weights of order one.
SUMMED = 1e-12


def is_negligible(J: Tensor, w: Tensor, d: Tensor) -> bool:
    """Whether d is rounding: compared with the largest gradient, and with the terms of the sum J.T w."""
    norms = J.norm(dim=1)
    return bool(d.norm() <= NEGLIGIBLE * max(norms.max(), (w.abs() * norms).max()))


def check_promises(aggregator: pg.Aggregator, J: Tensor) -> None:
    """Assert all that the rule's guarantee promises for the Jacobian J (float64)."""
    promise, m = aggregator.guarantee, len(J)
    G = pg.gramian(J)
    state = aggregator.state_dict()
    solution = aggregator.solve(G)
    aggregator.load_state_dict(state)
    w, d = solution.weights, aggregator(J)
    assert torch.isfinite(w).all()
    assert torch.isfinite(d).all()
    assert solution.status is not pg.Status.INACCURATE, solution
    # The combination of a float64 Jacobian is the sum that the weights say.
    terms = (w.abs() @ J.abs()).max()
    assert (d - w @ J).abs().max() <= 1e-14 * m * terms
    zero = not w.any()  # the exact zero direction, the answer at stationary points, lies in every set below
    if promise.in_cone:
        assert w.min() >= 0.0
    if promise.in_hull and not zero:
        assert abs(w.sum() - 1.0) <= SUMMED * m
    if promise.beyond_hull and not zero:
        assert w.sum() >= 1.0 - SUMMED * m
    if is_negligible(J, w, d):
        return
    slopes, length, norms = J @ d, d.norm(), J.norm(dim=1)
    if promise.non_conflicting:
        assert (slopes >= -CONFLICT * length * norms).all()
    if promise.alignment is not None:
        aligned = torch.from_numpy(promise.F.phi(m)) @ slopes / length**2
        # Rounding of the slopes relative to |d|^2, at most 1e-16 of the summed terms over |d|.
        slack = 1e-15 * m * (w.abs() @ norms) * norms.max() / length**2
        assert aligned >= promise.alignment * (1.0 - 1e-9) - slack
    if promise.beyond_hull or promise.long:
        gamma = pg.stationarity(G)
        assert length >= gamma * (1.0 - 1e-9) - NEGLIGIBLE * norms.min()
