"""Users' hooks on parameters. Each is called once, with what goes to ``.grad``, however many passes that took."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager

from torch import Tensor

#: Attributes in which torch keeps the hooks of `register_hook` and of `register_post_accumulate_grad_hook`.
_KINDS = ("_backward_hooks", "_post_accumulate_grad_hooks")


@contextmanager
def set_aside(params: Iterable[Tensor]) -> Iterator[None]:
    """Disable the hooks of parameters during internal passes, where they would see intermediate gradients."""
    # Torch reads these dicts at each pass, and handles refer to them: they are emptied, not replaced.
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
    """Apply the hooks of parameters to their gradients and return the results."""
    return [(param, _seen(param, grad)) for param, grad in found]


def _seen(param: Tensor, grad: Tensor) -> Tensor:
    for hook in list((param._backward_hooks or {}).values()):
        answer = hook(grad)
        if answer is not None:
            grad = answer.clone()  # the user may keep this tensor
    return grad


def filled(params: Iterable[Tensor]) -> None:
    """Call the hooks that run after ``.grad`` is set, such as those of an optimizer in the backward pass."""
    for param in params:
        for hook in list((getattr(param, _KINDS[1], None) or {}).values()):
            hook(param)
