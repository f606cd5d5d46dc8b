"""Parameters without a layer: products, slices, complex and sparse numbers."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils.parametrizations import weight_norm

from .problem import Losses, Problem, model, parameter, plain, randn, three


@model
def elementwise() -> Problem:
    w, scale, shift, x = parameter(5), parameter(1), parameter(), randn(7, 5)
    return Problem([w, scale, shift], lambda: three((x * w + shift).tanh() * scale))


@model
def sliced_and_scaled() -> Problem:
    w, v, u, x = parameter(6, 5), parameter(5, 4), parameter(3, 3), randn(7, 5)
    mask = (torch.rand(5, 4) > 0.4).double()
    return Problem([w, v, u], lambda: three(x @ w[:3].t() @ u.t() + (x @ (v * mask))[:, :3]))


@model
def plain_products() -> Problem:
    """``x @ W`` with W as it is, ``W @ x``, and a product of two parameters."""
    w, left, a, b, x = parameter(5, 4), parameter(3, 7), parameter(4, 2), parameter(2, 6), randn(7, 5)
    return Problem([w, left, a, b], lambda: three(left @ (x @ w).tanh() @ (a @ b)))


@model
def addmm_of_every_kind() -> Problem:
    """Biases that are broadcast, or not one per output, and factors other than one."""
    w, v, u, x = parameter(5, 4), parameter(4, 3), parameter(3, 2), randn(7, 5)
    one, whole, row = parameter(1), parameter(7, 3), parameter(2)

    def losses() -> Losses:
        y = torch.addmm(one, x, w).tanh()
        return three(torch.addmm(row, torch.addmm(whole, y, v), u, alpha=0.5, beta=2.0))

    return Problem([w, v, u, one, whole, row], losses)


@model
def einsum() -> Problem:
    w, v, x = parameter(3, 4, 5), parameter(5, 3), randn(6, 4)
    return Problem([w, v], lambda: three(torch.einsum("bi,hio,oh->bh", x, w, v)))


@model
def complex_weights() -> Problem:
    """A filter in the frequency domain: complex parameters between real ones."""
    spectrum, out = nn.Parameter(torch.randn(5, dtype=torch.complex128)), nn.Linear(8, 2)
    mixing, x = nn.Parameter(torch.randn(5, 5, dtype=torch.complex128)), randn(6, 8)
    return Problem(
        [spectrum, mixing, *out.parameters()],
        lambda: three(out(torch.fft.irfft((torch.fft.rfft(x) * spectrum) @ mixing, n=8))),
    )


@model
def sparse_inputs() -> Problem:
    w, b = parameter(6, 4), parameter(4)
    x = (randn(7, 6) * (torch.rand(7, 6) > 0.6)).to_sparse()
    return Problem([w, b], lambda: three((x @ w + b).tanh()))


@model
def weight_normalized() -> Problem:
    return plain(nn.Sequential(weight_norm(nn.Linear(5, 6)), nn.Tanh(), weight_norm(nn.Linear(6, 2))), randn(7, 5))


class _NoGradient(torch.autograd.Function):
    """A function that is part of the graph but returns no gradient for its second input."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, _: Tensor) -> Tensor:
        return x * 2.0

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        return grads[0] * 2.0, None


@model
def reached_without_gradient() -> Problem:
    """Parameters in the graph of three losses, and of one, that get no gradient there."""
    net, dead, dead_head, x = nn.Linear(5, 2), parameter(3), parameter(3), randn(7, 5)

    def losses() -> Losses:
        a, b, c = three(_NoGradient.apply(net(x), dead))
        return [a, b, _NoGradient.apply(c, dead_head)]

    return Problem([*net.parameters(), dead, dead_head], losses)
