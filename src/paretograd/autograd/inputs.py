"""Validation of the arguments of `backward`: losses with a graph, and parameters that can hold a gradient."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import get_args

import torch
from torch import Tensor

from paretograd.autograd.engine import Engine
from paretograd.autograd.graph import Graph
from paretograd.errors import DTypeError, InputError, ParameterError, ShapeError


def check_losses(losses: Sequence[Tensor] | Tensor) -> Sequence[Tensor] | Tensor:
    """Validate m scalars with a graph and return them as a list or a vector."""
    if isinstance(losses, Tensor):
        if losses.ndim != 1 or not len(losses):
            raise ShapeError(
                f"losses is a vector, one number per objective, or a list of scalars; got shape {tuple(losses.shape)}. "
                "For one loss pass [loss]"
            )
        _check_graph(losses, "losses")
        return losses
    if isinstance(losses, Mapping):
        raise DTypeError(
            f"losses is a {type(losses).__name__}; a list of scalar tensors or a vector is needed. Pass "
            "list(losses.values())"
        )
    try:
        items = list(losses)
    except TypeError:
        raise DTypeError(f"losses is a list of scalar tensors or a vector; got {type(losses).__name__}") from None
    if not items:
        raise ShapeError("losses is empty; give at least one scalar")
    for k, loss in enumerate(items):
        if not isinstance(loss, Tensor):
            raise DTypeError(f"losses[{k}] is a {type(loss).__name__}; a scalar tensor is needed")
        if loss.numel() != 1:
            raise ShapeError(
                f"losses[{k}] has shape {tuple(loss.shape)}; each loss is a scalar. Reduce it, such as with .mean()"
            )
        _check_graph(loss, f"losses[{k}]")
    return items


def _check_graph(loss: Tensor, name: str) -> None:
    if not torch.is_floating_point(loss):
        raise DTypeError(f"{name} has dtype {loss.dtype}; a floating-point loss is needed")
    if not loss.requires_grad:
        raise InputError(
            f"{name} has no graph: nothing it was computed from requires a gradient. Was it computed under "
            "torch.no_grad(), detached, or from frozen parameters only?"
        )


def check_visible(graph: Graph) -> None:
    """Raise if torch's reentrant checkpoint hides parameters, which would be omitted silently."""
    if "CheckpointFunctionBackward" in graph.operations:
        raise ParameterError(
            "the losses were computed through torch.utils.checkpoint with use_reentrant=True, which hides its "
            "parameters; pass use_reentrant=False there"
        )


def check_passes(engine: str, chunk: int | None) -> None:
    """Validate both arguments."""
    if engine not in get_args(Engine):
        raise ParameterError(f"engine={engine!r}: use one of {', '.join(get_args(Engine))}")
    if chunk is not None and (type(chunk) is not int or chunk < 1):
        raise ParameterError(f"chunk={chunk!r}: give the number of losses to differentiate at a time (>= 1), or None")


def check_groups(params: Iterable[Tensor] | Iterable[Iterable[Tensor]] | None, graph: Graph) -> list[list[Tensor]]:
    """Return the parameters to fill, in groups that are aggregated separately: one unless a list of lists is given."""
    if params is None or isinstance(params, Tensor):
        return [check_params(params, graph)]
    given = list(params)
    if not given or any(isinstance(item, Tensor) for item in given):
        return [check_params(given, graph)]  # type: ignore[arg-type]
    groups = [check_params(group, graph) for group in given]
    if len({id(param) for group in groups for param in group}) < sum(map(len, groups)):
        raise ParameterError("a parameter is in two groups of params; give it in one of them")
    return groups


def check_params(params: Tensor | Iterable[Tensor] | None, graph: Graph) -> list[Tensor]:
    """Return the parameters to fill: leaves that some loss reaches."""
    if params is None:
        return graph.leaves
    given = [params] if isinstance(params, Tensor) else list(params)
    for k, param in enumerate(given):
        if not isinstance(param, Tensor):
            raise DTypeError(f"params[{k}] is a {type(param).__name__}; a tensor is needed")
        if not param.is_leaf:
            raise ParameterError(
                f"params[{k}], shape {tuple(param.shape)}, is not a leaf of the graph and holds no .grad; pass the "
                "parameter that it was computed from"
            )
    unique = {id(param): param for param in given}
    reached = [param for key, param in unique.items() if key in graph.reached_by]
    if not reached:
        raise ParameterError(
            f"no loss reaches any of the {len(given)} params. Do they belong to the model that computed the losses, "
            "and do they require gradients?"
        )
    return reached
