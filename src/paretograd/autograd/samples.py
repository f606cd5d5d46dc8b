"""One objective per sample of a batch: all gradients from one plain backward pass.

If the k-th loss depends only on the k-th sample, the pass of the sum contains the gradients of all losses, each at its
own index along the first dimension of every layer's output. So m losses cost as much as one, without an m by m batch
of rows.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
import torch
from torch import Tensor

from paretograd.autograd.batched import start, weighted_gradients
from paretograd.autograd.by_layers import fitted, split_layers
from paretograd.autograd.call import Plan
from paretograd.autograd.graph import Graph, release
from paretograd.autograd.layers import Layer
from paretograd.autograd.products import rounding
from paretograd.autograd.ways import NotFiniteError, Pairs, Way, present
from paretograd.errors import NonFiniteGradientError, ParameterError
from paretograd.geometry.gramian import LEAST, MOST, as_array
from paretograd.geometry.row_lists import accumulator

#: Largest deviation of a gradient, in units of the rounding of its dtype, that does not count as mixing of samples.
_SLACK = 1e4

#: Largest exponent for which float32 represents both 2^k and 2^-k.
_POWERS = 126

#: Gradients of at most this norm have entries in the range of float32; beyond it, the entries must be checked.
_REPRESENTABLE = 0.1 * torch.finfo(torch.float32).max

#: Layers, each with the gradients of its output.
Outputs = Sequence[tuple[Layer, Tensor]]


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
            parts = [by_samples(plan.losses, group, plan.graph) for group in plan.groups]
            found = [part for part in parts if part is not None]
            return cls(plan, found) if len(found) == len(parts) else "some layer does not keep samples separate"
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
    """Counterpart of `Pullback` for losses of single samples.

    Attributes:
        gramian: ``J @ J.T``, float64, shape ``(m, m)``.
        array: the same on the CPU, as an array.
        passes: always False, since `combine` runs no backward pass.
        eps: rounding of the Gramian's entries, relative to the norms of the gradients.
    """

    def __init__(self, losses: Tensor, params: Sequence[Tensor], layers: Outputs, gramian: Tensor) -> None:
        self._layers, self.gramian, self.array, self.passes = layers, gramian, as_array(gramian), False
        self.eps = max(rounding(param) for param in params)
        bad = np.flatnonzero(~np.isfinite(self.array.diagonal())).tolist()
        if bad:
            raise NonFiniteGradientError(bad)
        self._check_apart(losses, params)

    def _check_apart(self, losses: Tensor, params: Sequence[Tensor]) -> None:
        """Compare one gradient with that of a separate pass. They differ if samples are mixed."""
        k = int(self.gramian.diagonal().argmax())
        single = torch.zeros(len(losses), dtype=torch.float64, device="cpu")
        single[k] = 1.0
        ours = {id(param): grad for param, grad in self.combine(single)}
        exact = [
            (p, g) for p, g in zip(params, _gradients_of_one(losses, k, list(params)), strict=True) if g is not None
        ]
        apart = sum(float((grad - ours[id(param)]).double().square().sum()) for param, grad in exact)
        square = sum(float(grad.double().square().sum()) for _, grad in exact)
        if apart > (_SLACK * self.eps) ** 2 * square:
            raise ParameterError(
                f"per_sample=True, but loss {k} does not depend on sample {k} alone: its gradient differs by "
                f"{(apart / square) ** 0.5:.2g} of its norm from that of the sample. BatchNorm in training mode, for "
                "instance, mixes samples: use per_sample=False"
            )

    def combine(self, weights: Tensor, free: bool = False) -> list[tuple[Tensor, Tensor]]:
        """Return each parameter with its gradient of ``sum_k w_k f_k``. ``free`` has no effect: there is no pass."""
        found = []
        for layer, grad in self._layers:
            column = weights.to(device=grad.device, dtype=grad.dtype).reshape(-1, *(1,) * (grad.ndim - 1))
            found += list(zip(layer.params, layer.gradients(grad * column), strict=True))
        return fitted(found)


def by_samples(losses: Sequence[Tensor] | Tensor, params: Sequence[Tensor], graph: Graph) -> SamplePullback | None:
    """Return the gradients of losses of single samples; None if some layer does not keep samples separate."""
    if not isinstance(losses, Tensor):
        raise ParameterError(
            "per_sample=True takes the losses as a vector, one for each sample of the batch; got a list"
        )
    layers, rest = split_layers(params, graph)
    m = len(losses)
    if rest or not layers or any(tuple(layer.output_shape)[:1] != (m,) for layer in layers):
        return None
    grads: Sequence[Tensor | None] = torch.autograd.grad(
        [losses],
        [layer.edge for layer in layers],
        [torch.ones_like(losses)],
        retain_graph=True,
        allow_unused=True,
    )
    pairs = [(layer, grad) for layer, grad in zip(layers, grads, strict=True) if grad is not None]
    gramian = _summed(pairs, losses)
    if gramian is not None and max(rounding(param) for param in params) > 1e-15:
        gramian = _in_range(gramian, pairs, losses)
    return None if gramian is None else SamplePullback(losses, params, pairs, gramian)


def _summed(pairs: Iterable[tuple[Layer, Tensor]], losses: Tensor) -> Tensor | None:
    """Return the Gramian; None if a layer does not keep samples separate."""
    m = len(losses)
    total = torch.zeros(m, m, dtype=torch.float64, device=losses.device)
    for layer, grad in pairs:
        part = layer.sample_gramian(grad)
        if part is None:
            return None
        total += part.to(losses.device)
    return total


def _in_range(gramian: Tensor, pairs: Outputs, losses: Tensor) -> Tensor | None:
    """Return the Gramian, from gradients scaled to a size of one if their squares are out of range in float32.

    Return None if the gradients themselves may be out of range.
    """
    squares = as_array(gramian).diagonal()
    lost = ~((squares >= LEAST) & (squares <= MOST))
    if not (lost.any() and pairs):
        return gramian
    largest = torch.stack([grad.abs().reshape(len(grad), -1).amax(dim=1).to(gramian) for _, grad in pairs]).amax(dim=0)
    sizes = as_array(largest)
    bad = np.flatnonzero(~np.isfinite(sizes)).tolist()
    if bad:
        raise NonFiniteGradientError(bad)
    if not sizes[lost].any():
        return gramian  # gradients of zeros have squares of zero
    scales = np.exp2(-np.frexp(sizes)[1].clip(-_POWERS, _POWERS).astype(np.float64))
    factors = torch.from_numpy(scales).to(gramian.device)
    scaled = _summed(((layer, _times(grad, factors)) for layer, grad in pairs), losses)
    assert scaled is not None  # since the first Gramian was not
    scaled /= factors
    scaled /= factors[:, None]
    norms = np.sqrt(as_array(scaled).diagonal())
    return scaled if (norms <= _REPRESENTABLE).all() else None


def _times(grad: Tensor, factors: Tensor) -> Tensor:
    """Multiply the gradient of each sample by its own factor."""
    long = grad.to(accumulator(grad.dtype))
    return long * factors.to(long).reshape(-1, *(1,) * (long.ndim - 1))


def _gradients_of_one(losses: Tensor, k: int, params: Sequence[Tensor]) -> Sequence[Tensor | None]:
    """Return the gradient of one loss with respect to each parameter."""
    seed = torch.zeros_like(losses)
    seed[k] = 1.0
    return torch.autograd.grad(losses, params, seed, retain_graph=True, allow_unused=True)


def _plain_sum(plan: Plan) -> Pairs:
    params = [*plan.common, *plan.own]
    ones = torch.ones(plan.m, dtype=torch.float64, device="cpu")
    return present(params, weighted_gradients(plan.losses, params, ones, free=not plan.call.retain_graph))
