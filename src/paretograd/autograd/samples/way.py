"""One objective per sample of a batch: all gradients from one plain backward pass.

If the k-th loss depends only on the k-th sample, the pass of the sum contains the gradients of all losses, each in its
own entries of every layer's output. So m losses cost as much as two, without an m by m batch of rows: the second pass
finds these entries.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from paretograd.autograd.batched import start, weighted_gradients
from paretograd.autograd.by_layers import fitted
from paretograd.autograd.call import Plan
from paretograd.autograd.graph import Graph, release
from paretograd.autograd.layers.layer import Layer, Uses, layer_of
from paretograd.autograd.layers.lookup import Lookup
from paretograd.autograd.layers.norm import pointwise_layer
from paretograd.autograd.layers.uses import group_layers
from paretograd.autograd.products import rounding
from paretograd.autograd.samples.outputs import Output, operation, separate
from paretograd.autograd.samples.tied import group_gramian, sum_of
from paretograd.autograd.ways import NotFiniteError, Pairs, Way, present
from paretograd.callers import callers_level
from paretograd.errors import NonFiniteGradientError, ParameterError
from paretograd.geometry.gramian import LEAST, MOST, as_array

#: Largest exponent for which float32 represents both 2^k and 2^-k.
_POWERS = 126

#: Gradients of at most this norm have entries in the range of float32; beyond it, the entries must be checked.
_REPRESENTABLE = 0.1 * torch.finfo(torch.float32).max


class SamplesWay(Way):
    """The gradients of losses that depend on one sample each."""

    name = "samples"

    def __init__(self, plan: Plan, parts: Sequence[SamplePullback]) -> None:
        self._plan, self._parts = plan, parts
        self._own = [pair for pairs in start(plan)[1].values() for pair in pairs]
        if not all(bool(torch.isfinite(grad).all()) for _, grad in self._own):
            raise NonFiniteGradientError(list(range(plan.m)))
        self.gramians = torch.stack([part.gramian for part in parts])
        self.array, self.eps = as_array(self.gramians), max(part.eps for part in parts)

    @classmethod
    def of(cls, plan: Plan) -> SamplesWay | str:
        """Return the gradients, or why the layers do not keep samples separate."""
        try:
            parts = []
            for group in plan.groups:
                part = pull_samples(plan.losses, group, plan.graph)
                if isinstance(part, str):
                    return part
                parts.append(part)
            return cls(plan, parts)
        except NonFiniteGradientError as error:
            raise NotFiniteError(error.objectives, lambda: _plain_sum(plan)) from None

    def combine(self, weights: Sequence[Tensor]) -> Pairs:
        found = list(self._own)
        for part, chosen in zip(self._parts, weights, strict=True):
            found += part.combine(chosen)
        return found

    def release(self) -> None:
        if not self._plan.call.retain_graph:
            release(self._plan.graph.nodes)


class SamplePullback:
    """The gradients of losses of single samples over one group of parameters.

    Attributes:
        gramian: ``J @ J.T``, float64, shape ``(m, m)``.
        array: the same on the CPU, as an array.
        eps: rounding of the Gramian's entries, relative to the norms of the gradients.
    """

    def __init__(self, groups: list[list[Output]], gramian: Tensor, eps: float) -> None:
        self._groups, self.gramian, self.array, self.eps = groups, gramian, as_array(gramian), eps
        bad = np.flatnonzero(~np.isfinite(self.array.diagonal())).tolist()
        if bad:
            raise NonFiniteGradientError(bad)

    def combine(self, weights: Tensor) -> Pairs:
        """Return each parameter with its gradient of ``sum_k w_k f_k``, and release what was stored for it."""
        found = []
        while self._groups:
            group = self._groups.pop()
            grads = [output.layer.gradients(output.times(weights).grad) for output in group]
            found += [(param, sum_of(parts)) for param, *parts in zip(group[0].layer.params, *grads, strict=True)]
        return fitted(found)


def pull_samples(losses: Sequence[Tensor] | Tensor, params: Sequence[Tensor], graph: Graph) -> SamplePullback | str:
    """Return the gradients of losses of single samples; or in words why one pass does not give them.

    Warn if the reason is a layer: the other way costs up to m passes.
    """
    if not isinstance(losses, Tensor):
        raise ParameterError(
            "per_sample=True takes the losses as a vector, one for each sample of the batch; got a list"
        )
    if not params:
        return "the losses share no parameters"
    m = len(losses)
    groups, rest = group_layers(params, graph, lambda node, uses: _sample_layer(node, uses, graph))
    layers = [layer for group in groups for layer in group]
    outputs = _without_rule(rest[0], graph) if rest else separate(losses, layers)
    if isinstance(outputs, str):
        warnings.warn(
            f"per_sample=True, but {outputs}. So the {m} gradients cost up to {m} backward passes, as with "
            "per_sample=False. paretograd.register_layer adds a rule for a layer",
            UserWarning,
            stacklevel=callers_level(),
        )
        return outputs
    by_layer = {output.layer: output for output in outputs}
    reached = [[by_layer[layer] for layer in group if layer in by_layer] for group in groups]
    kept = [group for group in reached if group]
    total = _summed(kept, losses)
    eps = rounding(params)
    gramian = _in_range(total, kept, losses) if eps > 1e-15 else total
    return "the gradients are out of the range of float32" if gramian is None else SamplePullback(kept, gramian, eps)


def _sample_layer(node: Any, uses: Uses, graph: Graph) -> Layer | None:
    """Return the layer of an operation for samples; None if there is no rule."""
    layer = layer_of(node, uses)
    if isinstance(layer, Lookup):
        return layer.added_by(graph._users[node])
    return pointwise_layer(*next(iter(uses.values()))) if layer is None and len(uses) == 1 else layer


def _without_rule(param: Tensor, graph: Graph) -> str:
    names = sorted({operation(use.node.name()) for use in graph.uses(param)}) or ["an operation of one loss"]
    return f"{' and '.join(names)} with a parameter of shape {tuple(param.shape)} has no rule for samples"


def _summed(groups: Sequence[Sequence[Output]], losses: Tensor) -> Tensor:
    """Return the Gramian of all parameters."""
    m = len(losses)
    total = torch.zeros(m, m, dtype=torch.float64, device=losses.device)
    for group in groups:
        total += group_gramian(group).to(losses.device)
    return total


def _in_range(gramian: Tensor, groups: Sequence[Sequence[Output]], losses: Tensor) -> Tensor | None:
    """Return the Gramian, from gradients scaled to a size of one if their squares are out of range in float32.

    Return None if the gradients themselves may be out of range.
    """
    squares = as_array(gramian).diagonal()
    lost = ~((squares >= LEAST) & (squares <= MOST))
    if not (lost.any() and groups):
        return gramian
    largest = [output.largest().to(gramian) for group in groups for output in group]
    sizes = as_array(torch.stack(largest).amax(dim=0))
    bad = np.flatnonzero(~np.isfinite(sizes)).tolist()
    if bad:
        raise NonFiniteGradientError(bad)
    if not sizes[lost].any():
        return gramian  # gradients of zeros have squares of zero
    scales = np.exp2(-np.frexp(sizes)[1].clip(-_POWERS, _POWERS).astype(np.float64))
    factors = torch.from_numpy(scales).to(gramian.device)
    scaled = _summed([[output.times(factors) for output in group] for group in groups], losses)
    scaled /= factors
    scaled /= factors[:, None]
    norms = np.sqrt(as_array(scaled).diagonal())
    return scaled if (norms <= _REPRESENTABLE).all() else None


def _plain_sum(plan: Plan) -> Pairs:
    params = [*plan.common, *plan.own]
    ones = torch.ones(plan.m, dtype=torch.float64, device="cpu")
    return present(params, weighted_gradients(plan.losses, params, ones, free=not plan.call.retain_graph))
