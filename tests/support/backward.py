"""Checks of `paretograd.backward`: against the slow way, and that a failed call changes nothing."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

import pytest
import torch
from torch import Tensor

import paretograd as pg
from paretograd.autograd.graph import Graph

from .models import Losses

#: Both ways work in float64 on the same graph and differ by rounding only. This share of the largest gradient allows
#: for the condition of the weights (near-dependent gradients), not for an error in a rule.
TOLERANCE = 1e-10


def graph_of(losses: Losses) -> Graph:
    """The graph of losses, as the engines read it."""
    return Graph(losses)


class Expected(NamedTuple):
    """What `paretograd.backward` must find, the slow way.

    Attributes:
        gramian: over the parameters that several losses reach, shape ``(m, m)``, float64.
        weights: the rule's, for that Gramian.
        grads: by ``id``, the gradient of every parameter that a loss reaches, in the parameter's dtype.
        scale: the largest entry of any of them.
    """

    gramian: Tensor
    weights: Tensor
    grads: dict[int, Tensor]
    scale: float


def slowly(losses: Losses, params: Sequence[Tensor], rule: pg.Aggregator) -> Expected:
    """One call of torch per loss, the whole Jacobian in float64, and no look at the graph; which is kept."""
    trainable = [p for p in params if p.requires_grad]
    rows = [torch.autograd.grad(loss, trainable, retain_graph=True, allow_unused=True) for loss in losses]
    columns = {
        id(p): [g if g is None else g.to_dense() for g in column] for p, *column in zip(trainable, *rows, strict=True)
    }
    reached = [(p, sum(g is not None for g in columns[id(p)])) for p in trainable]
    common = [p for p, count in reached if count > 1 or (count == 1 and len(losses) == 1)]
    blocks = {id(p): torch.stack([torch.zeros_like(p) if g is None else g for g in columns[id(p)]]) for p in common}
    J = torch.cat([_real(block).reshape(len(losses), -1).double() for block in blocks.values()], dim=1)
    G = J @ J.T
    weights = rule.weights(G)
    grads = {
        key: torch.tensordot(weights.to(_wide(rows)), rows.to(_wide(rows)), 1).to(rows.dtype)
        for key, rows in blocks.items()
    }
    for p, count in reached:
        if count == 1 and id(p) not in grads:
            grads[id(p)] = next(g for g in columns[id(p)] if g is not None)
    return Expected(G, weights, grads, max(float(g.abs().max()) for g in grads.values()))


def _real(rows: Tensor) -> Tensor:
    return torch.view_as_real(rows) if rows.is_complex() else rows


def _wide(rows: Tensor) -> torch.dtype:
    return torch.complex128 if rows.is_complex() else torch.float64


def compare(params: Iterable[Tensor], expected: Expected, step: pg.Step | None = None, times: float = 1.0) -> None:
    """Every ``.grad`` is what the slow way found, ``times`` over, and None where it found nothing."""
    if step is not None:
        error = float((step.gramian - expected.gramian).abs().max())
        assert error <= TOLERANCE * float(expected.gramian.abs().max())
    for k, param in enumerate(params):
        want = expected.grads.get(id(param))
        if want is None:
            assert param.grad is None, k
            continue
        assert param.grad is not None, k
        assert (param.grad.dtype, param.grad.shape) == (param.dtype, param.shape)
        assert not param.grad.requires_grad
        error = float((param.grad.to_dense() - times * want).abs().max())
        assert error <= TOLERANCE * times * expected.scale, (k, tuple(param.shape), error / expected.scale)


def untouched(params: Sequence[Tensor], call: Callable[[], object], error: type[Exception], words: str) -> Exception:
    """The call raises, and every ``.grad`` is the same object with the same bits, None included."""
    for param in params[::2]:  # every other one has a gradient already
        param.grad = torch.randn_like(param)
    before = [(p.grad, None if p.grad is None else p.grad.clone()) for p in params]
    with pytest.raises(error, match=words) as caught:
        call()
    for param, (grad, copy) in zip(params, before, strict=True):
        assert param.grad is grad
        assert grad is None or torch.equal(grad, copy)
    return caught.value
