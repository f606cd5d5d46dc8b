"""`Server`: one federated round, from the replies of clients to the next global model and a report of the round."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Collection, Iterator, Mapping
from typing import Any, NamedTuple, get_args

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from paretograd.aggregators.base import Aggregator
from paretograd.aggregators.named import Mean
from paretograd.checks import as_count, as_number
from paretograd.errors import InfeasibleCapError, InputError, ParameterError
from paretograd.federated.aggregation import Bound, Limit, Streamed
from paretograd.federated.lengths import Lengths
from paretograd.federated.replies import LARGEST, Arrays, Dropped, check_replies, fault
from paretograd.federated.rules import Rule
from paretograd.federated.trust import TrustedMGDA, as_attackers
from paretograd.federated.updates import Updates
from paretograd.scalarizations.base import Weighting

#: Suffixes of torch's running statistics, which are not aggregated if no names are given.
_STATISTICS = ("running_mean", "running_var")


class Round(NamedTuple):
    """Result of one round.

    Attributes:
        model: the next global model, or the previous one.
        moved: True if it is the next one: enough replies were valid, the rule had an answer, and the new model passes
            the same checks.
        nodes: nodes that were aggregated, in the order of the rows.
        weights: weights of their updates.
        norms: lengths of their original updates.
        gamma: distance of the bounded updates from Pareto stationarity.
        conflicts: nodes whose update the rule's direction opposes, before momentum.
        dropped: nodes whose replies were not used, with the reasons.
    """

    model: dict[str, NDArray[np.generic]]
    moved: bool
    nodes: tuple[int, ...]
    weights: tuple[float, ...]
    norms: tuple[float, ...]
    gamma: float
    conflicts: tuple[int, ...]
    dropped: tuple[Dropped, ...]

    def metrics(self) -> dict[str, float]:
        """Return a flat dict of floats, for any tracker."""
        found = {
            "gamma": self.gamma,
            "conflicts": float(len(self.conflicts)),
            "valid": float(len(self.nodes)),
            "dropped": float(len(self.dropped)),
        }
        found |= {f"weight/{node}": weight for node, weight in zip(self.nodes, self.weights, strict=True)}
        return found | {f"norm/{node}": norm for node, norm in zip(self.nodes, self.norms, strict=True)}


class Server:
    """Aggregation of the models that clients return.

    An update is the global model minus a client's. If the client makes one gradient step, this is its learning rate
    times its gradient. The rule turns all updates into a direction d, and the model moves by ``-lr v`` with
    ``v = momentum v + d``, as in FedOpt (Reddi et al., 2021). The order in which replies arrive does not matter.

    Args:
        rule: a rule of the library, or a function from updates ``(m, n)`` to a direction; None for `TrustedMGDA`.
        attackers: number of hostile clients to withstand, or their share of all clients, below 0.5. The default rule
            and the bound on lengths depend on it.
        lr: learning rate of the server; 1 applies the direction unscaled.
        momentum: at least 0 and below 1.
        bound: treatment of the lengths of updates: see `combine_updates`. The median is that of all known clients: the
            lengths of the last 20 rounds count, too. So attackers that are most of one round's sample gain little.
        min_valid: with fewer valid replies the model stays unchanged; None for more than half of the clients asked.
        averaged: names of arrays that are averaged instead of aggregated, such as BatchNorm's running statistics (see
            `buffer_names`); None for those whose names end in ``running_mean`` or ``running_var``. Each entry moves by
            the median of the clients' changes. Unless ``bound`` is ``none``, changes of an array that are longer than
            the median are shortened first. Whole numbers become their median, and infinite entries stay unchanged.
    """

    def __init__(
        self,
        rule: Rule | None = None,
        *,
        attackers: float = 0.3,
        lr: float = 1.0,
        momentum: float = 0.0,
        bound: Bound = "clip",
        min_valid: int | None = None,
        averaged: Collection[str] | None = None,
    ) -> None:
        self.attackers = as_attackers(attackers)
        rule = TrustedMGDA(self.attackers) if rule is None else rule
        _check_rule(rule)
        if isinstance(averaged, str):
            raise ParameterError(f"averaged={averaged!r}: a list of names is needed, such as [{averaged!r}]")
        self.rule, self.bound = rule, bound
        self.averaged = None if averaged is None else frozenset(averaged)
        self.lr, self.momentum = as_number(lr, "lr"), as_number(momentum, "momentum")
        self.min_valid = None if min_valid is None else as_count(min_valid, "min_valid", 1)
        if not 0.0 < self.lr < float("inf"):
            raise ParameterError(f"lr={lr!r}: it must be finite and above 0")
        if not 0.0 <= self.momentum < 1.0:
            raise ParameterError(f"momentum={momentum!r}: it must be at least 0 and below 1")
        if bound not in get_args(Bound):
            raise ParameterError(f"bound={bound!r}: use one of {', '.join(get_args(Bound))}")
        self._velocity: Tensor | None = None
        self._lengths = Lengths(self.attackers)
        self._loaded = self._told = False

    def quorum(self, asked: int) -> int:
        """Return the number of valid replies that a round needs.

        Args:
            asked: number of clients that were asked to train.
        """
        return asked // 2 + 1 if self.min_valid is None else self.min_valid

    def step(
        self, model: Arrays, replies: Mapping[int, object], *, asked: int | None = None, clients: int | None = None
    ) -> Round:
        """Run one round. An invalid reply is dropped with a warning that names its node.

        Args:
            model: arrays of the global model, by name.
            replies: the reply of each node: its model after training, or anything else, such as an exception that says
                why there is none.
            asked: number of clients that were asked to train, for the quorum; None for the number of replies.
            clients: number of clients of which those that were asked are a random sample; None if all were asked.
        """
        asked = len(replies) if asked is None else as_count(asked, "asked", 0)
        clients = asked if clients is None else as_count(clients, "clients", 0)
        names = self.parameters(model)
        self._check_velocity(sum(model[name].size for name in names))
        self._loaded = False
        if self.averaged is None and not self._told and all(name.isdecimal() for name in model):
            self._told = True
            warnings.warn(
                "the arrays are numbered, so running statistics among them cannot be recognised and are aggregated: "
                "name them in averaged=, or pass averaged=() if there are none",
                stacklevel=2,
            )
        averaged = set(model) - set(names)
        # The Gramian shows whose parameters are not finite, without another pass over the replies.
        valid, dropped = check_replies(model, replies, averaged, unread=names)
        G = Updates(model, list(valid.values()), names).gramian()
        usable = G.diagonal() <= LARGEST**2
        for node in [node for node, good in zip(valid, usable.tolist(), strict=True) if not good]:
            reason = fault(model, valid.pop(node), averaged) or f"its update is longer than {LARGEST:g}"
            dropped.append(Dropped(node, reason))
        G = G[usable][:, usable]
        for node, reason in sorted(dropped):
            warnings.warn(f"the reply of node {node} is not used: {reason}", stacklevel=2)
        if len(valid) < self.quorum(asked):
            warnings.warn(self._too_few(len(valid), asked), stacklevel=2)
            return _unmoved(model, sorted(dropped))
        updates = Updates(model, list(valid.values()), names)
        population = clients if clients > asked else 0
        found = self._combined(
            updates, G, lambda norms: self._lengths.limit(dict(zip(valid, norms, strict=True)), population)
        )
        moved = None if found is None else self._moved(updates, found)
        if found is None or moved is None:
            return _unmoved(model, sorted(dropped))
        moved = {name: moved[name] if name in moved else np.array(array) for name, array in model.items()}
        self._settle(moved, valid, [name for name in model if name not in names])
        broken = fault(model, moved, averaged)
        if broken is not None:
            self._velocity = None  # it may be the cause, and would break all later rounds
            warnings.warn(f"the next model is rejected, since it would be broken: {broken}", stacklevel=2)
            return _unmoved(model, sorted(dropped))
        nodes, weighed = tuple(valid), found.weighed
        self._lengths.remember(dict(zip(nodes, weighed.norms.tolist(), strict=True)))
        weights = torch.full_like(weighed.norms, torch.nan) if weighed.weights is None else weighed.weights
        return Round(
            moved,
            True,
            nodes,
            tuple(weights.tolist()),
            tuple(weighed.norms.tolist()),
            weighed.gamma,
            tuple(nodes[row] for row in found.conflicts),
            tuple(sorted(dropped)),
        )

    def _too_few(self, valid: int, asked: int) -> str:
        wanted = "more than half of them" if self.min_valid is None else f"min_valid={self.min_valid}"
        return (
            f"this round leaves the model unchanged: {valid} of {asked} clients sent a valid reply, and the quorum is "
            f"{self.quorum(asked)} ({wanted})"
        )

    def parameters(self, model: Arrays) -> list[str]:
        """Return the names of the arrays that are aggregated. Raise if the global model is invalid.

        Args:
            model: arrays of the global model, by name.
        """
        _check_model(model)
        unknown = (self.averaged or frozenset()) - set(model)
        if unknown:
            raise InputError(f"averaged names {sorted(unknown)}, which the model does not have: {sorted(model)}")
        averaged = (name for name in model if name.endswith(_STATISTICS)) if self.averaged is None else self.averaged
        left = set(model) - set(averaged)
        names = [name for name, array in model.items() if array.dtype.kind == "f" and name in left]
        reason = fault(model, model, set(model) - set(names))
        if reason is not None and self.averaged is None:
            reason += ". If that is a buffer, not a parameter, name it in averaged=; buffer_names finds all of a module"
        if reason is None and not any(model[name].size for name in names):
            reason = "it has no parameters besides the averaged arrays"
        if reason is not None:
            raise InputError(f"the global model cannot be trained: {reason}")
        return names

    def _combined(self, updates: Updates, G: Tensor, limit: Limit) -> Streamed | None:
        """Return the rule's answer, or None if it has none for these updates, which the clients determine."""
        try:
            return Streamed(updates, G, self.rule, self.bound, limit)
        except InfeasibleCapError as error:
            # As clients drop out, 1/m grows until no weights below the cap sum to 1.
            warnings.warn(f"the mean is used in this round: {error}", stacklevel=3)
            return Streamed(updates, G, Mean(), self.bound, limit)
        except InputError as error:
            milder = _with_fewer_attackers(updates, G, self.rule, self.bound, limit, error)
            if milder is not None:
                return milder
            why = str(error)
        except Exception as error:  # noqa: BLE001  a user's rule may fail in any way, which must not end the run
            why = _failure(error)
        warnings.warn(f"this round leaves the model unchanged: {why}", stacklevel=3)
        return None

    def _moved(self, updates: Updates, found: Streamed) -> dict[str, NDArray[np.generic]] | None:
        """Return the arrays after the server's step, or None if a rule fails on a later block than the first."""
        pieces = self._with_momentum(found.pieces(), updates.shape[1]) if self.momentum else found.pieces()
        try:
            return updates.moved(pieces if self.lr == 1 else (self.lr * piece for piece in pieces))
        except Exception as error:  # noqa: BLE001  as above
            self._velocity = None  # a part of it has changed
            warnings.warn(f"this round leaves the model unchanged: {_failure(error)}", stacklevel=3)
            return None

    def _with_momentum(self, pieces: Iterator[Tensor], size: int) -> Iterator[Tensor]:
        """Update the velocity by the pieces of a direction, and yield its own."""
        if self._velocity is None:
            self._velocity = torch.zeros(size, dtype=torch.float64, device="cpu")
        start = 0
        for piece in pieces:
            part = self._velocity[start : start + len(piece)]
            part.mul_(self.momentum).add_(piece)
            yield part
            start += len(piece)

    def _settle(self, model: dict[str, NDArray[np.generic]], valid: Mapping[int, Arrays], left: list[str]) -> None:
        """Replace the arrays that are not aggregated by robust centres of the clients'."""
        sent = list(valid.values())
        for name in left:
            arrays = [reply[name] for reply in sent]
            if model[name].dtype.kind == "f":
                model[name] = _center(model[name], arrays, bounded=self.bound != "none")
            else:
                model[name] = _middle(arrays)

    def begin(self) -> None:
        """Start a new run: discard momentum and lengths of the previous one, unless they were loaded since."""
        if not self._loaded:
            self._velocity = None
            self._lengths.clear()

    def _check_velocity(self, size: int) -> None:
        if self._velocity is not None and len(self._velocity) != size:
            raise InputError(
                f"the momentum belongs to a model with {len(self._velocity)} parameters, and this one has {size}: call "
                "begin() before another model, or create a separate server for it"
            )

    def state_dict(self) -> dict[str, Any]:
        """Return the state for a checkpoint: the momentum, the lengths of earlier updates, and the rule's state."""
        rule = self.rule.state_dict() if isinstance(self.rule, Aggregator) else {}
        velocity = None if self._velocity is None else self._velocity.clone()
        return {"velocity": velocity, "lengths": self._lengths.state_dict(), "rule": rule}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore a state.

        Args:
            state: the result of `state_dict`.
        """
        if set(state) != {"velocity", "lengths", "rule"}:
            raise InputError(
                f"a state of `Server.state_dict` has the keys velocity, lengths and rule; got {sorted(state)}"
            )
        velocity = state["velocity"]
        if velocity is not None and not (
            isinstance(velocity, Tensor) and velocity.dim() == 1 and bool(torch.isfinite(velocity).all())
        ):
            raise InputError("the state's velocity is neither None nor a vector of finite numbers")
        lengths = Lengths(self.attackers)
        lengths.load_state_dict(state["lengths"])
        if isinstance(self.rule, Aggregator):
            self.rule.load_state_dict(state["rule"])
        self._lengths = lengths
        self._velocity = None if velocity is None else velocity.detach().cpu().double().clone()
        self._loaded = True


def buffer_names(module: nn.Module) -> frozenset[str]:
    """Return the names of the arrays in a module's state that are not parameters.

    For BatchNorm these are ``running_mean``, ``running_var`` and ``num_batches_tracked``. An aggregator would weight
    them as if they were gradients.

    Args:
        module: the model that is trained.

    Examples:
        >>> import torch
        >>> sorted(buffer_names(torch.nn.Sequential(torch.nn.Linear(2, 3), torch.nn.BatchNorm1d(3))))
        ['1.num_batches_tracked', '1.running_mean', '1.running_var']
    """
    buffers = {name for name, _ in module.named_buffers(remove_duplicate=False)}
    return frozenset(buffers & set(module.state_dict()))


def _with_fewer_attackers(
    updates: Updates, G: Tensor, rule: Rule, bound: Bound, limit: Limit, why: InputError
) -> Streamed | None:
    """Apply a rule such as Krum with the most ``attackers`` that it accepts for this many updates; None if none fits.

    Without this, clients that fail could end the training: Krum for three attackers needs nine updates, and two of ten
    clients suffice to leave eight.
    """
    most = getattr(rule, "attackers", None)
    if not isinstance(why, ParameterError) or not isinstance(most, int):
        return None
    for attackers in range(most - 1, -1, -1):
        milder: Any = copy.copy(rule)
        milder.attackers = attackers
        try:
            found = Streamed(updates, G, milder, bound, limit)
        except ParameterError:
            continue
        warnings.warn(f"attackers={attackers} in this round, for {len(updates)} valid replies: {why}", stacklevel=4)
        return found
    return None


def _failure(error: Exception) -> str:
    return f"the rule failed with {type(error).__name__}: {error}"


def _unmoved(model: Arrays, dropped: list[Dropped]) -> Round:
    """Return the result of a round that leaves the model unchanged."""
    kept = {name: np.array(array) for name, array in model.items()}
    return Round(kept, False, (), (), (), float("nan"), (), tuple(dropped))


def _center(array: NDArray[np.generic], sent: list[NDArray[np.generic]], bounded: bool) -> NDArray[np.generic]:
    """Return an array moved by the median of each entry's changes. Changes longer than the median are shortened first.

    Infinite entries stay as they are. What no client makes negative, such as a variance, does not become negative.
    """
    before = array.astype(np.float64)
    with np.errstate(invalid="ignore"):
        changes = np.stack([np.subtract(other, before, dtype=np.float64) for other in sent])
    changes[np.isnan(changes)] = 0.0
    if bounded:
        lengths = np.linalg.norm(changes.reshape(len(sent), -1), axis=1)
        longer = lengths > np.median(lengths)
        changes[longer] *= (np.median(lengths) / lengths[longer]).reshape(-1, *[1] * array.ndim)
    with np.errstate(over="ignore"):  # the whole step is validated later
        return np.asarray(before + np.median(changes, axis=0)).astype(array.dtype)


def _middle(sent: list[NDArray[np.generic]]) -> NDArray[np.generic]:
    """Return the median of each entry; the lower of two."""
    ordered = np.sort(np.stack(sent), axis=0)
    return np.asarray(ordered[(len(ordered) - 1) // 2])


def _check_model(model: object) -> None:
    if not isinstance(model, Mapping):
        what = f"a {type(model).__name__}"
    elif wrong := [name for name, array in model.items() if not isinstance(array, np.ndarray)]:
        what = f"a mapping whose {wrong[0]!r} is a {type(model[wrong[0]]).__name__}"
    else:
        return
    raise InputError(
        f"the global model is {what}; numpy arrays by their names are needed, such as "
        "{name: array.numpy() for name, array in net.state_dict().items()}"
    )


def _check_rule(rule: object) -> None:
    if isinstance(rule, str):
        raise ParameterError(f"rule={rule!r} is a name: give the rule itself, pg.get({rule!r})")
    if isinstance(rule, type):
        raise ParameterError(f"rule={rule.__name__} is a class: give an instance, {rule.__name__}(...)")
    if isinstance(rule, Weighting):
        raise ParameterError(f"rule={rule!r} sees losses, and the server has none: give a rule such as pg.MGDA()")
    if isinstance(rule, Aggregator) and rule.needs != {"gramian"}:
        more = "pass rule.__call__, a function of all updates" if rule.needs == {"rows"} else "give another rule"
        raise ParameterError(
            f"rule={rule!r} needs {' and '.join(sorted(rule.needs - {'gramian'}))}, and the server gives a rule the "
            f"Gramian of the updates: {more}"
        )
    if not (isinstance(rule, Aggregator) or callable(rule)):
        raise ParameterError(f"rule={rule!r}: give a rule of the library, such as pg.MGDA(), or a function")
