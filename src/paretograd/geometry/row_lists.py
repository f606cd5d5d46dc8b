"""Products with rows that lie in many tensors, one per objective and parameter, without joining them.

The rows of a Jacobian come from backward passes as lists of tensors. On a GPU, two Triton kernels read all of them
through a table of addresses: one launch for the Gramian, one for the direction. On the CPU, blocks that fit in the
cache are stacked and multiplied.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import lru_cache
from itertools import compress

import numpy as np
import torch
from torch import Tensor

from paretograd.geometry.gramian import kernels

#: Rows of the same objectives: for each parameter, one tensor per objective, all of one dtype and on one device. Those
#: of a parameter have the same shape and the same order in memory, without gaps.
Lists = Sequence[Sequence[Tensor]]

#: Entries of a row that a block has on the CPU. Ten such rows in float32 take 1.3 MB and stay in the cache.
_BLOCK = 1 << 15

#: Rows with fewer entries are joined before they are multiplied on the CPU.
_SHORT = 1 << 12

#: Entries of a row that a program of the GPU's kernels takes at a time.
_ITEM = 1 << 12

#: Most rows that the GPU's kernels take.
_MOST_ROWS = 32

#: Memory for the tables of the CUDA graph that is being captured.
_TABLES: list[Tables] = []


def accumulator(dtype: torch.dtype) -> torch.dtype:
    """Return float64 for float64, and float32 for every shorter dtype."""
    return torch.float64 if dtype is torch.float64 else torch.float32


def factor_dtype(weights: Tensor, dtype: torch.dtype) -> torch.dtype:
    """Return the dtype in which rows of this dtype are multiplied by weights: float64 if float32 cannot hold these.

    The weight of a very short gradient beside a very long one may exceed float32's range. Weights on an accelerator are
    not looked at, since this would wait for it.
    """
    kind = accumulator(dtype)
    small = kind is torch.float64 or not weights.is_cpu or not len(weights)
    return kind if small or max(map(abs, weights.tolist())) <= torch.finfo(kind).max else torch.float64


def flat(row: Tensor) -> Tensor:
    """Return a tensor as a real vector in its own memory order. It must be dense in memory."""
    row = real(row)
    return row.view(-1) if row.is_contiguous() else row.as_strided((row.numel(),), (1,))


def real(values: Tensor) -> Tensor:
    """Return complex values as real ones, with a last dimension of two, and real ones unchanged."""
    return torch.view_as_real(values) if values.is_complex() else values


def _length(row: Tensor) -> int:
    return 2 * row.numel() if row.is_complex() else row.numel()


def gramian_of_lists(lists: Lists, *, exact: bool = False) -> Tensor:
    """Return the inner products of rows, shape ``(r, r)``, float64.

    Args:
        lists: for each parameter, r rows.
        exact: multiply in float64. Otherwise rows of float32 or a shorter dtype are multiplied in float32, and sums of
            at most a few thousand products are added in float64.
    """
    count, first = len(lists[0]), lists[0][0]
    if first.is_cuda and count <= _MOST_ROWS and kernels() is not None:
        return _gramian_by_kernel(lists, exact)
    kind = torch.float64 if exact else accumulator(real(first).dtype)
    total = torch.zeros(count, count, dtype=torch.float64, device=first.device)
    for block in _blocks([[flat(row) for row in rows] for rows in lists], kind):
        total += block @ block.T
    return total


def _blocks(lists: Lists, kind: torch.dtype) -> Iterator[Tensor]:
    """Yield blocks of columns, shape ``(r, columns)``. The next block may overwrite the last one."""
    short = [rows for rows in lists if rows[0].numel() <= _SHORT]
    if short:
        yield torch.stack([torch.cat(row) for row in zip(*short, strict=True)]).to(kind)
    buffer: Tensor | None = None
    length = _BLOCK if lists[0][0].is_cpu else _BLOCK * 32
    for rows in lists:
        size = rows[0].numel()
        for start in range(0, size if size > _SHORT else 0, length):
            parts = list(rows) if size <= length else [row[start : start + length] for row in rows]
            if len(parts) == 1:
                yield parts[0].to(kind)[None]
                continue
            if buffer is None:
                buffer = torch.empty(len(parts), length, dtype=kind, device=parts[0].device)
            block = buffer[:, : len(parts[0])]
            torch.stack(parts, out=block)
            yield block


def combine_lists(weights: Tensor, lists: Lists, dtype: torch.dtype) -> list[Tensor]:
    """Return ``sum_k w_k row_k`` of every parameter, in the memory order of its rows.

    Args:
        weights: shape ``(r,)``.
        lists: for each parameter, r rows.
        dtype: of the results.
    """
    first = lists[0][0]
    if first.is_cuda and len(weights) <= _MOST_ROWS and kernels() is not None:
        outputs = [torch.empty_like(rows[0], dtype=dtype) for rows in lists]
        _combine_by_kernel(weights, lists, outputs)
        return outputs
    kind = factor_dtype(weights, real(first).dtype)
    if not first.is_cpu:
        factors = weights.to(device=first.device, dtype=kind)
        outputs = [torch.empty_like(rows[0], dtype=dtype) for rows in lists]
        for rows, output in zip(lists, outputs, strict=True):
            flat(output).copy_(factors @ torch.stack([flat(row) for row in rows]).to(kind))
        return outputs
    numbers = weights.tolist()
    short = [first.dtype is dtype is kind and rows[0].numel() <= 2 * _BLOCK for rows in lists]
    quick = iter(_combine_short(numbers, list(compress(lists, short))) if any(short) else ())
    return [
        next(quick) if is_short else _combine_in_blocks(numbers, rows, dtype, kind)
        for rows, is_short in zip(lists, short, strict=True)
    ]


def _combine_short(weights: list[float], lists: Lists) -> Sequence[Tensor]:
    """Combine rows on the CPU that fit in the cache, those of all parameters in one call for each objective."""
    totals = torch._foreach_mul([rows[0] for rows in lists], weights[0])
    for k, weight in enumerate(weights[1:], 1):
        torch._foreach_add_(totals, [rows[k] for rows in lists], alpha=weight)
    return totals


def _combine_in_blocks(weights: list[float], rows: Sequence[Tensor], dtype: torch.dtype, kind: torch.dtype) -> Tensor:
    """Combine rows of one parameter on the CPU, in the given kind of numbers."""
    total = torch.empty_like(rows[0], dtype=dtype)
    output, values = flat(total), [flat(row) for row in rows]
    for start in range(0, len(output), 2 * _BLOCK):
        part = slice(start, start + 2 * _BLOCK)
        block = output[part] if output.dtype is kind else torch.empty_like(output[part], dtype=kind)
        torch.mul(values[0][part].to(kind), weights[0], out=block)
        for row, weight in zip(values[1:], weights[1:], strict=True):
            block.add_(row[part].to(kind), alpha=weight)
        if output.dtype is not kind:
            output[part] = block
    return total


class Tables:
    """Memory for the tables that kernels read in a CUDA graph. Keep it as long as the graph.

    A copy from the host cannot be captured, and memory that is allocated during the capture is shared with other parts
    of the graph. So the tables lie in memory that is allocated before, and are written after the capture: addresses
    inside of a graph do not change.
    """

    def __init__(self, size: int, device: torch.device) -> None:
        """Allocate memory.

        Args:
            size: number of addresses of all tables.
            device: the GPU.
        """
        self._memory = torch.empty(size, dtype=torch.int64, device=device)
        self._addresses: list[Tensor] = []
        self._used = 0

    def take(self, addresses: Tensor) -> Tensor:
        """Return the place of a table."""
        first, self._used = self._used, self._used + addresses.numel()
        if self._used > len(self._memory):
            raise RuntimeError("more tables were captured than there is memory for")
        self._addresses.append(addresses.flatten())
        return self._memory[first : self._used].view(addresses.shape)

    @contextmanager
    def capturing(self) -> Iterator[None]:
        """Serve the kernels that are captured inside this context."""
        _TABLES.append(self)
        try:
            yield
        finally:
            _TABLES.pop()

    def write(self) -> None:
        """Write all tables, after the capture."""
        if self._addresses:
            self._memory[: self._used].copy_(torch.cat(self._addresses))


def _on_device(addresses: Tensor, device: torch.device) -> Tensor:
    if device.type == "cuda" and torch.cuda.is_current_stream_capturing():
        return _TABLES[-1].take(addresses)
    return addresses.to(device)


@lru_cache(maxsize=256)
def _items(sizes: tuple[int, ...], device: torch.device) -> Tensor:
    """Return the parts of rows that programs take: parameter, first column and end column, shape ``(items, 3)``."""
    counts = np.array([-(-size // _ITEM) for size in sizes])
    param = np.repeat(np.arange(len(sizes)), counts)
    first = (np.arange(len(param)) - np.repeat(np.cumsum(counts) - counts, counts)) * _ITEM
    end = np.minimum(first + _ITEM, np.array(sizes)[param])
    return torch.from_numpy(np.stack([param, first, end], axis=1)).to(device)


def _gramian_by_kernel(lists: Lists, exact: bool) -> Tensor:
    found, first, count = kernels(), lists[0][0], len(lists[0])
    device = first.device
    items = _items(tuple(_length(rows[0]) for rows in lists), device)
    addresses = _addresses(lists)
    table = _on_device(addresses, device)
    double = exact or real(first).dtype is torch.float64
    programs = min(len(items), 8 * _processors(device))
    with torch.cuda.device(device):
        if count <= found.MOST_PAIRED:
            parts = torch.empty(programs, count, count, dtype=torch.float64, device=device)
            block = 128 if double else 256
            found.pairs_of_lists[(programs,)](
                table, items, len(items), parts, _kind(first), count, block, double, _aligned(addresses), num_warps=4
            )
            return parts.sum(dim=0)
        rows = 1 << (count - 1).bit_length()
        parts = torch.empty(programs, rows, rows, dtype=torch.float64, device=device)
        found.product_of_lists[(programs,)](
            table, items, len(items), parts, _kind(first), count, rows, 32, 32, double, num_warps=4
        )
        return parts.sum(dim=0)[:count, :count]


def _combine_by_kernel(weights: Tensor, lists: Lists, outputs: Sequence[Tensor]) -> None:
    found, first = kernels(), lists[0][0]
    device = first.device
    items = _items(tuple(_length(rows[0]) for rows in lists), device)
    addresses = _addresses([[output, *rows] for output, rows in zip(outputs, lists, strict=True)])
    table = _on_device(addresses, device)
    double = real(first).dtype is torch.float64
    w = weights.to(device=device, dtype=torch.float64 if double else torch.float32).contiguous()
    with torch.cuda.device(device):
        found.weighted_lists[(min(len(items), 32 * _processors(device)),)](
            table,
            items,
            len(items),
            w,
            _kind(first),
            _kind(outputs[0]),
            len(lists[0]),
            1024,
            double,
            _aligned(addresses),
            num_warps=4,
        )


def _addresses(lists: Lists) -> Tensor:
    return torch.tensor([[row.data_ptr() for row in rows] for rows in lists], dtype=torch.int64, device="cpu")


def _aligned(addresses: Tensor) -> bool:
    return not bool((addresses % 16).any())


def _processors(device: torch.device) -> int:
    return torch.cuda.get_device_properties(device).multi_processor_count


def _kind(row: Tensor) -> int:
    """Return the number by which the kernels know a dtype."""
    return (torch.float32, torch.bfloat16, torch.float16, torch.float64).index(real(row).dtype)
