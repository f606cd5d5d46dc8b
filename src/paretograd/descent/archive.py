"""Named arrays, numbers and text in npz files, written atomically and safe to read from untrusted sources."""

from __future__ import annotations

import math
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from paretograd.disk import replacing
from paretograd.errors import InputError

#: Kinds of arrays allowed in a file: floats, integers, booleans, text.
_KINDS = "fiubU"


def write(path: str | Path, values: Mapping[str, Any], overwrite: bool) -> Path:
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


def read(path: str | Path) -> dict[str, Any]:
    """Read a file written by `write`; single values become Python scalars.

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
