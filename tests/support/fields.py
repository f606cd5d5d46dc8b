"""The derivatives of functions of points by autograd, as a reference for those by the chain rule."""

import torch
from torch import Tensor, nn

from paretograd.problems.fields import Field


class Exact(nn.Module):
    """A solution in the place of a network."""

    def __init__(self, solution):
        super().__init__()
        self.solution = solution

    def forward(self, points: Tensor) -> Tensor:
        return self.solution(points)


def field_by_autograd(network, points: Tensor, second) -> Field:
    """Differentiate a function of points, with outputs of shape (n, k), twice."""
    points = points.clone().requires_grad_(True)
    values = network(points)
    slopes, curves = [], []
    for value in values.unbind(-1):
        (first,) = torch.autograd.grad(value.sum(), points, create_graph=True, materialize_grads=True)
        curve = torch.zeros_like(value)
        for k, weight in enumerate(second):
            if weight and first.requires_grad:
                (twice,) = torch.autograd.grad(
                    first[:, k].sum(), points, retain_graph=True, allow_unused=True, materialize_grads=True
                )
                curve = curve + weight * twice[:, k]
        slopes.append(first.T)
        curves.append(curve)
    return Field(values.T, torch.stack(slopes), torch.stack(curves))
