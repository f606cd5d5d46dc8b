"""Hooks that a user put on parameters: called once, with what goes to ``.grad``, whatever passes it took to find it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager

from torch import Tensor

#: Where torch keeps those of `register_hook` and of `register_post_accumulate_grad_hook`.
_KINDS = ("_backward_hooks", "_post_accumulate_grad_hooks")


@contextmanager
def set_aside(params: Iterable[Tensor]) -> Iterator[None]:
    """Passes without the hooks of parameters, which would see single losses, batches of them, or nothing at all."""
    # Torch looks into these dicts at each pass, and handles refer to them: they are emptied, not replaced.
    found = [hooks for param in params for kind in _KINDS if (hooks := getattr(param, kind, None))]
    before = [dict(hooks) for hooks in found]
    for hooks in found:
        hooks.clear()
    try:
        yield
    finally:
        for hooks, own in zip(found, before, strict=True):
            hooks.update(own)


def seen(found: Sequence[tuple[Tensor, Tensor]]) -> list[tuple[Tensor, Tensor]]:
    """Gradients as the hooks of their parameters leave them."""
    return [(param, _seen(param, grad)) for param, grad in found]


def _seen(param: Tensor, grad: Tensor) -> Tensor:
    for hook in list((param._backward_hooks or {}).values()):
        answer = hook(grad)
        if answer is not None:
            grad = answer.clone()  # it may be a tensor that the user keeps
    return grad


def filled(params: Iterable[Tensor]) -> None:
    """Call the hooks that wait for ``.grad``, such as those of an optimizer in the backward pass."""
    for param in params:
        for hook in list((getattr(param, _KINDS[1], None) or {}).values()):
            hook(param)
