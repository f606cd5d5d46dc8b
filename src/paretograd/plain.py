"""Serialisation of states without pickle: nested dictionaries to one line of JSON and back."""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping
from typing import Any

import numpy as np
from torch import Tensor

from paretograd.errors import InputError

#: Keys that mark values for which JSON has no type.
_BYTES, _ARRAY, _TENSOR = "__bytes__", "__array__", "__tensor__"


def to_json(state: Mapping[str, Any]) -> str:
    """Convert nested dictionaries, lists, numbers, strings, bytes, arrays and tensors to JSON; floats stay exact."""
    return json.dumps(state, default=_encode, sort_keys=True)


def from_json(text: str) -> Any:
    """Restore the state from the output of `to_json`. Tuples become lists."""
    try:
        return json.loads(text, object_hook=_decode)
    except (ValueError, TypeError, KeyError, RecursionError) as error:
        raise InputError(f"a state is damaged: {error}") from None


def _encode(value: object) -> object:
    if isinstance(value, (bytes, bytearray)):
        return {_BYTES: base64.b64encode(bytes(value)).decode("ascii")}
    if isinstance(value, Tensor):
        return {_TENSOR: _encode(value.detach().cpu().numpy())}
    if isinstance(value, np.ndarray) and value.dtype.kind in "fiub":
        raw = base64.b64encode(np.ascontiguousarray(value).tobytes()).decode("ascii")
        return {_ARRAY: raw, "dtype": value.dtype.str, "shape": list(value.shape)}
    if isinstance(value, np.generic):
        return value.item()
    raise TypeError(f"a state holds a {type(value).__name__}, which is not plain data: use numbers, text and arrays")


def _decode(found: dict[str, Any]) -> Any:
    if _BYTES in found:
        return base64.b64decode(found[_BYTES])
    if _ARRAY in found:
        dtype = np.dtype(found["dtype"])
        if dtype.kind not in "fiub":
            raise ValueError(f"an array of type {dtype}")
        return np.frombuffer(base64.b64decode(found[_ARRAY]), dtype).reshape(found["shape"]).copy()
    if _TENSOR in found:
        import torch

        return torch.from_numpy(found[_TENSOR])
    return found
