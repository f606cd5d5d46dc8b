"""Choice of the parameters that are aggregated and of those that get the gradients of their own losses."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from torch import Tensor, nn

from paretograd.autograd.processes import Params, as_params
from paretograd.errors import DTypeError, ParameterError


def sort(
    params: Sequence[Tensor],
    reached_by: Mapping[int, int],
    m: int,
    shared: Iterable[Tensor] | None,
    specific: Iterable[Tensor] | None,
) -> tuple[list[Tensor], list[Tensor]]:
    """Split parameters into those to aggregate and those that get the gradients of their own losses.

    Args:
        params: parameters that some loss reaches.
        reached_by: for each of them, by ``id``, a bit for every loss that reaches it.
        m: number of losses.
        shared: parameters that are always aggregated.
        specific: parameters that are never aggregated.
    """
    force_common, force_own = ids(shared), ids(specific)
    common, own = [], []
    for param in params:
        alone = m > 1 and is_private(param, reached_by)
        if id(param) in force_own or (alone and id(param) not in force_common):
            own.append(param)
        else:
            common.append(param)
    return common, own


def is_private(param: Tensor, reached_by: Mapping[int, int]) -> bool:
    """Return True if only one loss reaches a parameter."""
    return reached_by[id(param)].bit_count() == 1


def listed(params: Params | Iterable[nn.Module] | None) -> list[Tensor] | None:
    """Flatten a parameter, a module, or an iterable of either, which may be one-shot, into one list."""
    return None if params is None else _flat(params)


def _flat(given: Any) -> list[Tensor]:
    given = as_params(given)
    if isinstance(given, Tensor | str | bytes | Mapping) or not isinstance(given, Iterable):
        return [given]  # type: ignore[list-item]  # `check_chosen` rejects what is not a parameter
    return [param for item in given for param in _flat(item)]


def ids(params: Iterable[Tensor] | None) -> set[int]:
    """Return the ids of parameters."""
    return {id(param) for param in params or ()}


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
    left_out = ids(reached) - {id(param) for group in groups for param in group}
    for name, given in (("shared", shared), ("specific", specific)):
        for k, item in enumerate(given or ()):
            if not isinstance(item, Tensor):
                raise DTypeError(f"{name} holds a {type(item).__name__}; give parameters, or modules that have them")
            if not item.is_leaf:
                raise ParameterError(
                    f"{name}[{k}], shape {tuple(item.shape)}, is not a leaf of the graph and holds no .grad; pass the "
                    "parameter that it was computed from"
                )
            if id(item) in left_out:
                raise ParameterError(
                    f"{name}[{k}], shape {tuple(item.shape)}, is not in params, and only those are filled; add "
                    f"it to params, or leave it out of {name}"
                )
    if ids(shared) & ids(specific):
        raise ParameterError("a parameter is both in shared and in specific; give it in one of them")
