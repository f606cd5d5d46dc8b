"""CIFAR-10, read from either of its official layouts, and its split over federated clients.

Pixels and labels are verified, not files. The python layout consists of pickles. They are read by an unpickler that can
construct arrays of bytes and nothing else, and the result must have the checksum of the binary layout's records.
"""

from __future__ import annotations

import io
import os
import pickle
import tarfile
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from paretograd.errors import DataError, ParameterError
from paretograd.problems import sources
from paretograd.problems.sources import DataFile

_URL = "https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz"
_ARCHIVE_SIZE = 170052171

#: Number of images in a file, and of bytes of an image: its label, then 32 x 32 pixels of each colour.
_COUNT, _RECORD = 10_000, 1 + 3 * 32 * 32

_CHECKSUMS = {
    "data_batch_1": "cee916563c9f80d84e3cc88e17fdc0941787f1244f00a67874d45b261883ada5",
    "data_batch_2": "a591ca11fa1708a91ee40f54b3da4784ccd871ecf2137de63f51ada8b3fa57ed",
    "data_batch_3": "bbe8596564c0f86427f876058170b84dac6670ddf06d79402899d93ceea26f67",
    "data_batch_4": "014e562d6e23c72197cc727519169a60359f5eccd8945ad5a09d710285ff4e48",
    "data_batch_5": "755304fc0b379caeae8c14f0dac912fbc7d6cd469eb67a1029a08a39453a9add",
    "test_batch": "8e2eb146ae340b09e24670f29cabc6326dba54da8789dab6768acf480273f65b",
}
FILES = tuple(DataFile(f"{name}.bin", _COUNT * _RECORD, digest, _URL) for name, digest in _CHECKSUMS.items())

BINARY, PYTHON = "cifar-10-batches-bin", "cifar-10-batches-py"

#: Upper bound on the bytes of a pickle, which is slightly longer than its records.
_LONGEST_PICKLE = 2 * _COUNT * _RECORD


class Images(NamedTuple):
    """Images and their classes.

    Attributes:
        pixels: uint8, shape ``(N, 3, 32, 32)``.
        labels: classes from 0 to 9, shape ``(N,)``.
    """

    pixels: Tensor
    labels: Tensor


class Cifar10(NamedTuple):
    """50,000 training images and 10,000 test images."""

    train: Images
    test: Images


class Partition(NamedTuple):
    """Images of each client.

    Attributes:
        train: for each client, the indices of its training images.
        test: for each client, the indices of test images with the same share of every class.
    """

    train: list[Tensor]
    test: list[Tensor]


def load_cifar10(data_dir: str | Path | None = None) -> Cifar10:
    """Read and verify the data.

    Args:
        data_dir: a folder that holds ``cifar-10-batches-bin`` or ``cifar-10-batches-py``, or is one of them; files may
            be compressed as .gz or .xz. None uses $PARETOGRAD_DATA, else the cache, else a download (170 MB).
    """
    given = data_dir if data_dir is not None else os.environ.get(sources.VARIABLE) or None
    if given is not None:
        records = _local(Path(given))
    else:
        folder = sources.cache() / BINARY
        if not all(sources.is_there(folder / file.name, [_URL], BINARY) for file in FILES):
            records = _download(folder)
        else:
            records = [sources.verified(file, folder / file.name) for file in FILES]
    images = [_images(content) for content in records]
    train = Images(*(torch.cat(parts) for parts in zip(*images[:-1], strict=True)))
    return Cifar10(train, images[-1])


def _local(folder: Path) -> list[bytes]:
    found = [sources.find(file.name, BINARY, folder, _URL) for file in FILES]
    if all(path is not None for path in found):
        return [sources.verified(file, path) for file, path in zip(FILES, found, strict=True) if path is not None]
    pickles = [sources.find(file.name.removesuffix(".bin"), PYTHON, folder, _URL) for file in FILES]
    if all(path is not None for path in pickles):
        return [_from_pickle(file, path) for file, path in zip(FILES, pickles, strict=True) if path is not None]
    raise DataError(
        f"{folder} holds neither {BINARY} nor {PYTHON} with all six batches. Fetch {_URL}, unpack it in a folder, for "
        f"instance data, and pass --data-dir data or set {sources.VARIABLE}=data"
    )


def _download(folder: Path) -> list[bytes]:
    """Download the archive, verify each of its batches, and store them in ``folder`` if it is writable."""
    archive = io.BytesIO(sources.download(_URL, _ARCHIVE_SIZE + 1, BINARY))
    wanted, found = {file.name: file for file in FILES}, {}
    try:
        with tarfile.open(fileobj=archive, mode="r:gz") as packed:
            for member in packed:
                file = wanted.pop(Path(member.name).name, None)
                stream = packed.extractfile(member) if file is not None and member.isfile() else None
                if file is not None and stream is not None:
                    content = stream.read(file.size + 1)
                    sources.check(file, content, f"{file.name} of {_URL}")
                    found[file.name] = content
    except (tarfile.TarError, EOFError, OSError, zlib.error) as error:
        raise DataError(f"the download from {_URL} is not a valid archive ({error}); try again") from error
    lacking = [file.name for file in FILES if file.name not in found]
    if lacking:
        raise DataError(f"the archive of {_URL} lacks {', '.join(lacking)}")
    for name, content in found.items():
        sources.store(folder / name, content)
    return [found[file.name] for file in FILES]


