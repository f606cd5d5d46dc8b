"""Backward passes that pass the gradients of each parameter on as soon as they are computed, and store none."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from paretograd.autograd.rows import dense, either, quiet_loops, unwrapped
from paretograd.autograd.source import Source

#: Function that takes a parameter and its rows, shape ``(rows, *param)``.
Taker = Callable[[Tensor, Tensor], None]


def stream(source: Source, params: Sequence[Tensor], take: Taker, first: int, rows: int, batched: bool) -> None:
    """Run one pass over ``rows`` losses, starting with loss ``first``.

    Args:
        source: the start of the pass.
        params: leaves of the graph, which is retained.
        take: function that is called with each parameter that the losses reach, and its rows.
        first: number of the first loss.
        rows: number of losses; more than one only if ``batched``.
        batched: True to batch the pass by `torch.vmap`.
    """
    part = Source(source.outputs, [seed[first : first + rows] for seed in source.seeds])
    handles = [
        param.register_hook(_hook(param, take, rows, batched))  # type: ignore[no-untyped-call]
        for param in params
    ]
    try:
        if batched:
            with quiet_loops():
                torch.vmap(lambda seeds: _pull(part, seeds, params), randomness="same")(part.seeds)
        else:
            used = [i for i, seed in enumerate(part.seeds) if bool(seed.any())]
            if used:
                kept = Source([part.outputs[i] for i in used], part.seeds)
                _pull(kept, [part.seeds[i][0] for i in used], params)
    finally:
        for handle in handles:
            handle.remove()


def _pull(source: Source, seeds: list[Tensor], params: Sequence[Tensor]) -> Tensor:
    torch.autograd.grad(either(source.outputs), list(params), seeds, retain_graph=True, allow_unused=True)
    return torch.zeros((), device="cpu")  # the hooks have seen everything; `torch.vmap` needs a result


def _hook(param: Tensor, take: Taker, rows: int, batched: bool) -> Callable[[Tensor | None], Tensor | None]:
    def hook(grad: Tensor | None) -> Tensor | None:
        if grad is None:  # in the graph, but without a gradient
            return None
        if batched:
            values = unwrapped(grad, rows)
            take(param, values)
            return values.new_zeros(()).expand(values.shape[1:])  # returned in its place; takes no memory
        values = dense(grad)
        take(param, values[None])
        return None if grad.is_sparse else values.new_zeros(()).expand(values.shape)

    return hook
