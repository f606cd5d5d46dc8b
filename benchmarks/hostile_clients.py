"""The clients of `hostile`: digits that the example app draws, a small network, and training of many models at once."""

from __future__ import annotations

import sys
from collections import OrderedDict
from collections.abc import Sequence

import numpy as np
import torch
from common import ROOT
from numpy.typing import NDArray
from torch import Tensor, nn

sys.path.insert(0, str(ROOT / "examples" / "flower"))
from robust_app.task import client_data, held_out

Arrays = dict[str, NDArray[np.generic]]

CLIENTS, CLASSES, HIDDEN = 10, 10, 64
BATCH, LR, MOMENTUM = 32, 0.1, 0.9


def network() -> nn.Sequential:
    """One hidden layer with BatchNorm, whose running statistics the server averages."""
    layers = {"hidden": nn.Linear(64, HIDDEN), "norm": nn.BatchNorm1d(HIDDEN), "relu": nn.ReLU()}
    return nn.Sequential(OrderedDict(layers | {"head": nn.Linear(HIDDEN, CLASSES)}))


def initial(seed: int) -> Arrays:
    """The first global model."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return {name: tensor.numpy() for name, tensor in network().state_dict().items()}


def data(seed: int) -> tuple[Tensor, Tensor]:
    """Images ``(CLIENTS, N, 64)`` and labels ``(CLIENTS, N)``: half of a client's are of three digits of its own."""
    images, labels = zip(*(client_data(CLIENTS * seed + client) for client in range(CLIENTS)), strict=True)
    return torch.stack(images).flatten(2), torch.stack(labels)


def train(models: Sequence[Arrays], images: Tensor, labels: Tensor, seed: int) -> list[list[Arrays]]:
    """What each client makes of each of R global models in one pass over its images.

    All R * CLIENTS networks are trained in one go. They share no parameter, so that the gradient of the sum of their
    losses is each one's own.

    Args:
        models: the global models.
        images: of the clients, ``(CLIENTS, N, 64)``.
        labels: of the clients for each model, ``(R, CLIENTS, N)``.
        seed: of the order of the images.
    """
    runs = len(models)
    names = [name for name, _ in network().named_parameters()]
    state = {
        name: torch.from_numpy(np.stack([model[name] for model in models])).repeat_interleave(CLIENTS, dim=0)
        for name in models[0]
    }
    for name in names:
        state[name].requires_grad_()
    optimizer = torch.optim.SGD([state[name] for name in names], lr=LR, momentum=MOMENTUM)
    for batch in torch.randperm(images.shape[1], generator=torch.Generator().manual_seed(seed)).split(BATCH):
        scores = _scores(state, images[:, batch].repeat(runs, 1, 1), training=True)
        wanted = labels[:, :, batch].reshape(-1)
        loss = nn.functional.cross_entropy(scores.reshape(-1, CLASSES), wanted, reduction="sum") / len(batch)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        state["norm.num_batches_tracked"] += 1
    found = {name: tensor.detach().numpy() for name, tensor in state.items()}
    return [
        [{name: np.array(found[name][run * CLIENTS + client]) for name in found} for client in range(CLIENTS)]
        for run in range(runs)
    ]


@torch.no_grad()
def accuracies(models: Sequence[Arrays]) -> list[float]:
    """Of each model on images that no client has."""
    images, labels = held_out()
    state = {name: torch.from_numpy(np.stack([model[name] for model in models])) for name in models[0]}
    scores = _scores(state, images.flatten(1).expand(len(models), -1, -1), training=False)
    return (scores.argmax(dim=2) == labels).double().mean(dim=1).tolist()


def _scores(state: dict[str, Tensor], images: Tensor, training: bool) -> Tensor:
    """Of K networks for K batches of images, ``(K, B, 64)`` to ``(K, B, CLASSES)``; BatchNorm's statistics move."""
    count, size = images.shape[:2]
    hidden = torch.baddbmm(state["hidden.bias"][:, None], images, state["hidden.weight"].mT)
    # To BatchNorm, the hidden units of all networks are channels of one.
    channels = hidden.transpose(0, 1).reshape(size, count * HIDDEN)
    statistics = (state[f"norm.{name}"].view(-1) for name in ("running_mean", "running_var", "weight", "bias"))
    channels = nn.functional.batch_norm(channels, *statistics, training=training).relu()
    hidden = channels.view(size, count, HIDDEN).transpose(0, 1)
    return torch.baddbmm(state["head.bias"][:, None], hidden, state["head.weight"].mT)
