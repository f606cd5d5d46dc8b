"""Properties of a direction that are certain despite rounding, and those that rounding hides."""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import Enum

import numpy as np
from numpy.typing import NDArray

from paretograd.geometry import cones
from paretograd.geometry.cones import Rounding
from paretograd.geometry.gramian import Array

#: A direction shorter than this fraction of the longest gradient counts as zero.
_NEGLIGIBLE = 1e-7


class Verdict(Enum):
    """An answer about a property: yes, no, or not known. Users read the value."""

    KEPT = "kept"
    BROKEN = "broken"
    UNKNOWN = "not known"

    @classmethod
    def of(cls, kept: bool, broken: bool) -> Verdict:
        """Return BROKEN or KEPT if one of them is certain."""
        return cls.BROKEN if broken else cls.KEPT if kept else cls.UNKNOWN


@dataclass(frozen=True)
class Direction:
    """The direction ``d = J.T w``, from a Gramian and weights.

    Attributes:
        weights: shape ``(m,)``.
        slopes: ``<d, g_k>``, shape ``(m,)``; ``errors``: bounds on their errors.
        norm: ``|d|``; ``shortest``, ``longest``: bounds on it.
        conflicting: objectives that certainly increase along ``-d``, shape ``(m,)``.
        hidden: objectives for which rounding hides whether they increase, shape ``(m,)``.
        in_cone: whether d is a conic combination of the gradients.
        in_hull: whether it is a convex combination.
        beyond_hull: whether the weights are non-negative and sum to one or more.
        tol: relative error of d from a solver's rounding.
        resolution: errors of a cosine up to this are negligible.
    """

    weights: Array
    slopes: Array
    errors: Array
    norm: float
    shortest: float
    longest: float
    conflicting: NDArray[np.bool_]
    hidden: NDArray[np.bool_]
    in_cone: bool
    in_hull: bool
    beyond_hull: bool
    tol: float
    resolution: float

    @classmethod
    def of(cls, G: Array, weights: Array, gamma: float, rounding: Rounding) -> Direction:
        """Judge the direction of some weights at a point with this gamma."""
        lengths, tol = np.sqrt(G.diagonal()), cones.conflict_tolerance(rounding.eps)
        resolution = max(tol, rounding.resolution)
        shortest, longest = cones.norm_bracket(G, weights, rounding)
        norm = min(max(cones.norm(G, weights), shortest), longest)
        slopes, errors = cones.slopes(G, weights), cones.slope_errors(G, weights, rounding)
        conflicting = cones.conflicting(slopes, lengths, norm, tol=tol, errors=errors)
        # A slope that is zero up to a negligible error counts as non-negative: projections have such slopes.
        hidden = ~conflicting & (slopes - errors < -resolution * shortest * lengths)
        # At a stationary point, zero lies in the hull of the gradients whatever the weights.
        at_rest = norm == 0.0 and max(longest, gamma) <= _NEGLIGIBLE * float(lengths.max())
        in_cone = cones.in_cone(G, weights, tol * shortest)
        in_hull = cones.in_hull(G, weights, tol * shortest, tol) or at_rest
        return cls(
            weights=weights,
            slopes=slopes,
            errors=errors,
            norm=norm,
            shortest=shortest,
            longest=longest,
            conflicting=conflicting,
            hidden=hidden,
            in_cone=in_cone,
            in_hull=in_hull,
            beyond_hull=in_hull or (in_cone and float(weights.sum()) >= 1.0 - tol),
            tol=tol,
            resolution=resolution,
        )

    @property
    def is_zero(self) -> bool:
        """Return True if d = 0 exactly, and not by cancellation."""
        return self.longest == 0.0

    @property
    def non_conflicting(self) -> Verdict:
        """Return KEPT if no objective increases along ``-d``, BROKEN if one certainly does."""
        return Verdict.of(not self.hidden.any(), bool(self.conflicting.any()))

    @property
    def decreasing(self) -> bool:
        """Return True if every objective certainly decreases along ``-d``."""
        return bool((self.slopes > self.errors).all())

    def decreases(self, phi: Array) -> bool:
        """Return True if ``F = sum_k phi_k f_k`` certainly decreases along ``-d``, or d = 0."""
        return self.is_zero or float(phi @ self.slopes) > float(np.abs(phi) @ self.errors)

    def alignment(self, phi: Array) -> float:
        """c of condition (A), ``<d, grad F> / |d|^2``: infinite if d = 0, NaN if unknown."""
        if self.is_zero:
            return math.inf
        along, off = float(phi @ self.slopes), float(np.abs(phi) @ self.errors)
        known = is_known(self.shortest, self.longest) and off <= max(
            abs(along), self.resolution * self.norm * self.norm
        )
        return along / self.norm / self.norm if known else math.nan

    def is_aligned(self, phi: Array, c: float) -> Verdict:
        """Condition (A) with the constant c: ``<d, grad F> - c |d|^2 = sum_k (phi_k - c w_k) <d, g_k> >= 0``."""
        excess = phi - c * self.weights
        margin, off = float(excess @ self.slopes), float(np.abs(excess) @ self.errors)
        return Verdict.of(
            margin - off >= -self.resolution * c * self.shortest * self.shortest,
            margin + off < -self.tol * c * self.longest * self.longest,
        )


def is_known(shortest: float, longest: float) -> bool:
    """Return True if the bounds on a length differ by at most a factor of two."""
    return longest <= 2.0 * shortest
