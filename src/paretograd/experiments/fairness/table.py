"""The table of a fairness study: as data, as two files, and as people read it."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from paretograd.descent import Stop
from paretograd.experiments.fairness.result import FairnessFolder, MethodResult
from paretograd.experiments.fairness.study import PUBLISHED, STEPS, FairnessStudy
from paretograd.experiments.study import Claim

#: Headings of the measures.
_NAMES = {"accuracy": "accuracy", "deo1": "DEO1", "deo2": "DEO2"}
#: Largest difference from the paper's means that counts as agreement, in percentage points.
CLOSE = {"accuracy": 1.0, "deo1": 3.0, "deo2": 3.0}
MEASURES = ("accuracy", "deo1", "deo2")


def for_people(found: Sequence[Mapping[str, Any]]) -> list[dict[str, str]]:
    """Rows as texts, under the headings of the table."""
    compared = any(row["accuracy_paper"] is not None for row in found)
    return [_shown(row, compared) for row in found]


def _shown(row: Mapping[str, Any], compared: bool) -> dict[str, str]:
    shown = {"method": str(row["method"])}
    for measure, name in _NAMES.items():
        shown[name] = _with_deviation(row[f"{measure}_mean"], row[f"{measure}_std"])
        if compared:
            shown[f"paper's {name}"] = _with_deviation(row[f"{measure}_paper"], row[f"{measure}_paper_std"])
            difference = row[f"{measure}_difference"]
            known = difference is not None and not math.isnan(difference)
            shown[f"{name} difference"] = f"{difference:+.2f}" if known else ""
    return shown | {"steps": steps(row), "ended by": str(row["ended_by"])}


def for_page(found: Sequence[Mapping[str, Any]]) -> list[dict[str, object]]:
    """Rows for the page, under self-explanatory headings."""
    return [
        {
            **shown,
            "theorem": (row["theorem"] or "none").partition(" (")[0],
            **{f"final f{k}": row[f"final_f{k}_mean"] for k in (1, 2, 3)},
            "last γ": row["last_gamma_mean"],
            "steps with a conflict": row["conflicting_steps"],
        }
        for row, shown in zip(found, for_people(found), strict=True)
    ]


def title(study: FairnessStudy) -> str:
    """Return the title, which names the data."""
    return f"Fair classification on {'own data' if study.own_data else 'Adult'}"


def heading(study: FairnessStudy) -> str:
    """Return one sentence that explains the numbers."""
    count = len(study.seeds)
    over = f"Mean and sample standard deviation over {count} seeds" if count > 1 else f"Seed {study.seeds[0]}"
    return f"{over}, in percent of the test rows."


def ends(study: FairnessStudy) -> str:
    """The stop rules."""
    limits = [f"gamma < {study.stop:g}", f"|d| < {study.stop:g}"] if study.stop else []
    return ", ".join([*limits, f"{study.steps:,} steps"])


def legend(study: FairnessStudy) -> str:
    """Definitions of the terms in the table."""
    if study.own_data:
        return (
            "DEO1 and DEO2: difference between the two groups of the share that is classified as 1, among the rows "
            "with label 1 and among those with label 0; lower is fairer. A run ends at the first of: "
            f"{ends(study)}; ended by says which."
        )
    return (
        "DEO1 and DEO2: difference between men and women of the share that is classified as earning above 50K, among "
        "those who do and among those who do not; lower is fairer. difference: ours less the paper's, in percentage "
        f"points. A run ends at the first of: {ends(study)}; ended by says which."
    )


def remarks(study: FairnessStudy, methods: Mapping[str, MethodResult]) -> list[str]:
    """Differences from the protocol, missing methods, and failed runs."""
    made = []
    changed = study.changes()
    if changed and not study.own_data:
        settings = ", ".join(f"{name} {value}" for name, value in changed.items())
        made.append(f"This is not the paper's protocol ({settings}): its values stand here for orientation only.")
    missing = [label for label in study.labels() if label not in methods]
    if missing:
        made.append(f"Not trained yet: {', '.join(missing)}.")
    for label, result in methods.items():
        for seed, stop, length, judged in zip(
            study.seeds, result.reasons, result.lengths, result.judged(), strict=True
        ):
            good, known = stop in (Stop.GAMMA, Stop.NORM, Stop.STEPS), not math.isnan(judged.accuracy)
            if not good or not known:
                why = "Its logits are NaN: its" if good else "Its"
                ending = "" if known else f" {why} classifier is not judged."
                made.append(f"{label}, seed {seed}: {stop.value} (step {length:,}).{ending}")
    return made


def claims(study: FairnessStudy, found: Sequence[Mapping[str, Any]]) -> list[Claim]:
    """Agreement with the paper's means; none for another protocol."""
    near, far = close(found)
    limits = "1 point of accuracy and 3 of DEO1 and DEO2"
    made = [Claim(f"Within {limits} of the paper: {', '.join(near)}.", True, complete=True)] if near else []
    made += [Claim(f"Not within {limits} of the paper: {', '.join(far)}.", False, complete=True)] if far else []
    return [] if study.changes() else made


