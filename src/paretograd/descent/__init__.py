"""Run the paper's descent on a problem, choose its step sizes, and certify its trajectories.

>>> import paretograd as pg
>>> run = pg.descend(pg.problem("vlmop2"), pg.UPGrad(), lr=pg.descent.Smooth(), steps=2000, stop_gamma=0.01)
"""

from paretograd.descent.certify import TrajectoryCertificate, certify_run
from paretograd.descent.descend import descend
from paretograd.descent.records import DescentWarning
from paretograd.descent.run import Descent
from paretograd.descent.step_sizes import Aligned, Armijo, Constant, Monotone, Position, Smooth, StepSize
from paretograd.descent.stopping import Stop
from paretograd.descent.trajectory import Trajectory

__all__ = [
    "Aligned",
    "Armijo",
    "Constant",
    "Descent",
    "DescentWarning",
    "Monotone",
    "Position",
    "Smooth",
    "StepSize",
    "Stop",
    "Trajectory",
    "TrajectoryCertificate",
    "certify_run",
    "descend",
]
