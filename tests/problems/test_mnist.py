"""Fashion-MNIST is read from four files or from two; `tests/experiments/optimizers/test_digits.py` tests MNIST."""

from __future__ import annotations

import hashlib
import struct
from pathlib import Path

import numpy as np
import pytest
import torch

from paretograd.errors import DataError
from paretograd.problems import mnist
from paretograd.problems.mnist import load_fashion
from paretograd.problems.sources import DataFile


def packed(pixels: np.ndarray, labels: np.ndarray) -> tuple[bytes, bytes]:
    """Files of images and labels."""
    count = len(labels)
    return struct.pack(">IIII", 2051, count, 28, 28) + pixels.tobytes(), struct.pack(
        ">II", 2049, count
    ) + labels.tobytes()


def expected(names: tuple[str, ...], contents: list[bytes]) -> tuple[DataFile, ...]:
    return tuple(
        DataFile(name, len(content), hashlib.sha256(content).hexdigest(), f"https://example.org/{name}.gz")
        for name, content in zip(names, contents, strict=True)
    )


class TestFashionFiles:
    @pytest.fixture
    def folders(self, tmp_path, monkeypatch) -> tuple[Path, Path]:
        """The same 40 images as four files, and sorted by class as two."""
        rng = np.random.default_rng(0)
        pixels, labels = rng.integers(256, size=(40, 28, 28), dtype=np.uint8), rng.integers(10, size=40, dtype=np.uint8)
        by_class = np.argsort(labels, kind="stable")
        four = [*packed(pixels[:30], labels[:30]), *packed(pixels[30:], labels[30:])]
        two = [*packed(pixels[by_class], labels[by_class])]
        for attribute, contents in (("FASHION_FILES", four), ("FASHION_MERGED", two)):
            names = tuple(file.name for file in getattr(mnist, attribute))
            monkeypatch.setattr(mnist, attribute, expected(names, contents))
            (tmp_path / attribute / "fashion").mkdir(parents=True)
            for name, content in zip(names, contents, strict=True):
                (tmp_path / attribute / "fashion" / name).write_bytes(content)
        return tmp_path / "FASHION_FILES", tmp_path / "FASHION_MERGED"

    def test_both_forms_give_the_same_images_in_the_same_order(self, folders):
        first, second = map(load_fashion, folders)
        assert torch.equal(first.pixels, second.pixels)
        assert torch.equal(first.labels, second.labels)
        assert first.pixels.shape == (40, 28, 28)
        digests = [
            hashlib.sha256(bytes([label]) + image.numpy().tobytes()).digest()
            for image, label in zip(*first, strict=True)
        ]
        assert digests == sorted(digests)

    def test_a_file_with_other_content(self, folders):
        (folders[1] / "fashion" / "fashion-labels-idx1-ubyte").write_bytes(b"something else")
        with pytest.raises(DataError, match="is not the expected fashion-labels-idx1-ubyte"):
            load_fashion(folders[1])

    def test_no_file(self, tmp_path):
        with pytest.raises(DataError, match=r"holds no train-images-idx3-ubyte .* Fetch http://fashion-mnist"):
            load_fashion(tmp_path)
