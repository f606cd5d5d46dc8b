"""From the gradients of B networks to their directions, with a rule for each network."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from paretograd.aggregators.base import Aggregator
from paretograd.aggregators.rows import RowAggregator
from paretograd.bench.roster import Rule
from paretograd.disk import from_json, to_json
from paretograd.errors import ParetogradError
from paretograd.scalarizations.base import Weighting
from paretograd.scalarizations.famo import FAMO
from paretograd.scalarizations.history import DWA
from paretograd.solvers.min_norm import stationarity

#: A slope counts as a conflict if its cosine is below this: what rounding may hide in float32.
_CONFLICT = -1e-6


class Steering:
    """A rule for each of B networks, all of one class.

    Args:
        rules: one for each network.

    Attributes:
        reasons: why a network has stopped; empty for one that runs.
    """

    def __init__(self, rules: Sequence[Rule]) -> None:
        self._rules = list(rules)
        self.reasons = [""] * len(self._rules)
        first = self._rules[0]
        self._learned = [p for rule in self._rules if isinstance(rule, Weighting) for p in rule.parameters()]
        #: What the rule needs.
        self.by_losses = isinstance(first, Weighting)
        self.by_batches = isinstance(first, Aggregator) and "batches" in first.needs
        self.looks_back = isinstance(first, FAMO)
        self.has_epochs = isinstance(first, DWA)

    @property
    def running(self) -> list[int]:
        """Return the numbers of the networks that have not stopped."""
        return [i for i, reason in enumerate(self.reasons) if not reason]

    def check_finite(self, values: Tensor, what: str) -> None:
        """Stop the networks with values that are not finite; the first dimension is the networks."""
        fine = torch.isfinite(values).flatten(1).all(dim=1).tolist()
        for i in self.running:
            if not fine[i]:
                self.reasons[i] = f"a {what} is not finite"

    def _each(self, act: Callable[[int], None]) -> None:
        """Call a function for each running network. One whose rule raises an error stops."""
        for i in self.running:
            try:
                act(i)
            except ParetogradError as error:
                self.reasons[i] = str(error)

    @property
    def learned(self) -> Tensor | None:
        """The learned weights of the rules, ``(B, m)``; None if there are none."""
        return torch.stack([param.detach() for param in self._learned]) if self._learned else None

    def learn(self, values: Tensor) -> None:
        """Replace the learned weights."""
        for param, value in zip(self._learned, values.cpu(), strict=True):
            with torch.no_grad():
                param.copy_(value)

    def weigh(self, losses: Tensor) -> tuple[Tensor, Tensor | None]:
        """Return the weights that the losses imply, and the gradient of the learned weights, both ``(B, m)``.

        Args:
            losses: ``(B, m)``, float64, on the CPU. Stopped networks get weights of zero.
        """
        weights, own = torch.zeros_like(losses), torch.zeros_like(losses)

        def act(i: int) -> None:
            rule = self._rules[i]
            assert isinstance(rule, Weighting)
            graded = rule._graded(losses[i])
            rule._advance(losses[i])
            weights[i] = graded.weights
            for _, gradient in graded.own:
                own[i] = gradient

        self._each(act)
        return weights, own if self._learned else None

    def after(self, losses: Callable[[], Tensor]) -> None:
        """Tell a rule that compares losses those after the step, on the same batch."""
        if not self.looks_back:
            return
        found = losses()

        def act(i: int) -> None:
            rule = self._rules[i]
            assert isinstance(rule, FAMO)
            rule.update(found[i])

        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            self._each(act)

    def next_epoch(self) -> None:
        """End an epoch, for a rule that counts them."""

        def act(i: int) -> None:
            rule = self._rules[i]
            assert isinstance(rule, DWA)
            rule.next_epoch()

        if self.has_epochs:
            self._each(act)

    def differentiated(self, m: int) -> Sequence[int]:
        """Return the losses whose gradients the next step needs; call it before `direct`."""
        one = next((self._rules[i] for i in self.running), None)  # all that run have taken the same number of steps
        return one._differentiated(m) if isinstance(one, RowAggregator) else range(m)

    def direct(self, losses: Tensor, rows: Sequence[Tensor]) -> Tensor:
        """Return the directions, ``(B, n)``; those of stopped networks mean nothing.

        Args:
            losses: ``(B, m)``, on the CPU.
            rows: the gradients that the rules see, ``(B, m, n)``, of one batch or of several independent ones.
        """
        last = rows[-1]
        direction = last.new_zeros(len(last), last.shape[2])
        weights = torch.zeros(last.shape[:2], dtype=torch.float64, device="cpu")
        first = self._rules[0]
        gramians = None if isinstance(first, RowAggregator) or self.by_batches else _gramians(last)
        for values in rows if gramians is None else [gramians]:
            self.check_finite(values, "gradient")

        def act(i: int) -> None:
            rule = self._rules[i]
            assert isinstance(rule, Aggregator)
            if "losses" in rule.needs:
                rule.observe(losses[i])
            if gramians is not None:
                weights[i] = rule.weights(gramians[i])
            elif self.by_batches:
                direction[i] = rule([J[i] for J in rows])  # type: ignore[arg-type]  # these rules take several
            else:
                direction[i] = rule(last[i])

        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # inexact weights of diverging networks
            self._each(act)
        return direction if gramians is None else torch.einsum("bm,bmn->bn", weights.to(last), last)

    def state_dict(self) -> dict[str, Any]:
        """Return the states of all rules as one text, and why networks have stopped."""
        states = [dict(rule.state_dict()) for rule in self._rules]
        return {"rules": to_json({"states": states}), "reasons": to_json({"reasons": self.reasons})}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore what `state_dict` returned."""
        for rule, found in zip(self._rules, from_json(str(state["rules"]))["states"], strict=True):
            rule.load_state_dict(found)
        self.reasons = [str(reason) for reason in from_json(str(state["reasons"]))["reasons"]]


def _gramians(rows: Tensor) -> Tensor:
    """Return ``J @ J.T`` of each network, float64, on the CPU; not finite where the rows are not."""
    exact = rows.double()
    return (exact @ exact.mT).cpu()


def measure(rows: Tensor, direction: Tensor) -> tuple[np.ndarray, np.ndarray]:
    """Return gamma relative to the longest gradient, and the share of the losses that a step raises, ``(B,)`` each.

    Args:
        rows: ``(B, m, n)``.
        direction: ``(B, n)``.
    """
    G = _gramians(rows)
    norms = G.diagonal(dim1=1, dim2=2).clamp(min=0.0).sqrt()
    gamma = np.full(len(G), math.nan)
    for i, one in enumerate(G):
        if bool(torch.isfinite(one).all()) and float(norms[i].max()) > 0.0:
            gamma[i] = float(stationarity(one)) / float(norms[i].max())
    d = direction.double()
    slopes = torch.einsum("bmn,bn->bm", rows.double(), d).cpu()
    scale = norms * d.norm(dim=1).cpu()[:, None]
    conflicts = (slopes < _CONFLICT * scale).double().mean(dim=1)
    return gamma, conflicts.numpy()
