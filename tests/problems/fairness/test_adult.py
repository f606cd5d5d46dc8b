"""The Adult data: files found and verified, values cleaned and encoded, rows split as scikit-learn does."""

from __future__ import annotations

import http.client
import io
import os
import urllib.error
from pathlib import Path

import numpy as np
import pytest
import torch
from support.fairness import EDUCATION, MARITAL, made_adult, made_file, made_lines

import paretograd as pg
from paretograd.experiments.fairness.ensemble import Ensemble, sort_rows
from paretograd.problems import sources
from paretograd.problems.cifar10 import load_cifar10
from paretograd.problems.fairness import adult as module
from paretograd.problems.fairness import classifier, load_adult
from paretograd.problems.fairness.adult import encode
from paretograd.problems.sources import DataFile

LINES = made_lines(200)


def read(file: DataFile, dataset: str, folder: Path | None = None) -> bytes:
    [content] = sources.read([file], dataset, folder)
    return content


def parts(adult):
    return adult.train, adult.validation, adult.test


class TestFiles:
    @pytest.fixture(autouse=True)
    def alone(self, monkeypatch, tmp_path):
        """No variable, no cache and no network of the machine that runs the tests."""
        monkeypatch.delenv("PARETOGRAD_DATA", raising=False)
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))

        def unreachable(*given, **more):
            raise urllib.error.URLError("no network")

        monkeypatch.setattr("urllib.request.urlopen", unreachable)

    @pytest.mark.parametrize("suffix", ["", ".gz", ".xz"])
    @pytest.mark.parametrize("below", ["", "adult"])
    def test_plain_and_packed_files_in_the_folder_or_below(self, tmp_path, monkeypatch, suffix, below):
        file = made_file(tmp_path / "data" / below, "adult.data", "hello", suffix)
        assert read(file, "adult", tmp_path / "data") == b"hello"
        monkeypatch.setenv("PARETOGRAD_DATA", str(tmp_path / "data"))
        assert read(file, "adult") == b"hello"

    def test_no_files_and_no_network_says_where_to_get_them(self, tmp_path):
        with pytest.raises(pg.DataError) as caught:
            load_adult()
        url = "https://archive.ics.uci.edu/ml/machine-learning-databases/adult"
        needed = (f"{url}/adult.test", f"{url}/adult.data")
        for word in ("no network", *needed, "--data-dir", "PARETOGRAD_DATA", "data/adult/"):
            assert word in str(caught.value)

    def test_a_given_folder_is_the_only_place(self, tmp_path, monkeypatch):
        monkeypatch.setenv("PARETOGRAD_DATA", str(tmp_path / "data"))
        file = made_file(tmp_path / "data", "adult.data", "hello")
        (tmp_path / "empty").mkdir()
        with pytest.raises(pg.DataError, match=r"empty holds no adult\.data, plain, \.gz or \.xz\. Fetch https"):
            read(file, "adult", tmp_path / "empty")
        with pytest.raises(
            pg.DataError,
            match=r"empty holds no adult\.test and no adult\.data, .*\. Fetch https://\S*test and https://\S*data,",
        ):
            load_adult(tmp_path / "empty")

    def test_of_two_files_the_missing_one_is_named(self, tmp_path):
        present, absent = made_file(tmp_path, "adult.data", "hello"), made_file(tmp_path / "other", "adult.test", "you")
        with pytest.raises(pg.DataError) as caught:
            sources.read([present, absent], "adult", tmp_path)
        assert "holds no adult.test, plain" in str(caught.value)
        assert "adult.data" not in str(caught.value)

    def test_a_folder_that_cannot_be_looked_into(self, tmp_path, monkeypatch):
        file = made_file(tmp_path, "adult.data", "hello")
        with pytest.raises(pg.DataError, match=r"cannot be accessed \(File name too long\)\. Fetch https"):
            read(file, "adult", tmp_path / ("x" * 300))
        with pytest.raises(pg.DataError, match="cannot be accessed"):
            load_cifar10(tmp_path / ("x" * 300))

        def forbidden(path):
            raise PermissionError(13, "Permission denied")

        monkeypatch.setattr(Path, "is_file", forbidden)
        for folder in (tmp_path, None):  # None: the cache
            with pytest.raises(pg.DataError, match=r"adult\.data cannot be accessed \(Permission denied\)"):
                read(file, "adult", folder)

    @pytest.mark.parametrize("suffix", ["", ".gz", ".xz"])
    @pytest.mark.parametrize("text", ["hello world", "hel", "jello"])
    def test_another_content_is_refused(self, tmp_path, suffix, text):
        file = made_file(tmp_path, "adult.data", "hello")
        (tmp_path / "adult.data").unlink()
        made_file(tmp_path, "adult.data", text, suffix)
        with pytest.raises(pg.DataError, match=r"is not the expected adult\.data: its sha256 begins with"):
            read(file, "adult", tmp_path)

    @pytest.mark.parametrize("suffix", [".gz", ".xz"])
    @pytest.mark.parametrize("cut", [0, 10, -5])
    def test_truncated_archives(self, tmp_path, suffix, cut):
        file = made_file(tmp_path, "adult.data", "hello" * 1000, suffix)
        path = tmp_path / f"adult.data{suffix}"
        path.write_bytes(path.read_bytes()[:cut])
        with pytest.raises(pg.DataError, match=r"cannot be read|is not the expected adult\.data"):
            read(file, "adult", tmp_path)

    def test_damaged_archives(self, tmp_path):
        """Whatever bytes change: zlib has an error of its own."""
        file = made_file(tmp_path, "adult.data", "hello" * 1000, ".gz")
        path = tmp_path / "adult.data.gz"
        sound = path.read_bytes()
        for place in range(10, len(sound)):
            path.write_bytes(sound[:place] + bytes([sound[place] ^ 0xFF]) + sound[place + 1 :])
            with pytest.raises(pg.DataError, match=r"cannot be read|is not the expected adult\.data"):
                read(file, "adult", tmp_path)

    @pytest.mark.parametrize(
        "error", [http.client.IncompleteRead(b"hel"), http.client.BadStatusLine("?"), http.client.InvalidURL("a b")]
    )
    def test_a_server_that_breaks_off(self, tmp_path, monkeypatch, error):
        def broken(*given, **more):
            raise error

        monkeypatch.setattr("urllib.request.urlopen", broken)
        with pytest.raises(pg.DataError, match=r"could not be downloaded .*Fetch https"):
            read(made_file(tmp_path / "server", "adult.data", "hello"), "adult")

    def test_a_download_is_verified_and_kept(self, tmp_path, monkeypatch):
        file = made_file(tmp_path / "server", "adult.data", "hello")
        cached = tmp_path / "cache" / "paretograd" / "adult" / "adult.data"
        answers = [b"<html>blocked</html>", b"hello"]
        monkeypatch.setattr("urllib.request.urlopen", lambda *_, **__: io.BytesIO(answers.pop(0)))
        with pytest.raises(pg.DataError, match=r"example\.invalid/adult\.data is not the expected adult\.data"):
            read(file, "adult")
        assert not cached.exists()
        assert read(file, "adult") == b"hello"
        assert cached.read_bytes() == b"hello"
        assert read(file, "adult") == b"hello"  # nothing is asked for again
        cached.write_bytes(b"spoiled")
        with pytest.raises(pg.DataError, match="is not the"):
            read(file, "adult")

    def test_a_cache_that_cannot_be_written_does_not_matter(self, tmp_path, monkeypatch):
        monkeypatch.setenv("XDG_CACHE_HOME", str(made_file(tmp_path, "file", "") and tmp_path / "file"))
        monkeypatch.setattr(sources, "download", lambda *_: b"hello")
        assert read(made_file(tmp_path, "adult.data", "hello"), "adult") == b"hello"

    def test_made_files_are_read_and_then_found_not_to_be_the_real_data(self, tmp_path, monkeypatch):
        """The whole way from files: the first is the test file, whose remark and dots go."""
        texts = {
            "adult.test": "\n".join(["|1x3 Cross validator", *made_lines(40, 1, ".")]),
            "adult.data": "\n".join([*LINES, "", ""]),
        }
        files = tuple(made_file(tmp_path / "adult", name, text, ".xz") for name, text in texts.items())
        monkeypatch.setattr(module, "FILES", files)
        seen = []
        monkeypatch.setattr(module, "encode", lambda lines, scaling: seen.append(encode(lines, scaling)) or seen[0])
        with pytest.raises(pg.DataError, match=r"\(168, 24, 48\).*not 88.*please report it"):
            load_adult(tmp_path)
        same = encode(made_lines(40, 1) + LINES)
        assert all(torch.equal(a, b) for one, two in zip(parts(seen[0]), parts(same), strict=True)
                   for a, b in zip(one, two, strict=True))  # fmt: skip


