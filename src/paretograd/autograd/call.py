"""`Call` and `Plan`: the arguments of a call, validated once and read by one process or many.

A `Call` holds what the user gave. A `Plan` says which parameters are aggregated and which get the gradients of their
own losses.
"""

from __future__ import annotations

import warnings
import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_args

import torch
from torch import Tensor, nn
from torch.autograd.graph import GradientEdge

from paretograd.aggregators.base import Aggregator, AggregatorModule
from paretograd.aggregators.batches import CrossAggregator
from paretograd.aggregators.rows import RowAggregator
from paretograd.autograd.graph import Graph, Losses, check_visible
from paretograd.autograd.kept import Kept
from paretograd.autograd.metric import Metric
from paretograd.callers import callers_level
from paretograd.errors import DTypeError, InputError, ParameterError, ShapeError
from paretograd.scalarizations.base import Weighting
from paretograd.scalarizations.registry import scalarizer_names

Engine = Literal["auto", "jacobian", "batched", "gramian"]
Parallel = Literal["auto", "none", "data", "objectives"]
Params = nn.Module | Iterable[Tensor] | Iterable[Iterable[Tensor]]

#: Number of losses that a warning names.
_NAMED = 8

#: Leaves of earlier calls that were not taken for parameters, by ``id``.
_INPUTS: weakref.WeakValueDictionary[int, Tensor] = weakref.WeakValueDictionary()


@dataclass(frozen=True, kw_only=True)
class Call:
    """The arguments of `backward`, or of a function without a rule.

    Attributes:
        losses: m scalars, or a vector of m.
        names: the names of the losses, if they were given as a dictionary.
        adds: add to ``.grad``; False replaces it.
        metric: the inner product in which the rule works; None for the Euclidean one.
        keep_rows: keep the rows of all parameters after the step.
        fills: write to ``.grad``.
        prepare: called before the rule is, with what is kept of the rows.
    """

    losses: Any
    names: tuple[str, ...] | None = None
    params: Any = None
    aggregator: Any = None
    has_rule: bool = True
    shared: Sequence[Tensor] | None = None
    specific: Sequence[Tensor] | None = None
    retain_graph: bool = True
    engine: Engine = "auto"
    chunk: int | None = None
    per_sample: bool = False
    max_memory: int | None = None
    nonfinite: Literal["raise", "propagate"] = "raise"
    parallel: Parallel = "auto"
    process_group: Any = None
    samples: int | Sequence[int] | None = None
    adds: bool = True
    metric: Metric | None = None
    keep_rows: bool = False
    fills: bool = True
    prepare: Callable[[Kept | None], None] | None = None

    @property
    def scalarizes(self) -> bool:
        """True if the rule sees the losses instead of their gradients."""
        return isinstance(self.aggregator, Weighting)

    @property
    def needs_rows(self) -> bool:
        """True if the Gramian alone is not enough."""
        return self.metric is not None or self.keep_rows

    def checked_losses(self) -> Losses:
        """Validate all options and m scalars with a graph, and return these as a list or a vector."""
        _check_options(self)
        losses = self.losses
        if isinstance(losses, Tensor):
            if losses.ndim != 1 or not len(losses):
                raise ShapeError(
                    "losses is a vector, one number per objective, or a list of scalars; got shape "
                    f"{tuple(losses.shape)}. For one loss pass [loss]"
                )
            _check_graph(losses, "losses")
            return losses
        try:
            items = list(losses)
        except TypeError:
            raise DTypeError(f"losses is a list of scalar tensors or a vector; got {type(losses).__name__}") from None
        if not items:
            raise ShapeError("losses is empty; give at least one scalar")
        for k, loss in enumerate(items):
            name = f"losses[{self.name(k)}]"
            if not isinstance(loss, Tensor):
                raise DTypeError(f"{name} is a {type(loss).__name__}; a scalar tensor is needed")
            if loss.numel() != 1:
                raise ShapeError(
                    f"{name} has shape {tuple(loss.shape)}; each loss is a scalar. Reduce it, such as with .mean()"
                )
            _check_graph(loss, name)
        return items

    def name(self, k: int) -> str:
        """Return what a message calls loss k: its number, or its name in quotes."""
        return str(k) if self.names is None else repr(self.names[k])


