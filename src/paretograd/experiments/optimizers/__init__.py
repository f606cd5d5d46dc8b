"""Rules with optimizers: does a guarantee for the real update give better losses in the same time?

>>> from paretograd.experiments.optimizers import OptimizerStudy, run_optimizers
>>> results = run_optimizers(OptimizerStudy(), "runs/optimizers")  # doctest: +SKIP
"""

from paretograd.experiments.optimizers.run import OptimizerResults, read_results, run_optimizers
from paretograd.experiments.optimizers.study import OptimizerStudy

__all__ = ["OptimizerResults", "OptimizerStudy", "read_results", "run_optimizers"]
