"""The device that a study trains on."""

from __future__ import annotations

import platform
from typing import Literal, get_args

import torch

from paretograd.errors import ParameterError

Device = Literal["auto", "cpu", "cuda"]


def find_device(name: str) -> torch.device:
    """The device that ``auto``, ``cpu`` or ``cuda`` stands for."""
    if name not in get_args(Device):
        raise ParameterError(f"device={name!r}: use one of {', '.join(get_args(Device))}")
    if name == "cuda" and not torch.cuda.is_available():
        raise ParameterError("device='cuda', but torch sees no GPU here; use cpu or auto")
    return torch.device("cuda" if name != "cpu" and torch.cuda.is_available() else "cpu")


def device_name(device: torch.device) -> str:
    """What to call it in a file that others read."""
    if device.type == "cuda":
        return str(torch.cuda.get_device_name(device))
    return f"CPU ({platform.machine()}, {torch.get_num_threads()} threads)"
