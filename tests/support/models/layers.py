"""Networks of other layers: convolutions, norms, attention, recurrence and tables of embeddings."""

from __future__ import annotations

import warnings

import torch
from torch import Tensor, nn
from torch.nn import functional

from .problem import Losses, Problem, all_params, model, parameter, plain, randn, three


def small_cnn() -> nn.Sequential:
    return nn.Sequential(
        *(nn.Conv2d(2, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Conv2d(4, 3, 3, bias=False), nn.BatchNorm2d(3), nn.Flatten(), nn.Linear(3, 2)),
    )


@model
def cnn_in_training() -> Problem:
    return plain(small_cnn(), randn(5, 2, 6, 6))


@model
def cnn_in_evaluation() -> Problem:
    net, x = small_cnn(), randn(5, 2, 6, 6)
    net(2.0 * x + 1.0)  # running statistics other than 0 and 1
    return plain(net.eval(), x)


@model
def residual_block() -> Problem:
    body = nn.Sequential(
        *(nn.Conv2d(4, 6, 3, stride=2, padding=1), nn.GroupNorm(3, 6), nn.ReLU(inplace=True)),
        *(nn.Conv2d(6, 6, 3, padding=1), nn.GroupNorm(2, 6)),
    )
    shortcut, out, x = nn.Conv2d(4, 6, 1, stride=2), nn.Linear(6, 2), randn(3, 4, 6, 6)
    return Problem(
        all_params(body, shortcut, out), lambda: three(out((body(x) + shortcut(x)).relu_().mean(dim=(2, 3))))
    )


@model
def unusual_convolutions() -> Problem:
    net = nn.Sequential(
        *(nn.Conv2d(4, 8, 3, groups=4), nn.Tanh(), nn.Conv2d(8, 8, 3, groups=8, padding="same"), nn.Tanh()),
        *(nn.ConvTranspose2d(8, 4, 3, stride=2, output_padding=1), nn.Tanh()),
        *(nn.Conv2d(4, 2, 3, dilation=2, padding=1, padding_mode="circular"),),
    )
    return plain(net, randn(2, 4, 6, 6))


def quietly(net: nn.Module, x: Tensor) -> Tensor:
    """The output, without torch's warning that "same" may copy the input of an even kernel."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Using padding='same'")
        out: Tensor = net(x)
    return out


@model
def convolutions_with_named_padding() -> Problem:
    """Torch saves one number for all dimensions of "valid"; for even kernels, "same" pads one side more."""
    net = nn.Sequential(
        *(nn.Conv2d(2, 4, 3, padding="valid"), nn.Tanh(), nn.Conv2d(4, 4, (3, 5), padding="same"), nn.Tanh()),
        *(nn.Conv2d(4, 4, (4, 2), padding="same", dilation=(1, 3)), nn.Tanh()),
        *(nn.Conv2d(4, 4, 3, padding="same", dilation=2, bias=False), nn.Tanh()),
        *(nn.Conv2d(4, 4, 3, padding="valid", stride=2, groups=2), nn.Tanh(), nn.Conv2d(4, 2, 2, padding="valid")),
    )
    x = randn(3, 2, 9, 8)
    return Problem(list(net.parameters()), lambda: three(quietly(net, x)))


@model
def convolutions_with_one_number() -> Problem:
    """Geometry that is given as one number for all dimensions."""
    first, second, third, x = parameter(3, 2, 3, 3), parameter(3, 4, 3, 3), parameter(2, 4, 2, 2), randn(3, 2, 8, 8)

    def losses() -> Losses:
        y = functional.conv2d(x, first, None, (2,), (1,), (1,)).tanh()  # type: ignore[arg-type]
        z = functional.conv_transpose2d(y, second, None, (2,), (1,), (1,)).tanh()  # type: ignore[arg-type]
        return three(functional.conv2d(z, third, None, (1,), (0,), (2,)))  # type: ignore[arg-type]

    return Problem([first, second, third], losses)


@model
def convolutions_of_other_dimensions() -> Problem:
    """One and three, with padding by name."""
    line = nn.Sequential(nn.Conv1d(2, 3, 3, padding="valid"), nn.Tanh(), nn.Conv1d(3, 2, 4, padding="same"))
    last = nn.Conv3d(3, 2, (2, 3, 2), padding="same", dilation=(2, 1, 1))
    space = nn.Sequential(nn.Conv3d(2, 3, 2, padding="valid"), nn.Tanh(), last)
    x, y = randn(3, 2, 9), randn(3, 2, 4, 5, 4)

    def losses() -> Losses:
        return three(quietly(line, x).mean(dim=2) + quietly(space, y).mean(dim=(2, 3, 4)))

    return Problem(all_params(line, space), losses)


@model
def one_dimensional_convolutions() -> Problem:
    norm = nn.InstanceNorm1d(4, affine=True)
    net = nn.Sequential(nn.Conv1d(3, 4, 3), norm, nn.ELU(), nn.ConvTranspose1d(4, 2, 4, stride=2, bias=False))
    return plain(net, randn(4, 3, 9))


@model
def norms_of_every_kind() -> Problem:
    """Over the last dimension or over several, with both parameters, one or none, and the whole input as one."""
    net = nn.Sequential(
        *(nn.Linear(4, 4), nn.LayerNorm(4, bias=False), nn.Tanh(), nn.LayerNorm((3, 4)), nn.Tanh()),
        *(nn.LayerNorm(4, elementwise_affine=False), nn.RMSNorm(4), nn.LayerNorm((5, 3, 4)), nn.BatchNorm1d(3)),
    )
    return plain(net, randn(5, 3, 4))


# ---- attention, recurrence, tables -----------------------------------------------------------------------------------


@model
def transformer() -> Problem:
    layer, out = nn.TransformerEncoderLayer(8, 2, 12, dropout=0.2, batch_first=True), nn.Linear(8, 2)
    x = randn(3, 5, 8)
    return Problem(all_params(layer, out), lambda: three(out(layer(x))))


@model
def cross_attention() -> Problem:
    attention = nn.MultiheadAttention(8, 2, kdim=6, vdim=5, batch_first=True)
    q, k, v = randn(3, 4, 8), randn(3, 7, 6), randn(3, 7, 5)
    return Problem(list(attention.parameters()), lambda: three(attention(q, k, v)[0]))


def recurrent(kind: type[nn.RNNBase]) -> Problem:
    net, x = kind(3, 4, num_layers=2, batch_first=True), randn(3, 5, 3)
    return Problem(list(net.parameters()), lambda: three(net(x)[0]))


@model
def lstm() -> Problem:
    return recurrent(nn.LSTM)


@model
def gru() -> Problem:
    return recurrent(nn.GRU)


@model
def embedding() -> Problem:
    """Words that occur several times, never, and as padding; a table that counts them; one that is a bag."""
    words = torch.tensor([[0, 1, 1, 5], [2, 1, 0, 5], [5, 5, 3, 3]])
    table, counted = nn.Embedding(7, 4, padding_idx=5), nn.Embedding(7, 4, scale_grad_by_freq=True)
    bag, out = nn.EmbeddingBag(7, 4), nn.Linear(4, 2)
    return Problem(
        all_params(table, counted, bag, out),
        lambda: three(out((table(words) * counted(words)).mean(dim=1) + bag(words)).tanh()),
    )


@model
def sparse_embedding() -> Problem:
    table, out, words = nn.Embedding(7, 4, sparse=True), nn.Linear(4, 2), torch.tensor([[0, 1, 1], [2, 1, 0]])
    return Problem(all_params(table, out), lambda: three(out(table(words).mean(dim=1))))


@model
def tied_weights() -> Problem:
    table, middle, words = nn.Embedding(9, 4), nn.Linear(4, 4), torch.tensor([[0, 1, 1, 5], [2, 8, 0, 5]])

    def losses() -> Losses:
        logits = functional.linear(middle(table(words)).tanh(), table.weight)
        return [functional.cross_entropy(logits[:, k], words[:, k + 1]) for k in range(3)]

    return Problem(all_params(table, middle), losses)


@model
def physics_informed() -> Problem:
    """Derivatives of the network in its losses: parameters that a graph meets again in its own backward pass."""
    net = nn.Sequential(nn.Linear(1, 6), nn.Tanh(), nn.Linear(6, 6), nn.Tanh(), nn.Linear(6, 1))
    points = torch.linspace(0.0, 1.0, 7).unsqueeze(1)

    def losses() -> Losses:
        x = points.clone().requires_grad_()
        u = net(x)
        (du,) = torch.autograd.grad(u.sum(), x, create_graph=True)
        (ddu,) = torch.autograd.grad(du.sum(), x, create_graph=True)
        return [(ddu + u).square().mean(), (du[0] - 1.0).square().sum(), u[0].square().sum()]

    return Problem(list(net.parameters()), losses)
