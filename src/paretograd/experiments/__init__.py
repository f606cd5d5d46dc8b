"""Studies in folders: several methods on one problem, with checkpoints from which they resume bit by bit.

>>> from paretograd.experiments import paper_study, run_study
>>> results = run_study(paper_study("vlmop2"), "runs/vlmop2")  # doctest: +SKIP
"""

from paretograd.experiments.progress import Watch
from paretograd.experiments.study import Method
from paretograd.experiments.synthetic.run import Results, run_study
from paretograd.experiments.synthetic.study import PAPER, Study, paper_study

__all__ = ["PAPER", "Method", "Results", "Study", "Watch", "paper_study", "run_study"]
