"""FAMO: weights that make all losses decrease at the same rate, from their values before and after each step."""

from __future__ import annotations

import math
import warnings
from collections.abc import Sequence

import torch
from torch import Tensor

from paretograd.aggregators.base import Description
from paretograd.callers import callers_level
from paretograd.checks import as_number, as_rate
from paretograd.errors import ParameterError, ParetogradError
from paretograd.geometry.gramian import Array
from paretograd.guarantees import Guarantee
from paretograd.scalarizations.base import Given, Share, Weighting, as_vector
from paretograd.scalarizations.preferences import as_ideal
from paretograd.scalarizations.sums import entries

#: Adam's decay rates and its term against division by zero, as in torch.
_MEAN, _SQUARE, _EPS = 0.9, 0.999, 1e-8


class FAMO(Weighting):
    r"""Fast adaptive multitask optimization: weights that make the losses decrease at the same rate.

    $$ \phi_k = c\, \frac{z_k}{f_k - l_k}, \qquad z = \mathrm{softmax}(\xi), \qquad
       c = \Big(\sum_k \frac{z_k}{f_k - l_k}\Big)^{-1} $$

    After each step, `update` moves the logits $\xi$ by Adam. Their gradient is the product of the Jacobian of the
    softmax and the change of the logarithms, $\log(f_k - l_k)$ before the step minus after it. A loss that decreased
    less than the others then gets more weight. Each step costs one more forward pass:

    ``pg.backward(losses(batch), famo); optimizer.step(); famo.update(losses(batch))``

    Its fixed points are stationary points of $\sum_k \log (f_k - l_k)$, the function of `LogSum`.

    The paper's algorithm 1 takes plain gradient steps of the logits. Its pseudocode (appendix C) takes steps of Adam,
    with the defaults below, and adds 1e-8 to the losses, as does ``lowest=-1e-8``. The authors' code has a decay of
    0.01 by default, others for its experiments, and clips the gradient of the shared parameters to norm 1.

    Args:
        lr: the learning rate of the logits.
        decay: the weight decay of the logits.
        lowest: a lower bound l on the losses, or one for each; every loss must exceed it.
    """

    name = "famo"
    label = "FAMO"
    description = Description(
        formula="phi_k = c z_k / (f_k - l_k), z = softmax(xi), xi by Adam on the change of log(f - l)",
        reference="Liu et al. 2023, arXiv:2306.03792",
        paper="-",
        when="Many tasks on different scales, at the cost of one more forward pass a step.",
    )
    domain = "above their lower bounds"
    _by_loss = ("_logits", "_mean", "_square", "_before")
    _logits: Tensor
    _mean: Tensor
    _square: Tensor
    _before: Tensor
    _updates: Tensor
    _open: Tensor

    def __init__(
        self, lr: float = 0.025, decay: float = 1e-3, lowest: float | Sequence[float] | Tensor | Array = 0.0
    ) -> None:
        super().__init__()
        self._given_lr, self._given_decay = as_number(lr, "lr"), as_rate(decay, "decay")
        if not 0.0 < self._given_lr < math.inf:
            raise ParameterError(f"lr={lr!r}: a finite number above 0 is needed")
        self._given_lowest = as_ideal(lowest, "lowest")
        for name in self._by_loss:
            self.register_buffer(name, torch.empty(0, dtype=torch.float64, device="cpu"))
        for name in ("_updates", "_open"):  # a step that no update has followed yet leaves it open
            self.register_buffer(name, torch.zeros((), dtype=torch.int64, device="cpu"))
        self._all: Share | None = None

    @property
    def guarantee(self) -> Guarantee:
        """No theorem of ours. The paper describes the fixed points of the continuous limit."""
        bounded = self._given_lowest != 0.0
        return Guarantee(
            None,
            in_hull=True,
            degree=None if bounded else 1.0,
            equivariant=not isinstance(self._given_lowest, list),
            scale_invariant=not bounded,
            continuous=True,
            note="Positive weights that sum to one.",
        )

    def _above(self, values: Tensor) -> Tensor:
        lowest = self._given_lowest
        return values - (entries(lowest, values) if isinstance(lowest, list) else lowest)

    def _inside(self, values: Tensor) -> Tensor:
        return self._above(values) > 0.0

    def _phi(self, values: Tensor) -> Tensor:
        # The softmax of xi - log(f - l) is c z / (f - l), and cannot overflow.
        return torch.softmax(self._entries("_logits", values) - self._above(values).log(), 0)

    def _advance(self, values: Tensor) -> None:
        if self._open:
            warnings.warn(
                "FAMO took two steps without update(losses) between them, so its logits do not move. Call "
                "rule.update(losses) after optimizer.step(), with the losses of the same batch",
                UserWarning,
                stacklevel=callers_level(),
            )
        for name in ("_logits", "_mean", "_square"):
            self._keep(name, self._entries(name, values))
        self._keep("_before", values)
        self._open.fill_(1)

    def _continue(self, values: Tensor) -> None:
        if self._open:
            self.update(values)

    def _share(self, share: Share | None) -> None:
        self._all = share

    def update(self, losses: Given) -> None:
        """Move the logits, from the losses after the optimizer's step. Call it once for each step.

        Several processes call it together, each with its own losses, as in `paretograd.backward`.

        Args:
            losses: the losses of the same batch as before the step, in the same form and order.
        """
        after = self._of_all(losses)
        if not self._open:
            raise ParameterError("FAMO.update: no step came before; call pg.backward(losses, famo) first")
        if len(after) != len(self._before):
            raise ParameterError(f"FAMO.update: got {len(after)} losses after a step with {len(self._before)}")
        self._check(after, None)
        change = self._above(self._before.to(after)).log() - self._above(after).log()
        self._move(change)
        self._open.zero_()

    def _of_all(self, losses: Given) -> Tensor:
        if self._all is None:
            return as_vector(losses).double()
        mine, problem = None, None
        try:
            none = not isinstance(losses, Tensor) and not len(losses)  # all losses are on other processes
            mine = torch.empty(0, dtype=torch.float64, device="cpu") if none else as_vector(losses).double()
        except ParetogradError as error:  # the other processes must be told
            problem = error
        return self._all(mine, problem)

    def _move(self, change: Tensor) -> None:
        """Take a step of Adam, with the decay as a part of the gradient."""
        logits = self._entries("_logits", change)
        z = torch.softmax(logits, 0)
        grad = z * (change - (z * change).sum()) + self._given_decay * logits
        mean = _MEAN * self._entries("_mean", change) + (1.0 - _MEAN) * grad
        square = _SQUARE * self._entries("_square", change) + (1.0 - _SQUARE) * grad.square()
        self._updates += 1
        count = int(self._updates)
        root = (square / (1.0 - _SQUARE**count)).sqrt() + _EPS
        self._keep("_logits", logits - self._given_lr * mean / (1.0 - _MEAN**count) / root)
        self._keep("_mean", mean)
        self._keep("_square", square)

    def __getstate__(self) -> dict[str, object]:
        """Leave out what belongs to the processes of the last step."""
        return self.__dict__ | {"_all": None}
