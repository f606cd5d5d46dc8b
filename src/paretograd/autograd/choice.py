"""Which parameters are aggregated, and which get the gradients of their own losses."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from torch import Tensor

from paretograd.errors import ParameterError


def sort(
    params: Sequence[Tensor],
    reached_by: Mapping[int, int],
    m: int,
    shared: Iterable[Tensor] | None,
    specific: Iterable[Tensor] | None,
) -> tuple[list[Tensor], list[Tensor]]:
    """Parameters to aggregate, and those that get the gradients of their own losses.

    Args:
        params: parameters that some loss reaches.
        reached_by: for each of them, by ``id``, a bit for every loss that reaches it.
        m: how many losses there are.
        shared: to aggregate in any case.
        specific: not to aggregate in any case.
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
    """Whether one loss alone reaches a parameter."""
    return reached_by[id(param)].bit_count() == 1


def listed(params: Iterable[Tensor] | None) -> list[Tensor] | None:
    """What may be iterated once only, or be a single parameter, as a list."""
    return [params] if isinstance(params, Tensor) else None if params is None else list(params)


def ids(params: Iterable[Tensor] | None) -> set[int]:
    """By what parameters are known."""
    return {id(param) for param in params or ()}


def check_chosen(
    groups: Sequence[Sequence[Tensor]], shared: Iterable[Tensor] | None, specific: Iterable[Tensor] | None
) -> None:
    """Raise where a parameter is chosen twice, or cannot be."""
    common, own = ids(shared), ids(specific)
    if common & own:
        raise ParameterError("a parameter is both in shared and in specific; give it in one of them")
    if not (common | own) <= {id(param) for group in groups for param in group}:
        raise ParameterError("shared or specific holds a parameter that no loss reaches, or that params leaves out")