def named(losses: Any) -> tuple[Any, tuple[str, ...] | None]:
    """Split a dictionary of losses into a list and their names. Anything else has no names."""
    if not isinstance(losses, Mapping):
        return losses, None
    return list(losses.values()), tuple(map(str, losses))


def _check_graph(loss: Tensor, name: str) -> None:
    if not torch.is_floating_point(loss):
        raise DTypeError(f"{name} has dtype {loss.dtype}; a floating-point loss is needed")
    if not loss.requires_grad:
        raise InputError(
            f"{name} has no graph: nothing it was computed from requires a gradient. Was it computed under "
            "torch.no_grad(), detached, or from frozen parameters only?"
        )


def _check_options(call: Call) -> None:
    if call.parallel not in get_args(Parallel):
        raise ParameterError(f"parallel={call.parallel!r}: use one of {', '.join(get_args(Parallel))}")
    samples = call.samples
    single = isinstance(samples, int) or not isinstance(samples, Iterable)
    counts = [] if samples is None else [samples] if single else list(samples)  # type: ignore[arg-type]
    if any(type(count) is not int or count < 0 for count in counts):
        raise ParameterError(
            f"samples={samples!r}: give the number of samples over which this process's losses are means, a whole "
            "number, or one per loss"
        )
    if call.engine not in get_args(Engine):
        raise ParameterError(f"engine={call.engine!r}: use one of {', '.join(get_args(Engine))}")
    if call.chunk is not None and (type(call.chunk) is not int or call.chunk < 1):
        raise ParameterError(
            f"chunk={call.chunk!r}: give the number of losses to differentiate at a time (>= 1), or None"
        )
    if call.chunk is not None and call.engine == "gramian":
        raise ParameterError(
            f"chunk={call.chunk} with engine='gramian': this way needs the gradients of all losses at a time. Omit "
            "chunk, or use engine='batched'"
        )
    if call.max_memory is not None and (type(call.max_memory) is not int or call.max_memory < 0):
        raise ParameterError(f"max_memory={call.max_memory!r}: give a number of bytes, or None")
    if call.per_sample and call.needs_rows:
        raise ParameterError(
            "per_sample=True holds no rows, which metric and keep_rows need; omit them, or pass the losses as a list"
        )
    if not call.has_rule:
        return
    if call.scalarizes:
        _check_scalarizes(call)
    else:
        check_rule(call.aggregator)
    if isinstance(call.aggregator, RowAggregator | CrossAggregator):
        _check_row_options(call)
    if call.nonfinite not in ("raise", "propagate"):
        raise ParameterError(f"nonfinite={call.nonfinite!r}: use 'raise' or 'propagate'")


def _check_row_options(call: Call) -> None:
    """Raise if the rule needs rows, or several batches, and an option forbids them."""
    label, batches = call.aggregator.label, isinstance(call.aggregator, CrossAggregator)
    if call.metric is not None:
        view = "compares independent batches" if batches else "treats rows coordinate by coordinate"
        raise ParameterError(f"{label} {view}, where a metric has no place; omit metric")
    if call.engine not in ("auto", "jacobian") and not batches:
        raise ParameterError(f"{label} needs the rows of plain passes: omit engine={call.engine!r}")
    if _has_groups(call.params):
        raise ParameterError(f"{label} aggregates all parameters together; give params as one list")


def _has_groups(params: Any) -> bool:
    return not isinstance(params, Tensor | nn.Module | None) and any(not isinstance(item, Tensor) for item in params)


