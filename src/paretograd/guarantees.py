"""The paper's theorems as data, and the guarantees that aggregation rules derive from them.

A `Guarantee` is data, not prose: the tests read it and check every property it claims.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import Literal, NamedTuple

import numpy as np

from paretograd.errors import ParameterError
from paretograd.geometry.gramian import Array


@dataclass(frozen=True)
class Result:
    """A theorem, corollary or proposition: its hypotheses and its conclusion."""

    label: str
    name: str
    hypotheses: tuple[str, ...]
    conclusion: str


RESULTS: dict[str, Result] = {
    result.label: result
    for result in (
        Result(
            "thm:PS-fd",
            "Theorem 1 (sufficient alignment)",
            ("F >= 0 is L-smooth", "<d, grad F> >= c Gamma |d| with c > 0", "step c Gamma / (L |d|)"),
            "sum_t Gamma_t^2 <= 2 L F(w_0) / c^2, so min_t Gamma_t = O(1/sqrt(T))",
        ),
        Result(
            "thm:PS-cvx",
            "Corollary 1 (condition (A) in the convex hull)",
            (
                "F >= 0 is L-smooth",
                "d in the convex hull of the gradients",
                "(A): <d, grad F> >= c |d|^2",
                "step c / L",
            ),
            "min_t gamma(w_t) <= sqrt(2 L F(w_0) / (c^2 T))",
        ),
        Result(
            "thm:cvg_nonconflict",
            "Theorem 2 (non-conflicting directions)",
            ("d in the convex hull of the gradients", "<d, g_k> >= 0 for every k"),
            "(A) holds with c = 1 and F = sum_k f_k, hence Corollary 1",
        ),
        Result(
            "prop:PS_proj",
            "Proposition 1 (projection onto the dual cone)",
            ("q = J.T u with u >= 0", "d = the projection of q onto {d : J d >= 0}"),
            "d = J.T v is non-conflicting, with v >= u >= 0 and so |v|_1 >= |u|_1",
        ),
        Result(
            "thm:PS_proj_cvg",
            "Corollary 2 (projected directions)",
            ("q in the convex hull of the gradients", "d = the projection of q onto the dual cone"),
            "(A) holds with c >= 1 and F = sum_k f_k, hence Corollary 1",
        ),
        Result(
            "thm:PScvx-fun",
            "Theorem 3 (monotone descent, convex objectives)",
            ("every f_k is L-smooth and convex", "d in the convex hull of the gradients", "step <= 1/L", "f decreases"),
            "<lambda, f(w_t) - f(w)> <= |w_0 - w|^2 / (2 step t) for some lambda in the simplex",
        ),
        Result(
            "thm:PSreg",
            "Theorem 4 (directions from a subproblem in s and r)",
            ("s decreasing and convex, s(0) = 0", "r increasing and convex, r(0) = 0, r(rho) >= rho^2 / 2"),
            "d in the cone; (A) holds with c = beta |lambda|_1 / 2 and F = <-grad s(0), f>",
        ),
    )
}

#: Largest number of printed terms of a fixed weighting.
_SHOWN = 6


@dataclass(frozen=True)
class Surrogate:
    r"""The function $F = \sum_k \phi_k f_k$ of condition (A), for any number m of objectives.

    Attributes:
        weights: ``"sum"`` for phi_k = 1, ``"mean"`` for 1/m, the numbers phi, or a function from m to them. ``"step"``
            stands for the weights of each step: F is then a nonlinear function of the losses, and phi its gradient.
        name: the printed form if ``weights`` is a function.
    """

    weights: Literal["sum", "mean", "step"] | tuple[float, ...] | Callable[[int], Array]
    name: str = field(default="sum_k phi_k f_k", compare=False, repr=False)

    def phi(self, m: int) -> Array:
        """Return the weights for m objectives, shape ``(m,)``."""
        if self.weights == "sum":
            return np.ones(m)
        if self.weights == "mean":
            return np.full(m, 1.0 / m)
        if self.weights == "step":
            raise ParameterError("phi depends on the losses here, and is known for a step only: use its weights")
        phi = np.array(self.weights(m) if callable(self.weights) else self.weights, dtype=np.float64)
        if phi.shape != (m,):
            raise ParameterError(f"F = {self} is for {len(phi)} objectives, but there are m = {m}")
        return phi

    def at(self, m: int) -> Surrogate:
        """Return the same surrogate for exactly m objectives, with numbers for weights. Sum and mean stay symbolic."""
        return Surrogate(tuple(self.phi(m).tolist())) if callable(self.weights) else self

    def __str__(self) -> str:
        return self.text()

    def text(self, names: Sequence[str] | None = None) -> str:
        """Return the printed form, with objectives by name if ``names`` are given and by number otherwise."""
        if self.weights == "step":
            return "F(f), whose gradient with respect to the losses f is the weights"
        if isinstance(self.weights, str):
            return f"{self.weights}_k f_k"
        if callable(self.weights):
            return self.name
        shown = self.weights[:_SHOWN]
        terms = [f"{weight:.4g} f_{names[k] if names else k}" for k, weight in enumerate(shown)]
        return " + ".join(terms + ["..."] * (len(self.weights) > _SHOWN))


SUM = Surrogate("sum")
MEAN = Surrogate("mean")
STEP = Surrogate("step")


class Evidence(Enum):
    """Reason for accepting a hypothesis. The value is the text shown to users."""

    PROVED = "proved by the rules of disciplined convex programming"
    CITED = "known for this family"
    CHECKED = "checked at sampled points, not proved"


@dataclass(frozen=True)
class Hypothesis:
    """One hypothesis of a theorem, for a given s and r.

    Attributes:
        text: the hypothesis, such as ``s is convex``.
        holds: True if it holds.
        evidence: how this is known.
        detail: the citation, the number of sampled points, or a point that violates the hypothesis.
    """

    text: str
    holds: bool
    evidence: Evidence
    detail: str

    def __str__(self) -> str:
        return (
            f"{self.text}: yes ({self.evidence.value}: {self.detail})"
            if self.holds
            else f"{self.text}: NO ({self.detail})"
        )


#: Note for rules that Theorem 1 covers with a step that depends on the weights.
DYNAMIC_STEP = "With step 1/(L |w|_1), that is the starred variant with a constant step."


class Alternative(NamedTuple):
    """Another result that covers a rule, with a constant c of condition (A) for another F."""

    theorem: str
    alignment: float
    F: Surrogate


@dataclass(frozen=True)
class Guarantee:
    """Properties that a rule guarantees for every Jacobian.

    Attributes:
        theorem: label of the most specific result of the paper that covers the rule, or None.
        non_conflicting: ``<d, g_k> >= 0`` for every objective.
        in_cone: the weights are non-negative.
        in_hull: the weights are non-negative and sum to one.
        beyond_hull: the weights are non-negative and sum to at least one, which implies ``|d| >= gamma``.
        long: ``|d| >= gamma``, for another reason than `beyond_hull`.
        alignment: the largest proved constant c of condition (A), ``<d, grad F> >= c |d|^2``; None if there is none.
            It may exceed the theorem's own constant.
        F: the surrogate function to which the constant refers.
        degree: multiplying all losses by t > 0 from the first step on multiplies the direction by ``t ** degree``. For
            a rule without memory, this is ``A(t J) = t ** degree * A(J)``. None if there is no such degree.
        recalls_lengths: the rule keeps something from step to step that depends on the lengths of the gradients.
        equivariant: permuting the objectives, and what the rule keeps for each, does not change the direction.
        scale_invariant: multiplying each loss by a positive factor of its own, from the first step on, changes at most
            the length of the direction.
        continuous: the direction is a continuous function of the Jacobian, at every Jacobian.
        continuous_inside: it is continuous at every Jacobian with gamma > 0, which `continuous` implies.
        note: conditions on which the guarantee depends, in words.
        hypotheses: the hypotheses of Theorem 4 with their evidence, for a rule built from s and r; otherwise empty.
        alternatives: constants for other F, for instance to find one F for several rules.
    """

    theorem: str | None = None
    non_conflicting: bool = False
    in_cone: bool = False
    in_hull: bool = False
    beyond_hull: bool = False
    long: bool = False
    alignment: float | None = None
    F: Surrogate = SUM
    degree: float | None = 1.0
    recalls_lengths: bool = False
    equivariant: bool = True
    scale_invariant: bool = False
    continuous: bool = False
    continuous_inside: bool = False
    note: str = ""
    hypotheses: tuple[Hypothesis, ...] = ()
    alternatives: tuple[Alternative, ...] = ()

    def __post_init__(self) -> None:
        if self.in_hull and not self.beyond_hull:
            object.__setattr__(self, "beyond_hull", True)
        if self.beyond_hull and not self.in_cone:
            object.__setattr__(self, "in_cone", True)
        if self.continuous and not self.continuous_inside:
            object.__setattr__(self, "continuous_inside", True)

    @property
    def result(self) -> Result | None:
        """The theorem with its hypotheses and conclusion, or None."""
        return RESULTS[self.theorem] if self.theorem is not None else None

    @property
    def rescaled(self) -> bool:
        """True if Theorem 2 covers a run only after the weights of each step are divided by their sum.

        This is the case for a non-conflicting rule unless condition (A) and ``|d| >= gamma`` already hold. F is then
        the sum, c = 1, and the step is 1 / (L |w|_1).
        """
        return self.non_conflicting and self.in_cone and (self.alignment is None or not self.beyond_hull)

    def constant_for(self, F: Surrogate) -> float | None:
        """Return the largest constant c of condition (A) that is proved for F and any m; None if there is none.

        Condition (A) for the mean implies the same for the sum, m times the mean: ``<d, grad sum> >= m c |d|^2``.
        """
        served = (F, MEAN) if F == SUM else (F,)
        known = [one.alignment for one in self.alternatives if one.F in served]
        if self.F in served and self.alignment is not None:
            known.append(self.alignment)
        if F == SUM and self.non_conflicting and self.in_hull:
            known.append(THEOREM_2.alignment)
        return max(known, default=None)

    def at_step(self, weights: Array) -> Guarantee:
        """Return the same guarantee with numbers for an F of which only the gradient at a step is known."""
        return replace(self, F=Surrogate(tuple(weights.tolist()))) if self.F == STEP else self

    @property
    def rate(self) -> str:
        """The guaranteed rate of convergence to Pareto stationarity, or a dash.

        Outside the cone, (A) alone bounds ``|d|``, which may be smaller than gamma.
        """
        if self.theorem is None:
            return "-"
        return f"min {'gamma' if self.in_cone else '|d|'} = O(1/sqrt(T))"

    @classmethod
    def shared(cls, promises: Sequence[Guarantee]) -> Guarantee:
        """Return the properties of a direction that all given rules guarantee, without theorems, which concern runs."""
        degrees = {promise.degree for promise in promises}
        return cls(
            None,
            non_conflicting=all(promise.non_conflicting for promise in promises),
            in_cone=all(promise.in_cone for promise in promises),
            in_hull=all(promise.in_hull for promise in promises),
            beyond_hull=all(promise.beyond_hull for promise in promises),
            degree=degrees.pop() if len(degrees) == 1 else None,
            recalls_lengths=any(promise.recalls_lengths for promise in promises),
            equivariant=all(promise.equivariant for promise in promises),
            scale_invariant=all(promise.scale_invariant for promise in promises),
            continuous=all(promise.continuous for promise in promises),
            continuous_inside=all(promise.continuous_inside for promise in promises),
        )

    @staticmethod
    def common_alignment(promises: Sequence[Guarantee]) -> Alternative | None:
        """Return an F for which all given rules satisfy (A), and the smallest c; None if there is no such F.

        The theorem is the one that all of them have for this F, or Corollary 1 if they differ.
        """
        for F in dict.fromkeys((*(promise.F for promise in promises), SUM)):
            constants = [promise.constant_for(F) for promise in promises]
            known = [c for c in constants if c is not None]
            if len(known) == len(promises):
                theorem = promises[0].theorem
                if theorem is None or not all(promise._names(theorem, F) for promise in promises):
                    theorem = "thm:PS-cvx"
                return Alternative(theorem, min(known), F)
        return None

    def _names(self, theorem: str, F: Surrogate) -> bool:
        """Return True if the guarantee, or an alternative, is this result for this F."""
        return (theorem, F) in ((self.theorem, self.F), *((one.theorem, one.F) for one in self.alternatives))

    def normalized(self) -> Guarantee:
        """Return the guarantee of the starred variant, whose weights are divided by the sum of their magnitudes.

        It is not known to be continuous: if the gradients are dependent, that sum may jump where the direction does
        not.
        """
        if self.in_hull:
            return self  # the weights already sum to one
        degree = None if self.degree is None else 1.0
        changed = replace(self, degree=degree, long=False, continuous=False, continuous_inside=False, alternatives=())
        if not self.in_cone:
            return replace(changed, theorem=None, alignment=None, note="" if self.theorem else self.note)
        starred = replace(changed, in_hull=True, beyond_hull=True, note="")
        # <d/s, grad F> >= c |d|^2 / s = c s |d/s|^2 for s = |w|_1, and s >= 1 beyond the hull
        aligned = self.alignment is not None and self.beyond_hull
        if self.non_conflicting:
            starred = replace(starred, theorem="thm:cvg_nonconflict")
            if aligned and self.F != SUM:
                return replace(starred, alternatives=(THEOREM_2,))
            return replace(starred, alignment=1.0, F=SUM)
        return replace(starred, theorem="thm:PS-cvx") if aligned else replace(starred, theorem=None, alignment=None)


#: Theorem 2 as it applies to every non-conflicting direction in the convex hull.
THEOREM_2 = Alternative("thm:cvg_nonconflict", 1.0, SUM)
