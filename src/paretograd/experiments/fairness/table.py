"""The table of a fairness study: one row for each method, as data and as two files."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from paretograd.experiments.fairness.folder import FairnessFolder
from paretograd.experiments.fairness.paper import PUBLISHED
from paretograd.experiments.fairness.result import MethodResult
from paretograd.experiments.fairness.study import FairnessStudy
from paretograd.experiments.fairness.words import for_people, heading, legend, notes, title
from paretograd.experiments.files import in_markdown, markdown_table, write_csv, write_text

MEASURES = ("accuracy", "deo1", "deo2")


def rows(study: FairnessStudy, methods: Mapping[str, MethodResult]) -> list[dict[str, Any]]:
    """Plain values, shares in percent; None where the paper has no value or one seed no deviation, NaN if unjudged."""
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
    write_text(place.table_md, _markdown(study, found, methods))
    write_csv(place.table_csv, found)


def _markdown(
    study: FairnessStudy, found: Sequence[Mapping[str, Any]], methods: Mapping[str, MethodResult]
) -> Iterator[str]:
    shown = for_people(found)
    yield from (f"# {title(study)}", "", f"Made by `{study.command()}`. {heading(study)}", "")
    yield from markdown_table(shown, ("method", "ended by"))
    for sentence in (legend(study), *notes(study, found, methods)):
        yield from ("", in_markdown(sentence))
