"""Networks whose initialisation is a function of a seed."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import nn


def seeded(build: Callable[[], nn.Sequential], seed: int | None) -> nn.Sequential:
    """What ``build`` makes after ``torch.manual_seed(seed)``, with torch's generator left as it was; None: as it is."""
    if seed is None:
        return build()
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return build()
