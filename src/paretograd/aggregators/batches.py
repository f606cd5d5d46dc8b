"""Rules that see several independent batches: MoDo and SDMGrad.

With stochastic gradients, ``J @ J.T`` is a biased estimate of the Gramian of the expected gradients: the noise of a
gradient is not independent of itself. The cross-Gramian ``J1 @ J2.T`` of two independent batches is unbiased. It is
not symmetric, and no Gramian.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from torch import Tensor

from paretograd.aggregators.base import Aggregator, Description, as_tensor
from paretograd.aggregators.rows import simplex_projection
from paretograd.checks import as_count, as_rate, as_weights
from paretograd.errors import NonFiniteGradientError, ParameterError, ShapeError
from paretograd.geometry.gramian import Array, as_array, check_floating, check_jacobian, combine, nonfinite_rows
from paretograd.guarantees import Guarantee
from paretograd.solution import Outcome, Solution

#: Numbers of batches that a step takes.
COUNTS = (2, 3)


class CrossAggregator(Aggregator):
    """A rule whose weights come from the cross-Gramian of two batches.

    `weights_from` takes the cross-Gramian, and ``rule([J1, J2, J3])`` the Jacobians: the weights come from the first
    two, and the direction is ``J3.T @ w``. Without a third one, it is ``J2.T @ w``, and no longer independent of the
    weights. `paretograd.backward` takes two or three lists of losses.
    """

    needs = frozenset({"batches"})
    _w: Array | None = None
    _next: Array | None = None

    @abstractmethod
    def _advance(self, X: Array, w: Array) -> tuple[Array, Array]:
        """Return the new state of the weights, and the weights of the direction.

        Args:
            X: the cross-Gramian, shape ``(m, m)``.
            w: the state before, shape ``(m,)``.
        """

    def weights_from(self, cross: Tensor) -> Tensor:
        """Make a step, and return the weights, shape ``(m,)``.

        Args:
            cross: ``J1 @ J2.T``, shape ``(m, m)``, of two independent batches.
        """
        check_floating(cross, "a cross-Gramian")
        if cross.ndim != 2 or cross.shape[0] != cross.shape[1] or not len(cross):
            raise ShapeError(f"a cross-Gramian has shape (m, m) with m >= 1; got {tuple(cross.shape)}")
        self._prepare(as_array(cross))
        return as_tensor(self._take(len(cross)), cross)

    def _prepare(self, X: Array) -> None:
        """Compute the next weights. They count as a step once they are taken."""
        if not np.isfinite(X).all():
            raise NonFiniteGradientError(np.flatnonzero(~np.isfinite(X).all(axis=1)).tolist())
        w = np.full(len(X), 1.0 / len(X)) if self._w is None else self._w
        if len(w) != len(X):
            raise ShapeError(f"{self.label} has weights of {len(w)} objectives, and now gets {len(X)}; make a new rule")
        self._next, self._weights = self._advance(X, w)

    def _take(self, m: int) -> Array:
        if self._next is None or len(self._next) != m:
            raise self._refuse()
        self._w, self._next = self._next, None
        return self._weights

    def _answer(self, G: Array, eps: float) -> Outcome:
        return Outcome(self._take(len(G)))

    def __call__(self, jacobian: Tensor | Sequence[Tensor]) -> Tensor:
        """Return the direction, shape ``(n,)``, from the Jacobians of two or three independent batches."""
        stacked = isinstance(jacobian, Tensor) and jacobian.ndim == 3
        given = self._batches(list(jacobian) if stacked else jacobian)
        for J in given:
            check_jacobian(J)
        if len({J.shape for J in given}) > 1 or given[0].ndim != 2:
            raise ShapeError(f"give Jacobians of one shape (m, n); got {[tuple(J.shape) for J in given]}")
        bad = sorted({k for J in given for k in nonfinite_rows(J)})
        if bad:
            raise NonFiniteGradientError(bad)
        weights = self.weights_from(given[0].double() @ given[1].double().T)
        return combine(weights, given[-1])

    def _batches(self, given: Any) -> Sequence[Any]:
        """Return two or three batches as they are given; raise for anything else."""
        if isinstance(given, Sequence) and not isinstance(given, str):
            if len(given) in COUNTS:
                return given
            raise self._refuse(f"; got {len(given)}")
        raise self._refuse(f"; got a {type(given).__name__}")

    def _refuse(self, got: str = "") -> ParameterError:
        return ParameterError(
            f"{self.label} needs two or three independent batches{got}: J1 @ J2.T is no Gramian. Call "
            "rule([J1, J2, J3]), rule.weights_from(J1 @ J2.T), or paretograd.backward([losses1, losses2, losses3], "
            "rule); it cannot be a part of another rule"
        )

    def solve(self, gramian: Tensor) -> Solution:
        raise self._refuse()

    def weights(self, gramian: Tensor) -> Tensor:
        raise self._refuse()

    @property
    def guarantee(self) -> Guarantee:
        """No guarantee for a step: the weights lie on the simplex, and follow the past."""
        return Guarantee(
            None,
            in_hull=True,
            degree=None,
            note="Its paper proves a rate for the expected gradients. A single step promises nothing.",
        )

    def state_dict(self) -> dict[str, Any]:
        return {"weights": None if self._w is None else self._w.tolist()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        found = state["weights"]
        self._w, self._next = None if found is None else as_weights(found, "weights"), None


class MoDo(CrossAggregator):
    r"""Multi-objective gradient with double sampling: one projected step of MGDA's weights on a cross-Gramian.

    $$ w \leftarrow \Pi_\Delta\big(w - \gamma (J_1 J_2^\top w + \rho w)\big), \qquad d = J_3^\top w $$

    If there are two batches only, the authors' code takes $J_1 + J_2$ for $J_3$, or half of it; here it is $J_2$.

    Args:
        gamma: step size of the weights.
        rho: regularization of the weights.
    """

    name = "modo"
    label = "MoDo"
    description = Description(
        formula="w <- P(w - gamma (J1 J2.T w + rho w)),  P onto the simplex;  d = J3.T w",
        reference="Chen et al. 2023, arXiv:2305.20057",
        paper="not discussed",
        when="Small, noisy batches, of which a step can afford two or three.",
    )

    def __init__(self, gamma: float = 0.1, rho: float = 0.1) -> None:
        self.gamma, self.rho = as_rate(gamma, "gamma"), as_rate(rho, "rho")

    @property
    def guarantee(self) -> Guarantee:
        """Weights on the simplex, and continuous: a projection onto the simplex is."""
        return replace(super().guarantee, continuous=True)

    def _advance(self, X: Array, w: Array) -> tuple[Array, Array]:
        found = simplex_projection(w - self.gamma * (X @ w + self.rho * w))
        return found, found


class SDMGrad(CrossAggregator):
    r"""Stochastic direction-oriented gradient: MGDA's weights, kept close to a preferred direction.

    $$ w \leftarrow \Pi_\Delta\big(w - \beta\, X (w + \lambda p)\big) \;\text{ several times}, \qquad
       d = J_3^\top \frac{w + \lambda p}{1 + \lambda} $$

    $$ X = J_1 J_2^\top \Big/ \Big(\frac1m \sum_k \sqrt{(J_1 J_2^\top)_{kk}}\Big)^2 $$

    For $\lambda \to \infty$ the direction is that of the preference p, for $\lambda = 0$ that of MGDA. The paper writes
    d without the division, which only changes the step size. The division of the cross-Gramian is that of its
    experiments (section 6.1), with negative diagonal entries taken for zero: it makes the step size independent of the
    scale of the gradients. The authors' code also takes these steps with a momentum of 0.5, which the paper's algorithm
    does not. The defaults are those of that code and its experiments. As in it, w goes on from the last step.

    Args:
        lam: strength of the preference.
        lr: step size of the weights.
        steps: number of steps of the weights for each direction.
        normalize: divide the cross-Gramian as above.
        preference: the preferred weights, divided by their sum; None for the mean.
    """

    name = "sdmgrad"
    label = "SDMGrad"
    description = Description(
        formula="w <- P(w - lr X (w + lam p)), several times, X = J1 J2.T scaled;  d = J3.T (w + lam p) / (1 + lam)",
        reference="Xiao, Ban and Ji 2023, arXiv:2305.18409",
        paper="not discussed",
        when="As MoDo, with a direction that stays close to the mean.",
    )

    def __init__(
        self,
        lam: float = 0.3,
        lr: float = 10.0,
        steps: int = 20,
        normalize: bool = True,
        preference: Sequence[float] | Tensor | None = None,
    ) -> None:
        self.lam, self.lr = as_rate(lam, "lam"), as_rate(lr, "lr")
        self.steps, self.normalize = as_count(steps, "steps", 1), normalize
        self.preference = None if preference is None else as_weights(preference, "preference").tolist()

    @property
    def guarantee(self) -> Guarantee:
        """Weights on the simplex. A preference of one's own depends on the order of the objectives."""
        return replace(super().guarantee, equivariant=self.preference is None)

    def _advance(self, X: Array, w: Array) -> tuple[Array, Array]:
        m = len(X)
        p = np.full(m, 1.0 / m) if self.preference is None else as_weights(self.preference, "preference", m)
        p = p / p.sum()
        scale = float(_sum(np.sqrt(np.maximum(X.diagonal(), 0.0)))) / m if self.normalize else 1.0
        X = X / scale / scale if scale > 0.0 else X
        for _ in range(self.steps):
            w = simplex_projection(w - self.lr * _sum(X * (w + self.lam * p)))
        return w, (w + self.lam * p) / (1.0 + self.lam)


def _sum(terms: Array) -> Array:
    """Return the sums over the last dimension, to the last bit the same for every order of the terms.

    Steps longer than the problem allows enlarge rounding until it decides between equal objectives.
    """
    return np.asarray(np.sort(terms, axis=-1).sum(axis=-1))
