"""Census income: how lines become features, which rows serve for what, and that all questions can be learned."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

import pytest
import torch
from sklearn.metrics import roc_auc_score
from support.stacked import check_stacked, same, trained
from torch import nn

from paretograd.bench.task import Data
from paretograd.bench.tasks import census
from paretograd.bench.tasks.census import CensusIncome, encode
from paretograd.errors import DataError
from paretograd.problems.sources import VARIABLE, DataFile

SMALL = CensusIncome(small=True)
CATEGORIES = (1, 2, 3, 4, 6, 8, 9, 10, 11, 12, 13, 14, 15, 20, 21, 28, 29, 32, 33, 34, 35, 36, 37, 38)


@pytest.fixture(scope="module")
def made():
    return SMALL.made()


class Fixed(nn.Module):
    """Answers with the first three features."""

    def forward(self, features):
        return features[:, :3].unbind(1)


def line(**values: str) -> str:
    """A row of the files: zeros, a single person without income, and the given columns, as in `c5="100"`."""
    columns = ["0"] * 41 + ["- 50000."]
    columns[7] = "Never married"
    for name, value in values.items():
        columns[int(name[1:])] = value
    return ", ".join(columns)


def test_stacked_networks_have_the_losses_and_gradients_of_each(made):
    check_stacked(SMALL, made)


def test_sizes_of_the_networks():
    sizes = [sum(p.numel() for p in CensusIncome(small=small).network().parameters()) for small in (False, True)]
    assert sizes == [67_715, 14_243]


def test_something_is_learned_from_made_data(made):
    """Chance is 50 %."""
    scores = {steps: SMALL.scores(trained(SMALL, made, steps, 1e-2), made.validation) for steps in (0, 60)}
    assert min(scores[60]) > 65.0
    assert SMALL.quality(scores[60]) > SMALL.quality(scores[0])
    assert SMALL.quality([90.0, 80.0, 70.0]) == 80.0


def test_made_data_have_the_form_of_the_real_ones(made):
    for (numbers, places, labels), count in zip(made, (3_000, 1_000, 1_000), strict=True):
        assert (numbers.shape, numbers.dtype) == ((count, 6), torch.float32)
        assert (places.shape, places.dtype) == ((count, 24), torch.int16)
        assert (labels.shape, labels.dtype) == ((count, 3), torch.float32)
        assert int(places.min()) >= 0
        assert int(places.max()) < sum(census._SIZES)
        assert (places.diff(dim=1) > 0).all()  # each column has its own range
        assert set(labels.unique().tolist()) == {0.0, 1.0}
    assert same(made, SMALL.made())


def test_scores_are_areas_in_percent(made):
    numbers, _, labels = made.test
    found = SMALL.scores(Fixed(), made.test)
    assert found == pytest.approx([100.0 * roc_auc_score(labels[:, k], numbers[:, k]) for k in range(3)])


def test_the_features_are_numbers_and_ones(made):
    numbers, places, _ = made.test
    features = census._features(numbers, places)
    assert features.shape == (1_000, 414)
    assert torch.equal(features[:, :6], numbers)
    assert torch.equal(features[:, 6:].nonzero()[:, 1].view(-1, 24), places.long())
    assert (features[:, 6:].sum(dim=1) == 24.0).all()


class TestEncode:
    def test_labels(self):
        train = [line(c0="39"), line(c0="40", c7="Divorced"), line(c0="7", c41="50000+.")]
        (_, _, labels), _, count = encode([train, [line(c0="90")]])
        assert labels.tolist() == [[0.0, 1.0, 0.0], [0.0, 0.0, 1.0], [1.0, 1.0, 0.0], [0.0, 1.0, 1.0]]
        assert count == 3

    def test_numbers_have_the_scale_of_the_first_file(self):
        """Dollars enter as log(1 + x), weeks as they are; a column of zeros stays zero."""
        train = [line(c5=str(dollars), c39=str(weeks)) for dollars, weeks in ((0, 0), (99, 20), (9_999, 40))]
        (numbers, _, _), _, _ = encode([train, [line(c5="999999", c39="50")]])
        spread = (2 / 3) ** 0.5
        # float32 numbers of order one.
        assert numbers[:, 0].tolist() == pytest.approx([-1 / spread, 0.0, 1 / spread, 2 / spread], abs=1e-6)
        assert numbers[:, 5].tolist() == pytest.approx([-1 / spread, 0.0, 1 / spread, 1.5 / spread], abs=1e-6)
        assert (numbers[:, 1:5] == 0.0).all()

    def test_categories_are_in_alphabetical_order_behind_those_of_the_columns_before(self):
        train = [line(c1="Private", c38="2"), line(c1="Never worked", c38="0")]
        (_, places, _), sizes, _ = encode([train, [line(c1="Federal", c38="1")]])
        assert sizes == (3, *[1] * 22, 3)
        assert places[:, 0].tolist() == [2, 1, 0]
        assert places[:, 1:23].tolist() == [list(range(3, 25))] * 3
        assert places[:, 23].tolist() == [27, 25, 26]

    def test_targets_and_what_states_them_are_not_among_the_features(self):
        """Age, marital status, taxes, household, weight, migration, parents, year and income change no feature."""
        hidden = (0, 7, 19, 22, 23, 24, 25, 26, 27, 31, 40)
        other = line(**dict.fromkeys((f"c{column}" for column in hidden), "50"), c41="50000+.")
        (numbers, places, _), _, _ = encode([[line(), other], []])
        assert torch.equal(numbers[0], numbers[1])
        assert torch.equal(places[0], places[1])
        used = {column for column in range(42) if column not in (*hidden, 41)}
        assert used == {*CATEGORIES, 5, 16, 17, 18, 30, 39}

    def test_many_lines_are_encoded_in_portions(self, monkeypatch):
        train = [line(c0=str(20 + k), c1=str(k % 7), c5=str(k)) for k in range(40)]
        whole = encode([train, train[:5]])
        monkeypatch.setattr(census, "_LINES", 3)
        portions = encode([train, train[:5]])
        assert all(torch.equal(a, b) for a, b in zip(whole[0], portions[0], strict=True))
        assert whole[1:] == portions[1:]

    def test_a_line_that_is_no_row(self):
        with pytest.raises(DataError, match="which has 42 values: 'a, b'"):
            encode([[line(), "a, b"], []])


class TestLoad:
    @pytest.fixture
    def train(self, tmp_path, monkeypatch) -> list[str]:
        """Files of 30 and 21 lines, in which the wage numbers the lines."""
        lines = [line(c0=str(20 + k), c5=str(k)) for k in range(51)]
        files = []
        for file, own in zip(census.FILES, (lines[:30], lines[30:]), strict=True):
            content = "\n".join(own).encode() + b"\n"
            (tmp_path / file.name).write_bytes(content)
            files.append(DataFile(file.name, len(content), hashlib.sha256(content).hexdigest(), file.url))
        monkeypatch.setattr(census, "FILES", tuple(files))
        monkeypatch.setattr(census, "_SIZES", (1,) * 24)
        monkeypatch.setattr(census, "_SMALL", (8, 4, 2))
        monkeypatch.setenv(VARIABLE, str(tmp_path))
        return lines[:30]

    def test_the_test_file_is_halved(self, train):
        wages = encode([train, [line(c5=str(k)) for k in range(30, 51)]])[0][0][:, 0]
        data = CensusIncome().load()
        assert [len(part[0]) for part in data] == [30, 10, 11]
        assert torch.equal(data.train[0][:, 0], wages[:30])
        assert torch.equal(torch.cat([part[0][:, 0] for part in data[1:]]).sort().values, wages[30:])
        assert not torch.equal(data.validation[0][:, 0], wages[30:40])
        assert same(data, CensusIncome().load())

    @pytest.mark.usefixtures("train")
    def test_the_small_variant_has_the_first_rows_of_each_part(self):
        data = CensusIncome().load()
        first = [tuple(part[:count] for part in rows) for rows, count in zip(data, (8, 4, 2), strict=True)]
        assert same(SMALL.load(), Data(*first))

    @pytest.mark.usefixtures("train")
    def test_other_categories_are_a_bug(self, monkeypatch):
        monkeypatch.setattr(census, "_SIZES", (2,) * 24)
        with pytest.raises(DataError, match="please report it"):
            SMALL.load()


@pytest.mark.skipif(
    not (Path(os.environ.get(VARIABLE, "/nowhere")) / "census").is_dir(), reason=f"{VARIABLE} has no folder census"
)
def test_the_real_rows():
    data = CensusIncome().load()
    assert [len(part[0]) for part in data] == [199_523, 49_881, 49_881]
    # Counted in the files by other means: 12,382 incomes, 86,485 never married, 78,316 of 40 years or more.
    assert data.train[2].sum(dim=0).tolist() == [12_382.0, 86_485.0, 78_316.0]
    assert (data.validation[2].sum(dim=0) + data.test[2].sum(dim=0)).tolist() == [6_186.0, 43_143.0, 39_366.0]
    # float32 means of 200,000 numbers of order one.
    assert data.train[0].mean(dim=0).abs().max() < 1e-4
    assert min(SMALL.scores(trained(SMALL, data, 100, 1e-2), data.validation)) > 75.0
