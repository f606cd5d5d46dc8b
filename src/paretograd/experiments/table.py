"""The table of a study: one row for each method, as data and as two files."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from paretograd.descent.trajectory import Trajectory
from paretograd.experiments.command import command_of, title_of
from paretograd.experiments.files import in_markdown, markdown_table, write_csv, write_text
from paretograd.experiments.folder import StudyFolder
from paretograd.experiments.study import Study
from paretograd.experiments.words import for_people, heading, legend, notes


def rows(study: Study, trajectories: Mapping[str, Trajectory]) -> list[dict[str, Any]]:
    """Plain values; None where gamma stayed above the target."""
    shown = study.seeds.index(study.shown_seed)
    made = []
    for (label, found), method in zip(trajectories.items(), study.methods, strict=True):
        reached = [int(count) if count >= 0 else None for count in found.iterations_to(study.target)]
        counts = [math.inf if count is None else count for count in reached]
        result = found.guarantee.result
        finals = {f"final_f{k + 1}": float(loss) for k, loss in enumerate(found.finals[shown])}
        made.append(
            {
                "method": label,
                "lr": method.lr,
                "theorem": result.name if result is not None else None,
                "iterations_figure_seed": reached[shown],
                "iterations_median": _median(counts),
                "iterations_min": min((count for count in reached if count is not None), default=None),
                "iterations_max": max(int(count) for count in counts) if None not in reached else None,
                "seeds_reached": sum(count is not None for count in reached),
                "seeds": len(reached),
                **finals,
                "final_gamma": float(found.gamma[found.lengths[shown], shown]),
                "conflicting_steps": int(found.conflicts.any(axis=2).sum()),
                "steps": int(found.lengths.sum()),
                "seeds_left_box": int((found.left_box >= 0).sum()),
            }
        )
    return made


def write(place: StudyFolder, study: Study, trajectories: Mapping[str, Trajectory]) -> None:
    """Write ``table.md`` for people and ``table.csv`` with all digits."""
    found = rows(study, trajectories)
    write_text(place.table_md, _markdown(study, found, notes(study, trajectories)))
    write_csv(place.table_csv, found)


def _markdown(study: Study, found: Sequence[Mapping[str, Any]], remarks: Sequence[str]) -> Iterator[str]:
    shown = for_people(study, found)
    yield from (f"# {title_of(study)}", "", f"Made by `{command_of(study)}`. {heading(study)}", "")
    yield from markdown_table(shown, ("method", "theorem"))
    for sentence in (legend(study, found), *remarks):
        yield from ("", in_markdown(sentence))


def _median(counts: Sequence[float]) -> float | None:
    middle = float(np.median(counts))
    return None if math.isinf(middle) else int(middle) if middle.is_integer() else middle
