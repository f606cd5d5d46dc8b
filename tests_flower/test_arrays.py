"""Arrays of Flower's records: read without a copy, and written with one, to the same bytes as Flower's own."""

from __future__ import annotations

import io

import numpy as np
import pytest
from flwr.app import Array

from paretograd.federated.messages import packed, shared

ARRAYS = {
    "float32": np.linspace(0.0, 1.0, 12, dtype=np.float32).reshape(3, 4),
    "float16": np.ones((2, 1, 3), dtype=np.float16),
    "by columns": np.asfortranarray(np.arange(6.0).reshape(2, 3)),
    "a number": np.array(7),
    "boolean": np.array([True, False]),
    "other byte order": np.arange(3, dtype=">f8"),
    "empty": np.zeros((0, 4), dtype=np.float32),
    "strided": np.arange(10.0)[::3],
}


@pytest.mark.parametrize("name", ARRAYS)
def test_an_array_is_read_as_flower_reads_it(name: str) -> None:
    record = Array(ARRAYS[name])
    found, wanted = shared(record), record.numpy()
    assert found.dtype == wanted.dtype
    assert found.shape == wanted.shape
    assert found.tobytes() == wanted.tobytes()
    if found.size:
        assert np.shares_memory(found, np.frombuffer(record.data, dtype=np.uint8))
        assert not found.flags.writeable


@pytest.mark.parametrize("version", [(1, 0), (2, 0), (3, 0)])
def test_every_version_of_the_format_is_read(version: tuple[int, int]) -> None:
    file = io.BytesIO()
    np.lib.format.write_array(file, ARRAYS["float32"], version)
    found = shared(Array("float32", (3, 4), "numpy.ndarray", file.getvalue()))
    assert np.array_equal(found, ARRAYS["float32"])


def test_data_that_are_too_short_are_refused_and_more_are_ignored() -> None:
    """As by Flower."""
    whole = Array(ARRAYS["float32"]).data
    with pytest.raises(ValueError, match="buffer is smaller"):
        shared(Array("float32", (3, 4), "numpy.ndarray", whole[:-1]))
    assert np.array_equal(shared(Array("float32", (3, 4), "numpy.ndarray", whole + b"more")), ARRAYS["float32"])


def test_objects_are_not_unpickled() -> None:
    file = io.BytesIO()
    np.save(file, np.array([print], dtype=object), allow_pickle=True)
    with pytest.raises(ValueError, match="allow_pickle"):
        shared(Array("object", (1,), "numpy.ndarray", file.getvalue()))


@pytest.mark.parametrize("name", [name for name in ARRAYS if name not in ("by columns", "strided")])
def test_an_array_is_written_as_flower_writes_it(name: str) -> None:
    found, wanted = packed(ARRAYS[name]), Array(ARRAYS[name])
    assert (found.dtype, found.shape, found.stype, found.data) == (
        wanted.dtype,
        wanted.shape,
        wanted.stype,
        wanted.data,
    )


@pytest.mark.parametrize("name", ["by columns", "strided"])
def test_an_array_in_another_order_is_written_by_rows(name: str) -> None:
    assert np.array_equal(packed(ARRAYS[name]).numpy(), ARRAYS[name])
