"""``certify`` and ``certify_update``: certificates of one step, for weights and updates from any rule or library."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from paretograd.aggregators.base import Aggregator
from paretograd.certificates.batches import FEWEST, expected_losses
from paretograd.certificates.step import StepCertificate, check_step
from paretograd.certificates.update import UpdateCertificate
from paretograd.checks import as_number
from paretograd.errors import ParameterError, ShapeError
from paretograd.geometry.cones import Rounding
from paretograd.geometry.gramian import Array, as_array, check_floating
from paretograd.geometry.unit_gramian import check_finite, check_gramian, unit_gramian
from paretograd.guarantees import SUM, Guarantee, Surrogate
from paretograd.scalarizations.base import Weighting
from paretograd.solvers.min_norm import stationarity_weights


def certify(
    gramian: Tensor,
    weights: Tensor,
    rule: Aggregator | Weighting | None = None,
    *,
    F: Literal["sum", "mean"] | Tensor | None = None,
    dtype: torch.dtype | None = None,
    names: Sequence[str] | None = None,
    level: float = 0.95,
) -> StepCertificate:
    """Check what the theory guarantees for the direction ``d = J.T @ weights``.

    A certificate is about the gradients that were used, those of a batch. From the gradients of at least four
    micro-batches, it also estimates the slopes of the *expected* losses along d, and their gamma, with intervals.

    Args:
        gramian: ``J @ J.T``, shape ``(m, m)``; for K micro-batches of equal size, the inner products of all their
            gradients, shape ``(K, m, K, m)``. J is then the mean over the micro-batches.
        weights: shape ``(m,)``, from any rule or library.
        rule: the rule that computed the weights. If given, the certificate also says whether the rule's own guarantee
            holds.
        F: surrogate function of condition (A): the sum of the objectives, their mean, or a weight for each. None uses
            the rule's own, or the sum if there is no rule.
        dtype: dtype of the gradients if it is less precise than the Gramian's, such as float32 for the Gramian that
            `gramian` computes in float64 from float32 rows. The certificate then claims nothing that their rounding
            could hide.
        names: the names of the objectives, which the table then shows instead of their numbers.
        level: probability with which each interval covers its number; for micro-batches only.

    Returns:
        a certificate, which prints as a short table. For micro-batches, it has ``expected``.
    """
    check_floating(gramian, "a Gramian")
    of_parts = gramian.ndim == 4 and gramian.shape[:2] == gramian.shape[2:]
    parts = gramian.flatten(0, 1).flatten(1) if of_parts else gramian
    check_gramian(parts)
    if parts.ndim != 2:
        raise ShapeError(
            f"certify takes one Gramian, shape (m, m), or that of K micro-batches, shape (K, m, K, m); got "
            f"{tuple(gramian.shape)}. Loop over the batch"
        )
    m = gramian.shape[1]
    if of_parts and len(gramian) < FEWEST:
        raise ShapeError(
            f"intervals need at least {FEWEST} micro-batches; got K = {len(gramian)}. Split the batch into more parts"
        )
    if not 0.0 < as_number(level, "level") < 1.0:
        raise ParameterError(f"level={level!r} must be a probability above 0 and below 1, such as 0.95")
    check_floating(weights, "weights")
    if tuple(weights.shape) != (m,):
        raise ShapeError(f"weights must have shape ({m},), one number per objective; got {tuple(weights.shape)}")
    if rule is not None and not isinstance(rule, Aggregator | Weighting):
        raise ParameterError(f"rule={rule!r}: give the aggregator that computed the weights; pass F by keyword, F=...")
    guarantee = None if rule is None else rule.guarantee
    eps = torch.finfo(gramian.dtype).eps
    H, w = as_array(parts), as_array(weights)
    with np.errstate(invalid="ignore"):
        G = H.reshape(gramian.shape).mean(axis=(0, 2)) if of_parts else H
    check_finite(G)  # names the objectives
    unit_gramian(H, max(eps, torch.finfo(weights.dtype).eps))  # raises if H is not a Gramian
    if not np.isfinite(w).all():
        raise ParameterError("weights holds NaN or infinity; there is no direction to certify")
    rounded = [torch.finfo(kind).eps for kind in (weights.dtype, dtype) if kind not in (None, torch.float64)]
    rounding = Rounding(eps, max(rounded, default=0.0))
    found = certificate_of(G, w, guarantee, rounding, _surrogate(F, m), _checked_names(names, m))
    if not of_parts:
        return found
    with np.errstate(over="ignore", invalid="ignore"):  # as below
        expected = expected_losses(H.reshape(gramian.shape), w, stationarity_weights(G, eps), level, rounding)
    return replace(found, expected=expected)


def certificate_of(
    G: Array,
    w: Array,
    guarantee: Guarantee | None,
    rounding: Rounding,
    F: Surrogate | None = None,
    names: tuple[str, ...] | None = None,
) -> StepCertificate:
    """Certify validated arrays, as `certify` does. F defaults to the guarantee's, or to the sum if there is none."""
    if guarantee is not None:
        guarantee = guarantee.at_step(w)
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


def certify_update(
    jacobian: Tensor | Sequence[Tensor] | Mapping[str, Tensor],
    update: Tensor | Sequence[Tensor] | Mapping[str, Tensor],
    direction: Tensor | Sequence[Tensor] | Mapping[str, Tensor] | None = None,
    *,
    names: Sequence[str] | None = None,
) -> UpdateCertificate:
    """Check a change of the parameters against the gradients of all losses, at the parameters before it.

    In a training loop, `Step.of_update` does this without copies.

    Args:
        jacobian: the gradients, shape ``(m, n)``, or as `paretograd.jacobian` returns them: for each parameter a tensor
            of shape ``(m, *param)``, in a list or a dictionary.
        update: the parameters before, minus those after, in the same form without m.
        direction: the direction that was passed to the optimizer, in that form; None if it is not known.
        names: the names of the objectives.
    """
    gradients = _parts(jacobian)
    changes = _parts(update)
    wanted = changes if direction is None else _parts(direction)
    m = len(next(iter(gradients.values()))) if gradients else 0
    products = np.zeros((m + 2, m + 2))
    if not gradients.keys() == changes.keys() == wanted.keys():
        raise ShapeError("jacobian, update and direction must have the same parameters, in the same form")
    for key, rows in gradients.items():
        check_floating(rows, "a Jacobian")
        if rows.shape[1:] != changes[key].shape or changes[key].shape != wanted[key].shape or len(rows) != m:
            raise ShapeError(
                f"a Jacobian of shape {tuple(rows.shape)} needs an update and a direction of shape "
                f"{tuple(rows.shape[1:])}; got {tuple(changes[key].shape)} and {tuple(wanted[key].shape)}"
            )
        block = torch.cat([part.detach().double().reshape(-1, changes[key].numel()).cpu()
                           for part in (rows, changes[key], wanted[key])])  # fmt: skip
        products += as_array(block @ block.T)
    if direction is None:
        products[-1] = products[:, -1] = np.nan
    if not np.isfinite(products[:-1, :-1]).all():
        raise ParameterError("the Jacobian or the update holds NaN or infinity")
    return UpdateCertificate.of_products(products, None if names is None else tuple(map(str, names)))


def _parts(values: Tensor | Sequence[Tensor] | Mapping[str, Tensor]) -> dict[object, Tensor]:
    if isinstance(values, Tensor):
        return {0: values}
    return dict(values.items() if isinstance(values, Mapping) else enumerate(values))
