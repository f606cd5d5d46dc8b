"""`Updates`: the global model minus each client's, computed in blocks of columns from arrays that stay where they are.

The columns are the entries of the model's arrays, one array after the other. A block has the same columns however these
are split into arrays. Numbers are computed in float64, in which the difference of two float32 numbers is exact unless
their sizes differ by a factor of more than 2^29. Only the sum that moves a float32 model is computed in float32.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from paretograd.federated.replies import Arrays, flat

#: Numbers in a block: 2 MB in float64, which the cache of a processor holds.
_ENTRIES = 1 << 18

#: Fewest columns of a block. With more than 256 clients a block is larger, and no slower.
_FEWEST_COLUMNS = 1 << 10

#: Most updates, and columns of a part, for which a general product takes half the time of a symmetric one.
_GENERAL, _PART = 16, 1 << 12

#: Most updates for which float32 is precise enough to move a float32 model, and the range of their weights.
_FEW, _LEAST, _LARGEST = 32, 1e-30, 1e30


class _Span(NamedTuple):
    """Columns ``first`` to ``last`` of a block, which are entries ``start`` to ``stop`` of an array."""

    name: str
    first: int
    last: int
    start: int
    stop: int


class Updates:
    """The updates of all valid replies, one row for each, read in blocks.

    It holds references to the arrays and copies none. They may be memory maps (`numpy.memmap`), so that the replies
    need not fit in memory. Each pass over the blocks reads every reply once.

    Args:
        model: arrays of the global model, by name.
        replies: arrays of the clients' models, of the same names, shapes and dtypes, in the order of the rows.
        names: names of the arrays to use, in the order of the columns.
    """

    def __init__(self, model: Arrays, replies: Sequence[Arrays], names: Sequence[str]) -> None:
        self._model, self._replies, self._names = model, replies, names
        self.shape = len(replies), sum(model[name].size for name in names)
        self.columns = max(_FEWEST_COLUMNS, _ENTRIES // max(self.shape[0], 1))
        self._infinite = {name for name in names if not _finite(model[name])}
        self._single = len(replies) <= _FEW and all(model[name].dtype == np.float32 for name in names)

    def __len__(self) -> int:
        """Return the number m of updates."""
        return self.shape[0]

    def blocks(self) -> Iterator[Tensor]:
        """Yield all columns as blocks ``(m, b)`` in float64. A block is valid until the next one."""
        return map(torch.from_numpy, self._blocks())

    def gramian(self) -> Tensor:
        """Return the Gramian ``(m, m)``, in float64.

        The diagonal shows updates that are not finite, or too long, without another pass.
        """
        found = np.zeros((len(self), len(self)))
        with np.errstate(invalid="ignore", over="ignore"):
            for rows in self._blocks():
                _add_products(found, rows)
        return torch.from_numpy(np.tril(found) + np.tril(found, -1).T)

    def combine(self, weights: Tensor) -> Iterator[Tensor]:
        """Yield ``sum_k w_k u_k`` in the blocks of columns, in float64.

        For a few updates of a float32 model, it is rounded to float32 on the way, like the model that it moves.

        Args:
            weights: shape ``(m,)``.
        """
        factors = weights.detach().cpu().double().numpy()
        sizes = np.abs(factors[factors != 0])
        single = self._single and bool(((sizes >= _LEAST) & (sizes <= _LARGEST)).all())
        if single:
            factors = factors.astype(np.float32)
        for rows in self._blocks(np.float32 if single else np.float64):
            # BLAS would wake threads for each block, which takes longer than the product itself on a busy machine.
            yield torch.from_numpy(np.einsum("k,kj->j", factors, rows)).double()

    def dense(self) -> Tensor:
        """Return all rows ``(m, n)`` in float64: twice the memory of float32 replies."""
        found = _empty(*self.shape)
        for block, part in zip(self.blocks(), torch.split(found, self.columns, dim=1), strict=False):
            part.copy_(block)
        return found

    def moved(self, pieces: Iterable[Tensor]) -> dict[str, NDArray[np.generic]]:
        """Return the model's arrays minus a row, in their own precision.

        Args:
            pieces: the row in the blocks of columns, in float64.
        """
        found = {name: np.empty(self._model[name].shape, self._model[name].dtype) for name in self._names}
        model, target = _flat(self._model, self._names), _flat(found, self._names)
        with np.errstate(over="ignore"):  # the whole model is validated later
            for spans, piece in zip(self._spans(), pieces, strict=True):
                row = piece.numpy()
                for name, first, last, start, stop in spans:
                    before = np.asarray(model[name][start:stop], dtype=np.float64)
                    target[name][start:stop] = before - row[first:last]
        return found

    def _spans(self) -> Iterator[list[_Span]]:
        """Yield the parts of arrays that each block consists of."""
        width, spans = 0, []
        for name in self._names:
            start, size = 0, self._model[name].size
            while start < size:
                taken = min(size - start, self.columns - width)
                spans.append(_Span(name, width, width + taken, start, start + taken))
                start, width = start + taken, width + taken
                if width == self.columns:
                    yield spans
                    width, spans = 0, []
        if spans:
            yield spans

    def _blocks(self, dtype: type = np.float64) -> Iterator[NDArray[Any]]:
        model = _flat(self._model, self._names)
        memory: NDArray[Any] = np.empty((len(self), self.columns), dtype)
        replies = [_flat(reply, self._names) for reply in self._replies]
        for spans in self._spans():
            block = memory[:, : spans[-1].last]
            for name, first, last, start, stop in spans:
                part: NDArray[Any] = block[:, first:last]
                wanted: NDArray[Any] = np.asarray(model[name][start:stop], dtype=dtype)
                sent = (np.asarray(reply[name][start:stop]) for reply in replies)
                with np.errstate(invalid="ignore"):  # infinity minus infinity
                    if self._model[name].dtype == dtype:
                        for row, entries in zip(part, sent, strict=True):
                            np.subtract(wanted, entries, out=row)
                    else:  # a conversion within the subtraction takes longer
                        for row, entries in zip(part, sent, strict=True):
                            row[:] = entries
                        np.subtract(wanted, part, out=part)
                if name in self._infinite:
                    part[np.isnan(part)] = 0.0
            yield block


def _add_products(found: NDArray[Any], rows: NDArray[Any]) -> None:
    """Add the inner products of rows to a matrix, whose entries above the diagonal need not be right.

    Numpy takes BLAS's symmetric product for a matrix and its own transpose, which is slow for few rows. So the first
    row is left out on one side.
    """
    if len(rows) > _GENERAL:
        found += rows @ rows.T
        return
    for start in range(0, rows.shape[1], _PART):
        part = rows[:, start : start + _PART]
        found[:1, :1] += part[:1] @ part[:1].T
        found[1:] += part[1:] @ part.T


def _flat(arrays: Arrays, names: Sequence[str]) -> dict[str, Any]:
    return {name: flat(arrays[name]) for name in names}


def _finite(array: NDArray[np.generic]) -> bool:
    with np.errstate(invalid="ignore"):
        return not array.size or bool(np.isfinite(array.min()) and np.isfinite(array.max()))


def _empty(*shape: int) -> Tensor:
    return torch.empty(shape, dtype=torch.float64, device="cpu")
