"""CIFAR-10 in either layout, read without trust, and its split over clients. The images are made here."""

from __future__ import annotations

import hashlib
import io
import lzma
import os
import pickle
import tarfile
from pathlib import Path

import numpy as np
import pytest
import torch

import paretograd as pg
from paretograd.errors import DataError
from paretograd.problems import sources
from paretograd.problems.cifar10 import Cifar10, Images, cnn, load_cifar10, partition
from paretograd.problems.cifar10 import data as module

NAMES = [f"data_batch_{k}" for k in range(1, 6)] + ["test_batch"]
EACH = 12


@pytest.fixture
def records(monkeypatch: pytest.MonkeyPatch) -> dict[str, bytes]:
    """Made batches in the binary layout, by name, with their checksums in the place of the real ones."""
    rng = np.random.default_rng(0)
    made = {}
    for name in NAMES:
        rows = rng.integers(0, 256, (EACH, 3073), dtype=np.uint8)
        rows[:, 0] = rng.integers(0, 10, EACH)
        made[name] = rows.tobytes()
    files = tuple(
        module.DataFile(f"{name}.bin", len(content), hashlib.sha256(content).hexdigest(), "https://example.org/cifar")
        for name, content in made.items()
    )
    monkeypatch.setattr(module, "FILES", files)
    monkeypatch.delenv(sources.VARIABLE, raising=False)
    return made


def binary(folder: Path, records: dict[str, bytes]) -> Path:
    place = folder / "cifar-10-batches-bin"
    place.mkdir(parents=True)
    for name, content in records.items():
        (place / f"{name}.bin").write_bytes(content)
    return folder


def python(folder: Path, records: dict[str, bytes], protocol: int = 2) -> Path:
    place = folder / "cifar-10-batches-py"
    place.mkdir(parents=True)
    for name, content in records.items():
        rows = np.frombuffer(content, dtype=np.uint8).reshape(-1, 3073)
        batch = {b"labels": rows[:, 0].tolist(), b"data": rows[:, 1:].copy(), b"filenames": [b"x.png"] * len(rows)}
        (place / name).write_bytes(pickle.dumps(batch, protocol=protocol))
    return folder


def check(found: Cifar10, records: dict[str, bytes]) -> None:
    rows = np.frombuffer(b"".join(records[name] for name in NAMES), dtype=np.uint8).reshape(-1, 3073)
    labels = torch.cat([found.train.labels, found.test.labels])
    pixels = torch.cat([found.train.pixels, found.test.pixels])
    assert labels.tolist() == rows[:, 0].tolist()
    assert np.array_equal(pixels.numpy().reshape(len(rows), -1), rows[:, 1:])
    assert len(found.test.labels) == EACH


def test_binary_layout(tmp_path: Path, records: dict[str, bytes], monkeypatch: pytest.MonkeyPatch) -> None:
    folder = binary(tmp_path, records)
    check(load_cifar10(folder), records)
    check(load_cifar10(folder / "cifar-10-batches-bin"), records)
    monkeypatch.setenv(sources.VARIABLE, str(folder))
    check(load_cifar10(), records)


def test_packed_files(tmp_path: Path, records: dict[str, bytes]) -> None:
    for name, content in records.items():
        (tmp_path / f"{name}.bin.xz").write_bytes(lzma.compress(content))
    check(load_cifar10(tmp_path), records)


@pytest.mark.parametrize("protocol", [2, 4])
def test_python_layout(tmp_path: Path, records: dict[str, bytes], protocol: int) -> None:
    check(load_cifar10(python(tmp_path, records, protocol)), records)


class Hostile:
    def __init__(self, target: Path) -> None:
        self.target = target

    def __reduce__(self) -> tuple[object, tuple[str]]:
        return os.system, (f"touch {self.target}",)


def test_a_hostile_pickle_runs_nothing(tmp_path: Path, records: dict[str, bytes]) -> None:
    folder, target = python(tmp_path, records), tmp_path / "owned"
    batch = {b"labels": Hostile(target), b"data": np.zeros(3)}
    (folder / "cifar-10-batches-py" / "data_batch_3").write_bytes(pickle.dumps(batch))
    with pytest.raises(DataError, match=r"data_batch_3 is not a batch .*system"):
        load_cifar10(folder)
    assert not target.exists()


@pytest.mark.parametrize("content", [b"", b"no pickle", pickle.dumps([1, 2]), pickle.dumps({b"labels": [1]})])
def test_a_file_that_is_no_batch(tmp_path: Path, records: dict[str, bytes], content: bytes) -> None:
    folder = python(tmp_path, records)
    (folder / "cifar-10-batches-py" / "test_batch").write_bytes(content)
    with pytest.raises(DataError, match="test_batch is not a batch"):
        load_cifar10(folder)


def test_other_pixels_are_refused(tmp_path: Path, records: dict[str, bytes]) -> None:
    changed = records | {"data_batch_2": bytes(reversed(records["data_batch_2"]))}
    with pytest.raises(DataError, match=r"data_batch_2.* sha256"):
        load_cifar10(binary(tmp_path / "a", changed))
    with pytest.raises(DataError, match=r"data_batch_2.* sha256"):
        load_cifar10(python(tmp_path / "b", changed))


