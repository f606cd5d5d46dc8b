"""Search for the samples of a batch in the outputs of layers.

Two backward passes tell to which sample an entry belongs: one of the sum of the losses, and one with a factor for each
loss. The second multiplies the gradient of an entry by the factor of its sample.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from paretograd.autograd.layers.layer import Layer, Samples
from paretograd.autograd.layers.lookup import Lookup
from paretograd.errors import ParameterError
from paretograd.geometry.row_lists import accumulator

#: Largest deviation of a gradient, in units of the rounding of its dtype, that does not count as mixing of samples.
#: Some kernels sum in another order each time. In 16 bits, that changes the last bits of a result.
_SLACK = {torch.float64: 1e4, torch.float32: 1e4, torch.bfloat16: 8.0, torch.float16: 8.0}

#: Number of different factors of losses: powers of two from 1 downwards, by which products are exact.
_FACTORS = 8


class Output(NamedTuple):
    """A layer with the gradient of its output, and the samples to which the entries of that belong."""

    layer: Layer
    grad: Tensor
    samples: Samples

    def times(self, factors: Tensor) -> Output:
        """Return the output with its gradient multiplied by one factor for each sample."""
        leading = self.grad.shape[: self.layer.leading]
        grad = self.grad.to(accumulator(self.grad.dtype))
        column = self.samples.spread(factors.to(grad)).reshape(*leading, *(1,) * (grad.ndim - len(leading)))
        return self._replace(grad=grad * column)

    def largest(self) -> Tensor:
        """Return the largest entry of each sample's gradient, shape ``(m,)``."""
        count = math.prod(self.grad.shape[: self.layer.leading])
        return self.samples.split(self.grad.abs().reshape(count, -1)).flatten(1).amax(dim=1)


def described(layer: Layer) -> str:
    """Return the kind of a layer and the shape of its parameter, in words."""
    return f"{operation(layer.node.name())} with a parameter of shape {tuple(layer.params[0].shape)}"


def operation(name: str) -> str:
    """Return the name of an operation as users know it: ``Addmm`` for ``AddmmBackward0``."""
    return name.split("Backward")[0]


def separate(losses: Tensor, layers: Sequence[Layer]) -> list[Output] | str:
    """Return the layers that the losses reach, with the gradients of their outputs; or why samples were not found.

    Args:
        losses: one for each of m samples.
        layers: layers with a rule for samples.
    """
    m = len(losses)
    for layer in layers:
        if not layer.leading or math.prod(layer.output_shape[: layer.leading]) % m:
            return f"{described(layer)} keeps no {m} samples apart in its output of shape {layer.output_shape}"
    # Random, so that no two ways to lay out samples have the same pattern; the same for each call.
    exponents = torch.randperm(m, generator=torch.Generator("cpu").manual_seed(m), device="cpu") % _FACTORS
    factors = torch.exp2(-exponents.double()).to(losses)
    edges = [layer.edge for layer in layers]
    grads: Sequence[Tensor | None] = torch.autograd.grad(
        [losses], edges, [torch.ones_like(losses)], retain_graph=True, allow_unused=True
    )
    others: Sequence[Tensor | None] = torch.autograd.grad(
        [losses], edges, [factors], retain_graph=True, allow_unused=True
    )
    kinds = {grad.dtype for grad in grads if grad is not None}  # short ones make long ones inexact
    tolerance = max((_SLACK[kind] * torch.finfo(kind).eps for kind in kinds), default=0.0)
    found = []
    for layer, grad, other in zip(layers, grads, others, strict=True):
        if grad is None or other is None:
            continue
        layouts = _layouts(grad, other, factors.to(grad.device), layer.leading, tolerance)
        if len(layouts) == 1:
            found.append(Output(layer, grad, layouts[0]))
        elif layouts or m != layer.output_shape[0] or isinstance(layer, Lookup):  # a table may serve all samples
            return f"{described(layer)} has an output of shape {layer.output_shape}, in which samples were not found"
        else:
            raise ParameterError(
                "per_sample=True, but a loss does not depend on its own sample alone: one entry of the output of "
                f"{described(layer)} gets the gradients of several. BatchNorm in training mode, for instance, mixes "
                "samples: use per_sample=False"
            )
    return found


def _layouts(grad: Tensor, other: Tensor, factors: Tensor, leading: int, tolerance: float) -> list[Samples]:
    """Return the layouts of samples that agree with two gradients of an output; none if samples are mixed.

    Args:
        grad: gradient of the sum of the losses.
        other: gradient of the sum with one factor for each loss.
        factors: these factors, shape ``(m,)``.
        leading: number of dimensions along which samples may lie.
        tolerance: of the factors, relative to the largest entry of each sample.
    """
    m, count = len(factors), math.prod(grad.shape[:leading])
    rows = count // m
    D, E = (values.reshape(count, -1) for values in (grad, other))
    usual = [Samples(rows // after, m, after) for after in sorted({1, rows}, reverse=True)]
    found = [samples for samples in usual if _fits(D, E, factors, samples, tolerance)]
    if len(found) == 2:  # if few entries have a gradient, both may agree, and may even mean the same
        numbers = torch.arange(m, device=grad.device)
        same = found[0].spread(numbers) == found[1].spread(numbers)
        if bool((same | ~D.any(dim=1)).all()):
            found.pop()
    if not found:
        between = (Samples(rows // after, m, after) for after in range(2, rows) if rows % after == 0)
        found = [samples for samples in between if _fits(D, E, factors, samples, tolerance)][:1]
    return found


def _fits(D: Tensor, E: Tensor, factors: Tensor, samples: Samples, tolerance: float) -> bool:
    """Return True if E is D with one factor for each sample."""
    kind = accumulator(D.dtype)
    expected = D.to(kind) * samples.spread(factors.to(kind))[:, None]
    apart = torch.where(expected.isfinite() | E.isfinite(), E - expected, 0.0).abs()
    errors, sizes = (
        samples.split(values).flatten(1).amax(dim=1) for values in (apart, expected.abs().nan_to_num(0.0, 0.0, 0.0))
    )
    limits = torch.finfo(D.dtype)
    noise = 64 * limits.smallest_normal * limits.eps  # of numbers that underflow
    return bool((errors <= tolerance * sizes + noise).all())
