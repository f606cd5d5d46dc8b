"""The parts of `paretograd.Subproblem`: s and r of the paper's subproblem (eq. sd-conic).

s: `Linear`, `NonConflicting`, `WorstCase`, `CVaR`, `Entropic`, `Spectral`, `ChiSquare` and `MinusPowerMean`. `Smooth`
wraps a torch function, and `Cvxpy` a function that builds a cvxpy expression. `FromGramian` builds an s that depends on
the gradients, and `Lowest` is the minimum of several.

r: `HalfSquare`, `Ball`, `MeanBall` and `Power`. `Radial` wraps a function of your own.
"""

from paretograd.subproblem.convex import Cvxpy
from paretograd.subproblem.families import FromGramian, Linear, Lowest, MinusPowerMean, NonConflicting
from paretograd.subproblem.regularizers import Ball, HalfSquare, MeanBall, Power, Radial, Regularizer
from paretograd.subproblem.risk import ChiSquare, CVaR, Entropic, Spectral, WorstCase
from paretograd.subproblem.scalarization import Scalarization
from paretograd.subproblem.smooth import Smooth

__all__ = [
    "Ball",
    "CVaR",
    "ChiSquare",
    "Cvxpy",
    "Entropic",
    "FromGramian",
    "HalfSquare",
    "Linear",
    "Lowest",
    "MeanBall",
    "MinusPowerMean",
    "NonConflicting",
    "Power",
    "Radial",
    "Regularizer",
    "Scalarization",
    "Smooth",
    "Spectral",
    "WorstCase",
]
