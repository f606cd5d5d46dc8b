"""Data that a caller brings: whether they can be trained on, and by what they are known again."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from paretograd.errors import InputError, ShapeError
from paretograd.experiments.fingerprint import fingerprint
from paretograd.problems.fairness import Adult, Rows
from paretograd.problems.fairness.objectives import check_binary

_PARTS = ("train", "validation", "test")
_PRECISIONS = (torch.float32, torch.float64)


@dataclass(frozen=True)
class OwnData:
    """What a folder keeps of data that are not Adult.

    Attributes:
        features: columns.
        rows: to train on, to validate, to test.
        sha256: of shapes, types and bytes of all nine tensors.
    """

    features: int
    rows: tuple[int, int, int]
    sha256: str

    @classmethod
    def of(cls, data: Adult) -> OwnData:
        """Check the data, and describe them."""
        parts = {name: getattr(data, name) for name in _PARTS}
        for name, rows in parts.items():
            _check(name, rows, data.train)
        counts = len(data.train.labels), len(data.validation.labels), len(data.test.labels)
        known_by = fingerprint(values for rows in parts.values() for values in rows)
        return cls(data.train.features.shape[1], counts, known_by)

    @classmethod
    def from_plain(cls, found: Any) -> OwnData:
        """What JSON has of it; an `InputError` if it is something else."""
        try:
            train, validation, test = map(int, found["rows"])
            return cls(int(found["features"]), (train, validation, test), str(found["sha256"]))
        except (LookupError, TypeError, ValueError):
            raise InputError(
                f"this is not the configuration of a fairness study: its data are described as {found!r}"
            ) from None


def _check(name: str, rows: Rows, train: Rows) -> None:
    features, labels, groups = rows
    if features.ndim != 2 or not features.shape[:1] == labels.shape == groups.shape or not features.numel():
        raise ShapeError(
            f"{name}: features have shape (N, F), labels and groups (N,), with at least one row and column; got "
            f"{tuple(features.shape)}, {tuple(labels.shape)} and {tuple(groups.shape)}"
        )
    if features.dtype not in _PRECISIONS:
        raise InputError(
            f"{name} features: {features.dtype}; training is in torch.float32 or torch.float64. Convert them, for "
            "instance with torch.as_tensor(features, dtype=torch.float32)"
        )
    for what, here, there in (
        ("of one type", features.dtype, train.features.dtype),
        ("with as many columns", features.shape[1], train.features.shape[1]),
    ):
        if here != there:
            raise InputError(f"all features are {what}; {name} features have {here}, train features {there}")
    if not features.isfinite().all():
        raise InputError(f"{name} features: {int((~features.isfinite()).sum())} entries are not finite; all must be")
    check_binary(**{f"{name} labels": labels, f"{name} groups": groups})