class TestEncoding:
    def test_against_a_slow_reference(self):
        """Column by column from the text, for rows in the order of the split."""
        adult = encode(LINES)
        train, validation, test = reference_split(len(LINES))
        table = [reference_row(line) for line in LINES]
        names = [*NUMBERS, *sorted({name for row in table for name in row if "=" in name}, key=by_column)]
        assert adult.names == tuple(names)
        raw = np.array([[float(row.get(name, 0.0)) for name in names] for row in table])
        mean = raw.sum(axis=0) / len(raw)
        spread = np.sqrt(((raw - mean) ** 2).sum(axis=0) / len(raw))
        for found, rows in zip(parts(adult), (train, validation, test), strict=True):
            assert found.features.dtype == torch.float32
            np.testing.assert_allclose(found.features.numpy(), ((raw - mean) / spread)[rows], rtol=1e-5, atol=1e-6)
            assert found.labels.tolist() == [float(LINES[row].endswith(">50K")) for row in rows]
            assert found.groups.tolist() == [float("Female" in LINES[row]) for row in rows]

    def test_unknown_values_and_groups(self):
        adult = encode(LINES)
        assert not any("?" in name or "gender" in name for name in adult.names)
        grouped = {name.partition("=")[2] for name in adult.names if name.startswith(("education=", "marital-status="))}
        assert grouped == {"left", "school", "higher", "undergrad", "grad", "doc", "married", "not-married"}
        assert {"fnlwgt", "educational-num"} <= set(adult.names)
        assert len(EDUCATION) == 16
        assert len(MARITAL) == 6

    @pytest.mark.parametrize("scaling", ["all", "train"])
    def test_scaling(self, scaling):
        adult = encode(LINES, scaling)
        seen = adult.train.features if scaling == "train" else torch.cat([part.features for part in parts(adult)])
        spread = seen.std(dim=0, correction=0)
        assert torch.allclose(seen.mean(dim=0), torch.zeros(len(adult.names)), atol=1e-5)
        assert torch.allclose(spread[spread > 1e-3], torch.ones(1), atol=1e-5)

    def test_a_constant_column_is_zero(self):
        adult = encode([line.replace(", 7688,", ", 0,") for line in LINES])
        assert not adult.train.features[:, adult.names.index("capital-gain")].any()

    def test_unknown_scaling(self):
        with pytest.raises(pg.ParameterError, match="scaling='none': use one of all, train"):
            load_adult(scaling="none")

    def test_devices_and_precisions(self):
        rows = made_adult().train.to(torch.float64).to("cpu")
        assert {part.dtype for part in rows} == {torch.float64}

    @pytest.mark.parametrize(
        ("line", "message"),
        [
            (LINES[0].rpartition(",")[0], "line 3 is not a row of the Adult data, which has 15 values"),
            (LINES[0] + ", 1", "line 3 is not"),
            (LINES[0].replace("50K", "60K"), "line 3 is not"),
            (LINES[0].replace("Male", "male").replace("Female", "female"), "line 3 is not"),
            ("<html>", "line 3 is not"),
            (LINES[0].replace(LINES[0].split(", ")[3], "Kindergarten"), r"education \['Kindergarten'\] is not one of"),
        ],
    )
    def test_lines_that_are_none(self, line, message):
        with pytest.raises(pg.DataError, match=message):
            encode([LINES[0], LINES[1], line, *LINES[2:]])

    def test_a_number_that_is_none(self):
        with pytest.raises(pg.DataError, match=r"age.*'old'"):
            encode([*LINES, LINES[0].replace(LINES[0].split(",")[0], "old", 1)])

    @pytest.mark.parametrize("lines", [[], ["", "|1x3 Cross validator"]])
    def test_no_rows(self, lines):
        with pytest.raises(pg.DataError, match="no rows"):
            encode(lines)


