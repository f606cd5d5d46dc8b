"""A Jacobian from a file: csv or npy, one gradient per row. Every fault is named with its place and its remedy."""

from __future__ import annotations

import io
import sys
from importlib import resources
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from paretograd.errors import DTypeError, InputError, NonFiniteGradientError, ShapeError
from paretograd.geometry.gramian import Array

_NPY = b"\x93NUMPY"


def read_jacobian(source: str) -> Tensor:
    """Read a Jacobian of shape ``(m, n)``, m >= 2, as float64.

    Args:
        source: path of a csv or npy file, ``-`` for standard input, or ``example`` for the bundled example.
    """
    raw = _read_bytes(source)
    values = _parse_npy(raw, source) if raw.startswith(_NPY) else _parse_text(raw, source)
    m, n = values.shape
    if m < 2:
        raise ShapeError(
            f"{source} holds one gradient of {n} numbers; comparing rules takes two or more, one gradient per row. "
            "If the file has one gradient per column, transpose it"
        )
    finite = np.isfinite(values).all(axis=1)
    if not finite.all():
        raise NonFiniteGradientError(np.flatnonzero(~finite).tolist(), what=f"gradient in {source}")
    return torch.from_numpy(values)


def _read_bytes(source: str) -> bytes:
    if source == "-":
        return sys.stdin.buffer.read()
    if source == "example":
        return resources.files("paretograd").joinpath("data", "three_tasks.csv").read_bytes()
    path = Path(source)
    if not path.exists():
        raise InputError(
            f"there is no file {source}; give a csv or npy file with one gradient per row, or the word 'example'"
        )
    if path.is_dir():
        raise InputError(f"{source} is a folder; give a csv or npy file with one gradient per row")
    try:
        raw = path.read_bytes()
    except OSError as error:
        raise InputError(f"cannot read {source}: {error.strerror}") from None
    if path.suffix.lower() == ".npy" and not raw.startswith(_NPY):
        raise InputError(f"{source} is called npy but is not one; write it with numpy.save(path, jacobian)")
    return raw


def _parse_npy(raw: bytes, source: str) -> Array:
    try:
        values = np.load(io.BytesIO(raw), allow_pickle=False)
    except ValueError as error:
        if "allow_pickle" in str(error):
            raise _wrong_dtype(source, "object") from None
        raise InputError(f"{source} is a damaged npy file: {error}") from None
    except (EOFError, OSError, SyntaxError) as error:
        raise InputError(f"{source} is a damaged npy file: {error}") from None
    if values.dtype.kind not in "fiu":
        raise _wrong_dtype(source, str(values.dtype))
    if values.ndim != 2 or 0 in values.shape:
        raise ShapeError(
            f"{source} holds an array of shape {values.shape}; a Jacobian has two dimensions (m, n), "
            "one row per objective, and is not empty. Flatten each gradient and stack them with numpy.stack"
        )
    return np.ascontiguousarray(values, dtype=np.float64)


def _wrong_dtype(source: str, dtype: str) -> DTypeError:
    return DTypeError(f"{source} holds values of type {dtype}; a Jacobian holds real numbers, such as float64")


def _parse_text(raw: bytes, source: str) -> Array:
    try:
        text = raw.decode("utf-8-sig")
    except UnicodeDecodeError:
        raise InputError(
            f"{source} is neither text nor npy; write the Jacobian with numpy.save or numpy.savetxt"
        ) from None
    lines = [(number, line.partition("#")[0].strip()) for number, line in enumerate(text.splitlines(), start=1)]
    table = [(number, _cells(line)) for number, line in lines if line]
    if table and not any(_is_number(cell) for cell in table[0][1]):
        table = table[1:]  # a header names the columns; we do not need it
    if not table:
        raise InputError(f"{source} holds no numbers; write one gradient per row, separated by commas or blanks")
    first, width = table[0][0], len(table[0][1])
    for number, cells in table:
        for column, cell in enumerate(cells, start=1):
            if not _is_number(cell):
                found = f"{cell!r} is not a number" if cell else "there is an empty cell"
                raise InputError(
                    f"{source}, line {number}, column {column}: {found}; every cell is a number such as -0.25 or 1e-3, "
                    "separated by commas or blanks"
                )
        if len(cells) != width:
            raise ShapeError(
                f"{source}: line {number} has {len(cells)} numbers, but line {first} has {width}; "
                "every gradient has one number for each parameter"
            )
    return np.array([[float(cell) for cell in cells] for _, cells in table], dtype=np.float64)


def _cells(line: str) -> list[str]:
    return [cell.strip() for cell in line.split(",")] if "," in line else line.split()


def _is_number(cell: str) -> bool:
    try:
        float(cell)
    except ValueError:
        return False
    return True
