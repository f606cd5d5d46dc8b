"""Which arrays of a model are no parameters: a server averages them, since no gradient moves them."""

from __future__ import annotations

from torch import nn


def buffer_names(module: nn.Module) -> frozenset[str]:
    """Return the names of the arrays in a module's state that are not parameters.

    For BatchNorm these are ``running_mean``, ``running_var`` and ``num_batches_tracked``. An aggregator would weight
    them as if they were gradients.

    Args:
        module: the model that is trained.

    Example:
        >>> import torch
        >>> sorted(buffer_names(torch.nn.Sequential(torch.nn.Linear(2, 3), torch.nn.BatchNorm1d(3))))
        ['1.num_batches_tracked', '1.running_mean', '1.running_var']
    """
    buffers = {name for name, _ in module.named_buffers(remove_duplicate=False)}
    return frozenset(buffers & set(module.state_dict()))