class TestSplit:
    @pytest.mark.parametrize("count", [10, 41, 200, 1001])
    def test_is_scikit_learn_s(self, count):
        assert [rows.tolist() for rows in module._split(count)] == list(reference_split(count))

    def test_sizes_of_the_real_data(self):
        assert [len(rows) for rows in module._split(48842)] == [34188, 4885, 9769]


@pytest.fixture(scope="module")
def adult():
    return load_adult()


@pytest.mark.skipif(not os.environ.get("PARETOGRAD_DATA"), reason="PARETOGRAD_DATA names no folder with the Adult data")
class TestRealData:
    def test_features_rows_and_groups(self, adult):
        """`load_adult` checks the counts itself; here they are counted in another way."""
        assert len(adult.names) == 88
        assert [len(part.labels) for part in parts(adult)] == [34188, 4885, 9769]
        men, women = (adult.train.labels[adult.train.groups == a] for a in (0, 1))
        assert [men.sum(), len(men) - men.sum()] == [6915, 15879]
        assert [women.sum(), len(women) - women.sum()] == [1241, 10153]
        assert float((adult.test.labels == 0).double().mean()) == pytest.approx(0.7562, abs=5e-5)

    def test_losses_at_the_first_step(self, adult):
        found = Ensemble([classifier(seed=24)]).slopes(sort_rows(adult.train, "sums", copies=1))
        assert found.losses[0].tolist() == pytest.approx([0.72333, 0.08034, 0.08102], abs=5e-6)


