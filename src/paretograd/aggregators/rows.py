"""Base of the rules that need the rows of the Jacobian, and not only their inner products.

Such a rule treats each coordinate by itself, or keeps averages of the rows from step to step. Its direction need not be
a combination of the present gradients.
"""

from __future__ import annotations

import weakref
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor

from paretograd.aggregators.base import Aggregator
from paretograd.errors import DTypeError, NonFiniteGradientError, ParameterError, ShapeError
from paretograd.geometry.gramian import Array, as_array, check_floating, combine, nonfinite_rows
from paretograd.solution import Outcome, Solution

#: Parts of a vector, by the ``id`` of the block to which they belong.
Parts = dict[int, Tensor]

#: The only block of a Jacobian that is one matrix.
_MATRIX = "the Jacobian"


class RowSource(ABC):
    """The rows of a Jacobian in blocks, one for each parameter. On several processes, a block may be a part of one.

    Attributes:
        m: number of objectives.
        keys: what the blocks belong to. Parts of vectors are found by the ``id`` of these.
        eps: rounding of the products, relative to the norms.
        process: the number of this process and that of all, if blocks are parts of parameters; None if they are whole.
    """

    m: int
    eps: float
    keys: Sequence[Any]
    process: tuple[int, int] | None = None

    @abstractmethod
    def block(self, key: Any) -> Tensor:
        """Return the rows of a block, shape ``(m, *block)``, real, in float32 or float64. Do not write."""

    @abstractmethod
    def like(self, key: Any) -> Tensor:
        """Return a tensor with the shape, dtype and device of one row of a block, and any values."""

    def of_whole(self, key: Any, make: Callable[[Sequence[int]], Tensor]) -> Tensor:
        """Return what a function makes for the shape of one row of a block.

        If the block is a part of a parameter, this is the same part of what the function makes for the whole.
        """
        return make(self.like(key).shape)

    @abstractmethod
    def products(self, vectors: Sequence[Parts]) -> Array:
        """Return the inner products of all rows and vectors, ``(m + vectors, m + vectors)``.

        They are the same on all processes.
        """


class Found(NamedTuple):
    """What a rule made of the rows.

    Attributes:
        weights: of the gradients; None if the direction is not a combination of them.
        direction: its parts; None if it is ``sum_k weights_k g_k``.
    """

    weights: Array | None
    direction: Parts | None


class RowAggregator(Aggregator):
    """A rule that needs the rows of the Jacobian: ``rule(J)``, or `paretograd.backward`.

    `weights` and `solve` raise an error: a Gramian is not enough.
    """

    needs = frozenset({"rows"})

    @abstractmethod
    def _combine(self, rows: RowSource) -> Found:
        """Return the direction. The rows are finite. State may change, because nothing can fail any more."""

    def _differentiated(self, m: int) -> Sequence[int]:
        """Return the losses whose gradients the next step needs."""
        return range(m)

    def __call__(self, jacobian: Tensor) -> Tensor:
        """Return the direction, shape ``(n,)``, for a Jacobian ``(m, n)`` with one row per objective."""
        rows = MatrixRows(jacobian)
        found = self._combine(rows)
        if found.direction is None:
            assert found.weights is not None
            return combine(torch.from_numpy(found.weights), jacobian)
        return found.direction[id(_MATRIX)].to(jacobian.dtype)

    def _refuse(self) -> ParameterError:
        return ParameterError(
            f"{self.label} needs the gradients themselves, and the Gramian holds only their inner products. Call "
            "rule(J) with the Jacobian, or paretograd.backward(losses, rule); it cannot be a part of another rule"
        )

    def _answer(self, G: Array, eps: float) -> Outcome:
        raise self._refuse()

    def solve(self, gramian: Tensor) -> Solution:
        raise self._refuse()

    def weights(self, gramian: Tensor) -> Tensor:
        raise self._refuse()


class MatrixRows(RowSource):
    """A Jacobian that is one matrix."""

    keys = (_MATRIX,)
    eps = 2e-16

    def __init__(self, jacobian: Tensor) -> None:
        check_floating(jacobian, "a Jacobian")
        if jacobian.ndim != 2 or not jacobian.numel():
            raise ShapeError(
                f"a rule that needs the rows takes one Jacobian of shape (m, n) at a time; got {tuple(jacobian.shape)}"
            )
        bad = nonfinite_rows(jacobian)
        if bad:
            raise NonFiniteGradientError(bad)
        self.m = len(jacobian)
        self._rows = at_least_single(jacobian.detach())

    def block(self, key: Any) -> Tensor:
        return self._rows

    def like(self, key: Any) -> Tensor:
        first: Tensor = self._rows[0]
        return first

    def products(self, vectors: Sequence[Parts]) -> Array:
        whole = torch.cat([self._rows.double(), *(vector[id(_MATRIX)].double()[None] for vector in vectors)])
        return as_array(whole @ whole.T)