def _check_scalarizes(call: Call) -> None:
    """Raise if an option needs more than one plain pass."""
    refused = {
        "engine, chunk and max_memory choose how the gradients of all losses are computed": (
            call.engine != "auto" or call.chunk is not None or call.max_memory is not None
        ),
        "metric and keep_rows need the gradients of the single losses": call.needs_rows,
        "per_sample=True is for rules that need the gradient of every sample": call.per_sample,
        "shared and specific choose the parameters to aggregate": call.shared is not None or call.specific is not None,
        "groups of params are aggregated separately": _has_groups(call.params),
    }
    for what, given in refused.items():
        if given:
            raise ParameterError(
                f"{what}, but {call.aggregator!r} sees only the losses: one plain pass gives every parameter the "
                "gradient of F. Omit them"
            )


def rule_of(aggregator: Any) -> Any:
    """Return the rule of the module that `Aggregator.as_module` returned. Anything else is left as it is."""
    return aggregator.aggregator if isinstance(aggregator, AggregatorModule) else aggregator


def check_rule(rule: Any) -> None:
    """Raise unless this is a rule that sees gradients."""
    if isinstance(rule, Weighting):
        raise ParameterError(
            f"{rule!r} sees the losses, but a rule that sees their gradients is needed here, such as "
            "paretograd.UPGrad()"
        )
    if not isinstance(rule, Aggregator):
        example = "UPGrad()"
        if isinstance(rule, str):
            plain = rule.partition("(")[0].strip().lower()
            example = f"{'scalarizer' if plain in scalarizer_names() else 'get'}({rule!r})"
        raise ParameterError(f"aggregator={rule!r}: give a rule, such as paretograd.{example}")


# ---- parameters ------------------------------------------------------------------------------------------------------


def as_params(params: Params | None) -> Iterable[Tensor] | Iterable[Iterable[Tensor]] | None:
    """Replace a module by its parameters that require gradients."""
    return [p for p in params.parameters() if p.requires_grad] if isinstance(params, nn.Module) else params


def listed(params: Params | Iterable[nn.Module] | None) -> list[Tensor] | None:
    """Flatten a parameter, a module, or an iterable of either, which may be one-shot, into one list."""
    return None if params is None else _flat(params)


def _flat(given: Any) -> list[Tensor]:
    given = as_params(given)
    if isinstance(given, Tensor | str | bytes | Mapping) or not isinstance(given, Iterable):
        return [given]  # type: ignore[list-item]  # `_check_chosen` rejects what is not a parameter
    return [param for item in given for param in _flat(item)]


def default_params(leaves: Sequence[Tensor]) -> list[Tensor]:
    """Return the leaves that count as parameters if the call names none.

    A leaf may also be an activation or an input that requires a gradient. So only parameters of modules count, unless
    there are none. A tensor that an optimizer holds is alive at the next call, which then warns.
    """
    found: list[Tensor] = [leaf for leaf in leaves if isinstance(leaf, nn.Parameter)]
    if len(found) in (0, len(leaves)):
        return list(leaves)
    left = [leaf for leaf in leaves if not isinstance(leaf, nn.Parameter)]
    again = [leaf for leaf in left if _INPUTS.get(id(leaf)) is leaf]
    if again:
        warnings.warn(
            f"the losses depend on {len(again)} tensors that require gradients and are no nn.Parameter, the first of "
            f"shape {tuple(again[0].shape)}. They count as inputs and get no .grad. If they are to be trained, wrap "
            "them in nn.Parameter or name all parameters in params; otherwise name the model in params",
            UserWarning,
            stacklevel=callers_level(),
        )
    _INPUTS.update((id(leaf), leaf) for leaf in left)
    return found


