"""Made people in the format of the UCI Adult files: every category, unknown values, and a label that can be learned."""

from __future__ import annotations

import gzip
import hashlib
import lzma
import random
from pathlib import Path

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
