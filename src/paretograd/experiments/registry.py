"""The studies that ``paretograd reproduce`` knows. A new study is one folder and one row here."""

from __future__ import annotations

from pathlib import Path

from paretograd.errors import UnknownNameError
from paretograd.experiments.counterexamples.report import COUNTEREXAMPLES
from paretograd.experiments.fairness.report import FAIRNESS
from paretograd.experiments.federated.report import FEDERATED
from paretograd.experiments.files import read_config
from paretograd.experiments.kind import Kind
from paretograd.experiments.synthetic.report import SYNTHETIC, paper_kinds

STUDIES: dict[str, Kind] = {kind.name: kind for kind in (*paper_kinds(), COUNTEREXAMPLES, FAIRNESS, FEDERATED)}


def find_kind(name: str) -> Kind:
    """Return the study with this name."""
    found = STUDIES.get(name.strip().lower())
    if found is None:
        raise UnknownNameError(f"no study of the paper is called {name!r}; there are {', '.join(STUDIES)}")
    return found


def kind_in(folder: Path) -> Kind:
    """Return the kind of the study in a folder. The configuration of a study on a test problem names no kind."""
    experiment = read_config(folder / "config.json")["study"].get("experiment")
    return STUDIES.get(experiment, SYNTHETIC)
