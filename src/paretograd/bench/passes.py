"""The forward pass and the backward passes of B networks: one operation after the other, or recorded for a GPU."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING
from weakref import ref

import torch
from torch import Tensor

from paretograd.autograd.recorded import recorded
from paretograd.bench.task import Batch
from paretograd.errors import InputError

if TYPE_CHECKING:
    from paretograd.bench.networks import Networks


class Pass:
    """A forward pass of B networks.

    Args:
        networks: B networks.
        batch: one batch for each network, stacked along a new first dimension, or one for all.
        common: True if there is one batch for all.
    """

    def __init__(self, networks: Networks, batch: Batch, common: bool) -> None:
        self._losses, self._leaves = networks.evaluate(batch, common)

    @property
    def losses(self) -> Tensor:
        """The losses without their graph, ``(B, m)``."""
        return torch.stack([loss.detach() for loss in self._losses], dim=1)

    def each(self) -> list[Sequence[Tensor | None]]:
        """Differentiate each loss: returns the gradients of all parameters, None where a loss does not reach one."""
        last = len(self._losses) - 1
        return [
            torch.autograd.grad(loss.sum(), self._leaves, retain_graph=k < last, allow_unused=True)
            for k, loss in enumerate(self._losses)
        ]

    def gradients(self) -> Tensor:
        """Return the gradients of all losses, ``(B, m, n)``, in one backward pass for each loss."""
        found = [
            torch.cat([_flat(own, leaf) for own, leaf in zip(one, self._leaves, strict=True)], 1) for one in self.each()
        ]
        return torch.stack(found, dim=1)

    def weighted(self, weights: Tensor) -> Tensor:
        """Return the gradient of ``sum_k weights_k f_k``, ``(B, n)``, in one backward pass.

        Args:
            weights: ``(B, m)``.
        """
        total = (weights.T * torch.stack(self._losses)).sum()
        found = torch.autograd.grad(total, self._leaves, allow_unused=True)
        return torch.cat([_flat(own, leaf) for own, leaf in zip(found, self._leaves, strict=True)], dim=1)


def _flat(gradient: Tensor | None, leaf: Tensor) -> Tensor:
    return (torch.zeros_like(leaf) if gradient is None else gradient).flatten(1)


class Recording:
    """Passes on a GPU, each recorded as one launch: a host takes ten times as long to launch the operations one by one.

    It has the methods of `Pass`. Results are those of the batch that was loaded last. It does not keep the networks
    alive, which own it: so the memory of the GPU is free as soon as they are gone, without the garbage collector.

    Args:
        networks: B networks.
        batch: as for `Pass`.
        common: as for `Pass`.
    """

    def __init__(self, networks: Networks, batch: Batch, common: bool) -> None:
        self._networks, self._common = ref(networks), common
        self._batch = tuple(part.clone() for part in batch)
        #: What launches each kind of pass, and where it leaves the losses and its result.
        self._launches: dict[str, tuple[Callable[[], None], list[Tensor]]] = {}
        self._losses: Tensor | None = None
        self._weights: Tensor | None = None

    def fits(self, batch: Batch) -> bool:
        """Return True if the rows have the shapes and types that were recorded."""
        return [(part.shape, part.dtype) for part in batch] == [(part.shape, part.dtype) for part in self._batch]

    def load(self, batch: Batch) -> Recording:
        """Take the rows of a step."""
        for mine, given in zip(self._batch, batch, strict=True):
            mine.copy_(given)
        self._losses = None
        return self

    def _launch(self, kind: str, work: Callable[[Pass], Tensor]) -> Tensor:
        if kind not in self._launches:
            left: list[Tensor] = []
            networks = self._networks()
            assert networks is not None  # they call this

            def run() -> None:
                done = Pass(networks, self._batch, self._common)
                left[:] = done.losses, work(done)

            try:
                self._launches[kind] = recorded(run), left
            except RuntimeError as error:
                raise InputError(
                    f"the losses cannot be recorded for a GPU: {str(error).splitlines()[0]}. They must not wait for "
                    "the host nor copy from it: make constants in `network` or `load`, or run with --device cpu"
                ) from error
        launch, (losses, result) = self._launches[kind]
        launch()
        self._losses = losses.clone()
        return result.clone()

    @property
    def losses(self) -> Tensor:
        """As of `Pass`."""
        return self._launch("losses", lambda done: done.losses) if self._losses is None else self._losses

    def gradients(self) -> Tensor:
        """As of `Pass`."""
        return self._launch("gradients", Pass.gradients)

    def weighted(self, weights: Tensor) -> Tensor:
        """As of `Pass`."""
        if self._weights is None:
            self._weights = weights.clone()
        mine = self._weights.copy_(weights)
        return self._launch("weighted", lambda done: done.weighted(mine))