def groups_of(
    params: Any, default: Sequence[Tensor], target: Callable[[Tensor], Tensor] = lambda param: param
) -> list[list[Tensor]]:
    """Return the parameters to fill, in groups that are aggregated separately: one unless a list of lists is given.

    Args:
        params: the user's.
        default: the parameters if the user gave none.
        target: function from a parameter to the tensor that holds its ``.grad``.
    """
    given = as_params(params)
    items: list[Any] = list(default) if given is None else [given] if isinstance(given, Tensor) else list(given)
    several = bool(items) and not any(isinstance(item, Tensor | str) for item in items)
    groups: list[list[Any]] = [list(item) for item in items] if several else [items]
    for group in groups:
        for k, param in enumerate(group):
            _check_leaf(param, "params", k)
    found = [list({id(param): param for param in map(target, group)}.values()) for group in groups]
    if len({id(param) for group in found for param in group}) < sum(map(len, found)):
        raise ParameterError("a parameter is in two groups of params; give it in one of them")
    return found


def _check_leaf(param: object, name: str, k: int) -> None:
    if not isinstance(param, Tensor):
        raise DTypeError(f"{name}[{k}] is a {type(param).__name__}; a tensor is needed")
    if not param.is_leaf:
        raise ParameterError(
            f"{name}[{k}], shape {tuple(param.shape)}, is not a leaf of the graph and holds no .grad; pass the "
            "parameter that it was computed from"
        )


def no_param_reached(count: int) -> ParameterError:
    """Return the error for parameters that do not belong to the losses."""
    return ParameterError(
        f"no loss reaches any of the {count} params. Do they belong to the model that computed the losses, and do they "
        "require gradients?"
    )


def check_chosen(
    groups: Sequence[Sequence[Tensor]],
    reached: Iterable[Tensor],
    shared: Iterable[Tensor] | None,
    specific: Iterable[Tensor] | None,
) -> None:
    """Raise if a parameter is chosen twice or cannot be chosen.

    Args:
        groups: the parameters to fill.
        reached: the parameters that some loss reaches. Choosing others has no effect.
        shared: parameters that are always aggregated.
        specific: parameters that are never aggregated.
    """
    left_out = _ids(reached) - {id(param) for group in groups for param in group}
    for name, given in (("shared", shared), ("specific", specific)):
        for k, item in enumerate(given or ()):
            if not isinstance(item, Tensor):
                raise DTypeError(f"{name} holds a {type(item).__name__}; give parameters, or modules that have them")
            _check_leaf(item, name, k)
            if id(item) in left_out:
                raise ParameterError(
                    f"{name}[{k}], shape {tuple(item.shape)}, is not in params, and only those are filled; add "
                    f"it to params, or leave it out of {name}"
                )
    if _ids(shared) & _ids(specific):
        raise ParameterError("a parameter is both in shared and in specific; give it in one of them")


def _ids(params: Iterable[Tensor] | None) -> set[int]:
    return {id(param) for param in params or ()}


# ---- plan ------------------------------------------------------------------------------------------------------------


@dataclass
class Plan:
    """The work of a call, as far as one process can tell.

    Attributes:
        call: the arguments.
        losses: the validated losses.
        graph: their graph.
        groups: parameters to aggregate.
        own: parameters that get the sum of the gradients of their losses.
        reached: for each parameter, by ``id``, a bit for every loss that reaches it.
        m: number of losses, of all processes.
    """

    call: Call
    losses: Losses
    graph: Graph
    groups: list[list[Tensor]]
    own: list[Tensor]
    reached: Mapping[int, int]
    m: int

    @property
    def device(self) -> torch.device:
        """Device of the losses."""
        return self.losses[0].device

    @property
    def common(self) -> list[Tensor]:
        """The parameters of all groups."""
        return [param for group in self.groups for param in group]

    @property
    def copies(self) -> dict[int, GradientEdge]:
        """The copies that autocast made of parameters to aggregate, by ``id``, whose gradients stand for theirs.

        Gradients of other parameters add up over the losses, which needs the precision of the parameters.
        """
        own = _ids(self.own)
        return {key: edge for key, edge in self.graph.casts.items() if key not in own}

    @property
    def compiled(self) -> set[int]:
        """The parameters of compiled models, by ``id``."""
        return self.graph.compiled

    @property
    def row_bytes(self) -> int:
        """Bytes of all rows."""
        return sum(self.reached[id(param)].bit_count() * self.row_size(param) for param in self.common)

    @property
    def chosen(self) -> Sequence[int]:
        """The losses to differentiate: all, unless the rule says that the others can wait."""
        rule = self.call.aggregator
        return rule._differentiated(self.m) if isinstance(rule, RowAggregator) else range(self.m)

    def row_size(self, param: Tensor) -> int:
        """Return the bytes of one row of a parameter to aggregate."""
        return param.nbytes // (2 if id(param) in self.graph.casts else 1)


