"""A rule as a part of a torch module, so that a checkpoint of the model holds the rule's state."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor, nn

from paretograd.errors import ParameterError
from paretograd.plain import from_json, to_json

if TYPE_CHECKING:
    from paretograd.aggregators.base import Aggregator


class AggregatorModule(nn.Module):
    """A module without parameters whose `state_dict` holds the state of a rule.

    The state is one tensor of bytes, JSON in UTF-8: `torch.load` reads it with ``weights_only=True``, and a loop over
    the entries of a `state_dict` finds nothing but tensors.

    Args:
        aggregator: the rule; it stays as it is, and `backward` takes either.
    """

    def __init__(self, aggregator: Aggregator) -> None:
        super().__init__()
        self.aggregator = aggregator

    def forward(self, jacobian: Tensor) -> Tensor:
        """The rule's direction, shape ``(..., n)``, from a Jacobian of shape ``(..., m, n)``."""
        return self.aggregator(jacobian)

    def get_extra_state(self) -> Tensor:
        """What the module adds to a `state_dict`."""
        text = to_json(self.aggregator.state_dict())
        return torch.from_numpy(np.frombuffer(bytearray(text.encode()), dtype=np.uint8))

    def set_extra_state(self, state: Tensor) -> None:
        """Restore what `get_extra_state` returned."""
        found = from_json(state.cpu().numpy().tobytes().decode(errors="replace"))
        try:
            self.aggregator.load_state_dict(found)
        except (LookupError, TypeError, ValueError, RuntimeError) as error:
            if isinstance(error, ParameterError):
                raise
            raise ParameterError(f"the state of {self.aggregator!r} cannot be loaded ({error!r})") from error

    def extra_repr(self) -> str:
        return repr(self.aggregator)
