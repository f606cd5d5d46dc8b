"""Models as rows: the updates of clients as a matrix, and a row taken off a model."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from paretograd.federated.replies import Arrays


def rows(model: Arrays, replies: Mapping[int, Arrays], names: list[str]) -> Tensor:
    """Updates, the global model minus each client's, as rows in float64."""
    return torch.stack([_flat(model, reply, names) for reply in replies.values()])


def _flat(model: Arrays, reply: Arrays, names: list[str]) -> Tensor:
    parts = [(model[name].astype(np.float64) - reply[name].astype(np.float64)).reshape(-1) for name in names]
    return torch.from_numpy(np.concatenate(parts)) if parts else torch.zeros(0, dtype=torch.float64, device="cpu")


def shift(model: dict[str, NDArray[np.generic]], names: list[str], by: Tensor) -> None:
    """Take a row off the arrays, in their own precision."""
    start = 0
    for name in names:
        array = model[name]
        part = by[start : start + array.size].reshape(array.shape).numpy()
        with np.errstate(over="ignore"):  # the step is looked at as a whole
            model[name] = np.asarray(array.astype(np.float64) - part).astype(array.dtype)
        start += array.size
