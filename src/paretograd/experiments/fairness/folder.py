"""The folder of a fairness study: small results that can be shared, and large checkpoints beside them."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn.utils import vector_to_parameters

from paretograd.descent import archive
from paretograd.errors import InputError
from paretograd.experiments.config import new_session, read_config, write_config
from paretograd.experiments.fairness.result import MethodResult
from paretograd.experiments.fairness.study import FairnessStudy
from paretograd.experiments.files import write_text
from paretograd.experiments.folder import Folder
from paretograd.experiments.names import file_names
from paretograd.experiments.progress import Watch
from paretograd.problems.fairness import classifier


class FairnessFolder(Folder):
    """Paths of its files, and its configuration."""

    results = "methods"

    def final(self, name: str) -> Path:
        """The trained classifiers of a method."""
        return self.path / "checkpoints" / f"{name}.final.npz"

    def open(self, study: FairnessStudy, overwrite: bool, device: str, told: Watch) -> None:
        """Write or update the configuration."""
        self.clear(overwrite)
        session = new_session() | {"device": device}
        if overwrite or not self.config.exists():
            self._write(study, [session], {})
        elif not self.finished(study):
            found = read_config(self.config)
            sessions = found["sessions"]
            self.warn_of_versions(sessions, told)
            if sessions and sessions[-1].get("device") != device:
                told.note(
                    f"{self.path} was begun on another device ({sessions[-1].get('device')}): last digits may differ "
                    "from those of a run that was not interrupted"
                )
            self._write(study, [*sessions, session], self.durations())
        if not self.finished(study):  # the checkpoints are large, and of no use to others
            write_text(self.path / "checkpoints" / ".gitignore", ["*"])

    def durations(self) -> dict[str, Any]:
        """Seconds of each method, and what it was trained on, by label."""
        found = read_config(self.config).get("durations", {})
        return dict(found) if isinstance(found, dict) else {}

    def took(self, study: FairnessStudy, label: str, duration: Mapping[str, Any]) -> None:
        """Write down how long a method took."""
        self._write(study, read_config(self.config)["sessions"], self.durations() | {label: dict(duration)})

    def _write(self, study: FairnessStudy, sessions: list[dict[str, Any]], durations: dict[str, Any]) -> None:
        write_config(self.config, study, study.command(), sessions, {"durations": durations})

    def load(self, name: str, label: str, study: FairnessStudy) -> MethodResult:
        """A method that is done; a damaged file is refused with the way out."""
        path = self.result(name)
        try:
            found = MethodResult.load(path)
            if (found.label, found.seeds) != (label, study.seeds):
                raise InputError(f"{path} is of another study: {found.label}, seeds {found.seeds}")
        except InputError as error:
            raise InputError(f"{error}. Remove it, and --resume runs {label} again") from None
        return found

    def save_classifiers(self, name: str, parameters: torch.Tensor, features: int, width: int) -> None:
        """Write the final parameters, ``(S, n)``."""
        shape = {"features": features, "width": width}
        archive.write(self.final(name), {"parameters": parameters.numpy(), **shape}, overwrite=True)


def load_classifiers(folder: str | Path, label: str) -> list[nn.Sequential]:
    """The trained classifiers of a method, one for each seed, from the folder of a study that still has them.

    Args:
        folder: of the study; its checkpoints must be there.
        label: of the method, such as ``UPGrad*``.
    """
    path = FairnessFolder(folder).final(file_names([label])[0])
    found = archive.read(path)
    try:
        parameters = torch.from_numpy(found["parameters"])
        made = []
        for row in parameters:
            model = classifier(found["features"], found["width"], seed=0)
            count = sum(entry.numel() for entry in model.parameters())
            vector_to_parameters(row[:count].clone(), model.parameters())
            made.append(model)
    except (LookupError, TypeError, ValueError, RuntimeError) as error:
        raise InputError(f"{path} holds no classifiers: {error}") from None
    return made
