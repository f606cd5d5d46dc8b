"""`Kept`: the gradients of a step's losses, kept until the optimizer has changed the parameters."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext

import numpy as np
import torch
from torch import Tensor

from paretograd.autograd.metric import Metric, local
from paretograd.autograd.rows import Rows
from paretograd.certificates.update import UpdateCertificate
from paretograd.errors import ParameterError
from paretograd.geometry.gramian import Array, as_array, out_of_range

#: Values for each parameter, by ``id``. Those of DTensors are the local parts.
Vector = Mapping[int, Tensor]


class Kept(ABC):
    """The gradients of all losses over all their parameters, on one process or several.

    Attributes:
        params: the parameters, whether aggregated or not.
        common: those that are aggregated.
        m: number of losses.
        eps: rounding of the products, relative to the norms.
        open: False after what was kept has been freed.
        unknown: numbers of the losses that the step did not differentiate, and whose gradients are zero here.
    """

    params: list[Tensor]
    common: list[Tensor]
    m: int
    eps: float
    open = True
    unknown: Sequence[int] = ()
    _users = 0
    _blocks: dict[int, Tensor] | None = None

    def measure(self, vectors: Sequence[Vector]) -> Array:
        """Return the inner products of all gradients and vectors, ``(m + vectors, m + vectors)``.

        They are over all parameters, and identical on all processes.
        """
        products = self._measure(vectors, exact=False)
        if not np.isfinite(products).all() or out_of_range(products, self.eps) is not None:
            products = self._measure(vectors, exact=True)
        return products

    @abstractmethod
    def _measure(self, vectors: Sequence[Vector], *, exact: bool) -> Array:
        """Return the products. If they are to be exact, no product of finite numbers overflows or underflows."""

    @abstractmethod
    def combine(self, weights: Tensor) -> list[tuple[Tensor, Tensor]]:
        """Return each parameter with ``sum_k w_k g_k``, its local part for a DTensor. The gradients are kept."""

    def block(self, param: Tensor) -> Tensor:
        """Return all rows of a parameter that is aggregated, shape ``(m, *param)``; of its local part for a DTensor."""
        if self._blocks is None:
            wanted = {id(each) for each in self.common}
            rows: dict[int, list[Tensor]] = {}
            for unit in torch.eye(self.m, dtype=torch.float64, device="cpu"):
                for each, row in self.combine(unit):
                    if id(each) in wanted:
                        rows.setdefault(id(each), []).append(row.to_dense() if row.is_sparse else row)
            self._blocks = {key: torch.stack(found) for key, found in rows.items()}
        return self._blocks[id(param)]

    def columns(self, metric: Metric, movable: Sequence[Tensor], scales: Array, k: int) -> dict[int, Array]:
        """Return column k of the Gramian ``J P J.T`` of gradients times ``scales``, and others if they are free.

        Args:
            metric: the metric P.
            movable: the parameters over which the products are.
            scales: factors of the gradients, shape ``(m,)``.
            k: number of a loss.
        """
        vector = {id(param): torch.zeros_like(local(param)) for param in self.params}
        vector |= {
            id(param): part for param, part in self.multiplied(metric, movable, scales * (np.arange(self.m) == k))
        }
        return {k: self.measure([vector])[:-1, -1] * scales}

    def multiplied(self, metric: Metric, movable: Sequence[Tensor], weights: Array) -> list[tuple[Tensor, Tensor]]:
        """Return each movable parameter with its part of ``P sum_k w_k g_k``."""
        kept = {id(param) for param in movable}
        pairs = [(param, part) for param, part in self.combine(torch.from_numpy(weights)) if id(param) in kept]
        params = [param for param, _ in pairs]
        parts = [part.to_dense() if part.is_sparse else part for _, part in pairs]
        return list(zip(params, metric.apply(params, parts), strict=True))

    def updating(self) -> AbstractContextManager[None]:
        """Return the context in which the parameters may be changed."""
        return nullcontext()

    @contextmanager
    def used(self) -> Iterator[None]:
        """Use the gradients of one update. After the last use, what the graph holds is freed."""
        self._users += 1
        try:
            yield
        finally:
            self._users -= 1
            if not self._users:
                self._free()

    def _free(self) -> None:  # noqa: B027  # most hold nothing of the graph
        """Free what the graph holds."""


class KeptRows(Kept):
    """The rows of a single process."""

    def __init__(self, rows: Rows, common: Sequence[Tensor], own: Sequence[Tensor], eps: float) -> None:
        self.common = [param for param in common if rows.has(param)]
        self.params = [*self.common, *(param for param in own if rows.has(param))]
        self.m, self.eps, self._rows = rows.m, eps, rows

    def _measure(self, vectors: Sequence[Vector], *, exact: bool) -> Array:
        return as_array(self._rows.measure(self.params, vectors, exact=exact))

    def combine(self, weights: Tensor) -> list[tuple[Tensor, Tensor]]:
        return self._rows.combine(self.params, weights, keep=True)

    def block(self, param: Tensor) -> Tensor:
        return self._rows.block(param)

    def columns(self, metric: Metric, movable: Sequence[Tensor], scales: Array, k: int) -> dict[int, Array]:
        if self._rows.is_sparse:
            return super().columns(metric, movable, scales, k)
        gramian = as_array(self._rows.gramian(movable, metric=metric))  # reads the rows as often as one column does
        if not np.isfinite(gramian).all() or out_of_range(gramian, self.eps) is not None:
            gramian = as_array(self._rows.gramian(movable, metric=metric, exact=True))
        return dict(enumerate(gramian * scales * scales[:, None]))


class Update:
    """The change that an optimizer made. See `Step.of_update`.

    Attributes:
        certificate: slopes and conflicts; None before the change was made.
    """

    def __init__(self) -> None:
        self.certificate: UpdateCertificate | None = None

    @property
    def slopes(self) -> tuple[float, ...]:
        """Slopes of all losses along the change."""
        return self._found.slopes

    @property
    def cosines(self) -> tuple[float, ...]:
        """Cosines of all gradients with the change."""
        return self._found.cosines

    @property
    def conflicts(self) -> tuple[int, ...]:
        """Numbers of the losses that the change increases."""
        return self._found.conflicts

    @property
    def cosine(self) -> float:
        """Cosine of ``.grad`` with the change."""
        return self._found.cosine

    @property
    def _found(self) -> UpdateCertificate:
        if self.certificate is None:
            raise ParameterError("the update has not been made yet: call optimizer.step() inside of the with block")
        return self.certificate

    def __str__(self) -> str:
        return str(self._found)


@contextmanager
def watched(kept: Kept, names: tuple[str, ...] | None, update: Update) -> Iterator[Update]:
    """Compare the parameters before and after the block."""
    before = snapshot(kept.params)
    with kept.used(), torch.no_grad():
        with torch.enable_grad(), kept.updating():
            yield update
        change = difference(kept.params, before)
        grads = {id(param): param.grad for param in kept.params}
        known = all(grad is not None for grad in grads.values())
        direction = (
            {key: local(grad).to_dense() for key, grad in grads.items() if grad is not None} if known else change
        )
        products = kept.measure([change, direction])
    if not known:
        products[-1] = products[:, -1] = float("nan")
    unknown = list(kept.unknown)
    products[unknown] = products[:, unknown] = float("nan")
    update.certificate = UpdateCertificate.of_products(products, names)


def snapshot(params: Sequence[Tensor]) -> dict[int, Tensor]:
    """Return copies of the parameters."""
    values = [local(param).detach() for param in params]
    return {id(param): value.clone() for param, value in zip(params, values, strict=True)}


def difference(params: Sequence[Tensor], before: Vector) -> dict[int, Tensor]:
    """Return by how much the parameters have decreased."""
    return {id(param): before[id(param)] - local(param).detach() for param in params}
