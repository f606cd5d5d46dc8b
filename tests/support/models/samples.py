"""Networks with one loss for each sample, one for every layout of samples and every layer with a rule for them.

Each entry of `CASES` builds a network and a function that computes the losses afresh. `build` does so from a fixed
seed, in float64.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional

#: Builds a network in float64 and the vector of its losses.
Build = Callable[[], tuple[nn.Module, Callable[[], Tensor]]]

CASES: dict[str, Build] = {}


def case(build: Build) -> Build:
    CASES[build.__name__] = build
    return build


def per_sample_loss(out: Tensor) -> Tensor:
    return out.flatten(1).sin().square().mean(dim=1) + 0.1 * out.flatten(1).sum(dim=1)


def of(net: nn.Module, x: Tensor) -> tuple[nn.Module, Callable[[], Tensor]]:
    return net, lambda: per_sample_loss(net(x))


@case
def linear_on_tokens() -> tuple[nn.Module, Callable[[], Tensor]]:
    return of(nn.Sequential(nn.Linear(5, 4), nn.Tanh(), nn.Linear(4, 3, bias=False)), torch.randn(6, 7, 5))


@case
def wide_linear_on_tokens() -> tuple[nn.Module, Callable[[], Tensor]]:
    """Pairs of tokens are cheaper than gradients."""
    return of(nn.Sequential(nn.Linear(40, 50), nn.Tanh(), nn.Linear(50, 40, bias=False)), torch.randn(3, 2, 40))


@case
def tokens_before_samples() -> tuple[nn.Module, Callable[[], Tensor]]:
    net, x = nn.Sequential(nn.Linear(5, 4), nn.LayerNorm(4), nn.Tanh(), nn.Linear(4, 3)), torch.randn(7, 6, 5)
    return net, lambda: per_sample_loss(net(x).transpose(0, 1))


@case
def samples_between_dimensions() -> tuple[nn.Module, Callable[[], Tensor]]:
    net, x = nn.Sequential(nn.Linear(5, 4), nn.LayerNorm(4), nn.Tanh(), nn.Linear(4, 3)), torch.randn(2, 6, 3, 5)
    return net, lambda: per_sample_loss(net(x).transpose(0, 1))


@case
def as_many_tokens_as_samples() -> tuple[nn.Module, Callable[[], Tensor]]:
    """The shape does not tell which dimension is which."""
    net, x = nn.Sequential(nn.Linear(5, 4), nn.LayerNorm(4), nn.Tanh(), nn.Linear(4, 3)), torch.randn(6, 6, 5)
    return net, lambda: per_sample_loss(net(x).transpose(0, 1))


@case
def transformer() -> tuple[nn.Module, Callable[[], Tensor]]:
    """Torch's attention has tokens before samples, and a bias that is added by itself."""
    return of(nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True), torch.randn(4, 4, 8))


class VisionTransformer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.patches = nn.Conv2d(2, 8, 2, stride=2)
        self.token, self.places = nn.Parameter(torch.randn(1, 1, 8)), nn.Parameter(torch.randn(1, 5, 8))
        self.encoder = nn.TransformerEncoderLayer(8, 2, 12, dropout=0.0, batch_first=True, norm_first=True)
        self.head = nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        z = self.patches(x).flatten(2).transpose(1, 2)
        z = torch.cat([self.token.expand(len(z), -1, -1), z], dim=1) + self.places
        return self.head(self.encoder(z)[:, 0])


@case
def vision_transformer() -> tuple[nn.Module, Callable[[], Tensor]]:
    return of(VisionTransformer(), torch.randn(3, 2, 4, 4))


@case
def root_mean_square_norms() -> tuple[nn.Module, Callable[[], Tensor]]:
    return of(nn.Sequential(nn.Linear(5, 4), nn.RMSNorm(4), nn.Tanh(), nn.RMSNorm((7, 4))), torch.randn(6, 7, 5))


@case
def few_words() -> tuple[nn.Module, Callable[[], Tensor]]:
    """Words that occur in several samples, several times in one, and as padding: their sums are cheaper."""
    words = torch.randint(5, (6, 7))
    return of(nn.Sequential(nn.Embedding(9, 4, padding_idx=2), nn.Tanh(), nn.Linear(4, 3)), words)


