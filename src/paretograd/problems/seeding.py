"""Networks whose initialisation is a function of a seed."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import nn


def seeded(build: Callable[[], nn.Sequential], seed: int | None) -> nn.Sequential:
    """Return ``build()`` after ``torch.manual_seed(seed)`` and restore torch's generator; None does not seed.

    The network is built on the CPU, whatever torch's default device: a GPU would draw other numbers from the seed.
    """
    with torch.device("cpu"):
        if seed is None:
            return build()
        with torch.random.fork_rng(devices=[]):
            torch.default_generator.manual_seed(seed)  # `torch.manual_seed` would seed the GPUs, too
            return build()