def test_missing_files_say_where_to_get_them(tmp_path: Path, records: dict[str, bytes]) -> None:
    folder = binary(tmp_path, records)
    (folder / "cifar-10-batches-bin" / "data_batch_4.bin").unlink()
    with pytest.raises(DataError, match=r"all six batches\. Fetch https://"):
        load_cifar10(folder)


def archived(records: dict[str, bytes]) -> bytes:
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:gz") as archive:
        for name, content in records.items():
            entry = tarfile.TarInfo(f"cifar-10-batches-bin/{name}.bin")
            entry.size = len(content)
            archive.addfile(entry, io.BytesIO(content))
    return packed.getvalue()


def test_download_is_kept(tmp_path: Path, records: dict[str, bytes], monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(sources, "download", lambda *arguments: calls.append(arguments) or archived(records))
    check(load_cifar10(), records)
    check(load_cifar10(), records)
    assert len(calls) == 1
    monkeypatch.setattr(sources, "download", lambda *arguments: b"<html>")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "other"))
    with pytest.raises(DataError, match="not a valid archive"):
        load_cifar10()


def test_a_download_needs_no_cache(records: dict[str, bytes], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", "/dev/null/x")
    monkeypatch.setattr(sources, "download", lambda *arguments: archived(dict(reversed(records.items()))))
    check(load_cifar10(), records)


def test_a_damaged_archive_is_refused(
    tmp_path: Path, records: dict[str, bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Wherever it is cut, or a byte is another."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    whole = archived(records)
    cut = [whole[:length] for length in (0, 5, 40, len(whole) // 2, len(whole) * 3 // 4)]
    places = [10, 11, 15, 20, 60, *range(100, len(whole) - 100, len(whole) // 40)]
    spoiled = [whole[:k] + bytes([whole[k] ^ 0xFF]) + whole[k + 1 :] for k in places]
    missing = archived({name: content for name, content in records.items() if name != "test_batch"})
    for content in (*cut, *spoiled, missing):
        monkeypatch.setattr(sources, "download", lambda *arguments, sent=content: sent)
        with pytest.raises(DataError, match=r"archive|sha256"):
            load_cifar10()
    assert not list(tmp_path.rglob("*.bin"))


# ---- the split -------------------------------------------------------------------------------------------------------


def made(each: int = 250, tested: int = 100) -> Cifar10:
    """Labels only, in a random order."""
    rng = np.random.default_rng(0)

    def images(count: int) -> Images:
        labels = torch.from_numpy(rng.permutation(np.repeat(np.arange(10), count)))
        return Images(torch.zeros(len(labels), 0), labels)

    return Cifar10(images(each), images(tested))


def test_clients_share_no_image_and_test_on_their_own_classes() -> None:
    data = made()
    found = partition(data, seed=3, clients=5, shards=4, size=25, test_size=5)
    every = torch.cat(found.train)
    assert len(every) == len(set(every.tolist())) == 5 * 4 * 25
    for own, tested in zip(found.train, found.test, strict=True):
        assert len(set(tested.tolist())) == len(tested) == 20
        shares = torch.bincount(data.train.labels[own], minlength=10)
        assert torch.equal(torch.bincount(data.test.labels[tested], minlength=10) * 5, shares)
        assert int((shares % 25).sum()) == 0  # whole shards, each of one class


def test_a_seed_is_a_split() -> None:
    data = made()
    first, again, other = (partition(data, seed, clients=5, shards=4, size=25, test_size=5) for seed in (1, 1, 2))
    assert all(torch.equal(a, b) for a, b in zip(first.train + first.test, again.train + again.test, strict=True))
    assert not all(torch.equal(a, b) for a, b in zip(first.train, other.train, strict=True))


def test_too_many_clients_are_refused() -> None:
    with pytest.raises(pg.ParameterError, match="more than the 2500 images"):
        partition(made(), 0, clients=30, shards=10, size=25)


def test_the_papers_network() -> None:
    before = torch.get_rng_state()
    first, again = cnn(seed=1), cnn(seed=1)
    assert torch.equal(torch.get_rng_state(), before)
    assert sum(param.numel() for param in first.parameters()) == 411_626
    assert all(torch.equal(a, b) for a, b in zip(first.parameters(), again.parameters(), strict=True))
    assert first(torch.zeros(2, 3, 32, 32)).shape == (2, 10)


@pytest.mark.skipif(
    not (Path(os.environ.get(sources.VARIABLE, "/nowhere")) / "cifar-10-batches-bin").is_dir(),
    reason=f"{sources.VARIABLE} names no folder with CIFAR-10",
)
def test_the_real_data() -> None:
    data = load_cifar10()
    assert data.train.pixels.shape == (50_000, 3, 32, 32)
    found = partition(data, seed=0)
    assert [len(own) for own in found.train] == [2000] * 10
    assert [len(own) for own in found.test] == [400] * 10
