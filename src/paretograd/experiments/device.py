"""The device that a study trains on, work recorded on it, and the precision of its products."""

from __future__ import annotations

import platform
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Literal, get_args

import torch

from paretograd.errors import ParameterError

Device = Literal["auto", "cpu", "cuda"]


def find_device(name: str) -> torch.device:
    """Resolve ``auto``, ``cpu`` or ``cuda``."""
    if name not in get_args(Device):
        raise ParameterError(f"device={name!r}: use one of {', '.join(get_args(Device))}")
    if name == "cuda" and not torch.cuda.is_available():
        raise ParameterError("device='cuda', but torch sees no GPU here; use cpu or auto")
    return torch.device("cuda" if name != "cpu" and torch.cuda.is_available() else "cpu")


def device_name(device: torch.device) -> str:
    """Name of the device in files that others read."""
    if device.type == "cuda":
        return str(torch.cuda.get_device_name(device))
    return f"CPU ({platform.machine()}, {torch.get_num_threads()} threads)"


def recorded(work: Callable[[], None]) -> Callable[[], None]:
    """Record the work as one launch: a host may take longer to launch a hundred kernels than a GPU to run them.

    What is recorded has a stream of its own and with it cuBLAS's workspace: with a common one, two launches that run
    side by side overwrite each other's sums and may wait for each other for ever.
    """
    aside = torch.cuda.Stream()  # type: ignore[no-untyped-call]
    aside.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(aside):
        work()  # what is set up at the first call is not to be recorded
    torch.cuda.current_stream().wait_stream(aside)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=aside):
        work()
    return graph.replay


@contextmanager
def full_or_tf32(tf32: bool) -> Iterator[None]:
    """Allow or forbid TF32 products on a GPU, and restore the setting afterwards."""
    products, layers = torch.backends.cuda.matmul, torch.backends.cudnn
    before = (products.allow_tf32, layers.allow_tf32)
    products.allow_tf32 = layers.allow_tf32 = tf32
    try:
        yield
    finally:
        products.allow_tf32, layers.allow_tf32 = before
