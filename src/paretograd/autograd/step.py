"""`Step`: the result of `backward`."""

from __future__ import annotations

import math
from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from torch import Tensor

from paretograd.aggregators.base import Aggregator
from paretograd.autograd.kept import Kept, Update, watched
from paretograd.certificates.step import StepCertificate
from paretograd.certificates.update import UpdateCertificate
from paretograd.certification import certificate_of
from paretograd.device.weights import TRUSTED
from paretograd.errors import ParameterError
from paretograd.geometry.cones import Rounding
from paretograd.geometry.gramian import as_array
from paretograd.solvers.min_norm import gamma_of


@dataclass(frozen=True)
class How:
    """How the gradients of a step were computed.

    Attributes:
        way: ``jacobian``, ``batched``, ``gramian`` or ``samples``; ``plain`` for a rule that sees the losses.
        share: the share of the aggregated parameters, by size, for which this way was taken; rows serve the others.
        reason: why.
    """

    way: str
    share: float
    reason: str

    def __str__(self) -> str:
        if self.way == "plain":
            return f"{SHOWN[self.way]}: {self.reason}"
        return f"{SHOWN[self.way]} for {self.share:.0%} of the shared parameters: {self.reason}"


#: Descriptions of all ways.
SHOWN = {
    "jacobian": "one plain pass for each loss",
    "batched": "one batched pass for all losses",
    "gramian": "Gramian by layers",
    "samples": "one pass for all samples",
    "plain": "one plain pass",
}


