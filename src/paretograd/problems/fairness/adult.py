"""UCI Adult (Becker and Kohavi, 1996, doi 10.24432/C5XW20), encoded and split as in the LibMOON benchmark.

48,842 people of the 1994 census. The task is to predict whether a person earns more than 50,000 dollars a year. Gender
is the sensitive attribute and is not a feature.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple, get_args

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from paretograd.errors import DataError, ParameterError
from paretograd.geometry.gramian import Array
from paretograd.problems.sources import DataFile, read

_URL = "https://archive.ics.uci.edu/ml/machine-learning-databases/adult/"

#: The split depends on the order of the rows: first the test file, then the training file.
FILES = (
    DataFile(
        "adult.test", 2003153, "a2a9044bc167a35b2361efbabec64e89d69ce82d9790d2980119aac5fd7e9c05", f"{_URL}adult.test"
    ),
    DataFile(
        "adult.data", 3974305, "5b00264637dbfec36bdeaab5676b0b309ff9eb788d63554ca0a249491c86603d", f"{_URL}adult.data"
    ),
)

_COLUMNS = (
    *("age", "workclass", "fnlwgt", "education", "educational-num", "marital-status", "occupation", "relationship"),
    *("race", "gender", "capital-gain", "capital-loss", "hours-per-week", "native-country", "income"),
)
_NUMBERS = ("age", "fnlwgt", "educational-num", "capital-gain", "capital-loss", "hours-per-week")
_CATEGORIES = ("workclass", "education", "marital-status", "occupation", "relationship", "race", "native-country")

_INCOMES, _GENDERS, _GENDER = ("<=50K", ">50K"), ("Male", "Female"), _COLUMNS.index("gender")

#: Replacement of unknown values, by column.
_UNKNOWN = {"workclass": "Private", "occupation": "Prof-specialty", "native-country": "United-States"}

_SCHOOLING = {
    **dict.fromkeys(("Preschool", "1st-4th", "5th-6th", "7th-8th", "9th", "10th", "11th", "12th"), "left"),
    "HS-grad": "school",
    **dict.fromkeys(("Assoc-voc", "Assoc-acdm", "Prof-school", "Some-college"), "higher"),
    "Bachelors": "undergrad",
    "Masters": "grad",
    "Doctorate": "doc",
}
_MARRIED = ("Married-civ-spouse", "Married-AF-spouse")

Numbers = NDArray[np.integer[Any]]
Scaling = Literal["all", "train"]

#: Facts about the real data: number of features, rows of each part, and training rows of (men, women) by income.
_FEATURES = 88
_SIZES = (34188, 4885, 9769)
_COUNTS = ((15879, 6915), (10153, 1241))


class Rows(NamedTuple):
    """A set of people, one per row.

    Attributes:
        features: float32, shape ``(N, features)``, standardised.
        labels: 1.0 for an income above 50,000 dollars, shape ``(N,)``.
        groups: 0.0 for men, 1.0 for women, shape ``(N,)``.
    """

    features: Tensor
    labels: Tensor
    groups: Tensor

    def to(self, place: torch.device | torch.dtype | str) -> Rows:
        """Return the rows on another device or in another precision."""
        return Rows(*(part.to(place) for part in self))


@dataclass(frozen=True)
class Adult:
    """The data set: 70% training, 10% validation and 20% test rows."""

    train: Rows
    validation: Rows
    test: Rows
    names: tuple[str, ...]


def load_adult(data_dir: str | Path | None = None, scaling: Scaling = "all") -> Adult:
    """Read, verify, encode and split the data.

    Args:
        data_dir: folder with adult.data and adult.test, plain, .gz or .xz; None uses $PARETOGRAD_DATA, else the cache,
            else a download.
        scaling: ``all`` standardises by mean and deviation over all rows, before the split, as the benchmark does;
            ``train`` uses the training rows only, so that training sees nothing of the test rows.
    """
    if scaling not in get_args(Scaling):
        raise ParameterError(f"scaling={scaling!r}: use one of {', '.join(get_args(Scaling))}")
    lines = [line for content in read(FILES, "adult", data_dir) for line in content.decode("ascii").splitlines()]
    adult = encode(lines, scaling)
    sizes = tuple(len(part.labels) for part in (adult.train, adult.validation, adult.test))
    counts = tuple(
        tuple(int(((adult.train.groups == a) & (adult.train.labels == y)).sum()) for y in (0, 1)) for a in (0, 1)
    )
    if (len(adult.names), sizes, counts) != (_FEATURES, _SIZES, _COUNTS):
        raise DataError(
            f"the encoded data have {len(adult.names)} features and {sizes} rows with groups {counts}, not "
            f"{_FEATURES}, {_SIZES} and {_COUNTS}: this is a bug in paretograd, please report it"
        )
    return adult


def encode(lines: Iterable[str], scaling: Scaling = "all") -> Adult:
    """Encode lines in the format of the UCI files as features, labels and groups."""
    table = _columns(lines)
    parts, names = [], []
    for column in _NUMBERS:
        parts.append(_numbers(column, table[column]))
        names.append(column)
    for column in _CATEGORIES:
        values = np.array(table[column])
        for value in sorted(set(table[column])):
            parts.append((values == value).astype(np.float64))
            names.append(f"{column}={value}")
    X = np.stack(parts, axis=1)
    labels = np.array([value == ">50K" for value in table["income"]], dtype=np.float64)
    groups = np.array([value == "Female" for value in table["gender"]], dtype=np.float64)
    train, validation, test = _split(len(X))
    seen = X if scaling == "all" else X[train]
    spread = seen.std(axis=0)
    X = (X - seen.mean(axis=0)) / np.where(spread > 0.0, spread, 1.0)

    def rows(chosen: Numbers) -> Rows:
        return Rows(*(torch.from_numpy(part[chosen]).float() for part in (X, labels, groups)))

    return Adult(rows(train), rows(validation), rows(test), tuple(names))


def _columns(lines: Iterable[str]) -> dict[str, list[str]]:
    """Return the cleaned values of each column."""
    rows = []
    for number, line in enumerate(lines, start=1):
        if not line.strip() or line.startswith("|"):  # adult.test begins with a comment
            continue
        values = [value.strip() for value in line.rstrip().removesuffix(".").split(",")]
        sound = len(values) == len(_COLUMNS) and values[-1] in _INCOMES and values[_GENDER] in _GENDERS
        if not sound:
            raise DataError(f"line {number} is not a row of the Adult data, which has 15 values: {line[:80]!r}")
        rows.append(values)
    if not rows:
        raise DataError("the Adult data hold no rows")
    table = {name: list(values) for name, values in zip(_COLUMNS, zip(*rows, strict=True), strict=True)}
    for name, known in _UNKNOWN.items():
        table[name] = [known if value == "?" else value for value in table[name]]
    table["education"] = _mapped(table["education"])
    table["marital-status"] = ["married" if value in _MARRIED else "not-married" for value in table["marital-status"]]
    return table


def _numbers(column: str, values: Sequence[str]) -> Array:
    try:
        return np.array([float(value) for value in values])
    except ValueError as error:
        raise DataError(f"a value of {column} is not a number: {error}") from None


def _mapped(values: Sequence[str]) -> list[str]:
    unknown = set(values) - set(_SCHOOLING)
    if unknown:
        raise DataError(f"education {sorted(unknown)} is not one of {sorted(_SCHOOLING)}")
    return [_SCHOOLING[value] for value in values]


def _split(count: int) -> tuple[Numbers, Numbers, Numbers]:
    """Return the rows of each part, as scikit-learn's train_test_split does for 0.2, then 0.125, random_state=1."""
    rest, test = _halves(count, 0.2)
    train, validation = _halves(len(rest), 0.125)
    return rest[train], rest[validation], test


def _halves(count: int, share: float) -> tuple[Numbers, Numbers]:
    # The benchmark's split was drawn with numpy's legacy generator, whose stream is frozen.
    order = np.random.RandomState(1).permutation(count)
    cut = math.ceil(share * count)
    return order[cut:], order[:cut]
