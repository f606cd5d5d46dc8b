"""The paper's counter-examples: what PCGrad and IMTL-G do to three objectives, and what other rules do.

>>> from paretograd.experiments.counterexamples import CounterexampleStudy, run_counterexamples
>>> results = run_counterexamples(CounterexampleStudy(), "runs/counterexamples")  # doctest: +SKIP
"""

from paretograd.experiments.counterexamples.run import CounterexampleResults, read_results, run_counterexamples
from paretograd.experiments.counterexamples.study import CounterexampleStudy

__all__ = ["CounterexampleResults", "CounterexampleStudy", "read_results", "run_counterexamples"]
