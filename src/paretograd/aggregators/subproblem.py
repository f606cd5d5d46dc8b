"""An aggregator built from s and r of the paper's subproblem (eq. sd-conic), with its guarantee."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from torch import Tensor

from paretograd.aggregators.base import Aggregator, Description, as_tensor
from paretograd.errors import HypothesisError, ParameterError, ShapeError
from paretograd.geometry.gramian import Array
from paretograd.geometry.unit_gramian import UnitGramian, unit_gramian
from paretograd.guarantees import MEAN, SUM, Guarantee, Hypothesis, Surrogate
from paretograd.solution import Outcome, Solution, Status, status_of
from paretograd.subproblem import scalarization as scalar
from paretograd.subproblem.guarantee import guarantee_of
from paretograd.subproblem.regularizers import HalfSquare, MeanBall, Regularizer
from paretograd.subproblem.scalarization import Scalarization
from paretograd.subproblem.smooth import Smooth
from paretograd.subproblem.solve import Found, solve_subproblem

#: Hypotheses whose violation raises an error, with the remedy. The others only decide if Theorem 4 applies.
_REMEDIES = {
    scalar.CONVEX: "Choose a convex s; strict=False gives the direction without a guarantee",
    scalar.DECREASING: "A larger x_k is a larger decrease of objective k, so s must not rise: did you mean s(-x)? "
    "strict=False gives the direction without a guarantee",
    scalar.ZERO: "Subtract s(0), or choose an s that is finite at 0, such as minus the geometric mean instead of minus "
    "the sum of logarithms; strict=False gives the direction without a guarantee",
    scalar.TRANSLATION: "Leave out risk=True: s is not a convex risk measure, and its multipliers need not sum to one",
}


@dataclass(frozen=True, kw_only=True)
class SubproblemSolution(Solution):
    """Weights ``beta * multipliers`` (plus those of the centre for `MeanBall`), with the accuracy of the solve.

    Attributes:
        multipliers: the paper's lambda, shape ``(m,)``.
        beta: the paper's beta, ``r*'(rho) / rho`` for ``rho = |J.T lambda|``.
        gap: primal minus dual value of the subproblem, zero at the optimum.
        alignment_gap: violation of condition (A) with c = 1/2 and Theorem 4's F, the epsilon_t of the paper's footnote:
            ``max(0, |d|^2 / 2 - <d, grad F>)``. None if the theorem does not apply.
    """

    multipliers: Tensor
    beta: float
    gap: float
    alignment_gap: float | None


class Subproblem(Aggregator):
    r"""A rule defined by an s and an r of your choice: the solution of the paper's primal problem.

    $$ d = \arg\min_d\; s(J d) + r(\|d\|) $$

    The Fenchel dual is solved on the Gramian: $d = \beta J^\top \lambda$. Theorem 4 guarantees convergence if s is
    decreasing and convex with s(0) = 0, and r is increasing and convex, zero at zero and at least half the square.
    `guarantee` lists each of these hypotheses with its evidence.

    Args:
        s: a scalarization of `paretograd.subproblem`, or a smooth convex function written in torch.
        r: a regularizer of `paretograd.subproblem`; None for half the squared norm.
        m: the number of objectives, if s requires a certain one.
        strict: if True, raise if s violates a hypothesis of Theorem 4. If False, accept it without a guarantee.
    """

    name = "subproblem"
    label = "Subproblem"
    description = Description(
        formula="d = argmin of s(J d) + r(|d|)",
        reference="Hu, Ho and Yu 2026 (the paper)",
        paper="eq. sd-conic; Theorem 4; Table 1",
        when="You want a rule of your own, with its guarantee.",
    )

    def __init__(
        self,
        s: Scalarization | Callable[[Tensor], Tensor],
        r: Regularizer | None = None,
        m: int | None = None,
        strict: bool = True,
    ) -> None:
        if not isinstance(s, Scalarization):
            if not callable(s):
                raise ParameterError(f"s={s!r}: give an s of paretograd.subproblem or a function written in torch")
            s = Smooth(s)
        if r is not None and not isinstance(r, Regularizer):
            raise ParameterError(
                f"r={r!r}: give a regularizer of paretograd.subproblem, such as HalfSquare() or Radial(your_function)"
            )
        self.s, self.r, self.strict = s, r if r is not None else HalfSquare(), strict
        self.m = m if m is not None else s.m
        self._checked: dict[int, tuple[Hypothesis, ...]] = {}
        self._surrogates: dict[int, Array | None] = {}  # phi of Theorem 4's F, by m
        self.description = Description(  # type: ignore[misc]
            formula=f"d = argmin of s(J d) + r(|d|),  s(x) = {s.formula},  r: {self.r.formula}",
            reference=type(self).description.reference,
            paper=type(self).description.paper,
            when=type(self).description.when,
        )
        if self.m is not None:
            self._hypotheses(self.m)
        else:
            self._check_early()

    def _check_early(self) -> None:
        """Check s for three objectives, to raise early. An s for another m is checked with its first Gramian."""
        try:
            self._hypotheses(3)
        except (HypothesisError, ShapeError):
            raise
        except (ParameterError, RuntimeError, ValueError, IndexError):
            self._checked.clear()

    def _hypotheses(self, m: int) -> tuple[Hypothesis, ...]:
        """Return Theorem 4's hypotheses for m objectives. If strict, raise for a violated one."""
        if m not in self._checked:
            found = (*self.s.hypotheses(m), *self.r.hypotheses())
            if self.strict:
                for hypothesis in found:
                    if not hypothesis.holds and hypothesis.text in _REMEDIES:
                        hint = "" if self.m else f" (Checked for m = {m} objectives: if s requires another m, pass m.)"
                        raise HypothesisError(
                            hypothesis.text,
                            f"Theorem 4 requires that {hypothesis.text}, but {hypothesis.detail}. "
                            f"{_REMEDIES[hypothesis.text]}.{hint}",
                        )
            self._phi(m)
            self._checked[m] = found
        return self._checked[m]

    def _phi(self, m: int) -> Array | None:
        """Return the weights of Theorem 4's F for m objectives, or None if they are not known."""
        if m not in self._surrogates:
            phi = self.s.surrogate(m)
            self._surrogates[m] = phi if phi is not None and np.isfinite(phi).all() else None
        return self._surrogates[m]

    def _known_phi(self, m: int) -> Array:
        phi = self._phi(m)
        if phi is None:
            raise ParameterError(f"F = <-grad s(0), f> is not known for m = {m} objectives")
        return phi

    def _surrogate(self, m: int) -> Surrogate | None:
        """Return Theorem 4's F, symbolic if it is the mean or the sum, or None if it is not known."""
        if self.s.F is not None:
            return self.s.F
        phi = self._phi(m)
        if phi is None:
            return None
        # An s for any m may have the mean's weights at one m by coincidence: check another m.
        sizes = (m,) if self.m is not None else (m, m + 1)
        for F in (MEAN, SUM):
            if all(self._is_for(F, size) for size in sizes):
                return F
        return Surrogate(tuple(phi.tolist()) if self.m is not None else self._known_phi, "<-grad s(0), f>")

    def _is_for(self, F: Surrogate, m: int) -> bool:
        try:
            phi = self._phi(m)
        except (RuntimeError, ValueError, IndexError):  # s requires another m
            return False
        return phi is not None and np.allclose(phi, F.phi(m), rtol=1e-12)

    @property
    def guarantee(self) -> Guarantee:
        """Theorem 4 if its hypotheses hold, or a sharper result: see `paretograd.subproblem.guarantee`."""
        m = self.m if self.m is not None else next(iter(self._checked), 3)
        try:
            hypotheses = self._hypotheses(m)
        except (RuntimeError, IndexError) as error:
            raise ParameterError(
                f"s fails for m = {m} objectives ({error}); if it requires another m, pass m"
            ) from error
        return guarantee_of(self.s, self.r, hypotheses, self._surrogate(m), self._phi(m))

    def _find(self, G: Array, eps: float, *, least: bool = False) -> tuple[Found, Status]:
        unit = unit_gramian(G, eps)
        self._hypotheses(unit.m)
        found, status = self._attempt(G, unit, least)
        if status is Status.INACCURATE:
            repaired = unit.nearest_semidefinite()
            if repaired is not None:
                return self._attempt(repaired.gramian(), repaired, least)
        return found, status

    def _attempt(self, G: Array, unit: UnitGramian, least: bool) -> tuple[Found, Status]:
        found = solve_subproblem(self.s, self.r, G, unit, least=least)
        if found.stationary:
            return found, Status.STATIONARY
        status = status_of(found.residual, unit.m)
        if status is Status.INACCURATE and found.residual <= self.s.at(G).accuracy:
            status = Status.APPROXIMATE
        return found, status

    def _answer(self, G: Array, eps: float) -> Outcome:
        return _outcome(*self._find(G, eps))

    def _least_answer(self, G: Array, eps: float) -> Outcome:
        return _outcome(*self._find(G, eps, least=True))

    def _solution(self, G: Array, eps: float, like: Tensor) -> Solution:
        found, status = self._find(G, eps)
        return SubproblemSolution(
            as_tensor(found.weights, like),
            status,
            found.residual,
            found.steps,
            multipliers=as_tensor(found.multipliers, like),
            beta=found.beta,
            gap=found.gap,
            alignment_gap=self._alignment_gap(G, found.weights),
        )

    def _alignment_gap(self, G: Array, weights: Array) -> float | None:
        phi = self._phi(len(G))
        if phi is None or isinstance(self.r, MeanBall) or not all(h.holds for h in self._checked[len(G)]):
            return None
        slopes = G @ weights
        return max(0.0, 0.5 * float(weights @ slopes) - float(phi @ slopes))

    def __repr__(self) -> str:
        return f"Subproblem(s={self.s!r}, r={self.r!r})"


def _outcome(found: Found, status: Status) -> Outcome:
    return Outcome(found.weights, status, found.residual, found.steps)
