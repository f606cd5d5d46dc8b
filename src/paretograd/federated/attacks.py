"""What hostile clients may send: functions from honest updates ``(m, n)`` to updates with the attackers' rows added."""

from __future__ import annotations

from typing import Literal, get_args

import torch
from torch import Tensor

from paretograd.errors import ParameterError, ShapeError

Noise = Literal["relative", "literal"]


def sign_flip(
    updates: Tensor, target: int, generator: torch.Generator, *, noise: float = 0.15, kind: Noise = "relative"
) -> Tensor:
    """The paper's attack: ``-g_k`` plus noise, for a client k, joins the updates as one more.

    Against two exactly opposite updates the shortest combination is zero, and MGDA stands still.

    Args:
        updates: of the honest clients, ``(m, n)``.
        target: k.
        generator: of the noise.
        noise: its size.
        kind: ``relative``: Gaussian of the length ``noise * |g_k|``; ``literal``: the paper's ``noise * N(0, I)``,
            whose length grows with the number of parameters.
    """
    _check(updates)
    if kind not in get_args(Noise):
        raise ParameterError(f"kind={kind!r}: use one of {', '.join(get_args(Noise))}")
    if not 0 <= target < len(updates):
        raise ParameterError(f"target={target}: the clients are numbered 0 to {len(updates) - 1}")
    victim = updates[target]
    drawn = torch.randn(victim.shape, generator=generator, device=victim.device, dtype=victim.dtype)
    size = noise * victim.norm() / drawn.norm() if kind == "relative" else noise
    return torch.cat([updates, (size * drawn - victim)[None]])


def zero_update(updates: Tensor, count: int = 1) -> Tensor:
    """Clients that send the global model back: their update is zero, and so is MGDA's direction."""
    _check(updates)
    return torch.cat([updates, updates.new_zeros(count, updates.shape[1])])


def scaled_update(updates: Tensor, factor: float = -1e3, count: int = 1) -> Tensor:
    """Clients that send the honest mean times a factor."""
    _check(updates)
    return torch.cat([updates, (factor * updates.mean(dim=0)).expand(count, -1)])


def nan_update(updates: Tensor, count: int = 1) -> Tensor:
    """Clients that send NaN."""
    _check(updates)
    return torch.cat([updates, torch.full_like(updates[:1], torch.nan).expand(count, -1)])


def colluding(updates: Tensor, generator: torch.Generator, count: int = 2, factor: float = 1.0) -> Tensor:
    """Clients that agree: all send minus the honest mean, but for a whisper that hides that they are the same."""
    _check(updates)
    mean = updates.mean(dim=0)
    drawn = torch.randn((count, len(mean)), generator=generator, device=updates.device, dtype=updates.dtype)
    whisper = 1e-3 * mean.norm() * drawn / drawn.norm(dim=1, keepdim=True)
    return torch.cat([updates, whisper - factor * mean])


def _check(updates: Tensor) -> None:
    if updates.ndim != 2 or not len(updates):
        raise ShapeError(f"updates have shape (m, n), one row for each client; got {tuple(updates.shape)}")