NUMBERS = ("age", "fnlwgt", "educational-num", "capital-gain", "capital-loss", "hours-per-week")
COLUMNS = ("workclass", "education", "marital-status", "occupation", "relationship", "race", "native-country")


def by_column(name: str) -> tuple[int, str]:
    column, _, value = name.partition("=")
    return COLUMNS.index(column), value


def reference_row(line: str) -> dict[str, float]:
    """Features that are not zero, by name, written down from the protocol once more."""
    v = line.split(", ")
    level = EDUCATION.index(v[3])
    if level <= 7:
        school = "left"
    elif v[3] in ("Some-college", "Assoc-voc", "Assoc-acdm", "Prof-school"):
        school = "higher"
    else:
        school = {"HS-grad": "school", "Bachelors": "undergrad", "Masters": "grad", "Doctorate": "doc"}[v[3]]
    numbers = {"age": v[0], "fnlwgt": v[2], "educational-num": v[4], "capital-gain": v[10], "capital-loss": v[11]}
    ones = (
        f"workclass={v[1].replace('?', 'Private')}",
        f"education={school}",
        f"marital-status={'married' if v[5].startswith('Married-') else 'not-married'}",
        f"occupation={v[6].replace('?', 'Prof-specialty')}",
        f"relationship={v[7]}",
        f"race={v[8]}",
        f"native-country={v[13].replace('?', 'United-States')}",
    )
    return (
        {name: float(value) for name, value in numbers.items()}
        | {"hours-per-week": float(v[12])}
        | dict.fromkeys(ones, 1.0)
    )


def reference_split(count: int) -> tuple[list[int], list[int], list[int]]:
    """train_test_split(test_size=0.2, random_state=1), then test_size=0.125 of what is left."""
    order = reference_permutation(count)
    held = -(-count // 5)  # ceil(0.2 n)
    test, rest = order[:held], order[held:]
    again = reference_permutation(len(rest))
    few = -(-len(rest) // 8)
    return [rest[i] for i in again[few:]], [rest[i] for i in again[:few]], test


def reference_permutation(count: int) -> list[int]:
    """numpy's RandomState(1).permutation from the Mersenne Twister upwards (Matsumoto and Nishimura, 1998)."""
    state = [1]
    for i in range(1, 624):
        state.append((1812433253 * (state[-1] ^ (state[-1] >> 30)) + i) & 0xFFFFFFFF)
    words: list[int] = []

    def draw() -> int:
        if not words:
            for k in range(624):
                y = (state[k] & 0x80000000) | (state[(k + 1) % 624] & 0x7FFFFFFF)
                state[k] = state[(k + 397) % 624] ^ (y >> 1) ^ (0x9908B0DF if y & 1 else 0)
            for y in reversed(state):
                y ^= y >> 11
                y ^= (y << 7) & 0x9D2C5680
                y ^= (y << 15) & 0xEFC60000
                words.append(y ^ (y >> 18))
        return words.pop()

    order = list(range(count))
    for i in range(count - 1, 0, -1):  # Fisher and Yates, with draws rejected above i
        mask = (1 << i.bit_length()) - 1
        j = draw() & mask
        while j > i:
            j = draw() & mask
        order[i], order[j] = order[j], order[i]
    return order
