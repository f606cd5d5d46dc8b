"""MNIST and Fashion-MNIST: images of 28 x 28 pixels in ten classes, and where their files come from.

The files of MNIST and the merged ones of Fashion-MNIST were at hand, and their checksums were computed. Those of the
publisher's four files of Fashion-MNIST are as several public repositories state them, in agreement; no download was
tried.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from paretograd.problems import sources
from paretograd.problems.sources import DataFile

_URL = "https://ossci-datasets.s3.amazonaws.com/mnist/"
_CHECKSUMS = {
    "train-images-idx3-ubyte": (47_040_016, "ba891046e6505d7aadcbbe25680a0738ad16aec93bde7f9b65e87a2fc25776db"),
    "train-labels-idx1-ubyte": (60_008, "65a50cbbf4e906d70832878ad85ccda5333a97f0f4c3dd2ef09a8a9eef7101c5"),
    "t10k-images-idx3-ubyte": (7_840_016, "0fa7898d509279e482958e8ce81c8e77db3f2f8254e26661ceb7762c4d494ce7"),
    "t10k-labels-idx1-ubyte": (10_008, "ff7bcfd416de33731a308c3f266cc351222c34898ecbeaf847f06e48f7ec33f2"),
}
FILES = tuple(DataFile(name, size, digest, f"{_URL}{name}.gz") for name, (size, digest) in _CHECKSUMS.items())

_FASHION_URL = "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/"
_FASHION_CHECKSUMS = {
    "train-images-idx3-ubyte": (47_040_016, "c59f468a2f672dc815687fe0f83887768d799fd8a3f3276145d20f83aa44d888"),
    "train-labels-idx1-ubyte": (60_008, "bad3541b69d912435c50bb6ba87bec294ff4f6a2e1246121d8633921760443d9"),
    "t10k-images-idx3-ubyte": (7_840_016, "5b4141f0afbad91edebe8549f8fcffe087ea10ca49f1dbef5c9a5cd8815ce37b"),
    "t10k-labels-idx1-ubyte": (10_008, "0402a96d92fd2663957122ceb108a494c5af83dab82d92729df917d7dec38c34"),
}
FASHION_FILES = tuple(
    DataFile(name, size, digest, f"{_FASHION_URL}{name}.gz") for name, (size, digest) in _FASHION_CHECKSUMS.items()
)
#: A copy in circulation, sorted by class. It is not quite the original: the mean of its pixels is 0.28622, while the
#: published means of the two parts, 0.28604 and 0.28685, make 0.28616.
FASHION_MERGED = (
    DataFile(
        "fashion-images-idx3-ubyte",
        54_880_016,
        "c2eca1e9516663aabf24ac91d5ec89c27b142be50a054f16d5fbe371f954b21f",
        _FASHION_URL,
    ),
    DataFile(
        "fashion-labels-idx1-ubyte",
        70_008,
        "63f8cb7dc6809bd7b3fa7cbd2ec97029b972e94fdb75e907ed468a1a36effe0f",
        _FASHION_URL,
    ),
)
#: Bytes of the headers of images and labels.
_HEADERS = (16, 8)


class Images(NamedTuple):
    """Images and their classes.

    Attributes:
        pixels: uint8, shape ``(N, 28, 28)``.
        labels: classes from 0 to 9, shape ``(N,)``.
    """

    pixels: Tensor
    labels: Tensor


def load_mnist(data_dir: str | Path | None = None) -> tuple[Images, Images]:
    """Read and verify the 60,000 training images and the 10,000 test images of MNIST.

    Args:
        data_dir: a folder with the four files, plain or compressed as .gz or .xz, or with the folder ``mnist``. None
            uses $PARETOGRAD_DATA, else the cache, else a download (12 MB).
    """
    train, test = map(_decoded, _records(sources.read(FILES, "mnist", data_dir)))
    return train, test


def load_fashion(data_dir: str | Path | None = None) -> Images:
    """Read and verify all 70,000 images of Fashion-MNIST, in the order of the SHA-256 of class and pixels.

    So the order is random, yet it depends on the images only, and equal images are neighbours.

    Args:
        data_dir: a folder with the publisher's four files, or with ``fashion-images-idx3-ubyte`` and
            ``fashion-labels-idx1-ubyte``, which hold all images; plain or compressed as .gz or .xz, or in the folder
            ``fashion``. None uses $PARETOGRAD_DATA, else the cache, else a download (31 MB).
    """
    given = data_dir if data_dir is not None else os.environ.get(sources.VARIABLE) or None
    merged = given is not None and all(
        sources.find(file.name, "fashion", Path(given), file.url) for file in FASHION_MERGED
    )
    contents = sources.read(FASHION_MERGED if merged else FASHION_FILES, "fashion", data_dir)
    rows = (row.tobytes() for records in _records(contents) for row in records)
    ordered = b"".join(sorted(rows, key=lambda row: hashlib.sha256(row).digest()))
    return _decoded(np.frombuffer(ordered, dtype=np.uint8).reshape(-1, 785))


def _records(contents: Sequence[bytes]) -> list[np.ndarray]:
    """Return a row of bytes for each image, its class and its pixels, from files of images and labels in turn."""
    found = []
    for images, labels in zip(contents[::2], contents[1::2], strict=True):
        pixels, classes = (
            np.frombuffer(content, dtype=np.uint8, offset=header)
            for content, header in zip((images, labels), _HEADERS, strict=True)
        )
        found.append(np.concatenate([classes.reshape(-1, 1), pixels.reshape(-1, 784)], axis=1))
    return found


def _decoded(records: np.ndarray) -> Images:
    pixels = torch.from_numpy(records[:, 1:].reshape(-1, 28, 28).copy())
    return Images(pixels, torch.from_numpy(records[:, 0].astype(np.int64)))
