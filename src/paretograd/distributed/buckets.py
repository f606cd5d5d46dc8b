"""Buckets of parameters whose gradients are sent together, and the layout of their columns over the processes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import accumulate

import torch
from torch import Tensor

from paretograd.autograd.products import combination
from paretograd.distributed.ranks import Ranks

#: Size of a bucket in bytes: large enough to be limited by bandwidth, small compared with a model.
BUCKET = 16 * 2**20


class Bucket:
    """Parameters whose gradients are sent together.

    Attributes:
        params: the parameters, of one dtype and on one device.
        width: number of columns that each process keeps.
        kept: this process's slice, shape ``(rows, width)``; None before anything was received.
        heads: parameters that are not aggregated after all, by ``id``, with the number of the loss that reaches them.
    """

    def __init__(self, params: Sequence[Tensor], ranks: Ranks) -> None:
        self.params, self.size = list(params), ranks.size
        self.device = params[0].device
        if ranks.sends_by_gloo(self.device):  # only some of its operations can read GPU memory
            self.device = torch.device("cpu")
        self.lengths = [_length(param) for param in params]
        total = sum(self.lengths)
        self.width = -(-total // self.size)
        starts = accumulate(self.lengths, initial=0)
        self.offsets = {id(param): start for param, start in zip(self.params, starts, strict=False)}
        self.kept: Tensor | None = None
        self.heads: dict[int, int] = {}
        self._buffer: Tensor | None = None
        self.missing = {id(param) for param in self.params}

    def buffer(self, rows: int, clear: bool) -> Tensor:
        """Return the buffer to send, shape ``(processes, rows, width)``.

        Args:
            rows: number of rows.
            clear: True to fill it with zeros at first; otherwise only the padding after the last parameter is zero.
        """
        if self._buffer is None:
            dtype = _real(self.params[0].detach()).dtype
            make = torch.zeros if clear else torch.empty
            self._buffer = make(self.size, rows, self.width, dtype=dtype, device=self.device)
            if not clear:
                self._fill(self._buffer, sum(self.lengths), self.size * self.width, None)
        return self._buffer

    def take_buffer(self, rows: int, clear: bool) -> Tensor:
        """Return the buffer to send now, with zeros for missing parameters. The next pass gets a new buffer."""
        buffer = self.buffer(rows, clear)
        for param, length in zip(self.params, self.lengths, strict=True):
            if not clear and id(param) in self.missing:
                start = self.offsets[id(param)]
                self._fill(buffer, start, start + length, None)
        self._buffer, self.missing = None, {id(param) for param in self.params}
        return buffer

    def _fill(
        self,
        buffer: Tensor,
        start: int,
        stop: int,
        flat: Tensor | None,
        factors: Tensor | None = None,
        add: bool = False,
    ) -> None:
        """Fill the columns from ``start`` to ``stop``, which may span slices of several processes; None for zero."""
        at = start
        while at < stop:
            part, place = divmod(at, self.width)
            count = min(self.width - place, stop - at)
            target = buffer[part, :, place : place + count]
            if flat is None:
                target.zero_()
            else:
                source = flat[:, at - start : at - start + count].to(target.device)
                if add:
                    target += source if factors is None else source * factors
                elif factors is None:
                    target.copy_(source)
                else:
                    torch.mul(source, factors, out=target)
            at += count

    def write(self, param: Tensor, rows: Tensor, scales: Tensor | None, into: Tensor, add: bool = False) -> None:
        """Write rows of shape ``(rows, *param)``, times factors, to as many rows of a buffer."""
        flat = _real(rows.detach()).reshape(len(rows), -1)
        factors = None if scales is None else scales.to(into)[:, None]
        start = self.offsets[id(param)]
        self._fill(into, start, start + flat.shape[1], flat, factors, add)

    def slice(self, values: Mapping[int, Tensor], rank: int, default: float = 0.0) -> Tensor:
        """Return a process's columns of values that are given for each parameter by ``id``, shape ``(width,)``."""
        dtype = _real(self.params[0].detach()).dtype
        found = torch.full((self.width,), default, dtype=dtype, device=self.device)
        for param in self.params:
            start, stop = self.columns(param, rank)
            if start < stop and id(param) in values:
                flat = _real(values[id(param)].detach()).reshape(-1)
                skipped = rank * self.width + start - self.offsets[id(param)]
                found[start:stop] = flat[skipped : skipped + stop - start]
        return found

    def columns(self, param: Tensor, rank: int) -> tuple[int, int]:
        """Return the first column of a parameter in the slice of a process, and the end; equal if it has none there."""
        start = self.offsets[id(param)] - rank * self.width
        return min(max(start, 0), self.width), max(min(start + _length(param), self.width), 0)

    def shared_rows(self, rank: int) -> Tensor:
        """Return this process's slice of the rows, with zeros for ``heads``."""
        assert self.kept is not None
        rows = self.kept.clone() if self.heads else self.kept
        for param in self.params if self.heads else ():
            if id(param) in self.heads:
                start, stop = self.columns(param, rank)
                rows[:, start:stop] = 0.0
        return rows

    def whole_combination(self, weights: Tensor) -> Tensor:
        """Return this process's slice of ``sum_k w_k g_k``."""
        assert self.kept is not None
        return combination(weights, self.kept)

    def combination(self, weights: Tensor, rank: int) -> Tensor:
        """Return this process's slice of ``sum_k w_k g_k``, and of the loss's own gradient for ``heads``."""
        part = self.whole_combination(weights)
        assert self.kept is not None
        for param in self.params if self.heads else ():
            if id(param) in self.heads:
                start, stop = self.columns(param, rank)
                part[start:stop] = self.kept[self.heads[id(param)], start:stop]
        return part

    def unpack(self, values: Tensor) -> list[tuple[Tensor, Tensor]]:
        """Return each parameter with its gradient, from the columns of all processes."""
        found = []
        for param, length in zip(self.params, self.lengths, strict=True):
            start = self.offsets[id(param)]
            part = values[start : start + length].to(param.device)
            if param.is_complex():
                found.append((param, torch.view_as_complex(part.reshape(*param.shape, 2).contiguous())))
            else:
                found.append((param, part.reshape(param.shape)))
        return found


def _real(values: Tensor) -> Tensor:
    return torch.view_as_real(values.resolve_conj()) if values.is_complex() else values


def _length(param: Tensor) -> int:
    return param.numel() * (2 if param.is_complex() else 1)


def buckets_of(params: Sequence[Tensor], rows: int, ranks: Ranks) -> list[Bucket]:
    """Group parameters by dtype and device into buckets, last ones first, which is the order of a backward pass."""
    kinds: dict[tuple[torch.dtype, torch.device], list[list[Tensor]]] = {}
    filled: dict[tuple[torch.dtype, torch.device], int] = {}
    for param in reversed(params):
        kind = (param.dtype, param.device)
        length = _length(param) * rows * param.element_size()
        if kind not in kinds or filled[kind] + length > BUCKET:
            kinds.setdefault(kind, []).append([])
            filled[kind] = 0
        kinds[kind][-1].append(param)
        filled[kind] += length
    return [Bucket(part, ranks) for parts in kinds.values() for part in parts]
