"""The derivatives of a network in its inputs, which a physics-informed loss needs, in one forward pass.

The chain rule carries values, slopes and a second-order term from layer to layer (a forward Laplacian, Li et al.,
Nature Machine Intelligence 6, 2024). So the graph of a loss is that of one forward pass, without double backward.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn


class Field(NamedTuple):
    """The outputs of a function of d variables and their derivatives at n points, output by output.

    Attributes:
        value: shape (outputs, n).
        slope: in each variable, shape (outputs, d, n).
        curve: a weighted sum of the second derivatives, shape (outputs, n).
    """

    value: Tensor
    slope: Tensor
    curve: Tensor


def field_of(network: nn.Sequential, points: Tensor, second: Sequence[float]) -> Field:
    """Evaluate a network of linear and tanh layers with its derivatives.

    The layers' weights may be replaced by `torch.func.functional_call`, and the call may run under `torch.vmap`.

    Args:
        network: `nn.Linear` and `nn.Tanh` layers in turn, beginning and ending with a linear one.
        points: shape (n, d).
        second: d weights c of the second derivatives: `Field.curve` is the sum of c_i times the second derivative in
            variable i. Ones make it the Laplacian.
    """
    value = points
    slope = torch.eye(points.shape[1], dtype=points.dtype, device=points.device).unsqueeze(1)  # the same at all points
    curve = torch.zeros_like(slope[0])
    for layer in network:
        if isinstance(layer, nn.Linear):
            value, slope, curve = layer(value), slope @ layer.weight.T, curve @ layer.weight.T
        else:  # h = tanh(a): h' = (1 - h^2) a', h'' = (1 - h^2) (a'' - 2 h a'^2)
            value = torch.tanh(value)
            factor = 1.0 - value.square()
            squares = [weight * slope[i].square() for i, weight in enumerate(second) if weight]
            if squares:
                curve = curve - 2.0 * value * torch.stack(squares).sum(0)
            curve = factor * curve
            slope = factor * slope
    return Field(value.T, slope.movedim(-1, 0), curve.T)
