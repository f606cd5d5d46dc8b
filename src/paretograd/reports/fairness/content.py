"""A fairness study in the form in which studies are drawn."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from paretograd.errors import ParameterError
from paretograd.experiments.fairness import FairnessResults, FairnessStudy, MethodResult
from paretograd.experiments.fairness.words import title
from paretograd.reports.palette import Curve, curves
from paretograd.reports.study.content import Content, Run
from paretograd.reports.study.thinning import thin

NAMES = ("cross entropy", "gap among Y = 1", "gap among Y = 0")


def compose(results: FairnessResults) -> Content:
    """All methods that are done, with every point that was kept; a method looks the same in every figure."""
    if not results.methods:
        raise ParameterError(f"no method of the study in {results.folder} is done; a report needs at least one")
    study = results.study
    return Content(
        title=title(study),
        problem="own data" if study.own_data else "Adult",
        lr=f"{study.lr:g}",
        m=3,
        methods=_looks(study, results.methods),
        seeds=(study.shown_seed, *(seed for seed in study.seeds if seed != study.shown_seed)),
        runs=tuple(run for found in results.methods.values() for run in _runs(found)),
        front=np.empty((0, 3)),
        stop_gamma=study.stop or None,
        names=NAMES,
    )


def part(content: Content, labels: Sequence[str]) -> Content:
    """The same with some of the methods."""
    return replace(
        content,
        methods={label: content.methods[label] for label in labels if label in content.methods},
        runs=tuple(run for run in content.runs if run.method in labels),
    )


def thinned(content: Content) -> Content:
    """The same with as many points as a page needs."""
    runs = []
    for run in content.runs:
        kept = thin(run.gamma, run.losses)
        runs.append(Run(run.method, run.seed, run.iterations[kept], run.losses[kept], run.gamma[kept]))
    return replace(content, runs=tuple(runs))


def _looks(study: FairnessStudy, methods: Mapping[str, MethodResult]) -> dict[str, Curve]:
    """Looks are given out over all methods of the study, so that none changes when another is done."""
    return {label: look for label, look in curves(study.labels()).items() if label in methods}


def _runs(found: MethodResult) -> list[Run]:
    made = []
    for number, seed in enumerate(found.seeds):
        there = np.isfinite(found.gamma[:, number])
        losses, gamma = (values[there, number].astype(np.float64) for values in (found.losses, found.gamma))
        made.append(Run(found.label, seed, found.steps[there], losses, gamma))
    return [run for run in made if len(run.iterations)]
