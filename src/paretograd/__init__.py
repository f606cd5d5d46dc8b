"""paretograd: training on several objectives at once, with directions that are exact and certified.

>>> import torch, paretograd as pg
>>> J = torch.tensor([[1.0, 0.0], [-0.5, 1.0]])  # one gradient per row
>>> pg.UPGrad()(J)
tensor([0.4000, 0.7000])
"""

from paretograd.aggregators.base import Aggregator, Description, GramianAggregator
from paretograd.aggregators.cagrad import CAGrad
from paretograd.aggregators.dual_cone import DualProj, GreedyDCP, UPGrad
from paretograd.aggregators.equal_angle import IMTLG, ConFIG
from paretograd.aggregators.mean import Mean
from paretograd.aggregators.mgda import MGDA, CappedMGDA, ClippedMGDA
from paretograd.aggregators.normalized import Normalized
from paretograd.aggregators.pcgrad import PCGrad, PCGradPlus
from paretograd.aggregators.power import PIVRG, FairGrad, NashMTL, PowerMean
from paretograd.aggregators.registry import get, names
from paretograd.aggregators.rgw import RGW
from paretograd.certificates.step import StepCertificate
from paretograd.certification import certify
from paretograd.errors import (
    DTypeError,
    InfeasibleCapError,
    InputError,
    MissingExtraError,
    NonFiniteGradientError,
    NotAGramianError,
    ParameterError,
    ParetogradError,
    ShapeError,
    UnknownNameError,
)
from paretograd.geometry.gramian import gramian
from paretograd.guarantees import RESULTS, Guarantee, Result
from paretograd.solution import Solution, Status
from paretograd.solvers.stationarity import stationarity

__version__ = "0.1.0"

__all__ = [
    "IMTLG",
    "MGDA",
    "PIVRG",
    "RESULTS",
    "RGW",
    "Aggregator",
    "CAGrad",
    "CappedMGDA",
    "ClippedMGDA",
    "ConFIG",
    "DTypeError",
    "Description",
    "DualProj",
    "FairGrad",
    "GramianAggregator",
    "GreedyDCP",
    "Guarantee",
    "InfeasibleCapError",
    "InputError",
    "Mean",
    "MissingExtraError",
    "NashMTL",
    "NonFiniteGradientError",
    "Normalized",
    "NotAGramianError",
    "PCGrad",
    "PCGradPlus",
    "ParameterError",
    "ParetogradError",
    "PowerMean",
    "Result",
    "ShapeError",
    "Solution",
    "Status",
    "StepCertificate",
    "UPGrad",
    "UnknownNameError",
    "certify",
    "get",
    "gramian",
    "names",
    "stationarity",
]
