"""Networks whose initialisation is a function of a seed."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import nn


def seeded(build: Callable[[], nn.Sequential], seed: int | None) -> nn.Sequential:
    """What ``build`` makes after ``torch.manual_seed(seed)``, with torch's generator left as it was; None: as it is.

    On the host, as the data are, whatever torch's default device: a GPU would draw other numbers from the seed.
    """
    with torch.device("cpu"):
        if seed is None:
            return build()
        with torch.random.fork_rng(devices=[]):
            torch.default_generator.manual_seed(seed)  # `torch.manual_seed` seeds the GPUs' as well
            return build()
