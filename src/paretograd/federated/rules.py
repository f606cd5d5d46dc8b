"""Kinds of rules that a server can apply to updates: by their Gramian, by coordinate, or to all rows at once."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable

from torch import Tensor

from paretograd.aggregators.base import Aggregator
from paretograd.geometry.gramian import combine, gramian


class GramianRule(ABC):
    """A rule that weights updates by their Gramian, so that the server reads them in blocks."""

    @abstractmethod
    def weights(self, gramian: Tensor) -> Tensor:
        """Return the weights of the updates, ``(m,)``, from their Gramian, ``(m, m)``, in float64 on the CPU."""

    def __call__(self, updates: Tensor) -> Tensor:
        """Return the direction, ``(n,)``, for updates ``(m, n)``."""
        return combine(self.weights(gramian(updates).cpu()), updates)


class CoordinateRule(ABC):
    """A rule that treats each coordinate by itself, so that the server calls it on blocks of columns."""

    @abstractmethod
    def __call__(self, updates: Tensor) -> Tensor:
        """Return the direction, ``(n,)``, for any columns of the updates, ``(m, n)``, and leave these unchanged.

        The number of updates alone decides whether this raises an error.
        """


#: A rule of the library, one of the two above, or a function from updates ``(m, n)`` to a direction ``(n,)``.
Rule = Aggregator | GramianRule | CoordinateRule | Callable[[Tensor], Tensor]
