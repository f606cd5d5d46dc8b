"""The data behind ``paretograd compare``: every rule on one Jacobian, with its certificate."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from torch import Tensor

from paretograd.aggregators.base import Aggregator
from paretograd.certificates.step import StepCertificate
from paretograd.certification import certify
from paretograd.geometry.gramian import Array, as_array, combine, gramian
from paretograd.solution import Status
from paretograd.solvers.min_norm import stationarity

#: A Gramian resolves lengths down to this part of the gradients' norms; below it, a direction is zero.
_RESOLUTION = 1e-7


@dataclass(frozen=True)
class Row:
    """One rule's answer.

    Attributes:
        name: in the registry.
        label: the paper's name.
        setting: the rule with its parameters, as Python writes it.
        weights: shape ``(m,)``.
        direction: shape ``(n,)``.
        norm: ``|d|``.
        worst_cosine: ``min_k <d, g_k> / (|d| |g_k|)`` over the non-zero gradients; None if d = 0 or rounding hides it.
        status: how the solve ended.
        residual: how far the optimality conditions are off.
        certificate: what the theory says about this step, for F = sum_k f_k.
    """

    name: str
    label: str
    setting: str
    weights: Array
    direction: Array
    norm: float
    worst_cosine: float | None
    status: Status
    residual: float
    certificate: StepCertificate

    @property
    def conflicts(self) -> tuple[int, ...]:
        """Objectives that go up along ``-d``."""
        return self.certificate.conflicts

    @property
    def unknown(self) -> tuple[int, ...]:
        """Objectives of which rounding hides whether they go up."""
        return self.certificate.unknown

    @property
    def alignment(self) -> float | None:
        """The c of condition (A) at this step, for F = sum_k f_k; None if d = 0 or rounding hides it."""
        return self.certificate.alignment if np.isfinite(self.certificate.alignment) else None


@dataclass(frozen=True)
class Comparison:
    """Every rule on one Jacobian.

    Attributes:
        jacobian: shape ``(m, n)``.
        norms: of the gradients, shape ``(m,)``.
        cosines: between the gradients, shape ``(m, m)``; zero for a zero gradient.
        gamma: distance from Pareto stationarity.
        rows: one per rule.
    """

    jacobian: Array
    norms: Array
    cosines: Array
    gamma: float
    rows: tuple[Row, ...]

    @property
    def m(self) -> int:
        """Number of objectives."""
        return int(self.jacobian.shape[0])

    @property
    def n(self) -> int:
        """Number of parameters."""
        return int(self.jacobian.shape[1])

    @property
    def stationary(self) -> bool:
        """Return True if gamma is zero to rounding: no direction decreases every objective."""
        return self.gamma <= _RESOLUTION * float(self.norms.max())


def compare(jacobian: Tensor, aggregators: Sequence[Aggregator]) -> Comparison:
    """Run every rule on one Jacobian of shape ``(m, n)``, one gradient per row."""
    G = gramian(jacobian)
    J = as_array(jacobian)
    norms = np.sqrt(as_array(G).diagonal())
    units = _units(J, norms)
    rows = tuple(_row(aggregator, jacobian, G, units) for aggregator in aggregators)
    cosines = np.clip(units @ units.T, -1.0, 1.0)
    return Comparison(J, norms, cosines, float(stationarity(G)), rows)


def _row(aggregator: Aggregator, jacobian: Tensor, G: Tensor, units: Array) -> Row:
    solution = aggregator.solve(G)
    direction = as_array(combine(solution.weights, jacobian))
    norm = float(np.linalg.norm(direction))
    certificate = certify(G, solution.weights)
    live = units[np.any(units != 0.0, axis=1)]
    worst = None
    if np.isfinite(certificate.alignment) and norm > 0.0 and len(live):
        worst = float((live @ (direction / norm)).min())
    return Row(
        name=aggregator.name,
        label=aggregator.label,
        setting=repr(aggregator),
        weights=as_array(solution.weights),
        direction=direction,
        norm=norm,
        worst_cosine=worst,
        status=solution.status,
        residual=solution.residual,
        certificate=certificate,
    )


def _units(J: Array, norms: Array) -> Array:
    """Gradients of norm one; zero ones stay zero."""
    return J / np.where(norms > 0.0, norms, 1.0)[:, None]
