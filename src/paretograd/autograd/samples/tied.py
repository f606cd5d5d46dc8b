"""Gramians of samples' gradients for parameters with several uses, whose gradients add up."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from paretograd.autograd.layers.linear import Affine, Outer
from paretograd.autograd.layers.lookup import Lookup, lookup_gramian
from paretograd.autograd.layers.products import paired_gramian, sample_outer_gramian, sum_of_gramians
from paretograd.autograd.layers.uses import joinable
from paretograd.autograd.samples.outputs import Output


def group_gramian(group: Sequence[Output]) -> Tensor:
    """Return the Gramian of m samples' gradients, float64, for the parameters that a group of layers shares.

    Linear maps are joined along their rows, and so are lookups in a table of embeddings. For a table that is also the
    weight of an output, the products between both are added. Other groups use rows.
    """
    if len(group) == 1:
        layer, grad, samples = group[0]
        return layer.sample_gramian(grad, samples)
    tables = [output for output in group if isinstance(output.layer, Lookup)]
    maps = [output for output in group if not isinstance(output.layer, Lookup)]
    members = joinable([output.layer for output in maps])
    words_are_outputs = all(isinstance(layer, Affine) and layer.transposed for layer in members)
    if len(members) < len(maps) or (tables and not words_are_outputs):
        rows = [layer.sample_rows(grad, samples) for layer, grad, samples in group]
        return sum_of_gramians(sum_of(parts) for parts in zip(*rows, strict=True))
    D, X = _factors(maps)
    E, words = _factors(tables)
    parts = [sample_outer_gramian(D, X, members[0].bias)] if members and D is not None else []
    if E is not None and words is not None:
        parts.append(lookup_gramian(E, words))
        if D is not None and X is not None:
            crossed = _crossed(D, X[:, :, 0], E, words)
            parts += [crossed, crossed.T]
    return sum_of(parts)


def _factors(outputs: Sequence[Output]) -> tuple[Tensor | None, Tensor | None]:
    """Return what linear maps or lookups multiply, joined along the rows of each sample."""
    pairs = [
        layer.sample_factors(grad, samples) for layer, grad, samples in outputs if isinstance(layer, Outer | Lookup)
    ]
    grads, inputs = [grad for grad, _ in pairs], [values for _, values in pairs if values is not None]
    return torch.cat(grads, dim=1) if grads else None, torch.cat(inputs, dim=1) if inputs else None


def _crossed(D: Tensor, X: Tensor, E: Tensor, words: Tensor) -> Tensor:
    """Return the products of the gradients ``D_k.T @ X_k`` with those of lookups, shape ``(m, m)``.

    Args:
        D: gradients of the outputs, one for each word, shape ``(m, T, words)``.
        X: inputs, shape ``(m, T, width)``.
        E: gradients of the embeddings, shape ``(m, S, width)``.
        words: the words that were looked up, shape ``(m, S)``.
    """
    chosen = words.flatten()
    return paired_gramian(X, lambda rows: D.flatten(0, 1)[rows][:, chosen], E)


def sum_of(parts: Sequence[Tensor]) -> Tensor:
    """Return the sum of tensors of one shape."""
    return parts[0] if len(parts) == 1 else torch.stack(list(parts)).sum(dim=0)
