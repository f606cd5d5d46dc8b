"""The attacker of an epoch, as a function of seed and epoch: every rule faces the same one, and a resumed run, too."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from paretograd.experiments.federated.plan import Setting
from paretograd.federated.attacks import Noise, sign_flip


class Draw(NamedTuple):
    """What is drawn in an epoch: the client whose gradient is flipped, and the seed of the noise."""

    target: int
    noise_seed: int


def draw(seed: int, epoch: int, clients: int) -> Draw:
    """The draws of an epoch, the same on every device; a client is as likely as any other."""
    rng = np.random.default_rng([seed, epoch])
    return Draw(int(rng.integers(clients)), int(rng.integers(2**62)))


def attacked(gradients: Tensor, setting: Setting, seed: int, epoch: int) -> Tensor:
    """Gradients of the honest clients ``(K, n)``, and below them the attacker's, if the setting has one.

    The noise of a GPU is another one than that of a CPU.
    """
    if not setting.attacked:
        return gradients
    target, noise_seed = draw(seed, epoch, len(gradients))
    generator = torch.Generator(gradients.device).manual_seed(noise_seed)
    kind: Noise = "literal" if setting.kind == "literal" else "relative"
    return sign_flip(gradients, target, generator, noise=setting.noise, kind=kind)
