"""The clients of `hostile` and `breakdown`: their images, a small network, and batched training of many models."""

from __future__ import annotations

import functools
import sys
from collections import OrderedDict
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from common import ROOT
from numpy.typing import NDArray
from torch import Tensor, nn

sys.path.insert(0, str(ROOT / "examples" / "flower"))
from robust_app.task import client_data, held_out

Arrays = dict[str, NDArray[np.generic]]

CLIENTS, CLASSES, HIDDEN = 10, 10, 64
#: Of the handwritten digits: images for testing, and images of each client.
TESTED, SHARE = 400, 139
BATCH, LR, MOMENTUM = 32, 0.1, 0.9


def network() -> nn.Sequential:
    """One hidden layer with BatchNorm, whose running statistics the server averages."""
    layers = {"hidden": nn.Linear(64, HIDDEN), "norm": nn.BatchNorm1d(HIDDEN), "relu": nn.ReLU()}
    return nn.Sequential(OrderedDict(layers | {"head": nn.Linear(HIDDEN, CLASSES)}))


def initial(seed: int) -> Arrays:
    """Return the initial global model."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return {name: tensor.numpy() for name, tensor in network().state_dict().items()}


class Data(NamedTuple):
    """Images of the clients, ``(CLIENTS, N, 64)``, with labels ``(CLIENTS, N)``, and those for testing, ``(M, 64)``."""

    images: Tensor
    labels: Tensor
    test_images: Tensor
    test_labels: Tensor


@functools.lru_cache(maxsize=4)
def drawn_digits(seed: int) -> Data:
    """Return digits of the example app: half of a client's images show its own three digits."""
    images, labels = zip(*(client_data(CLIENTS * seed + client) for client in range(CLIENTS)), strict=True)
    pictures, digits = held_out()
    return Data(torch.stack(images).flatten(2), torch.stack(labels), pictures.flatten(1), digits)


@functools.lru_cache(maxsize=4)
def handwritten_digits(seed: int, file: Path | None = None) -> Data:
    """Return the handwritten digits of scikit-learn, which clients share evenly.

    Args:
        seed: seed of the order of the images.
        file: the images, if scikit-learn is not installed: see `save_digits`.
    """
    found = _scans() if file is None else np.load(file)
    order = np.random.default_rng(seed).permutation(len(found["labels"]))
    images = torch.from_numpy(found["images"][order]).float() / 16.0
    labels = torch.from_numpy(found["labels"][order]).long()
    mine = slice(TESTED, TESTED + CLIENTS * SHARE)
    shared = images[mine].view(CLIENTS, SHARE, -1), labels[mine].view(CLIENTS, SHARE)
    return Data(*shared, images[:TESTED], labels[:TESTED])


def save_digits(file: Path) -> None:
    """Save the handwritten digits, for a machine without scikit-learn."""
    np.savez_compressed(file, **_scans())


def _scans() -> dict[str, NDArray[np.uint8]]:
    from sklearn.datasets import load_digits

    images, labels = load_digits(return_X_y=True)
    return {"images": images.astype(np.uint8), "labels": labels.astype(np.uint8)}


def train(models: Sequence[Arrays], images: Tensor, labels: Tensor, seed: int) -> list[list[Arrays]]:
    """Train each of R global models on each client, for one pass over its images.

    All R * CLIENTS networks are trained together. They share no parameters, so the gradient of the sum of their losses
    gives each network its own gradient.

    Args:
        models: the global models.
        images: images of the clients, ``(CLIENTS, N, 64)``.
        labels: labels of the clients for each model, ``(R, CLIENTS, N)``.
        seed: seed of the order of the images.
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
def accuracies(models: Sequence[Arrays], images: Tensor, labels: Tensor) -> list[float]:
    """Return the accuracy of each model on images ``(M, 64)``."""
    state = {name: torch.from_numpy(np.stack([model[name] for model in models])) for name in models[0]}
    scores = _scores(state, images.expand(len(models), -1, -1), training=False)
    return (scores.argmax(dim=2) == labels).double().mean(dim=1).tolist()


def _scores(state: dict[str, Tensor], images: Tensor, training: bool) -> Tensor:
    """Return the logits ``(K, B, CLASSES)`` of K networks for images ``(K, B, 64)``; updates BatchNorm's statistics."""
    count, size = images.shape[:2]
    hidden = torch.baddbmm(state["hidden.bias"][:, None], images, state["hidden.weight"].mT)
    # BatchNorm treats the hidden units of all networks as channels of one network.
    channels = hidden.transpose(0, 1).reshape(size, count * HIDDEN)
    statistics = (state[f"norm.{name}"].view(-1) for name in ("running_mean", "running_var", "weight", "bias"))
    channels = nn.functional.batch_norm(channels, *statistics, training=training).relu()
    hidden = channels.view(size, count, HIDDEN).transpose(0, 1)
    return torch.baddbmm(state["head.bias"][:, None], hidden, state["head.weight"].mT)
