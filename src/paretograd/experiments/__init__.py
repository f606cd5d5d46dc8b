"""Studies as folders on disk: several methods on one problem, run with checkpoints, resumed bit by bit.

>>> from paretograd.experiments import paper_study, run_study
>>> results = run_study(paper_study("vlmop2"), "runs/vlmop2")  # doctest: +SKIP
"""

from paretograd.experiments.paper import PAPER, paper_study
from paretograd.experiments.progress import Watch
from paretograd.experiments.run import Results, run_study
from paretograd.experiments.study import Method, Study

__all__ = ["PAPER", "Method", "Results", "Study", "Watch", "paper_study", "run_study"]