def _images(content: bytes) -> Images:
    rows = np.frombuffer(content, dtype=np.uint8).reshape(-1, _RECORD)
    pixels = torch.from_numpy(rows[:, 1:].reshape(-1, 3, 32, 32).copy())
    return Images(pixels, torch.from_numpy(rows[:, 0].astype(np.int64)))


def partition(
    data: Cifar10, seed: int, *, clients: int = 10, shards: int = 10, size: int = 200, test_size: int = 40
) -> Partition:
    """Sort the training images by class, cut them into shards, and deal shards to the clients at random.

    Args:
        data: the images.
        seed: seed of the deal and of the draw of test images.
        clients: number of clients.
        shards: number of shards per client.
        size: number of images per shard.
        test_size: number of test images per shard, of its classes; a client draws no image twice.
    """
    labels = data.train.labels.numpy()
    count = len(labels) // size
    if clients * shards > count:
        raise ParameterError(
            f"{clients} clients with {shards} shards of {size} images need more than the {len(labels)} images there are"
        )
    rng = np.random.default_rng(seed)
    by_class = np.argsort(labels, kind="stable")
    dealt = rng.permutation(count)[: clients * shards].reshape(clients, shards)
    train = [np.concatenate([by_class[size * s : size * (s + 1)] for s in sorted(own)]) for own in dealt]
    test = [_same_classes(rng, data.test, labels[own], test_size * shards) for own in train]
    return Partition([torch.from_numpy(own) for own in train], [torch.from_numpy(own) for own in test])


def _same_classes(rng: np.random.Generator, test: Images, labels: NDArray[np.int64], count: int) -> NDArray[np.int64]:
    """Draw ``count`` test images with the same shares of classes as a client's training images."""
    found = []
    candidates = test.labels.numpy()
    for label, images in zip(*np.unique(labels, return_counts=True), strict=True):
        own = np.flatnonzero(candidates == label)
        wanted = round(count * images / len(labels))
        if wanted > len(own):
            raise ParameterError(f"class {label} has {len(own)} test images, but a client needs {wanted}")
        found.append(np.sort(rng.choice(own, wanted, replace=False)))
    return np.concatenate(found)


class _ArraysOnly(pickle.Unpickler):
    """Unpickler that constructs arrays of bytes and rejects everything else."""

    def find_class(self, module: str, name: str) -> Any:
        if module in ("numpy.core.multiarray", "numpy._core.multiarray") and name == "_reconstruct":
            return _reconstruct
        if (module, name) == ("numpy", "ndarray"):
            return np.ndarray
        if (module, name) == ("numpy", "dtype"):
            return np.dtype
        if (module, name) == ("_codecs", "encode"):
            return _as_bytes
        raise pickle.UnpicklingError(f"it asks for {module}.{name}")


def _as_bytes(text: object, encoding: object) -> bytes:
    """Return the bytes that Python 3 pickled as text in the old protocols."""
    if not isinstance(text, str) or encoding != "latin1":
        raise pickle.UnpicklingError("it asks for an encoding")
    return text.encode("latin1")


def _reconstruct(kind: object, shape: object, code: object) -> Any:
    """Return an empty array, whose state the pickle sets afterwards."""
    if kind is not np.ndarray:
        raise pickle.UnpicklingError(f"it asks for a {kind!r}")
    return np.ndarray.__new__(np.ndarray, (0,), dtype=np.uint8)


def _from_pickle(file: DataFile, path: Path) -> bytes:
    """Convert a batch of the python layout to the records of the binary layout."""
    content = sources.unpacked(path, _LONGEST_PICKLE, _URL)
    try:
        batch = dict(_entries(_ArraysOnly(io.BytesIO(content), encoding="bytes").load()))
        pixels, labels = np.asarray(batch["data"]), np.asarray(batch["labels"])
        rows = np.concatenate([labels.astype(np.uint8).reshape(-1, 1), pixels.astype(np.uint8)], axis=1)
    except (pickle.UnpicklingError, ValueError, TypeError, KeyError, EOFError, AttributeError, IndexError) as error:
        raise DataError(f"{path} is not a batch of CIFAR-10 ({error}). Fetch the data again") from error
    found = rows.tobytes()
    sources.check(file, found, str(path))
    return found


def _entries(batch: object) -> Iterator[tuple[str, Any]]:
    if not isinstance(batch, dict):
        raise TypeError(f"a {type(batch).__name__}, not a dictionary")
    for key, value in batch.items():
        yield key.decode("ascii") if isinstance(key, bytes) else str(key), value
