"""The two halves of a step on a device: losses with Gramians, and the move; on a GPU both are recorded once.

A step launches about a hundred kernels; recorded as a CUDA graph, they are launched as one.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from paretograd.experiments.fairness.ensemble import Ensemble, Piece, gramians
from paretograd.experiments.recorded import full_or_tf32, recorded
from paretograd.geometry.gramian import Array


class Stepper:
    """Losses and Gramians at the parameters of an ensemble, and the way to the next ones.

    Nothing but `fetch` waits for the device, so that the host can do something else meanwhile.

    Attributes:
        ensemble: the classifiers; `move` changes their parameters.
        previous: parameters before the last move.
        earlier: parameters before the move before it.
    """

    def __init__(self, ensemble: Ensemble, data: Sequence[Piece], lr: float, tf32: bool, previous: Tensor) -> None:
        """Set up.

        Args:
            ensemble: the classifiers.
            data: their rows.
            lr: size of the moves.
            tf32: whether matrix products on a GPU may round to TF32.
            previous: where the classifiers were before their last move.
        """
        self.ensemble, self._data, self._lr, self._tf32 = ensemble, data, lr, tf32
        parameters = ensemble.parameters
        self.previous, self.earlier = previous.clone(), previous.clone()
        self._weights = parameters.new_zeros(len(parameters), 3)
        self._evaluate, self._move = self._evaluate_now, self._move_now
        self._ready: torch.cuda.Event | None = None
        with full_or_tf32(tf32):
            self._jacobian, self._numbers = self._slopes()
            self._fetched = torch.empty(
                self._numbers.shape, dtype=torch.float64, pin_memory=parameters.is_cuda, device="cpu"
            )
            if parameters.is_cuda:
                self._ready = torch.cuda.Event()  # type: ignore[no-untyped-call]
                start = parameters.clone()
                self._evaluate, self._move = recorded(self._evaluate_now), recorded(self._move_now)
                for kept, value in ((parameters, start), (self.previous, previous), (self.earlier, previous)):
                    kept.copy_(value)  # recording has moved once

    def start(self) -> None:
        """Begin to evaluate losses and gradients at the parameters."""
        with full_or_tf32(self._tf32):
            self._evaluate()
        self._fetched.copy_(self._numbers, non_blocking=True)
        if self._ready is not None:
            self._ready.record()

    def fetch(self) -> tuple[Array, Array]:
        """Wait for the evaluation: losses ``(S, 3)`` and Gramians ``(S, 3, 3)``."""
        if self._ready is not None:
            self._ready.synchronize()
        numbers = self._fetched.numpy()
        return numbers[:, :, 0].copy(), numbers[:, :, 1:].copy()

    def move(self, weights: Array) -> None:
        """Begin to move the parameters by ``-lr J.T w``, weights ``(S, 3)``; `previous` keeps where they were."""
        self._weights.copy_(torch.from_numpy(weights))
        with full_or_tf32(self._tf32):
            self._move()

    def _slopes(self) -> tuple[Tensor, Tensor]:
        losses, jacobian = self.ensemble.slopes(self._data)
        return jacobian, torch.cat([losses.double()[:, :, None], gramians(jacobian)], dim=2)

    def _evaluate_now(self) -> None:
        jacobian, numbers = self._slopes()
        self._jacobian.copy_(jacobian)
        self._numbers.copy_(numbers)

    def _move_now(self) -> None:
        parameters = self.ensemble.parameters
        self.earlier.copy_(self.previous)
        self.previous.copy_(parameters)
        # In full float32: three products for each parameter are no work, and TF32 would round the step to three digits.
        parameters.sub_((self._weights[:, :, None] * self._jacobian).sum(dim=1), alpha=self._lr)
