"""Training one network on the images of ten clients and an attacker: the paper's table, as a folder on disk.

``python -m paretograd.experiments.federated`` runs it on a machine that has no extra installed.

>>> from paretograd.experiments.federated import FederatedStudy, run_federated
>>> results = run_federated(FederatedStudy(parts=("table",), seeds=(0,)), "runs/federated")  # doctest: +SKIP
"""

from paretograd.experiments.federated.run import FederatedResults, read_results, run_federated
from paretograd.experiments.federated.study import Case, FederatedStudy, Run, Setting, small_study
from paretograd.experiments.federated.training import RunResult

__all__ = [
    "Case",
    "FederatedResults",
    "FederatedStudy",
    "Run",
    "RunResult",
    "Setting",
    "read_results",
    "run_federated",
    "small_study",
]