def plan_of(call: Call, skipped: frozenset[str] = frozenset()) -> Plan:
    """Validate a call and read its graph, for a single process.

    Args:
        call: the call.
        skipped: as for `Graph`.
    """
    losses = call.checked_losses()
    graph = Graph(losses, skipped)
    check_visible(graph)
    groups = groups_of(call.params, default_params(graph.leaves) if call.params is None else ())
    check_chosen(groups, graph.leaves, call.shared, call.specific)
    found = [[param for param in group if id(param) in graph.reached_by] for group in groups]
    if not all(found):
        raise no_param_reached(sum(map(len, groups)))
    m = len(losses)
    plan = Plan(call, losses, graph, *sort(call, found, graph.reached_by, m), graph.reached_by, m)
    if call.has_rule:
        warn_of_idle(plan)
    return plan


def sort(
    call: Call, groups: Sequence[Sequence[Tensor]], reached: Mapping[int, int], m: int
) -> tuple[list[list[Tensor]], list[Tensor]]:
    """Split the parameters of each group into those to aggregate and those that get their own losses' gradients."""
    if not call.has_rule:  # the Gramian is over all parameters
        return [list(group) for group in groups], []
    if call.scalarizes:  # nothing is aggregated: one pass has the gradients of all
        return [], [param for group in groups for param in group]
    force_common, force_own = _ids(call.shared), _ids(call.specific)
    common: list[list[Tensor]] = []
    own: list[Tensor] = []
    for group in groups:
        common.append([])
        for param in group:
            alone = m > 1 and is_private(param, reached)
            special = id(param) in force_own or (alone and id(param) not in force_common)
            (own if special else common[-1]).append(param)
    return common, own


def is_private(param: Tensor, reached: Mapping[int, int]) -> bool:
    """Return True if only one loss reaches a parameter."""
    return reached[id(param)].bit_count() == 1


def warn_of_idle(plan: Plan) -> None:
    """Warn of losses that reach no shared parameter if others share some: their gradients are zero."""
    reaching = 0
    for param in plan.common:
        reaching |= plan.reached[id(param)]
    if reaching.bit_count() < 2 or reaching.bit_count() == plan.m:
        return
    idle = [k for k in range(plan.m) if not reaching >> k & 1]
    several = len(idle) > 1
    warnings.warn(
        f"{_listed_losses(plan.call, idle)} {'reach' if several else 'reaches'} no parameter that the other losses "
        f"share. For the rule {'each' if several else 'it'} is an objective whose gradient is zero, at which MGDA, "
        "Nash-MTL and others stop: the shared parameters may get no gradient. Call loss.backward() on "
        f"{'each of them by itself, and leave them' if several else 'it by itself, and leave it'} out of "
        "paretograd.backward",
        UserWarning,
        stacklevel=callers_level(),
    )


def _listed_losses(call: Call, losses: list[int]) -> str:
    names = [f"losses[{call.name(k)}]" for k in losses[:_NAMED]]
    if len(losses) > _NAMED:
        names.append(f"{len(losses) - _NAMED} more")
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"
