"""The command that makes a study, so that a table can carry it."""

from __future__ import annotations

import shlex
from dataclasses import fields
from typing import Any

from paretograd.experiments.paper import PAPER, paper_study
from paretograd.experiments.study import Study

_DEFAULTS: dict[str, Any] = {entry.name: entry.default for entry in fields(Study)}


def title_of(study: Study) -> str:
    """A heading: the paper's, or problem and number of methods."""
    found = _in_paper(study)
    return PAPER[found[0]].title if found else f"{len(study.methods)} methods on {study.make_problem().label}"


def command_of(study: Study) -> str:
    """``paretograd reproduce ...`` for the paper's studies, else ``paretograd run ...`` with all that is no default."""
    found = _in_paper(study)
    if found:
        name, authors_lr = found
        return f"paretograd reproduce {name}" + " --authors-lr" * authors_lr
    words = ["paretograd", "run", study.problem]
    for key, value in study.parameters.items():
        words += ["--param", f"{key}={value}"]
    words += ["--aggregators", ",".join(method.rule for method in study.methods)]
    words += ["--seeds", ",".join(map(str, study.seeds)) + "," * (len(study.seeds) == 1)]
    words += ["--lr", study.lr, "--steps", str(study.steps)]
    for method in study.methods:
        if method.lr != study.lr:
            words += ["--lr-for", f"{method.rule}={method.lr}"]
    for key in ("figure_seed", "stop_gamma", "stop_norm", "dtype"):
        value = getattr(study, key)
        if value != _DEFAULTS[key]:
            words += [f"--{key.replace('_', '-')}", f"{value}"]
    return shlex.join(words)


def _in_paper(study: Study) -> tuple[str, bool] | None:
    """The name of the paper's study that this one is, and whether it has the authors' step sizes."""
    for name in PAPER:
        for authors_lr in (False, True):
            if study == paper_study(name, authors_lr):
                return name, authors_lr
    return None