@case
def many_words() -> tuple[nn.Module, Callable[[], Tensor]]:
    """Pairs of equal words are cheaper."""
    words = torch.randint(40, (20, 2))
    return of(nn.Sequential(nn.Embedding(40, 4, padding_idx=2), nn.Tanh(), nn.Linear(4, 3)), words)


@case
def words_before_samples() -> tuple[nn.Module, Callable[[], Tensor]]:
    net, words = nn.Sequential(nn.Embedding(9, 4), nn.Tanh()), torch.arange(18).reshape(3, 6) % 9
    return net, lambda: per_sample_loss(net(words).transpose(0, 1))


@case
def convolutions_on_lines() -> tuple[nn.Module, Callable[[], Tensor]]:
    layers = (
        nn.Conv1d(4, 6, 3, padding=1),
        nn.Tanh(),
        nn.Conv1d(6, 4, 3, stride=2, groups=2),
        nn.BatchNorm1d(4).eval(),
    )
    return of(nn.Sequential(*layers), torch.randn(5, 4, 9))


@case
def convolutions_in_space() -> tuple[nn.Module, Callable[[], Tensor]]:
    layers = (
        nn.Conv3d(2, 4, (2, 3, 2), padding=(1, 0, 1)),
        nn.GroupNorm(2, 4),
        nn.Tanh(),
        nn.Conv3d(4, 2, 2, dilation=2),
    )
    return of(nn.Sequential(*layers), torch.randn(3, 2, 4, 5, 4))


@case
def convolutions_by_groups() -> tuple[nn.Module, Callable[[], Tensor]]:
    layers = (nn.Conv2d(4, 8, 3, groups=4, padding=1), nn.Tanh(), nn.Conv2d(8, 8, (3, 2), groups=8, bias=False))
    return of(nn.Sequential(*layers), torch.randn(3, 4, 5, 6).to(memory_format=torch.channels_last))


@case
def transposed_convolutions() -> tuple[nn.Module, Callable[[], Tensor]]:
    layers = (
        *(nn.ConvTranspose2d(4, 6, 3, stride=2, output_padding=1, padding=1), nn.Tanh()),
        *(nn.ConvTranspose2d(6, 4, (2, 3), groups=2, dilation=(3, 1), output_padding=(2, 0), bias=False), nn.Tanh()),
        *(nn.Flatten(2), nn.ConvTranspose1d(4, 2, 2)),
    )
    return of(nn.Sequential(*layers), torch.randn(3, 4, 3, 4))


@case
def transposed_convolution_of_two_scales() -> tuple[nn.Module, Callable[[], Tensor]]:
    net, x, y = nn.ConvTranspose2d(2, 4, 3, groups=2), torch.randn(3, 2, 5, 5), torch.randn(3, 2, 4, 3)
    return net, lambda: per_sample_loss(net(x)) + per_sample_loss(net(y))


@case
def frames_of_samples() -> tuple[nn.Module, Callable[[], Tensor]]:
    """A batch that joins the frames of all samples."""
    net, x = nn.Sequential(nn.Conv2d(2, 3, 3), nn.GroupNorm(1, 3), nn.Tanh()), torch.randn(4, 5, 2, 4, 4)
    return net, lambda: per_sample_loss(net(x.flatten(0, 1)).unflatten(0, (4, 5)))


@case
def two_views_of_samples() -> tuple[nn.Module, Callable[[], Tensor]]:
    """A batch that joins two views, one after the other."""
    net, x = nn.Sequential(nn.Linear(5, 4), nn.Tanh(), nn.Linear(4, 3)), torch.randn(2, 6, 5)

    def losses() -> Tensor:
        first, second = net(torch.cat(list(x))).chunk(2)
        return (first - second).square().sum(dim=1) + first.sum(dim=1)

    return net, losses


@case
def only_biases() -> tuple[nn.Module, Callable[[], Tensor]]:
    net = nn.Sequential(nn.Linear(5, 4), nn.Conv1d(7, 3, 2), nn.LayerNorm(3))
    for layer in net:
        layer.weight.requires_grad_(False)
    return of(net, torch.randn(6, 7, 5))


@case
def one_active_token() -> tuple[nn.Module, Callable[[], Tensor]]:
    """All gradients but those of one token of each sample are zero."""
    net, x = nn.Sequential(nn.Linear(5, 4), nn.Tanh(), nn.Linear(4, 3)), torch.randn(7, 6, 5)
    return net, lambda: per_sample_loss(net(x)[2])


