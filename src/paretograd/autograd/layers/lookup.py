"""Rule for tables of embeddings."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import Any

import torch
from torch import Tensor
from torch.autograd.graph import Node

from paretograd.autograd.layers.layer import Layer, Part, Samples, Uses, enter_only_at, register_layer
from paretograd.autograd.layers.products import paired_gramian
from paretograd.autograd.products import row_gramian
from paretograd.geometry.row_lists import accumulator


class Lookup(Layer):
    """Embedding: rows of a table. Only the rows that were looked up have a gradient."""

    def __init__(self, node: Node, table: Tensor, padding: int, source: Any = None) -> None:
        """Take the operation and its parameter.

        Args:
            node: the lookup, or an operation that adds what was looked up to larger values.
            table: the parameter.
            padding: index of the row without a gradient; -1 for none.
            source: the lookup, if it is not ``node``.
        """
        super().__init__(node, [table])
        self.table, self.padding = table, padding
        self.source = self.node if source is None else source
        self.leading = len(self.output_shape) - 1

    @property
    def indices(self) -> Tensor:
        """The rows that were looked up, one for each row of the output."""
        indices: Tensor = self.source._saved_indices
        return indices.expand(self.output_shape[:-1])

    def added_by(self, users: Sequence[tuple[Any, int]]) -> Lookup:
        """Return the rule for what was looked up where it is added to each sample, and this one if it is not.

        Position embeddings have no dimension for samples; their sum with other embeddings has one.
        """
        if len(users) != 1 or users[0][0].name() != "AddBackward0":
            return self
        node = users[0][0]
        if node._saved_alpha != 1 or tuple(node._input_metadata[0].shape) == self.output_shape:
            return self
        return Lookup(node, self.table, self.padding, self.node)

    @cached_property
    def words(self) -> tuple[Tensor, Tensor]:
        """The rows that were looked up, and for each index its place among them."""
        found, places = torch.unique(self.indices, return_inverse=True)
        return found, places.flatten()

    def _columns(self, grads: Tensor) -> Tensor:
        """Return the gradient for each index, shape ``(..., N, width)``; zeros for padding."""
        D = grads.flatten(-self.indices.ndim - 1, -2).to(accumulator(grads.dtype))
        return D if self.padding < 0 else D.masked_fill(self.indices.reshape(-1, 1) == self.padding, 0.0)

    def _summed(self, grads: Tensor) -> Tensor:
        """Return the gradients of the rows that were looked up, shape ``(m, rows, width)``."""
        D, (found, places) = self._columns(grads), self.words
        return D.new_zeros(len(D), len(found), D.shape[2]).index_add_(1, places, D)

    def part(self, grads: Tensor) -> Part:
        return Part(row_gramian(self._summed(grads)), [])

    def gradients(self, grad: Tensor) -> list[Tensor]:
        full = torch.zeros_like(self.table)
        full[self.words[0]] = self._summed(grad.unsqueeze(0))[0].to(full.dtype)
        return [full]

    def sample_factors(self, grad: Tensor, samples: Samples) -> tuple[Tensor, Tensor]:
        """Return the gradients and the indices of each sample, shapes ``(m, T, width)`` and ``(m, T)``."""
        return samples.split(self._columns(grad)), samples.split(self.indices.flatten())

    def sample_rows(self, grad: Tensor, samples: Samples) -> list[Tensor]:
        return [_sample_sums(*self.sample_factors(grad, samples), len(self.table))]

    def sample_gramian(self, grad: Tensor, samples: Samples) -> Tensor:
        return lookup_gramian(*self.sample_factors(grad, samples))


def lookup_gramian(grads: Tensor, indices: Tensor) -> Tensor:
    """Return the Gramian of the gradients of m samples, from sums or from all pairs of equal words, in float64.

    For each pair of samples, sums take as many products as there are words in the batch, and pairs take ``T^2``.

    Args:
        grads: shape ``(m, T, width)``.
        indices: the words, shape ``(m, T)``.
    """
    found, places = torch.unique(indices, return_inverse=True)
    if indices.shape[1] ** 2 > len(found):
        return row_gramian(_sample_sums(grads, places, len(found)))
    words = places.flatten()
    return paired_gramian(grads, lambda rows: words[rows, None] == words)


def _sample_sums(grads: Tensor, indices: Tensor, count: int) -> Tensor:
    """Return the gradients of m samples, shape ``(m, count, width)``."""
    m, _, width = grads.shape
    first = torch.arange(m, device=indices.device)[:, None] * count
    sums = grads.new_zeros(m * count, width)
    return sums.index_add_(0, (indices + first).flatten(), grads.flatten(0, 1)).reshape(m, count, width)


@register_layer("EmbeddingBackward0")
def _embedding(node: Any, uses: Uses) -> Layer | None:
    if not enter_only_at(uses, 0) or node._saved_scale_grad_by_freq or node._saved_sparse:
        return None
    padding = node._saved_padding_idx
    rows = uses[0][0].shape[0]
    return Lookup(node, uses[0][0], padding if padding < rows else -1)
