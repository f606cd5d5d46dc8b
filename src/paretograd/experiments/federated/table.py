"""The tables of a federated study: one row for each rule and setting, as data and as two files."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

import numpy as np

from paretograd.experiments.federated.folder import FederatedFolder
from paretograd.experiments.federated.paper import PUBLISHED, PUBLISHED_CLEAN
from paretograd.experiments.federated.plan import CLEAN, Case, Run
from paretograd.experiments.federated.result import RunResult
from paretograd.experiments.federated.rules import label_of
from paretograd.experiments.federated.study import FederatedStudy
from paretograd.experiments.federated.words import markdown
from paretograd.experiments.files import write_csv, write_text


def rows(study: FederatedStudy, runs: Mapping[Run, RunResult]) -> list[dict[str, Any]]:
    """Plain values, accuracies from 0 to 1; None where the paper has no value, or one seed no deviation."""
    done = {case: found for case in study.cases() if (found := _of(study, case, runs))}
    return [_row(study, case, found, done.get(Case(case.rule, CLEAN), {})) for case, found in done.items()]


def _row(
    study: FederatedStudy, case: Case, by_seed: Mapping[int, RunResult], free: Mapping[int, RunResult]
) -> dict[str, Any]:
    """One case, with the same rule's runs without an attack."""
    found, paper = list(by_seed.values()), _published(study, case)
    values, overall = ([getattr(one, name) for one in found] for name in ("accuracy", "overall"))
    mean, clean = float(np.mean(values)), [one.accuracy for one in free.values()]
    changes = [one.accuracy - free[seed].accuracy for seed, one in by_seed.items() if seed in free]
    changes = changes if case.setting.attacked else []
    ends = Counter(one.reason.code for one in found)
    return {
        "method": label_of(case.rule),
        "rule": case.rule,
        "setting": case.setting.kind,
        "noise": case.setting.noise if case.setting.attacked else None,
        "seeds": len(found),
        "accuracy_mean": mean,
        "accuracy_std": _deviation(values),
        "accuracy_min": min(values),
        "accuracy_max": max(values),
        "worst_client_mean": float(np.mean([one.accuracies[-1].min() for one in found])),
        "overall_mean": float(np.mean(overall)),
        "overall_std": _deviation(overall),
        "clean_mean": float(np.mean(clean)) if clean else None,
        "difference_to_clean": float(np.mean(changes)) if changes else None,
        "difference_to_clean_std": _deviation(changes),
        "difference_to_clean_min": min(changes, default=None),
        "paper": paper,
        "difference_to_paper": mean - paper if paper is not None else None,
        "conflicting_epochs": sum(one.conflicts for one in found),
        "epochs": sum(one.length for one in found),
        "ended_by": ", ".join(code if len(ends) == 1 else f"{code} {count}" for code, count in ends.items()),
    }


def write(place: FederatedFolder, study: FederatedStudy, runs: Mapping[Run, RunResult]) -> None:
    """Write ``table.md`` for people and ``table.csv`` with all digits."""
    found = rows(study, runs)
    write_text(place.table_md, markdown(study, found, runs))
    write_csv(place.table_csv, found)


def _of(study: FederatedStudy, case: Case, runs: Mapping[Run, RunResult]) -> dict[int, RunResult]:
    return {seed: runs[run] for seed in study.seeds if (run := Run(*case, seed)) in runs}


def _published(study: FederatedStudy, case: Case) -> float | None:
    """The paper's value for the study's attack; its attack-free one, of a rule that it does not name, for the mean."""
    if case == Case("mean", CLEAN):
        return PUBLISHED_CLEAN
    return PUBLISHED.get(case.rule) if case.setting == study.attack else None


def _deviation(values: list[float]) -> float | None:
    return float(np.std(values, ddof=1)) if len(values) > 1 else None