# ---- parameters with several uses ------------------------------------------------------------------------------------


@case
def siamese_network() -> tuple[nn.Module, Callable[[], Tensor]]:
    layers = (nn.Linear(5, 4), nn.LayerNorm(4), nn.Tanh(), nn.Linear(4, 3, bias=False))
    net, x, y = nn.Sequential(*layers), torch.randn(6, 5), torch.randn(6, 3, 5)
    return net, lambda: per_sample_loss(net(x)[:, None] - net(y).square())


@case
def recurrent_network() -> tuple[nn.Module, Callable[[], Tensor]]:
    net, x = nn.Linear(7, 4), torch.randn(5, 6, 3)

    def losses() -> Tensor:
        hidden = x.new_zeros(6, 4)
        for part in x:
            hidden = net(torch.cat([part, hidden], dim=1)).tanh()
        return per_sample_loss(hidden)

    return net, losses


@case
def gated_recurrent_units() -> tuple[nn.Module, Callable[[], Tensor]]:
    net, x = nn.GRU(3, 4, batch_first=True), torch.randn(6, 5, 3)
    return net, lambda: per_sample_loss(net(x)[0])


@case
def tied_tables() -> tuple[nn.Module, Callable[[], Tensor]]:
    """The table of embeddings is the weight of the output, too, and of two lookups."""
    net, words = nn.ModuleList([nn.Embedding(9, 4), nn.Linear(4, 4)]), torch.arange(18).reshape(6, 3) * 5 % 9
    table, middle = net

    def losses() -> Tensor:
        hidden = middle(table(words) + table(words.flip(1)[:, :1])).tanh()
        return per_sample_loss(functional.linear(hidden, table.weight))

    return net, losses


class LanguageModel(nn.Module):
    """Embeddings of words and of places, which have no dimension for samples, and tied weights."""

    def __init__(self, alone: bool) -> None:
        super().__init__()
        self.words, self.places, self.alone = nn.Embedding(9, 8), nn.Embedding(7, 8, padding_idx=2), alone
        self.block = nn.TransformerEncoderLayer(8, 2, 12, dropout=0.0, batch_first=True, norm_first=True)

    def forward(self, words: Tensor) -> Tensor:
        places = torch.arange(words.shape[1], device=words.device)
        z = self.words(words) + self.places(places if self.alone else places[None])
        return functional.linear(self.block(z), self.words.weight)


@case
def language_model() -> tuple[nn.Module, Callable[[], Tensor]]:
    """As many places as samples."""
    return of(LanguageModel(alone=True), torch.arange(25).reshape(5, 5) * 5 % 9)


@case
def language_model_with_one_row_of_places() -> tuple[nn.Module, Callable[[], Tensor]]:
    return of(LanguageModel(alone=False), torch.arange(18).reshape(3, 6) * 5 % 9)


@case
def two_lookups() -> tuple[nn.Module, Callable[[], Tensor]]:
    net, words = nn.Embedding(9, 4, padding_idx=3), torch.arange(18).reshape(6, 3) * 5 % 9
    return net, lambda: per_sample_loss(net(words) * net(words.flip(1)).sin())


@case
def tied_autoencoder() -> tuple[nn.Module, Callable[[], Tensor]]:
    """One use is transposed."""
    net, x = nn.Linear(5, 4), torch.randn(6, 5)
    return net, lambda: per_sample_loss(net(x).tanh() @ net.weight)


@case
def convolution_on_two_scales() -> tuple[nn.Module, Callable[[], Tensor]]:
    net, x, y = nn.Conv2d(2, 4, 3, groups=2), torch.randn(3, 2, 5, 5), torch.randn(3, 2, 4, 3)
    return net, lambda: per_sample_loss(net(x)) + per_sample_loss(net(y))


@case
def bias_of_two_weights() -> tuple[nn.Module, Callable[[], Tensor]]:
    net, x = nn.ModuleList([nn.Linear(5, 4), nn.Linear(4, 4)]), torch.randn(6, 5)
    net[1].bias = net[0].bias
    return net, lambda: per_sample_loss(net[1](net[0](x).tanh()))


def build(name: str, device: str = "cpu") -> tuple[nn.Module, Callable[[], Tensor]]:
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        with torch.random.fork_rng(), torch.device(device):
            torch.manual_seed(20240506)
            return CASES[name]()
    finally:
        torch.set_default_dtype(before)
