"""Pairs of digits: how they are drawn, that two digits can be learned at once, and where the files come from."""

from __future__ import annotations

import gzip
import hashlib
import io
import struct
from pathlib import Path

import numpy as np
import pytest
import torch

from paretograd.errors import DataError
from paretograd.experiments.optimizers import OptimizerStudy, run_optimizers
from paretograd.experiments.optimizers.digits import Digits, load_digits, pairs
from paretograd.experiments.optimizers.study import Case
from paretograd.experiments.optimizers.training import train
from paretograd.problems import mnist
from paretograd.problems.sources import DataFile


def made_digits() -> Digits:
    """Each digit is a bright row of its own."""
    labels = torch.arange(10).repeat(5)
    images = torch.zeros(50, 14, 14)
    images[torch.arange(50), labels + 2] = 1.0
    return Digits((images, labels), (images, labels))


@pytest.fixture
def packed(monkeypatch) -> dict[str, bytes]:
    """Files like those of MNIST, with 60 images each; their checksums are the expected ones."""
    monkeypatch.delenv("PARETOGRAD_DATA", raising=False)
    pixels = np.arange(60 * 28 * 28, dtype=np.uint32).astype(np.uint8).tobytes()
    contents = {}
    for part in ("train", "t10k"):
        contents[f"{part}-images-idx3-ubyte"] = struct.pack(">IIII", 2051, 60, 28, 28) + pixels
        contents[f"{part}-labels-idx1-ubyte"] = struct.pack(">II", 2049, 60) + bytes([7, 0, 9] * 20)
    files = [
        DataFile(file.name, len(content), hashlib.sha256(content).hexdigest(), file.url)
        for file, content in ((file, contents[file.name]) for file in mnist.FILES)
    ]
    monkeypatch.setattr(mnist, "FILES", files)
    load_digits.cache_clear()
    yield contents
    load_digits.cache_clear()


class TestPairs:
    def test_the_first_is_at_the_top_left_and_the_second_at_the_bottom_right(self):
        images = torch.stack((torch.full((14, 14), 0.25), torch.full((14, 14), 0.75)))
        drawn, labels = pairs(images, torch.tensor([3, 8]), 40, torch.Generator().manual_seed(0))
        assert drawn.shape == (40, 1, 18, 18)
        brightness = {3: 0.25, 8: 0.75}
        for image, (first, second) in zip(drawn[:, 0], labels.tolist(), strict=True):
            assert (image[:4, :14] == brightness[first]).all()
            assert (image[14:, 4:] == brightness[second]).all()
            assert (image[4:14, 4:14] == max(brightness[first], brightness[second])).all()
            assert (image[:4, 14:] == 0.0).all()

    def test_all_parameters_are_shared_by_both_losses(self):
        made = made_digits()
        network = made.network(0)
        for loss in made.losses(network, made.batch(torch.Generator().manual_seed(0))):
            grads = torch.autograd.grad(loss, list(network.parameters()), retain_graph=True)
            assert all(grad.abs().max() > 0.0 for grad in grads)

    @pytest.mark.usefixtures("ticking")
    def test_two_digits_are_learned_at_once(self):
        """Chance is 0.9 of the answers wrong."""
        case = Case("multi-mnist", "fresh", "upgrad", "adam", "projected", "UPGrad")
        found = train(case, made_digits(), 1e-2, 0, 0.6, lambda: False)
        assert found.error < 0.3
        assert (found.measured, found.conflicting) == (4, 0)


class TestFiles:
    def test_a_folder(self, packed, tmp_path):
        (tmp_path / "mnist").mkdir()
        for number, (name, content) in enumerate(packed.items()):
            path = tmp_path / "mnist" / name
            path.write_bytes(content) if number else Path(f"{path}.gz").write_bytes(gzip.compress(content))
        images, labels = load_digits(tmp_path).train
        assert labels.tolist() == [7, 0, 9] * 20
        assert images.shape == (60, 14, 14)
        assert images[0, 0, 1].item() == pytest.approx((2 + 3 + 30 + 31) / 4 / 255)

    def test_a_download(self, packed, tmp_path, monkeypatch):
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))

        def answer(url, timeout):
            return io.BytesIO(gzip.compress(packed[url.rpartition("/")[2].removesuffix(".gz")]))

        monkeypatch.setattr("urllib.request.urlopen", answer)
        assert load_digits(None).test[1].tolist() == [7, 0, 9] * 20
        monkeypatch.setattr("urllib.request.urlopen", lambda url, timeout: io.BytesIO(b"not found"))
        load_digits.cache_clear()
        assert len(load_digits(None).train[1]) == 60  # from the cache

    def test_a_download_that_is_something_else(self, packed, tmp_path, monkeypatch):
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
        monkeypatch.setattr("urllib.request.urlopen", lambda url, timeout: io.BytesIO(b"not found"))
        with pytest.raises(DataError, match=r"train-images-idx3-ubyte.gz is not a valid .gz file"):
            load_digits(None)

    def test_missing_files_are_found_before_anything_is_written(self, packed, tmp_path):
        (tmp_path / "data").mkdir()
        study = OptimizerStudy(problems=("multi-mnist",))
        with pytest.raises(DataError, match="holds no train-images-idx3-ubyte"):
            run_optimizers(study, tmp_path / "study", data_dir=tmp_path / "data")
        assert not (tmp_path / "study").exists()
