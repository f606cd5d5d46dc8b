"""Small models in float64 with three losses or more, one for every way in which a parameter meets a graph.

Each entry of `MODELS` builds, from a fixed seed, a `Problem`: the parameters to fill and a function that computes the
losses afresh. Together they cover the layers with a rule, layers without, and every shape of sharing.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.utils.parametrizations import weight_norm

import paretograd as pg

Losses = list[Tensor] | Tensor


class Problem(NamedTuple):
    """Parameters, and the losses that reach them.

    Attributes:
        params: those that an optimizer would hold, frozen and unused ones included.
        losses: computes m >= 3 losses, each time on a new graph.
    """

    params: list[Tensor]
    losses: Callable[[], Losses]


MODELS: dict[str, Callable[[], Problem]] = {}


def model(build: Callable[[], Problem]) -> Callable[[], Problem]:
    """Add a builder to the table; it runs under a seed and in float64, whatever was set before."""

    def seeded() -> Problem:
        before = torch.get_default_dtype()
        torch.set_default_dtype(torch.float64)
        try:
            with torch.random.fork_rng():
                torch.manual_seed(20240506)
                return build()
        finally:
            torch.set_default_dtype(before)

    MODELS[build.__name__] = seeded
    return seeded


def three(y: Tensor) -> list[Tensor]:
    """Three losses of one output that pull in different directions."""
    return [y.square().mean(), (y - 1.0).abs().mean(), -y.sin().mean()]


def plain(module: nn.Module, *inputs: Any) -> Problem:
    """A module whose output meets three losses."""
    return Problem(list(module.parameters()), lambda: three(module(*inputs)))


def parameter(*shape: int) -> nn.Parameter:
    return nn.Parameter(torch.randn(shape))


# ---- perceptrons, and how a Linear is used ---------------------------------------------------------------------------


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


def all_params(*modules: nn.Module) -> list[Tensor]:
    return [p for module in modules for p in module.parameters()]


@model
def task_heads() -> Problem:
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


# ---- parameters without a layer --------------------------------------------------------------------------------------


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


# ---- convolutions and norms ------------------------------------------------------------------------------------------


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


def randn(*shape: int) -> Tensor:
    return torch.randn(shape)


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
