"""`Rows`: the rows of a Jacobian, held by parameter, with their products and their weighted sum.

Rows are never joined. A loss that does not reach a parameter has no row there. Sparse gradients, such as those of an
embedding, stay sparse.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache

import torch
from torch import Tensor

from paretograd.autograd.metric import Metric
from paretograd.errors import ParameterError
from paretograd.geometry.row_lists import combine_lists, gramian_of_lists, real

#: Bytes of the directions that are computed at a time, before the rows that they replace are freed.
_BUCKET = 32 * 2**20

#: Numbers of the losses, dtypes of the rows and of the parameter, device of the rows, and True if these have entries.
_Kind = tuple[tuple[int, ...], torch.dtype, torch.dtype, torch.device, bool]


@dataclass
class _Held:
    """The rows of one parameter, by the number of the loss, in the parameter's memory order. Their dtype may differ.

    Attributes:
        param: the parameter.
        rows: all of one layout: strided, or sparse.
        indices: for sparse rows that were compacted, the rows of the parameter that any of them has.
        kind: what `settle` returned; None if rows came since.
    """

    param: Tensor
    rows: dict[int, Tensor] = field(default_factory=dict)
    indices: Tensor | None = None
    kind: _Kind | None = None

    def settle(self) -> _Kind:
        """Sort the rows, compact sparse ones, and return their kind. Parameters of one kind are multiplied together."""
        keys = list(self.rows)
        if keys != sorted(keys):
            self.rows = dict(sorted(self.rows.items()))
        if any(row.is_sparse for row in self.rows.values()):
            self._compact()
        first = next(iter(self.rows.values()))
        self.kind = (tuple(self.rows), first.dtype, self.param.dtype, first.device, first.numel() > 0)
        return self.kind

    def _compact(self) -> None:
        """Replace sparse rows by their values over the union of their indices; make others dense."""
        if not all(row.is_sparse and row.sparse_dim() == 1 for row in self.rows.values()):
            self.rows = {k: row.to_dense() if row.is_sparse else row for k, row in self.rows.items()}
            return
        parts = [row.coalesce() for row in self.rows.values()]
        self.indices, places = torch.unique(torch.cat([part.indices()[0] for part in parts]), return_inverse=True)
        found = places.split([part.indices().shape[1] for part in parts])
        for k, part, place in zip(list(self.rows), parts, found, strict=True):
            values = part.values().new_zeros(len(self.indices), *part.shape[1:])
            self.rows[k] = values.index_copy_(0, place, part.values())

    def part(self, values: Tensor) -> Tensor:
        """Return values of the whole parameter where the rows have entries."""
        return values if self.indices is None else values.index_select(0, self.indices)

    def filled(self, values: Tensor) -> Tensor:
        """Return a gradient for the parameter, from a result in the memory order of the rows."""
        if self.indices is not None:
            # A context, since torch 2.11 warns at check_invariants=False; the indices are sorted, unique and in range.
            with torch.sparse.check_sparse_tensor_invariants(False):  # type: ignore[no-untyped-call]
                return torch.sparse_coo_tensor(
                    self.indices[None], values, self.param.shape, device=values.device, is_coalesced=True
                )
        return values


class Rows:
    """The gradients of m losses with respect to some parameters.

    Attributes:
        m: number of losses.
    """

    def __init__(self, m: int, device: torch.device) -> None:
        """Hold nothing yet.

        Args:
            m: number of losses.
            device: the device of Gramians.
        """
        self.m, self._device = m, device
        self._held: dict[int, _Held] = {}

    def give(self, param: Tensor, k: int, grad: Tensor) -> None:
        """Take the gradient of loss k. It is added to an earlier one of the same loss."""
        held = self._held.get(id(param))
        if held is None:
            held = self._held[id(param)] = _Held(param)
        if not (grad.is_sparse or (grad.is_contiguous() and param.is_contiguous() and not grad.is_conj())):
            grad = _in_order_of(param, grad)
        earlier = held.rows.get(k)
        held.rows[k] = grad if earlier is None else earlier + grad
        held.kind = None

    def give_all(self, param: Tensor, grads: Tensor, first: int = 0) -> None:
        """Take the gradients of several losses from the given one on, shape ``(losses, *param)``."""
        rows = grads.unbind()
        if id(param) not in self._held and param.is_contiguous() and rows[0].is_contiguous() and not grads.is_conj():
            self._held[id(param)] = _Held(param, dict(enumerate(rows, first)))  # the quick way
            return
        for k, grad in enumerate(rows, first):
            self.give(param, k, grad)

    def scale(self, factors: Sequence[float]) -> None:
        """Multiply the rows of each loss by a factor."""
        for held in self._held.values():
            for k, row in held.rows.items():
                if factors[k] != 1.0:
                    held.rows[k] = row * factors[k]

    def has(self, param: Tensor) -> bool:
        """Return True if some loss has a row of a parameter."""
        return id(param) in self._held

    def row(self, param: Tensor, k: int) -> Tensor | None:
        """Return the row of loss k of a parameter, or None."""
        held = self._held.get(id(param))
        if held is None or k not in held.rows:
            return None
        return held.filled(held.rows[k])

    def take(self, param: Tensor, k: int) -> Tensor:
        """Return the row of loss k of a parameter, and forget all its rows."""
        return self._held.pop(id(param)).rows[k]

    def nonzero_losses(self, param: Tensor) -> list[int]:
        """Return the losses whose row of a parameter is not zero throughout."""
        held = self._held.get(id(param))
        return [] if held is None else sorted(k for k, row in held.rows.items() if bool(row.any()))

    @property
    def is_sparse(self) -> bool:
        """True if some row is sparse."""
        return any(row.is_sparse for held in self._held.values() for row in held.rows.values())

    def gramian(self, params: Iterable[Tensor], *, exact: bool = False, metric: Metric | None = None) -> Tensor:
        """Return the inner products of the rows over some parameters, shape ``(m, m)``, float64.

        Args:
            params: the parameters.
            exact: multiply in float64, so that no product of finite float32 numbers overflows or underflows.
            metric: the inner product; None for the Euclidean one.
        """
        total = torch.zeros(self.m, self.m, dtype=torch.float64, device=self._device)
        for losses, held in self._alike(params):
            if metric is None:
                self._add(total, losses, gramian_of_lists([list(each.rows.values()) for each in held], exact=exact))
                continue
            for bucket in _buckets(held):  # so that only as many rows are multiplied by P at a time
                self._add(total, losses, _gramian_in(metric, bucket, exact))
        return total

    def _add(self, total: Tensor, losses: tuple[int, ...], part: Tensor) -> None:
        """Add products of some losses, and of what comes after all losses."""
        part = part.to(self._device)
        if part.shape == total.shape:
            total += part
        else:
            index = _index((*losses, *range(self.m, len(total))), self._device)
            total[index[:, None], index] += part

    def measure(
        self, params: Iterable[Tensor], vectors: Sequence[Mapping[int, Tensor]], *, exact: bool = False
    ) -> Tensor:
        """Return the inner products of all rows and vectors over some parameters.

        Args:
            params: the parameters.
            vectors: values for each parameter, by ``id``.
            exact: multiply in float64.

        Returns:
            float64, shape ``(m + vectors, m + vectors)``.
        """
        size = self.m + len(vectors)
        total = torch.zeros(size, size, dtype=torch.float64, device=self._device)
        for losses, held in self._alike(params):
            for each in held:
                if each.indices is not None:  # vectors have entries elsewhere, too
                    whole, part = (
                        gramian_of_lists([[real(value) for value in values]], exact=exact)
                        for values in ([v[id(each.param)] for v in vectors], _parts(each, vectors))
                    )
                    total[self.m :, self.m :] += (whole - part).to(total.device)
            for bucket in _buckets(held):
                lists = [[*each.rows.values(), *_parts(each, vectors)] for each in bucket]
                self._add(total, losses, gramian_of_lists(_of_one_dtype(lists), exact=exact))
        return total

    def _alike(self, params: Iterable[Tensor]) -> Iterator[tuple[tuple[int, ...], list[_Held]]]:
        """Group parameters whose rows have entries by their kind."""
        kinds: dict[_Kind, list[_Held]] = {}
        for param in params:
            held = self._held.get(id(param))
            if held is not None:
                kinds.setdefault(held.kind or held.settle(), []).append(held)
        for (losses, *_, filled), found in kinds.items():
            if filled:
                yield losses, found

    def combine(self, params: Sequence[Tensor], weights: Tensor, *, keep: bool = False) -> list[tuple[Tensor, Tensor]]:
        """Return each parameter with ``sum_k w_k row_k``, and free its rows.

        Args:
            params: the parameters.
            weights: shape ``(m,)``.
            keep: do not free the rows.
        """
        found: list[tuple[Tensor, Tensor]] = []
        for losses, held in self._alike(params):
            first = next(iter(held[0].rows.values()))
            chosen = weights if losses == tuple(range(self.m)) else weights[_index(losses, weights.device)]
            chosen = chosen.to(first.device)
            for bucket in _buckets(held):
                found += self._combined(bucket, chosen, keep)
        for left in [self._held[id(param)] for param in params if id(param) in self._held]:
            row = next(iter(left.rows.values()))
            if not row.numel():  # there is nothing to add up
                found.append((left.param, left.filled(row.to(left.param.dtype))))
        return found

    def _combined(self, bucket: Sequence[_Held], weights: Tensor, keep: bool) -> list[tuple[Tensor, Tensor]]:
        outputs = combine_lists(weights, [list(held.rows.values()) for held in bucket], bucket[0].param.dtype)
        for held in () if keep else bucket:  # so that the next outputs can take their memory
            held.rows.clear()
            del self._held[id(held.param)]
        return [(held.param, held.filled(output)) for held, output in zip(bucket, outputs, strict=True)]

    def not_finite(self, params: Iterable[Tensor] | None = None) -> list[int]:
        """Return the losses with a row of some parameters that holds NaN or infinity; None for all parameters."""
        bad = set()
        chosen = self._held if params is None else [id(param) for param in params if id(param) in self._held]
        for held in (self._held[key] for key in chosen):
            for k, row in held.rows.items():
                values = row.coalesce().values() if row.is_sparse else row
                if k not in bad and not bool(torch.isfinite(values).all()):
                    bad.add(k)
        return sorted(bad)

    def block(self, param: Tensor) -> Tensor:
        """Return the rows of a parameter as one tensor, shape ``(m, *param)``, with zeros for losses without one."""
        held = self._held.get(id(param))
        found = torch.zeros(self.m, *param.shape, dtype=param.dtype, device=param.device)
        for k, row in () if held is None else held.rows.items():
            if held is not None and held.indices is not None:
                found[k].index_copy_(0, held.indices, row)
            else:
                found[k] = row.to_dense() if row.is_sparse else row
        return found


@lru_cache(maxsize=256)
def _index(losses: tuple[int, ...], device: torch.device) -> Tensor:
    """Return the numbers of losses on a device. A copy from the host could not be captured in a CUDA graph."""
    return torch.tensor(losses, device=device)


def _buckets(held: list[_Held]) -> Iterator[list[_Held]]:
    """Take parameters from a list, some at a time."""
    held.reverse()
    while held:
        bucket = [held.pop()]
        size = _bytes(bucket[0])
        while held and size + _bytes(held[-1]) <= _BUCKET:
            size += _bytes(held[-1])
            bucket.append(held.pop())
        yield bucket


def _parts(held: _Held, vectors: Sequence[Mapping[int, Tensor]]) -> list[Tensor]:
    """Return the parts of vectors that belong to the rows of a parameter, in their memory order."""
    found = []
    for vector in vectors:
        part = held.part(vector[id(held.param)])
        if held.indices is None and not (part.is_contiguous() and held.param.is_contiguous()):
            part = _in_order_of(held.param, part)
        found.append(part)
    return found


def _gramian_in(metric: Metric, bucket: Sequence[_Held], exact: bool) -> Tensor:
    """Return the inner products of the rows of some parameters in a metric."""
    lists = [list(held.rows.values()) for held in bucket]
    roots = metric.roots([held.param for held in bucket])
    if roots is not None:
        for k, (held, root) in enumerate(zip(bucket, roots, strict=True)):
            if root is not None:
                rows = [real(row).double() if exact else real(row) for row in lists[k]]
                lists[k] = [row * held.part(root) for row in rows]
        return gramian_of_lists(_of_one_dtype(lists), exact=exact)
    if any(held.indices is not None for held in bucket):
        raise ParameterError("a function as metric cannot be applied to sparse gradients; give a diagonal")
    count = len(lists[0])
    joined = [
        [*rows, *(part for row in rows for part in metric.apply([held.param], [row]))]
        for held, rows in zip(bucket, lists, strict=True)
    ]
    cross = gramian_of_lists(joined, exact=exact)[:count, count:]
    return 0.5 * (cross + cross.T)


def _of_one_dtype(lists: list[list[Tensor]]) -> list[list[Tensor]]:
    """Convert all rows to the longest dtype that some have."""
    kinds = {row.dtype for rows in lists for row in rows}
    if len(kinds) == 1:
        return lists
    kind = max(kinds, key=lambda dtype: dtype.itemsize)
    return [[row.to(kind) for row in rows] for rows in lists]


def _bytes(held: _Held) -> int:
    return next(iter(held.rows.values())).nbytes


def _in_order_of(param: Tensor, grad: Tensor) -> Tensor:
    """Return a gradient in the memory order of its parameter, or in the default one if that is not dense."""
    if grad.is_conj():
        grad = grad.resolve_conj()
    if hasattr(param, "placements"):  # of a DTensor, the rows hold shards
        return grad.contiguous()
    if grad.stride() == param.stride() and _is_dense(param):
        return grad
    return torch.empty_like(param, dtype=grad.dtype, requires_grad=False).copy_(grad)


def _is_dense(tensor: Tensor) -> bool:
    """Return True if the entries fill a stretch of memory without gaps or repetition."""
    expected = 1
    for stride, size in sorted(zip(tensor.stride(), tensor.shape, strict=True)):
        if size != 1:
            if stride != expected:
                return False
            expected *= size
    return True