def at_least_single(values: Tensor) -> Tensor:
    """Return real values in float32, or in float64 if they have that."""
    if values.is_complex():
        values = torch.view_as_real(values)
    return values if values.dtype in (torch.float32, torch.float64) else values.float()


def weighted(rows: Tensor, weights: Array) -> Tensor:
    """Return ``sum_k w_k rows_k``."""
    factors = torch.as_tensor(weights, dtype=rows.dtype, device=rows.device)
    return torch.einsum("k,k...->...", factors, rows)


class RowMemory:
    """A tensor for each block, which a rule keeps from step to step. It is zero at first.

    The tensors belong to parameters, and are saved in the order in which these were first seen. After a state was
    loaded, they go to the parameters in that order. Parts of parameters belong to one process.

    Args:
        extra: number of rows that a tensor has in addition to one for each objective.
    """

    def __init__(self, extra: int = 0) -> None:
        self._extra = extra
        self._held: dict[int, tuple[Callable[[], Any], Tensor]] = {}
        self._loaded: list[Tensor] = []
        self.process: tuple[int, int] | None = None  # see `RowSource`

    def tensors(self, rows: RowSource) -> list[Tensor]:
        """Return the tensor of each block, shape ``(m + extra, *block)``, to be changed in place.

        An error leaves everything as it was.
        """
        if len(self) and self.process != rows.process:
            raise ParameterError(
                f"the rule has averages of {_described(self.process)}, and now gets the gradients of "
                f"{_described(rows.process)}. Load what the same process has saved, on as many processes, or make a "
                "new rule"
            )
        found, waiting = [], list(self._loaded)
        for key in rows.keys:
            like = rows.like(key)
            owner, held = self._held.get(id(key), (None, None))
            if owner is None or held is None or owner() is not key:
                held = waiting.pop(0) if waiting else None
            shape = (rows.m + self._extra, *like.shape)
            if held is not None and held.shape != shape:
                raise ShapeError(
                    f"the rule has averages of shape {tuple(held.shape)} of earlier gradients, and now needs the shape "
                    f"{shape}. Make a new rule for another model or another number of objectives"
                )
            found.append(like.new_zeros(shape) if held is None else held.to(like))
        self._loaded, self.process = waiting, rows.process
        for key, tensor in zip(rows.keys, found, strict=True):
            self._held[id(key)] = weakref.ref(key) if isinstance(key, Tensor) else partial(_same, key), tensor
        return found

    def __len__(self) -> int:
        return len(self._held) + len(self._loaded)

    def state(self) -> list[Tensor]:
        """Return copies of all tensors, on the CPU."""
        held = [tensor for owner, tensor in self._held.values() if owner() is not None]
        return [tensor.to("cpu", copy=True) for tensor in (*held, *self._loaded)]

    def load(self, tensors: Sequence[Any], process: Sequence[int] | None) -> None:
        """Take over what `state` returned, and the process to which it belongs."""
        loaded = [torch.as_tensor(tensor, device="cpu") for tensor in tensors]
        if not all(tensor.is_floating_point() for tensor in loaded):
            raise DTypeError("the state of a rule holds floating-point tensors")
        self._held, self._loaded = {}, [tensor.clone() for tensor in loaded]
        self.process = None if process is None else (int(process[0]), int(process[1]))

    @property
    def is_elsewhere(self) -> bool:
        """True if the tensors belong to another process than this one."""
        found = this_process()
        return None not in (self.process, found) and self.process != found


def this_process() -> tuple[int, int] | None:
    """Return the number of this process and that of all; None if it is the only one."""
    if not (dist.is_available() and dist.is_initialized()) or dist.get_world_size() == 1:
        return None
    return dist.get_rank(), dist.get_world_size()


def _described(process: tuple[int, int] | None) -> str:
    return "a single process" if process is None else f"one of {process[1]} processes"


def _same(value: Any) -> Any:
    return value


def simplex_projection(values: Array) -> Array:
    """Return the nearest point of the probability simplex.

    It is ``max(values - t, 0)`` with the threshold t for which the sum is one (Held, Wolfe and Crowder, 1974).
    """
    falling = np.sort(values - values.max())[::-1]
    thresholds = (np.cumsum(falling) - 1.0) / np.arange(1, len(values) + 1)
    count = int(np.flatnonzero(falling > thresholds)[-1])
    found = np.maximum(values - values.max() - thresholds[count], 0.0)
    return np.asarray(found / np.maximum(falling - thresholds[count], 0.0).sum())  # the same in every order


def vectors_of(blocks: Mapping[int, Tensor], m: int) -> list[Parts]:
    """Return rows that were stored by block, each shape ``(m, *block)``, as vectors."""
    return [{key: block[k] for key, block in blocks.items()} for k in range(m)]
