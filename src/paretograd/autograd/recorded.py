"""Recordings of work on a GPU as CUDA graphs."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch


def recorded(work: Callable[[], None]) -> Callable[[], None]:
    """Record the work as one launch: launching a hundred kernels may take a host longer than a GPU takes to run them.

    Each recording has its own stream, and with it its own cuBLAS workspace. With a shared workspace, two concurrent
    launches overwrite each other's sums and may deadlock.
    """
    aside = torch.cuda.Stream()  # type: ignore[no-untyped-call]
    aside.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(aside):
        work()  # the first call sets things up that must not be recorded
    torch.cuda.current_stream().wait_stream(aside)
    graph = torch.cuda.CUDAGraph()
    with uncollected(), torch.cuda.graph(graph, stream=aside):
        work()
    return graph.replay


@contextmanager
def uncollected() -> Iterator[None]:
    """Keep the garbage collector away: freeing an old CUDA graph while another is recorded spoils the recording."""
    before = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if before:
            gc.enable()
