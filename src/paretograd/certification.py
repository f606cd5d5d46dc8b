"""``certify``: the certificate of one step, for weights from any rule or library."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from paretograd.aggregators.base import Aggregator
from paretograd.certificates.step import StepCertificate, check_step
from paretograd.errors import ParameterError, ShapeError
from paretograd.geometry.cones import Rounding
from paretograd.geometry.gramian import Array, as_array, check_floating
from paretograd.geometry.unit_gramian import check_gramian, unit_gramian
from paretograd.guarantees import SUM, Guarantee, Surrogate
from paretograd.solvers.min_norm import stationarity_weights


def certify(
    gramian: Tensor,
    weights: Tensor,
    rule: Aggregator | None = None,
    *,
    F: Literal["sum", "mean"] | Tensor | None = None,
    dtype: torch.dtype | None = None,
    names: Sequence[str] | None = None,
) -> StepCertificate:
    """Check what the theory guarantees for the direction ``d = J.T @ weights``.

    Args:
        gramian: ``J @ J.T``, shape ``(m, m)``.
        weights: shape ``(m,)``, from any rule or library.
        rule: the rule that computed the weights. If given, the certificate also says whether the rule's own guarantee
            holds.
        F: surrogate function of condition (A): the sum of the objectives, their mean, or a weight for each. None uses
            the rule's own, or the sum if there is no rule.
        dtype: dtype of the gradients if it is less precise than the Gramian's, such as float32 for the Gramian that
            `gramian` computes in float64 from float32 rows. The certificate then claims nothing that their rounding
            could hide.
        names: the names of the objectives, which the table then shows instead of their numbers.

    Returns:
        a certificate, which prints as a short table.
    """
    check_gramian(gramian)
    if gramian.ndim != 2:
        raise ShapeError(f"certify takes one Gramian, shape (m, m); got {tuple(gramian.shape)}. Loop over the batch")
    m = gramian.shape[0]
    check_floating(weights, "weights")
    if tuple(weights.shape) != (m,):
        raise ShapeError(f"weights must have shape ({m},), one number per objective; got {tuple(weights.shape)}")
    if rule is not None and not isinstance(rule, Aggregator):
        raise ParameterError(f"rule={rule!r}: give the aggregator that computed the weights; pass F by keyword, F=...")
    guarantee = None if rule is None else rule.guarantee
    eps = torch.finfo(gramian.dtype).eps
    G, w = as_array(gramian), as_array(weights)
    unit_gramian(G, max(eps, torch.finfo(weights.dtype).eps))  # raises if G is not a Gramian
    if not np.isfinite(w).all():
        raise ParameterError("weights holds NaN or infinity; there is no direction to certify")
    rounded = [torch.finfo(kind).eps for kind in (weights.dtype, dtype) if kind not in (None, torch.float64)]
    rounding = Rounding(eps, max(rounded, default=0.0))
    return certificate_of(G, w, guarantee, rounding, _surrogate(F, m), _checked_names(names, m))


def certificate_of(
    G: Array,
    w: Array,
    guarantee: Guarantee | None,
    rounding: Rounding,
    F: Surrogate | None = None,
    names: tuple[str, ...] | None = None,
) -> StepCertificate:
    """Certify validated arrays, as `certify` does. F defaults to the guarantee's, or to the sum if there is none."""
    if F is None:
        F = SUM if guarantee is None else guarantee.F
    with np.errstate(over="ignore", invalid="ignore"):  # large weights may overflow float64; those slopes are unknown
        return check_step(G, w, stationarity_weights(G, rounding.entries), F, guarantee, rounding, names)


def _checked_names(names: Sequence[str] | None, m: int) -> tuple[str, ...] | None:
    if names is None:
        return None
    found = () if isinstance(names, str) else tuple(names)
    if len(found) != m or not all(isinstance(name, str) for name in found):
        raise ParameterError(f"names={names!r}: give a list of {m} strings, one for each objective")
    return found


def _surrogate(F: Literal["sum", "mean"] | Tensor | None, m: int) -> Surrogate | None:
    if F is None:
        return None
    if isinstance(F, Tensor):
        if tuple(F.shape) != (m,):
            raise ShapeError(f"F as a tensor must have shape ({m},), one number per objective; got {tuple(F.shape)}")
        return Surrogate(tuple(as_array(F).tolist()))
    if F not in ("sum", "mean"):
        raise ParameterError(f"F={F!r}: use 'sum', 'mean' or a tensor with one weight per objective")
    return Surrogate(F)
