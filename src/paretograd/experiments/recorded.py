"""Work on a GPU that is recorded once and launched as a whole, and the precision of its products."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch


def recorded(work: Callable[[], None]) -> Callable[[], None]:
    """The same work as one launch: a host may take longer to launch a hundred kernels than a GPU to run them.

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
    """Let products on a GPU round their factors to TF32, or not; and set it back."""
    products, layers = torch.backends.cuda.matmul, torch.backends.cudnn
    before = (products.allow_tf32, layers.allow_tf32)
    products.allow_tf32 = layers.allow_tf32 = tf32
    try:
        yield
    finally:
        products.allow_tf32, layers.allow_tf32 = before
