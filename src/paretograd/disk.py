"""Data on disk: atomic writing of files, named arrays in npz files, and states as JSON.

Nothing is pickled, so that files from untrusted sources are safe to read.
"""

from __future__ import annotations

import base64
import json
import math
import os
import zipfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import torch
from torch import Tensor

from paretograd.errors import InputError

#: Kinds of arrays allowed in an npz file: floats, integers, booleans, text.
_KINDS = "fiubU"
#: Keys that mark values for which JSON has no type.
_BYTES, _ARRAY, _TENSOR = "__bytes__", "__array__", "__tensor__"


@contextmanager
def replacing(path: Path) -> Iterator[BinaryIO]:
    """Open a temporary file that replaces ``path`` once it is completely on disk. Missing folders are created.

    If the process is killed while it writes, ``.name.pid.part`` remains, and the old file is unchanged.
    """
    draft = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            with draft.open("wb") as file:
                yield file
                file.flush()
                os.fsync(file.fileno())
            draft.replace(path)
        finally:
            draft.unlink(missing_ok=True)
    except OSError as error:
        raise InputError(f"{path} cannot be written: {error.strerror or error}") from None


def write_arrays(path: str | Path, values: Mapping[str, Any], overwrite: bool) -> Path:
    """Write arrays, numbers and text to an npz file; an existing file is replaced only if ``overwrite`` is set."""
    target = Path(path)
    if target.suffix.lower() != ".npz":
        raise InputError(f"the file's name must end in .npz; got {target}")
    if target.exists() and (target.is_dir() or not overwrite):
        what = "is a folder" if target.is_dir() else "exists; pass overwrite=True to replace it, or choose another name"
        raise InputError(f"{target} {what}")
    arrays = {name: np.asarray(value) for name, value in values.items()}
    for name, array in arrays.items():
        if array.dtype.kind not in _KINDS:  # numpy would pickle it
            raise InputError(f"{name} is an array of type {array.dtype}; a file can hold numbers, booleans and text")
    with replacing(target) as file:
        np.savez(file, **arrays)  # type: ignore[arg-type]  # the stub takes them for its own keywords
    return target


def read_arrays(path: str | Path) -> dict[str, Any]:
    """Read a file written by `write_arrays`; single values become Python scalars.

    The file is not trusted. Nothing in it is executed, object arrays are rejected, and the memory allocated does not
    exceed the size of the file.
    """
    source = Path(path)
    try:
        with zipfile.ZipFile(source) as archive:
            return {info.filename.removesuffix(".npy"): _member(archive, info) for info in archive.infolist()}
    except FileNotFoundError:
        raise InputError(f"there is no file {source}") from None
    except OSError as error:
        raise InputError(f"{source} cannot be read: {error.strerror or error}") from None
    except (
        zipfile.BadZipFile,
        ValueError,
        EOFError,
        KeyError,
        SyntaxError,
        NotImplementedError,
        RuntimeError,
    ) as error:
        raise InputError(f"{source} is not an archive of arrays, or it is damaged: {error}") from None


def _member(archive: zipfile.ZipFile, info: zipfile.ZipInfo) -> Any:
    """Read one array, after validating its header."""
    if not info.filename.endswith(".npy"):
        raise ValueError(f"{info.filename!r} is not an array")
    if info.compress_type != zipfile.ZIP_STORED:
        raise ValueError(f"{info.filename!r} is compressed, which this library never writes")
    with archive.open(info) as file:
        shape, dtype, header = _header(file)
    if dtype.kind not in _KINDS:
        raise ValueError(f"{info.filename!r} holds values of type {dtype}; numbers and text are allowed")
    if header + math.prod(shape) * dtype.itemsize != info.file_size:
        raise ValueError(f"{info.filename!r} declares the shape {shape}, which does not match its size")
    with archive.open(info) as file:
        array = np.lib.format.read_array(file, allow_pickle=False)
    return array if array.ndim else array.item()


def _header(file: BinaryIO | Any) -> tuple[tuple[int, ...], np.dtype[Any], int]:
    """Return the shape, the dtype and the size of the header in bytes."""
    version = np.lib.format.read_magic(file)
    if version not in ((1, 0), (2, 0)):
        raise ValueError(f"unsupported version {version} of numpy's format")
    reader = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
    shape, _, dtype = reader(file)
    return shape, dtype, file.tell()


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
        return torch.from_numpy(found[_TENSOR])
    return found
