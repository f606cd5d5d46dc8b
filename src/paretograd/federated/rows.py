"""Models as rows: the updates of clients as a matrix, and a row taken off a model."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from paretograd.federated.replies import Arrays


def rows(model: Arrays, replies: Mapping[int, Arrays], names: list[str]) -> Tensor:
    """Return the updates (global model minus each client's) as float64 rows; zero where both are the same infinity."""
    sizes = [model[name].size for name in names]
    found = torch.empty(len(replies), sum(sizes), dtype=torch.float64, device="cpu")
    for row, reply in zip(found, replies.values(), strict=True):
        for name, part in zip(names, row.split(sizes), strict=True):
            out = part.numpy().reshape(model[name].shape)
            with np.errstate(invalid="ignore"):
                np.subtract(model[name], reply[name], out=out, dtype=np.float64)
            out[np.isnan(out)] = 0.0
    return found


def shift(model: dict[str, NDArray[np.generic]], names: list[str], by: Tensor) -> None:
    """Subtract a row from the arrays in place, keeping their dtypes."""
    start = 0
    for name in names:
        array = model[name]
        part = by[start : start + array.size].reshape(array.shape).numpy()
        with np.errstate(over="ignore"):  # the whole step is validated later
            model[name] = np.asarray(array.astype(np.float64) - part).astype(array.dtype)
        start += array.size
