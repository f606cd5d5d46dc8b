"""Synthetic people in the format of the UCI Adult files, and a small fairness study of them.

They have every category and unknown values, and their label can be learned.
"""

from __future__ import annotations

import gzip
import hashlib
import lzma
import random
from pathlib import Path

import numpy as np
import pytest
import torch

from paretograd.descent import Stop
from paretograd.experiments.fairness import FairnessResults, FairnessStudy, MethodResult, ensemble, run_fairness
from paretograd.experiments.fairness import run as run_module
from paretograd.problems.fairness import Rows, load_adult
from paretograd.problems.fairness.adult import Adult, encode
from paretograd.problems.sources import DataFile

EDUCATION = (
    *("Preschool", "1st-4th", "5th-6th", "7th-8th", "9th", "10th", "11th", "12th", "HS-grad", "Some-college"),
    *("Assoc-voc", "Assoc-acdm", "Prof-school", "Bachelors", "Masters", "Doctorate"),
)
MARITAL = ("Married-civ-spouse", "Married-AF-spouse", "Divorced", "Never-married", "Separated", "Widowed")
CHOICES = {
    "workclass": ("Private", "State-gov", "Never-worked", "?"),
    "occupation": ("Sales", "Prof-specialty", "Tech-support", "?"),
    "relationship": ("Husband", "Wife", "Own-child"),
    "race": ("White", "Black", "Other"),
    "country": ("United-States", "Cuba", "Laos", "?"),
}


def made_lines(count: int, seed: int = 0, dot: str = "") -> list[str]:
    """Lines of a file; those of adult.test end in a dot."""
    draw = random.Random(seed)
    return [_line(draw, draw.choice(("Male", "Male", "Female"))) + dot for _ in range(count)]


def _line(draw: random.Random, gender: str) -> str:
    number = draw.randrange(len(EDUCATION))
    age, hours = draw.randint(17, 90), draw.randint(1, 99)
    chosen = {name: draw.choice(values) for name, values in CHOICES.items()}
    rich = number + 0.05 * age + 4 * (gender == "Male") + draw.gauss(0.0, 3.0) > 15
    values = (age, chosen["workclass"], draw.randint(10**4, 10**6), EDUCATION[number], number + 1)
    values += (draw.choice(MARITAL), chosen["occupation"], chosen["relationship"], chosen["race"], gender)
    values += (draw.choice((0, 0, 7688)), draw.choice((0, 1902)), hours, chosen["country"], ">50K" if rich else "<=50K")
    return ", ".join(map(str, values))


def made_adult(count: int = 300, seed: int = 0) -> Adult:
    """A small data set, encoded and split as the real one."""
    return encode(made_lines(count, seed))


def packed(text: str, suffix: str) -> bytes:
    """The content of a file with this suffix."""
    return {"": bytes, ".gz": gzip.compress, ".xz": lzma.compress}[suffix](text.encode())


def made_file(folder: Path, name: str, text: str, suffix: str = "") -> DataFile:
    """Write a file, and describe it as the sources do."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"{name}{suffix}").write_bytes(packed(text, suffix))
    digest = hashlib.sha256(text.encode()).hexdigest()
    return DataFile(name, len(text.encode()), digest, f"https://example.invalid/{name}")


def rows_of(count: int, features: int, seed: int, groups: float = 0.4, labels: float = 0.3) -> Rows:
    """Random rows in float64, with these shares of ones."""
    draw = torch.Generator().manual_seed(seed)
    uniform = torch.rand((2, count), generator=draw, dtype=torch.float64)
    X = torch.randn((count, features), generator=draw, dtype=torch.float64)
    return Rows(X, (uniform[0] < labels).double(), (uniform[1] < groups).double())


ADULT = made_adult(300)
#: Ways to sum the gaps between groups.
GAPS = ("sums", "means")
SMALL = FairnessStudy(methods=("mgda", "mas-rand", "upgrad*"), seeds=(24, 100), steps=12, width=4, lr=0.05, stop=0.0)


def make_small(patch: pytest.MonkeyPatch) -> None:
    """Replace Adult by the synthetic people, unless a folder is named, and pad their rows with few zeros."""
    patch.setattr(ensemble, "_SLICE", 256)
    patch.setattr(
        run_module, "load_adult", lambda folder, scaling: ADULT if folder is None else load_adult(folder, scaling)
    )


def run(folder: Path, study: FairnessStudy = SMALL, **options: object) -> FairnessResults:
    return run_fairness(study, folder, **({"device": "cpu"} | options))


def example(label: str = "MGDA") -> MethodResult:
    """Four runs of a method, with made numbers."""
    test = np.zeros((4, 7))
    test[:, :3] = [[0.75, 0.60, 0.08], [0.76, 0.61, 0.07], [0.77, 0.62, 0.06], [0.76, 0.61, 0.07]]
    return MethodResult(
        label=label,
        seeds=(24, 42, 64, 100),
        reasons=(Stop.GAMMA, Stop.GAMMA, Stop.STEPS, Stop.NOT_FINITE),
        lengths=np.array([1, 2, 2, 1]),
        conflicts=np.array([0, 1, 0, 2]),
        steps=np.arange(3),
        losses=np.ones((3, 4, 3), np.float32),
        gamma=np.full((3, 4), 0.5, np.float32),
        norms=np.ones((3, 4), np.float32),
        weights=np.ones((3, 4, 3), np.float32),
        finals=np.arange(12.0).reshape(4, 3),
        train=test,
        validation=test,
        test=test,
    )
