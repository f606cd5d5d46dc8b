"""`FedPareto`: a Flower strategy around `Server`, with FedAvg's sampling and messages, for untrusted clients."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Callable, Collection, Iterable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from paretograd.checks import as_number
from paretograd.errors import InputError, MissingExtraError, ParameterError
from paretograd.federated.aggregation import Bound
from paretograd.federated.messages import Metrics, Value, average, by_node, check_metrics, packed, read_arrays, shared
from paretograd.federated.replies import shown
from paretograd.federated.rules import Rule
from paretograd.federated.server import Round, Server

try:
    from flwr.app import ArrayRecord, ConfigRecord, Message, Metadata, MetricRecord, RecordDict
    from flwr.serverapp import Grid
    from flwr.serverapp.strategy import FedAvg, Result

    from paretograd.federated.collect import Collector
except ImportError as missing:
    raise MissingExtraError("the strategy needs Flower, 1.41 or later: pip install 'paretograd[flower]'") from missing

_LOG = logging.getLogger("flwr")

_MetricsRule = Callable[[list[RecordDict], str], MetricRecord]


class FedPareto(FedAvg):
    """FedAvg with another rule, for clients that cannot be trusted.

    Clients and messages are those of FedAvg; only the server changes. An update is the global model minus the model
    that a client returns. `Server` validates the updates, bounds their lengths, combines them by the rule and moves the
    model. A reply that is not a model of the same form with finite numbers is dropped, and a warning in Flower's log
    names its node. All clients count the same: the number of examples is their own claim, and is not used.

    The metrics of a round are the averages of what clients report, ``mo/gamma``, ``mo/conflicts``, ``mo/valid``,
    ``mo/dropped``, ``mo/dropped-nodes``, ``mo/conflict-nodes``, and ``mo/weight/<node>`` and ``mo/norm/<node>``. `last`
    is the last round itself, with the reasons why replies were dropped.

    Args:
        rule: a rule of the library, or a function from updates ``(m, n)`` to a direction, such as `Krum`; None for
            `TrustedMGDA`, which withstands the most attacks in our tests.
        attackers: number of hostile clients to withstand, or their share of all clients, below 0.5.
        lr: learning rate of the server; 1 applies the direction unscaled.
        momentum: momentum of the server, at least 0 and below 1, as in FedOpt.
        bound: treatment of the lengths of updates: see `combine_updates`.
        min_valid: with fewer valid replies the model stays unchanged; None for more than half of the nodes asked, or of
            ``min_train_nodes`` if that is larger. After the first round, the run also continues with fewer nodes than
            FedAvg's minimums, down to this number.
        patience: how long a round waits for the last nodes. Once more than half of the nodes have replied, after t
            seconds, the others have ``patience`` times t more, and at least 30 seconds. Infinite to wait for all until
            the ``timeout`` of `start`, as Flower does.
        averaged: names of arrays that are not aggregated but moved by the median of the clients' changes;
            `buffer_names` finds them. None for those whose names end in ``running_mean`` or ``running_var``.
        train_metrics_aggr_fn: as for FedAvg; None for each metric's mean and median over clients.
        evaluate_metrics_aggr_fn: the same for evaluation.
        fedavg: further parameters of FedAvg, such as ``fraction_train`` and ``min_available_nodes``.
    """

    min_train_nodes: int
    min_evaluate_nodes: int
    min_available_nodes: int

    def __init__(
        self,
        rule: Rule | None = None,
        *,
        attackers: float = 0.3,
        lr: float = 1.0,
        momentum: float = 0.0,
        bound: Bound = "clip",
        min_valid: int | None = None,
        patience: float = 2.0,
        averaged: Collection[str] | None = None,
        train_metrics_aggr_fn: _MetricsRule | None = None,
        evaluate_metrics_aggr_fn: _MetricsRule | None = None,
        **fedavg: Any,
    ) -> None:
        super().__init__(
            train_metrics_aggr_fn=train_metrics_aggr_fn or _average,
            evaluate_metrics_aggr_fn=evaluate_metrics_aggr_fn or _average,
            **fedavg,
        )
        self.server = Server(
            rule,
            attackers=attackers,
            lr=lr,
            momentum=momentum,
            bound=bound,
            min_valid=min_valid,
            averaged=averaged,
        )
        self.patience = as_number(patience, "patience")
        if self.patience < 0.0:
            raise ParameterError(f"patience={patience!r}: it must be at least 0")
        self.last: Round | None = None
        self._model: dict[str, NDArray[np.generic]] | None = None
        self._asked: dict[str, list[Metadata]] = {}
        self._clients = 0
        self._minimums = self.min_train_nodes, self.min_evaluate_nodes, self.min_available_nodes

    def summary(self) -> None:
        """Log the configuration of the strategy."""
        server = self.server
        _LOG.info("\t├──> Aggregation:")
        _LOG.info("\t│\t├── Rule: %s", getattr(server.rule, "label", type(server.rule).__name__))
        _LOG.info("\t│\t├── Lengths of updates: %s | attackers: %g", server.bound, server.attackers)
        _LOG.info("\t│\t├── Server: learning rate %g | momentum %g", server.lr, server.momentum)
        _LOG.info("\t│\t├── Least valid replies: %s", server.min_valid or "more than half")
        _LOG.info("\t│\t└── Patience with the last nodes: %g", self.patience)
        super().summary()

    def start(self, grid: Grid, *args: Any, **kwargs: Any) -> Result:
        """Run all rounds as FedAvg does, and collect each reply by itself (see `Collector`)."""
        collector = Collector(grid, self.patience, self.server.min_valid or 0)
        return super().start(collector, *args, **kwargs)

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Configure training as FedAvg does, and keep the global model, which is needed to compute updates."""
        model = {name: shared(array) for name, array in arrays.items()}
        if server_round == 1:
            self.server.begin()
        self.server.parameters(model)  # raises if the model or `averaged` is invalid
        self._model = model
        self._settle(server_round, grid)
        messages = self._asking("training", super().configure_train(server_round, arrays, config, grid))
        self._clients = len(list(grid.get_node_ids()))  # FedAvg has waited for enough of them
        return messages

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Configure evaluation as FedAvg does, with the remaining nodes."""
        self._settle(server_round, grid)
        return self._asking("evaluation", super().configure_evaluate(server_round, arrays, config, grid))

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Return the next global model, unchanged if too few replies are valid, and the metrics of the round."""
        if self.fraction_train == 0.0:
            return None, None
        if self._model is None:
            raise InputError("aggregate_train needs the global model: call configure_train first, as `start` does")
        contents = self._answers("training", server_round, replies)
        sizes = {name: array.nbytes for name, array in self._model.items()}
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always", UserWarning)
            found = self.server.step(
                self._model,
                {node: read_arrays(content, sizes) for node, content in contents.items()},
                asked=max(len(contents), self._minimums[0]),
                clients=self._clients,
            )
        # Python shows the same warning only once; the log should have it in every round.
        for warning in caught:
            _LOG.warning("round %d, training: %s", server_round, warning.message)
        _LOG.info("aggregate_train: %d replies used and %d dropped", len(found.nodes), len(found.dropped))
        if not found.moved:
            _LOG.warning("round %d, training: the model stays unchanged", server_round)
        self.last = found
        checked = check_metrics({node: contents[node] for node in found.nodes}, self.weighted_by_key)
        _warn(checked, server_round, "training")
        metrics = self._aggregated(self.train_metrics_aggr_fn, checked, server_round, "training")
        arrays = ArrayRecord({name: packed(array) for name, array in found.model.items()})
        return arrays, MetricRecord({**metrics, **_of_round(found)})

    def aggregate_evaluate(self, server_round: int, replies: Iterable[Message]) -> MetricRecord | None:
        """Return the averaged metrics of the clients with valid metrics; None if there are none."""
        checked = check_metrics(self._answers("evaluation", server_round, replies), self.weighted_by_key)
        _warn(checked, server_round, "evaluation")
        if not checked.contents:
            return None
        found = self._aggregated(self.evaluate_metrics_aggr_fn, checked, server_round, "evaluation")
        nodes = [node for node, _ in checked.dropped]
        counts: dict[str, Value] = {
            "mo/valid": float(len(checked.nodes)),
            "mo/dropped": float(len(nodes)),
            "mo/dropped-nodes": nodes,
        }
        return MetricRecord({**found, **counts})

    def _asking(self, phase: str, messages: Iterable[Message]) -> list[Message]:
        """Remember to whom messages go. They get their numbers when they are sent."""
        found = list(messages)
        self._asked[phase] = [message.metadata for message in found]
        return found

    def _answers(self, phase: str, server_round: int, replies: Iterable[Message]) -> dict[int, RecordDict | Exception]:
        """Return the content of the reply of each node that was asked, or an exception."""
        found = by_node(replies, self._asked.get(phase))
        for stray in found.strays:
            _LOG.warning("round %d, %s: %s", server_round, phase, stray)
        return found.contents

    def _aggregated(self, rule: _MetricsRule, checked: Metrics, server_round: int, phase: str) -> dict[str, Value]:
        """Return the metrics of all clients by FedAvg's or the user's function; none if that fails."""
        if not checked.contents:
            return {}
        try:
            return dict(rule(checked.contents, self.weighted_by_key))
        except Exception as error:  # noqa: BLE001  metrics depend on clients' claims, which must not end the run
            why = f"{type(error).__name__}: {shown(error, 200)}"
            _LOG.warning("round %d, %s: metrics are left out, as averaging them failed: %s", server_round, phase, why)
            return {}

    def _settle(self, server_round: int, grid: Grid) -> None:
        """After the first round, require no more nodes than are connected: FedAvg would wait for those that left."""
        least = self.server.quorum(self._minimums[0])
        there = max(len(list(grid.get_node_ids())), least) if server_round > 1 else max(self._minimums)
        train, evaluate, available = (min(minimum, there) for minimum in self._minimums)
        self.min_train_nodes, self.min_evaluate_nodes, self.min_available_nodes = train, evaluate, available


def _average(contents: list[RecordDict], weight: str) -> MetricRecord:
    return MetricRecord(average(contents, weight))


def _of_round(found: Round) -> dict[str, Value]:
    metrics: dict[str, Value] = {f"mo/{name}": value for name, value in found.metrics().items()}
    metrics["mo/dropped-nodes"] = [node for node, _ in found.dropped]
    metrics["mo/conflict-nodes"] = list(found.conflicts)
    return metrics


def _warn(checked: Metrics, server_round: int, phase: str) -> None:
    for node, reason in checked.dropped:
        _LOG.warning("round %d, %s: the metrics of node %d are not used: %s", server_round, phase, node, reason)
