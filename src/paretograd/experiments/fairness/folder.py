"""The folder of a fairness study: small results that can be shared, and large checkpoints beside them."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import nn
from torch.nn.utils import vector_to_parameters

from paretograd.descent import archive
from paretograd.errors import InputError
from paretograd.experiments.fairness.result import MethodResult
from paretograd.experiments.fairness.study import FairnessStudy
from paretograd.experiments.names import file_names
from paretograd.experiments.training_folder import TrainingFolder
from paretograd.problems.fairness import classifier


class FairnessFolder(TrainingFolder):
    """Paths of its files."""

    results = "methods"

    def final(self, name: str) -> Path:
        """The trained classifiers of a method."""
        return self.path / "checkpoints" / f"{name}.final.npz"

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
