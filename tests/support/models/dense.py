"""Perceptrons, and which losses reach which parameters."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from .problem import Losses, Problem, all_params, model, parameter, plain, randn, three


@model
def mlp() -> Problem:
    return plain(nn.Sequential(nn.Linear(5, 8), nn.Tanh(), nn.Linear(8, 6), nn.ReLU(), nn.Linear(6, 2)), randn(7, 5))


@model
def mlp_without_biases() -> Problem:
    layers = (nn.Linear(5, 8, bias=False), nn.Tanh(), nn.Linear(8, 2, bias=False))
    return plain(nn.Sequential(*layers), randn(7, 5))


@model
def wide_batch() -> Problem:
    """More inputs than weights: the Gramian of a Linear is found from its weight gradients."""
    return plain(nn.Sequential(nn.Linear(2, 3), nn.Tanh(), nn.Linear(3, 2)), randn(200, 2))


@model
def wide_layer() -> Problem:
    """More weights than inputs: it is found from the products of the inputs."""
    return plain(nn.Sequential(nn.Linear(30, 40), nn.Tanh(), nn.Linear(40, 30)), randn(2, 30))


def heads_of(count: int = 3) -> tuple[nn.Module, nn.ModuleList, Tensor]:
    trunk = nn.Sequential(nn.Linear(5, 6), nn.Tanh())
    return trunk, nn.ModuleList(nn.Linear(6, 2) for _ in range(count)), randn(7, 5)


@model
def task_heads() -> Problem:
    """A trunk (the first two parameters) and four heads of two parameters each."""
    trunk, heads, x = heads_of(4)

    def losses() -> Losses:
        z = trunk(x)
        return [(head(z) - k).square().mean() for k, head in enumerate(heads)]

    return Problem(all_params(trunk, heads), losses)


@model
def classification_heads() -> Problem:
    trunk, heads, x = heads_of()
    labels = torch.randint(2, (3, 7))

    def losses() -> Losses:
        z = trunk(x)
        return [functional.cross_entropy(head(z), y) for head, y in zip(heads, labels, strict=True)]

    return Problem(all_params(trunk, heads), losses)


@model
def vector_of_losses() -> Problem:
    """A vector that is no stack: every loss may reach every parameter."""
    net, x = nn.Sequential(nn.Linear(5, 6), nn.Tanh(), nn.Linear(6, 4)), randn(7, 5)
    return Problem(list(net.parameters()), lambda: net(x).square().mean(dim=0))


@model
def one_loss_per_sample() -> Problem:
    net, x = nn.Sequential(nn.Linear(5, 6), nn.Tanh(), nn.Linear(6, 1)), randn(9, 5)
    return Problem(list(net.parameters()), lambda: net(x).square().flatten())


@model
def losses_of_shape_one() -> Problem:
    net, x = nn.Linear(5, 3), randn(7, 5)
    return Problem(list(net.parameters()), lambda: list(net(x).square().mean(0, keepdim=True).split(1, dim=1)))


@model
def module_used_twice() -> Problem:
    first, twice, x = nn.Linear(5, 5), nn.Linear(5, 5), randn(7, 5)
    return Problem(all_params(first, twice), lambda: three(twice(twice(first(x)).tanh())))


@model
def siamese() -> Problem:
    """Weights that are used twice, with fewer inputs than they have: both uses form one layer."""
    net, x, y = nn.Sequential(nn.Linear(12, 10), nn.Tanh(), nn.Linear(10, 9, bias=False)), randn(3, 12), randn(2, 12)
    return Problem(list(net.parameters()), lambda: three(net(x) @ net(y).T))


@model
def recurrent_loop() -> Problem:
    step, out, x = nn.Linear(7, 4), nn.Linear(4, 2), randn(5, 6, 3)

    def losses() -> Losses:
        h = x.new_zeros(6, 4)
        for part in x:
            h = step(torch.cat([part, h], dim=1)).tanh()
        return three(out(h))

    return Problem(all_params(step, out), losses)


@model
def linear_on_sequences() -> Problem:
    """Inputs with three dimensions, contiguous and not, with a bias and without."""
    a, b, c, x = nn.Linear(3, 4), nn.Linear(4, 5, bias=False), nn.Linear(6, 2), randn(2, 6, 3)
    return Problem(all_params(a, b, c), lambda: three(c(b(a(x).tanh()).transpose(1, 2))))


@model
def linear_on_one_vector() -> Problem:
    return plain(nn.Sequential(nn.Linear(5, 4), nn.Tanh(), nn.Linear(4, 3), nn.LayerNorm(3)), randn(5))


@model
def several_inputs() -> Problem:
    bilinear, a, b, x, y = nn.Bilinear(3, 4, 5), nn.Linear(3, 3), nn.Linear(4, 4), randn(6, 3), randn(6, 4)
    return Problem(all_params(bilinear, a, b), lambda: three(bilinear(a(x).tanh(), b(y))))


@model
def frozen_middle() -> Problem:
    net, x = nn.Sequential(nn.Linear(5, 6), nn.Tanh(), nn.Linear(6, 6), nn.Tanh(), nn.Linear(6, 2)), randn(7, 5)
    net[2].requires_grad_(False)
    return plain(net, x)


@model
def half_frozen_layers() -> Problem:
    """Layers of which only the bias learns, or only the weight."""
    net = nn.Sequential(nn.Conv1d(2, 3, 3), nn.BatchNorm1d(3), nn.Flatten(), nn.Linear(18, 4), nn.LayerNorm(4))
    frozen = (net[0].weight, net[1].bias, net[3].weight, net[4].weight)
    for param in frozen:
        param.requires_grad_(False)
    return plain(net, randn(5, 2, 8))


# ---- who reaches what ------------------------------------------------------------------------------------------------


@model
def unused_parameter() -> Problem:
    net, x = nn.Linear(5, 2), randn(7, 5)
    return Problem([*net.parameters(), parameter(3)], lambda: three(net(x)))


@model
def reached_by_two_of_three() -> Problem:
    trunk, middle, x = nn.Linear(5, 6), nn.Linear(6, 6), randn(7, 5)

    def losses() -> Losses:
        z = trunk(x).tanh()
        a, b, _ = three(middle(z))
        return [a, b, z.square().mean()]

    return Problem(all_params(trunk, middle), losses)


@model
def loss_beside_the_trunk() -> Problem:
    trunk, heads, x = heads_of()

    def losses() -> Losses:
        z = trunk(x)
        return [heads[0](z).square().mean(), heads[1](z).sin().mean(), heads[2].weight.square().sum()]

    return Problem(all_params(trunk, heads), losses)


@model
def own_gradients_that_alias() -> Problem:
    """Torch hands out one tensor, of stride zero, as the gradient of both summands."""
    shared, a, b = parameter(4), parameter(4), parameter(4)
    return Problem([shared, a, b], lambda: [(shared * torch.arange(4)).sum(), shared.sin().sum(), (a + b).sum()])


@model
def shared_gradients_that_alias() -> Problem:
    """The same for parameters that all losses reach, beside a layer."""
    net, a, b, x = nn.Linear(3, 4), parameter(7, 4), parameter(7, 4), randn(7, 3)
    return Problem([*net.parameters(), a, b], lambda: three(net(x) + a + b))


@model
def loss_that_is_a_parameter() -> Problem:
    w, scale = parameter(4), parameter()
    return Problem([w, scale], lambda: [(w * scale).sin().sum(), w.square().sum(), scale])


@model
def control_flow() -> Problem:
    layers, x = nn.ModuleList(nn.Linear(4, 4) for _ in range(4)), randn(6, 4)

    def losses() -> Losses:
        z, seen = x, []
        for k, layer in enumerate(layers):
            z = layer(z).relu() if z.sum() > 0 else torch.where(z > 0, layer(z), z.exp())
            if k % 2 == 0:
                z, extra = z * 1.5, z.amax(dim=1)
                seen.append(extra.mean())
        return [*seen, z.square().mean(), z.topk(2).values.sum()]

    return Problem(list(layers.parameters()), losses)
