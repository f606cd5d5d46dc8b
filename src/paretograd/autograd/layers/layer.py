"""`Layer`: the interface of a rule for one operation with parameters, and the registry of such rules.

A rule reads what torch saved for the backward pass of an operation. From the gradients with respect to the output it
computes the Gramian of the gradients of the parameters, without these gradients if that is cheaper. Parameters without
a rule use their rows of the Jacobian.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.graph import GradientEdge

from paretograd.autograd.graph import Use, saved_tensors
from paretograd.autograd.layers.products import sum_of_gramians
from paretograd.autograd.products import inner_products


class Part(NamedTuple):
    """Contribution of a layer to the Gramian: a matrix, and short rows, which are all multiplied together in the end.

    Attributes:
        gramian: shape ``(m, m)``, float64, symmetric up to rounding; None for zero.
        rows: gradients of small parameters, each of shape ``(m, size)``.
    """

    gramian: Tensor | None
    rows: list[Tensor]


class Samples(NamedTuple):
    """Position of the samples of a batch along a dimension: entry i belongs to sample ``i // after % m``.

    The dimension may join several: tokens after samples, as in ``(N, T)``, or before them, as in ``(T, N)``.
    """

    before: int
    m: int
    after: int

    def split(self, values: Tensor) -> Tensor:
        """Return the values of each sample, shape ``(m, before * after, ...)``, along the first dimension."""
        return values.reshape(*self, *values.shape[1:]).transpose(0, 1).flatten(1, 2)

    def spread(self, numbers: Tensor) -> Tensor:
        """Return one number for each entry, from one for each sample."""
        return numbers.repeat_interleave(self.after).repeat(self.before)


class Layer(ABC):
    """One operation with parameters.

    A layer reads what the operation saved when it needs it, and keeps none of it: torch can then free it during a pass.

    Attributes:
        node: the operation.
        params: its parameters.
        edge: its output, as autograd names it.
        output_shape: the shape of its output.
        leading: number of leading dimensions of the output along which samples of a batch may lie; 0 if the layer has
            no rule for samples.
    """

    leading = 0

    def __init__(self, node: Any, params: list[Tensor]) -> None:
        self.node, self.params = node, params
        self.output_shape = tuple(node._input_metadata[0].shape)
        self.edge = GradientEdge(node, 0)

    @property
    def output_size(self) -> int:
        """Number of entries of its output."""
        return math.prod(self.output_shape)

    @abstractmethod
    def part(self, grads: Tensor) -> Part:
        """Return the parameters' part of the Gramian, from the gradients of the output, shape ``(m, *output)``."""

    def pull(self, grads: Tensor, part: Part) -> Tensor | None:
        """Return the gradients ``(m, *input)`` of the input if that is cheaper than torch's own rule for batches.

        Return None to leave it to torch.
        """
        return None

    @abstractmethod
    def gradients(self, grad: Tensor) -> list[Tensor]:
        """Return the gradients of the parameters, from one gradient of the output."""

    def slopes(self, grads: Tensor, vectors: Sequence[Tensor]) -> Tensor:
        """Return the inner products of the parameters' gradients with vectors, shape ``(m,)``, float64.

        Override it if that is cheaper without these gradients.

        Args:
            grads: gradients of the output, shape ``(m, *output)``.
            vectors: one for each parameter.
        """
        others = [vector.reshape(1, -1) for vector in vectors]
        found = []
        for grad in grads:
            rows = [part.reshape(1, -1) for part in self.gradients(grad)]
            products = [inner_products(row, other.to(row)) for row, other in zip(rows, others, strict=True)]
            found.append(torch.cat(products).sum())
        return torch.stack(found)

    def sample_rows(self, grad: Tensor, samples: Samples) -> list[Tensor]:
        """Return the gradients of m samples, ``(m, *param)`` for each parameter, from the gradient of their sum.

        Args:
            grad: gradient of the output.
            samples: where samples lie along its `leading` dimensions.
        """
        raise NotImplementedError(f"{type(self).__name__} has no rule for samples: its `leading` is 0")

    def sample_gramian(self, grad: Tensor, samples: Samples) -> Tensor:
        """Return the Gramian of the gradients of m samples, float64; override it if that is cheaper without rows."""
        return sum_of_gramians(self.sample_rows(grad, samples))


#: Parameters of an operation, by the position at which they enter.
Uses = Mapping[int, tuple[Tensor, Use]]

#: A function that reads an operation and returns its layer, or None if it has no rule for these parameters.
Builder = Callable[[Any, Uses], Layer | None]

_RULES: dict[str, Builder] = {}


def register_layer(*operations: str) -> Callable[[Builder], Builder]:
    """Register a function that builds the `Layer` of an operation; use it as a decorator.

    The function takes the operation's node in torch's graph and its parameters with their uses, by the position at
    which they enter. It returns a layer, or None if it has no rule for this case. A later registration of the same
    operation replaces the earlier one.

    Args:
        operations: names of the operations, as ``tensor.grad_fn.name()`` gives them, such as ``AddmmBackward0``.

    Returns:
        the decorator, which returns the function unchanged.
    """

    def register(build: Builder) -> Builder:
        _RULES.update(dict.fromkeys(operations, build))
        return build

    return register


def layer_of(node: Any, uses: Uses) -> Layer | None:
    """Return the layer of an operation and its parameters; None if there is no rule, or a checkpoint to read."""
    build = _RULES.get(node.name())
    if build is None or any(param.is_complex() or param.layout is not torch.strided for param, _ in uses.values()):
        return None
    return None if reads_checkpoint(node) else build(node, uses)


def reads_checkpoint(node: Any) -> bool:
    """Return True if hooks packed a saved tensor of a node, as in a checkpoint or with `save_on_cpu`. None is unpacked.

    Outside a backward pass, each tensor that is read from a checkpoint recomputes its whole segment, and the results
    stay in memory.
    """
    return any(saved.unpack_hook is not None for saved in saved_tensors(node))


def parameter_at(uses: Uses, position: int) -> Tensor | None:
    """Return the parameter that enters at a position; None if there is none."""
    return uses[position][0] if position in uses else None


def enter_only_at(uses: Uses, *positions: int) -> bool:
    """Return True if parameters enter only at these positions, and none of them transposed."""
    return set(uses) <= set(positions) and not any(use.transposed for _, use in uses.values())
