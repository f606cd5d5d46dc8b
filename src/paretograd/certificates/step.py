"""Check what the theory says about one step, from the Gramian and the weights alone.

The checker imports no solver, so that it does not trust what it checks: it brackets gamma from a witness that any
caller may supply. It claims nothing that rounding could have caused.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import Enum

import numpy as np
from numpy.typing import NDArray

from paretograd.certificates.batches import ExpectedLosses
from paretograd.geometry import cones
from paretograd.geometry.cones import FLOAT64, Rounding
from paretograd.geometry.gramian import Array
from paretograd.guarantees import RESULTS, SUM, Guarantee, Surrogate

#: Number of slopes that are printed.
_SHOWN = 6
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
class Promise:
    """One property that a rule promises for every direction, checked at one step.

    Attributes:
        text: the property.
        verdict: whether it holds here, or rounding hides it.
    """

    text: str
    verdict: Verdict

    def __str__(self) -> str:
        return f"{self.text}: {self.verdict.value}"


@dataclass(frozen=True)
class StepCertificate:
    """Properties of the direction ``d = J.T w``, each checked to rounding. What rounding hides is *not known*.

    Attributes:
        gamma: distance from Pareto stationarity.
        gamma_bracket: lower and upper bound on gamma, rounding included.
        norm: ``|d|``.
        norm_bracket: lower and upper bound on it; if they differ by more than a factor of two, it is not known.
        slopes: ``<d, g_k>`` for every objective.
        slope_errors: bounds on the rounding errors of the slopes.
        conflicts: numbers of the objectives that certainly increase along ``-d``.
        unknown: numbers of the objectives for which rounding hides whether they increase.
        in_cone: ``w >= 0``, in units of the gradients.
        in_hull: ``w`` lies in the simplex (or d = 0 at a stationary point, which lies in the hull, too).
        alignment: the c of condition (A), ``<d, grad F> / |d|^2``; infinite if d = 0, NaN if not known.
        F: the surrogate function that the alignment is for.
        results: labels of the paper's results whose hypotheses on d certainly hold at this step.
        promises: the rule's promises, and whether they hold here; empty if no rule was given.
        names: the names of the objectives, which the printed form uses; None for numbers.
        expected: intervals for the expected losses, if the Gramian was that of several micro-batches; else None.
    """

    gamma: float
    gamma_bracket: tuple[float, float]
    norm: float
    norm_bracket: tuple[float, float]
    slopes: tuple[float, ...]
    slope_errors: tuple[float, ...]
    conflicts: tuple[int, ...]
    unknown: tuple[int, ...]
    in_cone: bool
    in_hull: bool
    alignment: float
    F: Surrogate
    results: tuple[str, ...]
    promises: tuple[Promise, ...] = ()
    names: tuple[str, ...] | None = None
    expected: ExpectedLosses | None = None

    @property
    def non_conflicting(self) -> bool:
        """Return True if certainly no objective increases along ``-d``."""
        return not self.conflicts and not self.unknown

    @property
    def keeps_promise(self) -> bool | None:
        """Return True if the rule keeps all its promises at this step; None if not known, or if no rule was given."""
        verdicts = {promise.verdict for promise in self.promises}
        if Verdict.BROKEN in verdicts:
            return False
        return True if verdicts == {Verdict.KEPT} else None

    def __str__(self) -> str:
        alignment = "not known" if math.isnan(self.alignment) else f"{self.alignment:.6g}"
        rows = [
            ("gamma (stationarity)", f"{self.gamma:.6g}   [{self.gamma_bracket[0]:.6g}, {self.gamma_bracket[1]:.6g}]"),
            ("|d|", self._shown_norm()),
            ("slopes <d, g_k>", self._shown_slopes()),
            ("conflicts", self._shown_conflicts(self.conflicts, self.unknown)),
            ("in the cone", "yes" if self.in_cone else "no"),
            ("in the convex hull", "yes" if self.in_hull else "no"),
            ("(A): <d, grad F> / |d|^2", f"{alignment}   for F = {self.F.text(self.names)}"),
        ]
        names = [RESULTS[label].name for label in self.results] or ["none"]
        rows += [("applies" if i == 0 else "", name) for i, name in enumerate(names)]
        for verdict in Verdict:
            texts = [promise.text for promise in self.promises if promise.verdict is verdict]
            rows += [(f"promise {verdict.value}", ", ".join(texts))] if texts else []
        rows += [] if self.expected is None else self._shown_expected(self.expected)
        return "\n".join(f"{name:<26}{value}" for name, value in rows)

    def _shown_norm(self) -> str:
        low, high = self.norm_bracket
        return f"{self.norm:.6g}" if _is_known(low, high) else f"not known, at most {high:.3g}"

    def _shown_slopes(self) -> str:
        shown = ["not known" if k in self.unknown else f"{value:.4g}" for k, value in enumerate(self.slopes[:_SHOWN])]
        if self.names is not None:
            shown = [f"{name}: {slope}" for name, slope in zip(self.names, shown, strict=False)]
        return ", ".join(shown + ["..."] * (len(self.slopes) > _SHOWN))

    def _shown_conflicts(self, conflicts: tuple[int, ...], unknown: tuple[int, ...]) -> str:
        certain = ", ".join(self._names_of(conflicts))
        if not unknown:
            return certain or "none"
        open_ = ", ".join(self._names_of(unknown[:_SHOWN])) + ", ..." * (len(unknown) > _SHOWN)
        return f"{certain}; not known: {open_}" if certain else f"not known: {open_}"

    def _shown_expected(self, expected: ExpectedLosses) -> list[tuple[str, str]]:
        ends = [f"[{low:.4g}, {high:.4g}]" for low, high in expected.slope_intervals[:_SHOWN]]
        if self.names is not None:
            ends = [f"{name}: {end}" for name, end in zip(self.names, ends, strict=False)]
        return [
            ("of the expected losses", f"{expected.level:.3g} intervals from {expected.batches} micro-batches"),
            ("  gamma", "[{:.4g}, {:.4g}]".format(*expected.gamma_interval)),
            ("  slopes <d, E g_k>", ", ".join(ends + ["..."] * (len(expected.slopes) > _SHOWN))),
            ("  conflicts", self._shown_conflicts(expected.conflicts, expected.unknown)),
        ]

    def _names_of(self, objectives: tuple[int, ...]) -> list[str]:
        return [str(k) if self.names is None else self.names[k] for k in objectives]


def check_step(
    G: Array,
    weights: Array,
    witness: Array,
    F: Surrogate = SUM,
    guarantee: Guarantee | None = None,
    rounding: Rounding = FLOAT64,
    names: tuple[str, ...] | None = None,
) -> StepCertificate:
    """Certify one step.

    Args:
        G: Gramian, shape ``(m, m)``.
        weights: of the direction, shape ``(m,)``.
        witness: weights on the simplex; the closer to the least-norm point, the tighter gamma's bracket.
        F: the surrogate function.
        guarantee: promises of the rule that made the weights; None to check none.
        rounding: of G, and of the gradients and weights.
        names: the names of the objectives, to print them; None for numbers.
    """
    gamma, phi = cones.norm(G, witness), F.phi(len(weights))
    direction = _Direction.of(G, weights, gamma, rounding)
    results = []
    if direction.decreases(phi):
        results.append("thm:PS-fd")
        # The corollary needs the hull only for |d| >= gamma, which also holds beyond the hull.
        if direction.beyond_hull:
            results.append("thm:PS-cvx")
    if direction.in_hull and direction.non_conflicting is Verdict.KEPT:
        results.append("thm:cvg_nonconflict")
    if direction.in_hull and direction.decreasing:
        results.append("thm:PScvx-fun")
    return StepCertificate(
        gamma=gamma,
        gamma_bracket=cones.gamma_bracket(G, witness, rounding),
        norm=direction.norm,
        norm_bracket=(direction.shortest, direction.longest),
        slopes=tuple(direction.slopes.tolist()),
        slope_errors=tuple(direction.errors.tolist()),
        conflicts=tuple(np.flatnonzero(direction.conflicting).tolist()),
        unknown=tuple(np.flatnonzero(direction.hidden).tolist()),
        in_cone=direction.in_cone,
        in_hull=direction.in_hull,
        alignment=direction.alignment(phi),
        F=F,
        results=tuple(results),
        promises=() if guarantee is None else _check_promises(guarantee, direction),
        names=names,
    )


def _check_promises(guarantee: Guarantee, direction: _Direction) -> tuple[Promise, ...]:
    """Check every promised property of a direction; of hull and cone, only the smallest promised set."""
    found = []
    if guarantee.non_conflicting:
        found.append(Promise("non-conflicting", direction.non_conflicting))
    if guarantee.in_cone:
        text, holds = "in the cone", direction.in_cone
        if guarantee.in_hull:
            text, holds = "in the convex hull", direction.in_hull
        elif guarantee.beyond_hull:
            text, holds = "weights >= 0 that sum to 1 or more", direction.beyond_hull
        found.append(Promise(text, Verdict.of(holds, not holds)))
    if guarantee.alignment is not None:
        c, phi = guarantee.alignment, guarantee.F.phi(len(direction.weights))
        found.append(Promise(f"(A) with c = {c:.4g}", direction.is_aligned(phi, c)))
    return tuple(found)


@dataclass(frozen=True)
class _Direction:
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
    def of(cls, G: Array, weights: Array, gamma: float, rounding: Rounding) -> _Direction:
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
        known = _is_known(self.shortest, self.longest) and off <= max(
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


def _is_known(shortest: float, longest: float) -> bool:
    """Return True if the bounds on a length differ by at most a factor of two."""
    return longest <= 2.0 * shortest