def close(found: Sequence[Mapping[str, Any]]) -> tuple[list[str], list[str]]:
    """Return the methods that agree with the paper's table within `CLOSE`, and those that do not."""
    compared = [row for row in found if row["accuracy_paper"] is not None]
    near = [row for row in compared if all(abs(row[f"{name}_difference"]) <= limit for name, limit in CLOSE.items())]
    return [row["method"] for row in near], [row["method"] for row in compared if row not in near]


def steps(row: Mapping[str, Any]) -> str:
    """Return ``27,100-29,900``, or one number if all runs have the same length."""
    low, high = row["steps_min"], row["steps_max"]
    return f"{high:,}" if low == high else f"{low:,}-{high:,}"


def setting(study: FairnessStudy) -> str:
    """The protocol in one line."""
    own, widths = study.own_data, f"{study.width}-{study.width}-{study.width}-1"
    protocol = f"seeds {', '.join(map(str, study.seeds))}; lr {study.lr:g}; at most {study.steps:,}"
    if own is not None:
        train, validation, test = own.rows
        rows = f"own data with {train:,}, {validation:,} and {test:,} rows to train, to validate and to test"
        return f"{rows}, {own.features}-{widths}; {protocol} steps; gaps: {study.gaps}"
    gaps = "sums as in the benchmark" if study.gaps == "sums" else "group means"
    fitted = "all rows" if study.scaling == "all" else "the training rows"
    few = f" of {STEPS:,}" if study.steps < STEPS else ""
    return f"Adult, 88-{widths}; {protocol}{few} steps; gaps: {gaps}; standardised over {fitted}"


def _with_deviation(mean: float | None, deviation: float | None) -> str:
    if mean is None:
        return ""
    return f"{mean:.2f}" if deviation is None or math.isnan(mean) else f"{mean:.2f} ± {deviation:.2f}"


def rows(study: FairnessStudy, methods: Mapping[str, MethodResult]) -> list[dict[str, Any]]:
    """The table as plain values, in percent. None: no value in the paper, or a single seed. NaN: not judged."""
    rules = dict(zip(study.labels(), study.methods, strict=True))
    published = PUBLISHED if study.own_data is None else {}
    made = []
    for label, found in methods.items():
        theorem = study.aggregator(rules[label]).guarantee.result
        judged = found.judged("test")
        row: dict[str, Any] = {"method": label, "rule": rules[label], "theorem": theorem.name if theorem else None}
        for place, measure in enumerate(MEASURES):
            values = 100.0 * np.array([metrics[place] for metrics in judged])
            paper = published[label][place] if label in published else (None, None)
            mean = float(values.mean())
            row |= {
                f"{measure}_mean": mean,
                f"{measure}_std": float(values.std(ddof=1)) if len(values) > 1 else None,
                f"{measure}_paper": paper[0],
                f"{measure}_paper_std": paper[1],
                f"{measure}_difference": mean - paper[0] if paper[0] is not None else None,
            }
        ends = Counter(stop.code for stop in found.reasons)
        last = [int(np.searchsorted(found.steps, min(length, found.steps[-1]))) for length in found.lengths]
        row |= {
            "steps_min": int(found.lengths.min()),
            "steps_max": int(found.lengths.max()),
            "ended_by": ", ".join(code if len(ends) == 1 else f"{code} {count}" for code, count in ends.items()),
            **{f"final_f{k + 1}_mean": float(found.finals[:, k].mean()) for k in range(3)},
            "last_gamma_mean": float(np.mean([found.gamma[step, run] for run, step in enumerate(last)])),
            "conflicting_steps": int(found.conflicts.sum()),
            "steps_in_all": int(found.lengths.sum()),
            "seeds": len(found.seeds),
        }
        made.append(row)
    return made


def write(place: FairnessFolder, study: FairnessStudy, methods: Mapping[str, MethodResult]) -> None:
    """Write ``table.md`` for people and ``table.csv`` with all digits."""
    found = rows(study, methods)
    sentences = [legend(study), *remarks(study, methods), *(claim.sentence for claim in claims(study, found))]
    place.write_tables(study, found, title(study), heading(study), {"": for_people(found)}, sentences)
