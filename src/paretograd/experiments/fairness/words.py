"""The table of a fairness study as people read it: in a terminal, in Markdown, on a page."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from paretograd.descent.stops import Stop
from paretograd.experiments.fairness.paper import STEPS
from paretograd.experiments.fairness.result import MethodResult
from paretograd.experiments.fairness.study import FairnessStudy

#: Headings of the measures.
_NAMES = {"accuracy": "accuracy", "deo1": "DEO1", "deo2": "DEO2"}
#: Percentage points from the paper's means that count as the same.
CLOSE = {"accuracy": 1.0, "deo1": 3.0, "deo2": 3.0}


def for_people(found: Sequence[Mapping[str, Any]]) -> list[dict[str, str]]:
    """Texts by the headings that people read."""
    compared = any(row["accuracy_paper"] is not None for row in found)
    return [_shown(row, compared) for row in found]


def _shown(row: Mapping[str, Any], compared: bool) -> dict[str, str]:
    shown = {"method": str(row["method"])}
    for measure, name in _NAMES.items():
        shown[name] = _with_deviation(row[f"{measure}_mean"], row[f"{measure}_std"])
        if compared:
            shown[f"paper's {name}"] = _with_deviation(row[f"{measure}_paper"], row[f"{measure}_paper_std"])
            difference = row[f"{measure}_difference"]
            shown[f"{name} difference"] = "" if difference is None else f"{difference:+.2f}"
    return shown | {"steps": steps(row), "ended by": str(row["ended_by"])}


def for_page(found: Sequence[Mapping[str, Any]]) -> list[dict[str, object]]:
    """Numbers and texts by headings that stand alone, for a page that can align them."""
    return [
        {
            **{heading: text for heading, text in _shown(row, True).items() if heading not in ("steps", "ended by")},
            "steps": steps(row),
            "ended by": row["ended_by"],
            "theorem": (row["theorem"] or "none").partition(" (")[0],
            **{f"final f{k}": row[f"final_f{k}_mean"] for k in (1, 2, 3)},
            "last γ": row["last_gamma_mean"],
            "steps with a conflict": row["conflicting_steps"],
        }
        for row in found
    ]


def heading(study: FairnessStudy) -> str:
    """What the numbers are, in one sentence."""
    count = len(study.seeds)
    over = f"Mean and sample standard deviation over {count} seeds" if count > 1 else f"Seed {study.seeds[0]}"
    return f"{over}, in percent of the test rows."


def ends(study: FairnessStudy) -> str:
    """The stop rules."""
    limits = [f"gamma < {study.stop:g}", f"|d| < {study.stop:g}"] if study.stop else []
    return ", ".join([*limits, f"{study.steps:,} steps"])


def legend(study: FairnessStudy) -> str:
    """What the words mean."""
    return (
        "DEO1 and DEO2: difference between men and women of the share that is classified as earning above 50K, among "
        "those who do and among those who do not; lower is fairer. difference: ours less the paper's, in percentage "
        f"points. A run ends at the first of: {ends(study)}; ended by says which."
    )


def notes(study: FairnessStudy, found: Sequence[Mapping[str, Any]], methods: Mapping[str, MethodResult]) -> list[str]:
    """What one should know before comparing with the paper, and what went wrong."""
    made = []
    changed = study.changes()
    if changed:
        settings = ", ".join(f"{name} {value}" for name, value in changed.items())
        made.append(f"This is not the paper's protocol ({settings}): its values stand here for orientation only.")
    missing = [label for label in study.labels() if label not in methods]
    if missing:
        made.append(f"Not trained yet: {', '.join(missing)}.")
    near, far = close(found)
    limits = "1 point of accuracy and 3 of DEO1 and DEO2"
    if not changed and near:
        made.append(f"Within {limits} of the paper: {', '.join(near)}.")
    if not changed and far:
        made.append(f"Not within {limits} of the paper: {', '.join(far)}.")
    for label, result in methods.items():
        for seed, stop, length in zip(study.seeds, result.reasons, result.lengths, strict=True):
            if stop not in (Stop.GAMMA, Stop.NORM, Stop.STEPS):
                made.append(f"{label}, seed {seed}: {stop.value} (step {length:,}).")
    return made


def close(found: Sequence[Mapping[str, Any]]) -> tuple[list[str], list[str]]:
    """Methods of the paper's table that are as close to it as `CLOSE` asks, and those that are not."""
    compared = [row for row in found if row["accuracy_paper"] is not None]
    near = [row for row in compared if all(abs(row[f"{name}_difference"]) <= limit for name, limit in CLOSE.items())]
    return [row["method"] for row in near], [row["method"] for row in compared if row not in near]


def steps(row: Mapping[str, Any]) -> str:
    """``27,100-29,900``, or one number where all runs took as many."""
    low, high = row["steps_min"], row["steps_max"]
    return f"{high:,}" if low == high else f"{low:,}-{high:,}"


def setting(study: FairnessStudy) -> str:
    """The protocol in one line."""
    gaps = "sums as in the benchmark" if study.gaps == "sums" else "group means"
    fitted = "all rows" if study.scaling == "all" else "the training rows"
    few = f" of {STEPS:,}" if study.steps < STEPS else ""
    return (
        f"Adult, 88-{study.width}-{study.width}-{study.width}-1; seeds {', '.join(map(str, study.seeds))}; lr "
        f"{study.lr:g}; at most {study.steps:,}{few} steps; gaps: {gaps}; standardised over {fitted}"
    )


def _with_deviation(mean: float | None, deviation: float | None) -> str:
    if mean is None:
        return ""
    return f"{mean:.2f}" if deviation is None else f"{mean:.2f} ± {deviation:.2f}"
