"""Rules that keep averages of the gradients from step to step: MoCo, ExcessMTL, DB-MTL and M-ConFIG."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from paretograd.aggregators.base import ROWS, Description
from paretograd.aggregators.equal_angle import ConFIG
from paretograd.aggregators.rows import (
    Found,
    RowAggregator,
    RowMemory,
    RowSource,
    simplex_projection,
    vectors_of,
    weighted,
)
from paretograd.checks import as_number, as_positive_losses, as_rate, observed_losses
from paretograd.errors import ParameterError
from paretograd.geometry.gramian import Array
from paretograd.guarantees import Guarantee


def _share(value: object, what: str) -> float:
    number = as_number(value, what)
    if not 0.0 <= number < 1.0:
        raise ParameterError(f"{what}={number:g}: give a number of at least 0 and below 1")
    return number


class _Averaging(RowAggregator):
    """A rule with a `RowMemory`, and with a few numbers from step to step."""

    #: Names of the attributes to save, numbers, arrays or None.
    _saved: tuple[str, ...] = ()
    _memory: RowMemory

    def _numbers(self) -> dict[str, Any]:
        return {name: getattr(self, f"_{name}") for name in self._saved}

    def state_dict(self) -> dict[str, Any]:
        return self._numbers() | {ROWS: self._memory.state(), "process": self._memory.process}

    def _common_state(self) -> dict[str, Any]:
        return self._numbers() | {"blocks": len(self._memory), "elsewhere": self._memory.is_elsewhere}

    def _take_common_state(self, state: Mapping[str, Any]) -> None:
        raise ParameterError(
            f"{self.label} has taken other steps on this process than on the first one, or has loaded another state"
        )

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        values = {name: state[name] for name in self._saved}
        self._memory.load(state[ROWS], state["process"])
        for name, value in values.items():
            setattr(self, f"_{name}", np.asarray(value) if isinstance(value, (list, np.ndarray)) else value)


class MoCo(_Averaging):
    r"""Multi-objective gradient correction: MGDA by single steps on moving averages of the gradients.

    $$ y_k \leftarrow y_k + \beta (g_k - y_k), \qquad
       w \leftarrow \Pi_\Delta\big(w - \gamma (Y Y^\top + \rho I)\, w\big), \qquad d = Y^\top w $$

    The averages correct the bias that MGDA has for stochastic gradients. They start at zero, and w at 1/m. As in the
    authors' code, w uses the new averages, and d the new averages and weights. The paper also projects each $y_k$ onto
    a ball of the size of the Lipschitz constant, which is not known in practice: neither that code nor this rule does.

    The authors' code for the paper divides beta and gamma by the square root of the number of steps, and has a factor 2
    before gamma. To follow it, assign to them. LibMTL divides them, too, maps w by a softmax instead of the projection,
    and scales the gradients to the lengths of the losses.

    Args:
        beta: share of the new gradients, above 0 and at most 1.
        gamma: step size of the weights.
        rho: regularization of the weights.
    """

    name = "moco"
    label = "MoCo"
    description = Description(
        formula="Y <- Y + beta (J - Y);  w <- P(w - gamma (Y Y.T + rho I) w),  P onto the simplex;  d = Y.T w",
        reference="Fernando et al. 2023, arXiv:2210.12624",
        paper="not discussed",
        when="Small, noisy batches, with an MGDA that should not chase their noise.",
    )
    _saved = ("w",)

    def __init__(self, beta: float = 0.5, gamma: float = 0.1, rho: float = 0.0) -> None:
        self.beta, self.gamma, self.rho = as_number(beta, "beta"), as_rate(gamma, "gamma"), as_rate(rho, "rho")
        if not 0.0 < self.beta <= 1.0:
            raise ParameterError(f"beta={self.beta:g}: the share of the new gradients is above 0 and at most 1")
        self._w: Array | None = None
        self._memory = RowMemory()

    @property
    def guarantee(self) -> Guarantee:
        """No guarantee for a step: d is in the hull of the averages, not of the gradients."""
        return Guarantee(
            None,
            degree=None,
            continuous=True,
            note="In the hull of the averages; its paper proves a rate for the expected gradients.",
        )

    def _combine(self, rows: RowSource) -> Found:
        averages = self._memory.tensors(rows)
        for key, y in zip(rows.keys, averages, strict=True):
            y.lerp_(rows.block(key), self.beta)
        held = {id(key): y for key, y in zip(rows.keys, averages, strict=True)}
        G = rows.products(vectors_of(held, rows.m))[rows.m :, rows.m :]
        w = np.full(rows.m, 1.0 / rows.m) if self._w is None else self._w
        self._w = w = simplex_projection(w - self.gamma * (G @ w + self.rho * w))
        return Found(None, {key: weighted(y, w) for key, y in held.items()})


class ExcessMTL(_Averaging):
    r"""Robust weights from excess risks: objectives that are far from their optimum gain weight.

    $$ S_k \leftarrow S_k + g_k^2, \qquad E_k = \sum_i \frac{g_{k,i}^2}{\sqrt{S_{k,i}}}, \qquad
       w_k \propto w_k \exp\!\Big(\eta \frac{E_k}{E_k^{(1)}}\Big), \qquad d = J^\top w $$

    E estimates the excess risk by a Taylor expansion with a diagonal Hessian, as AdaGrad does, relative to its value in
    the first step. Noisy labels raise a loss, but not its excess risk.

    The paper's experiments collect the first value over three epochs; the authors' code takes that of the first step,
    as here. Their weights sum to m, where those of the paper and of this rule lie on the simplex, and they add 1e-7
    under the root.

    Args:
        lr: step size of the weights.
    """

    name = "excess-mtl"
    label = "ExcessMTL"
    description = Description(
        formula="S_k <- S_k + g_k^2;  E_k = sum_i g_ki^2 / sqrt(S_ki);  w_k <- w_k exp(lr E_k / E_k of step 1), sum 1",
        reference="He et al. 2024, arXiv:2402.02009",
        paper="not discussed",
        when="Some tasks have noisy labels.",
    )
    _saved = ("w", "first")

    def __init__(self, lr: float = 1.0) -> None:
        self.lr = as_rate(lr, "lr")
        self._w: Array | None = None
        self._first: Array | None = None
        self._memory = RowMemory()

    @property
    def guarantee(self) -> Guarantee:
        """No guarantee: the weights lie on the simplex, but follow the past."""
        return Guarantee(
            None,
            in_hull=True,
            recalls_lengths=True,
            continuous_inside=True,  # in the first step, the weight of a gradient jumps if it vanishes
            note="Weights on the simplex that depend on all steps before.",
        )

    def _combine(self, rows: RowSource) -> Found:
        scaled = {}
        for key, roots in zip(rows.keys, self._memory.tensors(rows), strict=True):
            block = rows.block(key)
            torch.hypot(roots, block, out=roots)  # of S, whose own range is too large for float32
            scaled[id(key)] = torch.where(roots > 0.0, block / roots, 0.0)
        excess = rows.products(vectors_of(scaled, rows.m))[: rows.m, rows.m :].diagonal()
        if self._first is None:
            self._first = excess.copy()
        relative = np.divide(excess, self._first, out=np.zeros(rows.m), where=self._first > 0.0)
        before = np.full(rows.m, 1.0 / rows.m) if self._w is None else self._w
        w = before * np.exp(self.lr * (relative - relative.max()))
        self._w = w / w.sum()
        return Found(self._w, None)


class DBMTL(_Averaging):
    r"""Dual balancing: gradients of the logarithms of the losses, averaged, and of equal length.

    $$ y_k \leftarrow \beta y_k + (1 - \beta) \frac{g_k}{f_k + \epsilon}, \qquad
       d = \sum_k \frac{\max_j \|y_j\|}{\|y_k\|}\, y_k $$

    The logarithm balances the losses, and the lengths balance the gradients. Parameters of a single task get the
    gradient of its loss, as with every rule here; the paper uses that of its logarithm. It has no single beta: it
    chooses 0.1, 0.5 or 0.9 for each dataset, or one of them divided by the square root of the number of steps. The
    default is that of LibMTL, which is by the same authors.

    Args:
        beta: share of the average that is kept, below 1.
        eps: added to the losses.
    """

    name = "db-mtl"
    label = "DB-MTL"
    needs = frozenset({"rows", "losses"})
    description = Description(
        formula="y_k <- beta y_k + (1 - beta) g_k / (f_k + eps);  d = max_j |y_j| sum_k y_k / |y_k|",
        reference="Lin et al. 2023, arXiv:2308.12029",
        paper="not discussed",
        when="Losses of very different sizes, all positive.",
    )

    def __init__(self, beta: float = 0.9, eps: float = 1e-8) -> None:
        self.beta, self.eps = _share(beta, "beta"), as_rate(eps, "eps")
        self._losses: Array | None = None
        self._memory = RowMemory()

    @property
    def guarantee(self) -> Guarantee:
        """No guarantee for a step: d is in the cone of the averages, not of the gradients.

        With ``eps=0``, neither the averages nor d depend on the scales of the losses.
        """
        exact = self.eps == 0.0
        return Guarantee(
            None,
            degree=0.0 if exact else None,
            scale_invariant=exact,
            recalls_lengths=True,
            note="In the cone of the averages of the gradients.",
        )

    def observe(self, losses: Tensor | Sequence[float | Tensor]) -> None:
        self._losses = as_positive_losses(losses, self.label)

    def _combine(self, rows: RowSource) -> Found:
        losses = observed_losses(self._losses, self.label, rows.m)
        averages = self._memory.tensors(rows)
        self._losses = None
        for key, y in zip(rows.keys, averages, strict=True):
            block = rows.block(key)
            size = torch.as_tensor(losses + self.eps, dtype=y.dtype, device=y.device)
            y.lerp_(block / size.reshape(-1, *(1 for _ in block.shape[1:])), 1.0 - self.beta)
        held = {id(key): y for key, y in zip(rows.keys, averages, strict=True)}
        squares = rows.products(vectors_of(held, rows.m)).diagonal()[rows.m :]
        lengths = np.sqrt(np.maximum(squares, 0.0))
        factors = np.divide(lengths.max(), lengths, out=np.zeros(rows.m), where=lengths > 0.0)
        return Found(None, {key: weighted(y, factors) for key, y in held.items()})


class MConFIG(_Averaging):
    r"""ConFIG with momentum: each step differentiates one loss only, and moving averages stand for the others.

    $$ y_i \leftarrow \beta_1 y_i + (1 - \beta_1) g_i \;\text{ for one } i $$

    $$ u = \mathrm{ConFIG}\Big(\frac{y_1}{1 - \beta_1^{t_1}}, \dots, \frac{y_m}{1 - \beta_1^{t_m}}\Big), \qquad
       d = \frac{u}{\sqrt{v / (1 - \beta_2^t)} + \epsilon} $$

    v averages the squares of the gradient that would give u by momentum, which is
    $((1 - \beta_1^t) u_t - \beta_1 (1 - \beta_1^{t-1}) u_{t-1}) / (1 - \beta_1)$. The losses take turns, so that a step
    costs one backward pass, however many losses there are. d is an update as Adam makes it: use plain SGD.

    Losses that had no turn yet are left out. In the authors' package, `PseudoMomentumOperator` returns zero until each
    loss has had one, and counts t from there. It also accepts the gradients of several losses in a step.

    Args:
        betas: shares of the averages that are kept, of gradients and of squares.
        eps: added to the denominator.
    """

    name = "m-config"
    label = "M-ConFIG"
    description = Description(
        formula="y_i <- b1 y_i + (1 - b1) g_i for one i;  u = ConFIG(y);  d = u / (sqrt(v) + eps),  v as in Adam",
        reference="Liu et al. 2025, arXiv:2408.11104",
        paper="not discussed",
        when="Physics-informed networks whose losses are expensive. Use it with plain SGD.",
    )
    _saved = ("counts",)

    def __init__(self, betas: Sequence[float] = (0.9, 0.999), eps: float = 1e-8) -> None:
        if not isinstance(betas, (list, tuple)) or len(betas) != 2:
            raise ParameterError(f"betas={betas!r}: give two numbers, for gradients and for squares")
        self.betas, self.eps = (_share(betas[0], "betas[0]"), _share(betas[1], "betas[1]")), as_rate(eps, "eps")
        self._counts: list[int] = []
        self._memory = RowMemory(extra=2)  # the last momentum, and the root of v
        self._config = ConFIG()

    @property
    def guarantee(self) -> Guarantee:
        """No guarantee: d is built from past gradients, and rescaled coordinate by coordinate."""
        degree = 0.0 if self.eps == 0.0 else None
        return Guarantee(None, degree=degree, recalls_lengths=True, equivariant=False, note="The losses take turns.")

    def _differentiated(self, m: int) -> Sequence[int]:
        return (sum(self._counts) % m,)

    def _combine(self, rows: RowSource) -> Found:
        m, (first, second) = rows.m, self.betas
        held = dict(zip(map(id, rows.keys), self._memory.tensors(rows), strict=True))
        counts = [int(count) for count in self._counts] or [0] * m  # numpy's powers of a loaded state differ
        (i,) = self._differentiated(m)
        counts[i] += 1
        self._counts, t = counts, sum(counts)
        for key in rows.keys:
            held[id(key)][i].lerp_(rows.block(key)[i], 1.0 - first)
        factors = np.array([1.0 / (1.0 - first**count) if count else 0.0 for count in counts])
        G = rows.products(vectors_of(held, m))[m:, m:] * factors * factors[:, None]
        weights = self._config._outcome(G, rows.eps).weights * factors
        found = {}
        for key, tensor in held.items():
            u, last, root = weighted(tensor[:m], weights), tensor[m], tensor[m + 1]  # of v: squares may overflow
            momentum = (1.0 - first**t) * u
            gradient = (momentum - first * last) / (1.0 - first)
            torch.hypot(second**0.5 * root, (1.0 - second) ** 0.5 * gradient, out=root)
            last.copy_(momentum)
            size = root / (1.0 - second**t) ** 0.5 + self.eps
            found[key] = torch.where(size > 0.0, u / size, 0.0)
        return Found(None, found)