class Step:
    """One step: its weights and Gramian, with gamma, certificate and metrics on demand.

    If a gradient held NaN or infinity and was passed on (``nonfinite="propagate"``), weights, Gramian, gamma and
    metrics are NaN, there is no certificate, and `finite` is False.

    Attributes:
        weights: shape ``(m,)``, float64; the direction of the shared parameters is ``sum_k weights_k g_k``. For
            groups that were aggregated separately, shape ``(groups, m)``.
        gramian: inner products of the gradients over the shared parameters, shape ``(m, m)``, float64; for groups, the
            sum of theirs. None for a rule that sees the losses; gamma and certificate are then
            errors.
        groups: one step for each group; empty if all parameters were aggregated together.
        names: the names of the objectives, if the losses were given as a dictionary; else None.
        how: the way in which the gradients were computed, for which share of the parameters, and why; None if they are
            not finite.
        losses: values of the losses, shape ``(m,)``, for a step of `capture` or of a rule that sees the losses; else
            None.
        value: F of the losses, for a rule that sees them; else None.
        update: the last change of the parameters that `of_update` looked at; else None.
        direction: slopes and conflicts of the direction, for a rule whose direction is no combination of the gradients,
            such as `GradDrop`. Its weights are NaN, and it has no certificate. None for all other rules. `MConFIG`
            differentiates one loss: the slopes of the others, their part of the Gramian, and gamma are NaN.

    In a metric (``backward(metric=...)``), Gramian, gamma and certificate are those of that metric.
    """

    def __init__(
        self,
        weights: Tensor,
        gramian: Tensor,
        aggregator: Aggregator,
        groups: Sequence[Step] = (),
        eps: float = 2e-16,
        names: tuple[str, ...] | None = None,
        how: How | None = None,
    ) -> None:
        self.weights, self.gramian, self.groups = weights, gramian, tuple(groups)
        self.names, self.how = names, how
        self.losses: Tensor | None = None
        self.value: Tensor | None = None
        self.kept: Kept | None = None
        self.update: Update | None = None
        self.direction: UpdateCertificate | None = None
        self._residual: Tensor | None = None
        self._aggregator, self._eps = aggregator, eps

    @classmethod
    def of_groups(cls, groups: Sequence[Step]) -> Step:
        """Combine the steps of groups that were aggregated separately; return the step of a single group as it is."""
        if len(groups) == 1:
            return groups[0]
        weights = torch.stack([step.weights for step in groups])
        total = torch.stack([step.gramian for step in groups]).sum(dim=0)
        first = groups[0]
        eps = max(step._eps for step in groups)
        return cls(weights, total, first._aggregator, groups, eps, first.names, first.how)

    @classmethod
    def unknown(cls, m: int, device: torch.device, aggregator: Aggregator, names: tuple[str, ...] | None) -> Step:
        """Return a step without weights, for gradients that are not finite."""
        nothing = torch.full((m, m), torch.nan, dtype=torch.float64, device=device)
        return cls(nothing[0], nothing, aggregator, names=names)

    def of_update(self) -> AbstractContextManager[Update]:
        """Look at the change that the optimizer makes: ``with step.of_update() as update: optimizer.step()``.

        Afterwards ``update.slopes``, ``update.cosines`` and ``update.conflicts`` tell, for every loss of this step,
        whether the real change of the parameters increases it, to first order. `metrics` has them, too. The step must
        come from ``backward(keep_rows=True)``.
        """
        if self.kept is None or not self.kept.open:
            reason = "it was compared with one before" if self.kept is not None else "it kept no rows"
            reason = reason if self.finite else "its gradients are not finite"
            raise ParameterError(f"this step cannot be compared with an update: {reason}. Use backward(keep_rows=True)")
        self.update = Update()
        return watched(self.kept, self.names, self.update)

    @cached_property
    def finite(self) -> bool:
        """True if all gradients were finite. Otherwise there are no weights, and ``.grad`` is not finite."""
        if self.direction is not None:
            return True
        return bool(np.isfinite(as_array(self.weights)).all() and np.isfinite(as_array(self.gramian)).all())

    @property
    def residual(self) -> Tensor | None:
        """Residual of the solver on the GPU that computed the weights, the largest of any group; None for the host."""
        return self._residual

    @residual.setter
    def residual(self, residual: Tensor | None) -> None:
        self._residual = residual
        for step in self.groups:
            step.residual = residual

    @cached_property
    def trusted(self) -> bool:
        """True if the weights are as accurate as the host's solvers compute them.

        False if a gradient is not finite, or if the residual of the solver on the GPU exceeds 1e-9 or is NaN. The step
        was taken all the same, and its certificate checks the weights that it took.
        """
        return self.finite and (self.residual is None or float(self.residual) <= TRUSTED)

    @cached_property
    def gamma(self) -> float:
        """Distance to Pareto stationarity: the length of the shortest convex combination of the gradients."""
        if not self.finite or (self.direction is not None and self.direction.unknown):
            return math.nan
        return gamma_of(as_array(self.gramian), self._eps)

    @cached_property
    def certificate(self) -> StepCertificate:
        """Certificate of this step, for the rule's own F, including a check of the rule's guarantee.

        Gradients and the products of the Gramian have the same rounding, so neither claims more than the other allows.
        """
        if self.groups:
            raise ParameterError("groups that were aggregated separately have a certificate each: see step.groups")
        if self.direction is not None:
            raise ParameterError(
                f"the direction of {self._aggregator.label} is no combination of the gradients, and a certificate is "
                "about weights. See step.direction for its slopes and conflicts"
            )
        if not self.finite:
            raise ParameterError(
                "this step is not finite: a gradient held NaN or infinity, which was passed on to .grad because of "
                "nonfinite='propagate', so there is nothing to certify. Check step.finite first"
            )
        G, w, rounding = as_array(self.gramian), as_array(self.weights), Rounding(self._eps, self._eps)
        return certificate_of(G, w, self._aggregator.guarantee, rounding, names=self.names)

    def metrics(self, prefix: str = "mo/") -> dict[str, float]:
        """Return a flat dict of floats, for any tracker. If the step is not finite, it has the same keys with NaN.

        Objectives appear by name if the losses were given as a dictionary, and by number otherwise. If a solver on the
        GPU computed the weights, ``trusted`` is 1 or 0.
        """
        if self.groups:
            parts = [step.metrics(f"{prefix}group/{number}/") for number, step in enumerate(self.groups)]
            if self.update is not None and self.update.certificate is not None:
                parts.append({f"{prefix}{key}": value for key, value in self.update.certificate.metrics().items()})
            return {key: value for part in parts for key, value in part.items()}
        weights = self.weights.detach().cpu()
        norms = self.gramian.diagonal().clamp(min=0.0).sqrt().cpu()
        found = dict.fromkeys(("gamma", "norm", "conflicts", "unknown", "alignment"), math.nan)
        if self.direction is not None:
            found |= {
                "gamma": self.gamma,
                "norm": self.direction.norm,
                "conflicts": float(len(self.direction.conflicts)),
                "unknown": float(len(self.direction.unknown)),
            }
        elif self.finite:
            found = {
                "gamma": self.certificate.gamma,
                "norm": self.certificate.norm,
                "conflicts": float(len(self.certificate.conflicts)),
                "unknown": float(len(self.certificate.unknown)),
                "alignment": self.certificate.alignment,
            }
        if self.residual is not None:
            found["trusted"] = float(self.trusted) if self.finite else math.nan
        if self.update is not None and self.update.certificate is not None:
            found |= self.update.certificate.metrics()
        names = self.names or range(len(weights))
        if self.direction is None:
            found |= {f"weight/{name}": float(w) for name, w in zip(names, weights, strict=True)}
        found |= {f"gradient_norm/{name}": float(g) for name, g in zip(names, norms, strict=True)}
        return {f"{prefix}{key}": value for key, value in found.items()}

    def __repr__(self) -> str:
        if self.groups:
            return f"Step(groups={list(self.groups)})"
        if self.direction is not None:
            return f"Step(slopes=[{', '.join(f'{slope:.4g}' for slope in self.direction.slopes)}])"
        shown = ", ".join(f"{w:.4g}" for w in self.weights.tolist()[:8])
        mark = "" if self.residual is None or self.trusted else ", trusted=False"
        return f"Step(weights=[{shown}{', ...' if len(self.weights) > 8 else ''}]{mark})"
