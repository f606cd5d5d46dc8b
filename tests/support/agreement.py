"""Two models that were trained alike, compared."""

from __future__ import annotations

import torch
from torch import nn


def agree(found: nn.Module, expected: nn.Module, rtol: float = 1e-5, atol: float = 1e-6) -> None:
    """Compare all trained parameters. By default, float32 may add up in another order in each of some ten steps."""
    trained = {name: param for name, param in expected.named_parameters() if param.requires_grad}
    assert trained
    for name, param in trained.items():
        torch.testing.assert_close(found.get_parameter(name), param, rtol=rtol, atol=atol)
