"""Training fair classifiers on Adult with many rules: the paper's table, as a folder on disk.

``python -m paretograd.experiments.fairness`` runs it on a machine that has no extra installed.

>>> from paretograd.experiments.fairness import FairnessStudy, run_fairness
>>> results = run_fairness(FairnessStudy(methods=("mgda",), steps=200), "runs/fairness")  # doctest: +SKIP
"""

from paretograd.experiments.fairness.result import MethodResult, load_classifiers
from paretograd.experiments.fairness.run import FairnessResults, read_results, run_fairness
from paretograd.experiments.fairness.study import FairnessStudy

__all__ = ["FairnessResults", "FairnessStudy", "MethodResult", "load_classifiers", "read_results", "run_fairness"]
