"""The folder of a federated study: small results that can be shared, and checkpoints beside them."""

from __future__ import annotations

from paretograd.errors import InputError
from paretograd.experiments.federated.result import RunResult
from paretograd.experiments.training_folder import TrainingFolder


class FederatedFolder(TrainingFolder):
    """Paths of its files."""

    results = "runs"

    def load(self, name: str, label: str) -> RunResult:
        """A run that is done; a damaged file is refused with the way out."""
        path = self.result(name)
        try:
            found = RunResult.load(path)
            if found.label != label:
                raise InputError(f"{path} is another run: {found.label}")
        except InputError as error:
            raise InputError(f"{error}. Remove it, and --resume trains {label} again") from None
        return found
