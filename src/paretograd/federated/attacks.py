"""Attacks of hostile clients, for tests, the example app and benchmarks.

Attacks on updates take those of the honest clients, ``(m, n)``, and append the attackers' rows, ``(m + count, n)``. A
label flip changes a client's training labels. The others change a reply: its arrays or its metrics. `ON_UPDATES`,
`ON_LABELS`, `ON_ARRAYS` and `ON_METRICS` hold the attacks of one client by name.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Literal, TypeVar, get_args

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from paretograd.errors import ParameterError, ShapeError

Noise = Literal["relative", "literal"]

#: Default size of the noise, by its kind.
_SIZES: dict[Noise, float] = {"relative": 0.15, "literal": 0.01}

#: A model's array, in numpy or in torch.
_Array = TypeVar("_Array", NDArray[np.generic], Tensor)


def sign_flip(
    updates: Tensor, target: int, generator: torch.Generator, *, noise: float | None = None, kind: Noise = "relative"
) -> Tensor:
    """Append the update ``-g_k`` plus noise, for a client k: the paper's attack.

    For two exactly opposite updates the shortest convex combination is zero, and MGDA stops.

    Args:
        updates: updates of the honest clients, ``(m, n)``.
        target: the client k.
        generator: generator of the noise.
        noise: size of the noise; None for that of the federated study: 0.15 if relative, the paper's 0.01 if literal.
        kind: ``relative`` for Gaussian noise of length ``noise * |g_k|``; ``literal`` for the paper's
            ``noise * N(0, I)``, whose length grows with the number of parameters.
    """
    _check(updates)
    if kind not in get_args(Noise):
        raise ParameterError(f"kind={kind!r}: use one of {', '.join(get_args(Noise))}")
    if not 0 <= target < len(updates):
        raise ParameterError(f"target={target}: the clients are numbered 0 to {len(updates) - 1}")
    noise = _SIZES[kind] if noise is None else noise
    victim = updates[target]
    drawn = torch.randn(victim.shape, generator=generator, device=victim.device, dtype=victim.dtype)
    size = noise * victim.norm() / drawn.norm() if kind == "relative" else noise
    return torch.cat([updates, (size * drawn - victim)[None]])


def zero_update(updates: Tensor, count: int = 1) -> Tensor:
    """Append clients that return the global model: their update is zero, and so is MGDA's direction."""
    _check(updates)
    return torch.cat([updates, updates.new_zeros(count, updates.shape[1])])


def scaled_update(updates: Tensor, factor: float = -1e3, count: int = 1) -> Tensor:
    """Append clients that send the honest mean times a factor."""
    _check(updates)
    return torch.cat([updates, (factor * updates.mean(dim=0)).expand(count, -1)])


def nan_update(updates: Tensor, count: int = 1) -> Tensor:
    """Append clients that send NaN."""
    _check(updates)
    return torch.cat([updates, torch.full_like(updates[:1], torch.nan).expand(count, -1)])


def colluding(updates: Tensor, generator: torch.Generator, count: int = 2, factor: float = 1.0) -> Tensor:
    """Append colluding clients: all send minus the honest mean, plus slight noise that hides the collusion."""
    _check(updates)
    mean = updates.mean(dim=0)
    drawn = torch.randn((count, len(mean)), generator=generator, device=updates.device, dtype=updates.dtype)
    whisper = 1e-3 * mean.norm() * drawn / drawn.norm(dim=1, keepdim=True)
    return torch.cat([updates, whisper - factor * mean])


def flip_labels(labels: Tensor, classes: int) -> Tensor:
    """Return wrong labels for a client to train on: class ``c`` becomes ``classes - 1 - c``.

    The client's update is as long as an honest one and passes every check.

    Args:
        labels: whole numbers from 0 to ``classes - 1``, any shape.
        classes: number of classes.
    """
    if labels.numel() and bool(((labels < 0) | (labels >= classes)).any()):
        raise ParameterError(f"classes={classes}: labels go from {int(labels.min())} to {int(labels.max())}")
    return classes - 1 - labels


def wrong_shape(arrays: Mapping[str, _Array]) -> dict[str, _Array]:
    """Return a model whose last array is flattened and lacks one number."""
    found, name = dict(arrays), _last(arrays)
    found[name] = found[name].reshape(-1)[:-1]
    return found


def wrong_keys(arrays: Mapping[str, _Array], name: str = "backdoor") -> dict[str, _Array]:
    """Return a model whose last array has another name."""
    found = dict(arrays)
    found[name] = found.pop(_last(arrays))
    return found


def huge_examples(metrics: Mapping[str, float], weight: str = "num-examples", count: int = 10**12) -> dict[str, float]:
    """Return metrics that claim ``count`` training examples: with FedAvg, such a client dominates all others."""
    return {**metrics, weight: count}


def _check(updates: Tensor) -> None:
    if updates.ndim != 2 or not len(updates):
        raise ShapeError(f"updates have shape (m, n), one row for each client; got {tuple(updates.shape)}")


def _last(arrays: Mapping[str, _Array]) -> str:
    if not arrays:
        raise ShapeError("the model has no arrays to corrupt; give at least one")
    return list(arrays)[-1]


#: Functions from the honest updates and a generator to updates with one more attacker. A client that knows no other
#: updates uses its own in place of all.
ON_UPDATES: dict[str, Callable[[Tensor, torch.Generator], Tensor]] = {
    "sign-flip": lambda updates, generator: sign_flip(updates, 0, generator),
    "sign-flip-literal": lambda updates, generator: sign_flip(updates, 0, generator, kind="literal"),
    "zero": lambda updates, generator: zero_update(updates),
    "scaled": lambda updates, generator: scaled_update(updates),
    "nan": lambda updates, generator: nan_update(updates),
    "collude": lambda updates, generator: colluding(updates, generator, 1),
}
#: Functions from labels and the number of classes to the attacker's training labels.
ON_LABELS: dict[str, Callable[[Tensor, int], Tensor]] = {"label-flip": flip_labels}
#: Functions from the arrays of a reply to those that the attacker sends.
ON_ARRAYS: dict[str, Callable[[Mapping[str, Tensor]], dict[str, Tensor]]] = {"shape": wrong_shape, "keys": wrong_keys}
#: Functions from the metrics of a reply to those that the attacker sends.
ON_METRICS: dict[str, Callable[[Mapping[str, float]], dict[str, float]]] = {"boast": huge_examples}


def names() -> list[str]:
    """Return the names of all attacks that one client can carry out."""
    return [*ON_UPDATES, *ON_LABELS, *ON_ARRAYS, *ON_METRICS]
