"""`Copies`: a rule with a copy for each run, if it sees more than Gramians.

Such a rule keeps averages, weights or losses of one run. A copy takes the same steps as in a descent with that run
alone, and the rule that the user gave stays as it is.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from paretograd.aggregators.base import Aggregator
from paretograd.aggregators.rows import MatrixRows, RowAggregator
from paretograd.autograd.call import check_rule
from paretograd.descent.directions import Directions, directions, measured
from paretograd.descent.evaluation import Evaluation, combine, norm
from paretograd.errors import ParameterError
from paretograd.scalarizations.base import Weighting

_FIRST = np.zeros(1, dtype=np.intp)


def check_descends(rule: Any, problem: str) -> None:
    """Raise unless a descent is defined for a rule.

    Args:
        rule: what the user gave.
        problem: the name of the problem.
    """
    if not isinstance(rule, Weighting):
        check_rule(rule)
        if "batches" in rule.needs:
            raise ParameterError(
                f"{rule!r} needs several independent batches, and {problem} is deterministic: it has none. Use a rule "
                "that needs one, such as paretograd.MoCo()"
            )
    elif any(param.requires_grad for param in rule.parameters()):
        raise ParameterError(
            f"{rule!r} learns its weights with an optimizer, which a descent does not have. Fix them by "
            "rule.requires_grad_(False), or use a rule without parameters, such as paretograd.LogSum()"
        )


def needs_copies(rule: Aggregator | Weighting) -> bool:
    """Return True if a rule sees more of a run than a Gramian."""
    return isinstance(rule, RowAggregator | Weighting) or "losses" in rule.needs


class Copies:
    """Copies of a rule.

    Args:
        rule: a rule that `needs_copies`.
        runs: number of runs.
    """

    def __init__(self, rule: Aggregator | Weighting, runs: int) -> None:
        self._rules: list[Any] = [copy.deepcopy(rule) for _ in range(runs)]

    @contextmanager
    def one_step(self, runs: NDArray[np.intp]) -> Iterator[None]:
        """Join all calls inside into one step of these runs."""
        with ExitStack() as steps:
            for run in runs:
                if isinstance(self._rules[run], Aggregator):
                    steps.enter_context(self._rules[run].one_step())
            yield

    def directions(self, here: Evaluation, runs: NDArray[np.intp]) -> Directions:
        """Return the directions of these runs. No copy takes a step before all have accepted their losses."""
        rules = [self._rules[run] for run in runs]
        if isinstance(rules[0], Weighting):
            return _weighted(rules, here)
        for rule, losses in zip(rules, here.losses, strict=True):
            rule.observe(torch.from_numpy(losses))
        if isinstance(rules[0], RowAggregator):
            return _by_rows(rules, here)
        found = [directions(rule, here.take(np.array([k])), _FIRST) for k, rule in enumerate(rules)]
        weights, d, norms, slopes = (np.concatenate([each[i] for each in found]) for i in range(4))
        return Directions(weights, d, norms, slopes, {k: each.stops[0] for k, each in enumerate(found) if each.stops})

    def state_dict(self) -> dict[str, Any]:
        """Return the states of all copies, by run."""
        return {str(run): dict(rule.state_dict()) for run, rule in enumerate(self._rules)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore what `state_dict` returned. An error changes nothing."""
        rules = copy.deepcopy(self._rules)
        for run, rule in enumerate(rules):
            try:
                rule.load_state_dict(state[str(run)])
            except (LookupError, TypeError, ValueError, RuntimeError) as error:
                raise ParameterError(f"the state of {rule!r} of run {run} cannot be loaded ({error!r})") from error
        self._rules = rules


def _weighted(rules: list[Weighting], here: Evaluation) -> Directions:
    """Return the directions of rules that see the losses alone."""
    values = torch.from_numpy(here.losses).unbind()
    for rule, losses in zip(rules, values, strict=True):
        rule._continue(losses)
    weights = np.stack([rule._graded(losses).weights for rule, losses in zip(rules, values, strict=True)])
    for rule, losses in zip(rules, values, strict=True):
        rule._advance(losses)
    d = combine(weights, here.J)
    return measured(here, weights, d, norm(d), {})


def _by_rows(rules: list[RowAggregator], here: Evaluation) -> Directions:
    """Return the directions of rules that see the rows."""
    weights, d = np.full(here.losses.shape, np.nan), np.empty(here.points.shape)
    for k, rule in enumerate(rules):
        rows = MatrixRows(torch.from_numpy(here.J[k]))
        found = rule._combine(rows)
        if found.direction is not None:
            d[k] = found.direction[id(rows.keys[0])].numpy()
        elif found.weights is not None:
            weights[k] = found.weights
            d[k] = combine(weights[k : k + 1], here.J[k : k + 1])[0]
    return measured(here, weights, d, norm(d), {})
