"""Numbers of a row as people read them: to three digits, with their deviation over the seeds."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def accuracy(row: Mapping[str, Any], what: str = "accuracy") -> str:
    """``0.563 ± 0.004``; nothing for a row that is not there."""
    return f"{row[f'{what}_mean']:.3f}" + _spread(row[f"{what}_std"]) if row else ""


def change(row: Mapping[str, Any]) -> str:
    """``-0.012 ± 0.009``, by the attack; nothing where it is not known."""
    loss = row.get("difference_to_clean")
    return "" if loss is None else f"{loss:+.3f}" + _spread(row["difference_to_clean_std"])


def _spread(deviation: float | None) -> str:
    return "" if deviation is None else f" ± {deviation:.3f}"
