"""paretograd: multi-objective training with exact, certified directions.

>>> import torch, paretograd as pg
>>> J = torch.tensor([[1.0, 0.0], [-0.5, 1.0]])  # one gradient per row
>>> pg.UPGrad()(J)
tensor([0.4000, 0.7000])
"""

import gc as _gc

# The imports below make the garbage collector look at everything that torch has created, a third of their time.
_frozen = _gc.get_freeze_count() > 0
if not _frozen:
    _gc.freeze()

from paretograd import descent, distributed, subproblem
from paretograd.aggregators.aligned import AlignedMTL
from paretograd.aggregators.base import Aggregator, Description, GramianAggregator
from paretograd.aggregators.baselines import RGW, ClippedMGDA
from paretograd.aggregators.batches import CrossAggregator, MoDo, SDMGrad
from paretograd.aggregators.blend import Blend
from paretograd.aggregators.coordinates import GradDrop, TrimmedMean
from paretograd.aggregators.dual_cone import GreedyDCP, UPGrad
from paretograd.aggregators.equal_angle import IMTLG, ConFIG
from paretograd.aggregators.gradnorm import GradNorm
from paretograd.aggregators.gradvac import GradVac
from paretograd.aggregators.krum import Krum
from paretograd.aggregators.mixed import Mixed
from paretograd.aggregators.moments import DBMTL, ExcessMTL, MConFIG, MoCo
from paretograd.aggregators.momentum import CRMOGM
from paretograd.aggregators.named import (
    MGDA,
    CAGrad,
    CappedMGDA,
    ChiSquareMGDA,
    DualProj,
    EntropicMGDA,
    Mean,
    PowerMean,
    SpectralMGDA,
)
from paretograd.aggregators.normalized import Normalized
from paretograd.aggregators.pcgrad import PCGrad, PCGradPlus
from paretograd.aggregators.power import PIVRG, FairGrad, NashMTL
from paretograd.aggregators.priority import PCD
from paretograd.aggregators.registry import get, names
from paretograd.aggregators.rows import RowAggregator
from paretograd.aggregators.subproblem import Subproblem, SubproblemSolution
from paretograd.aggregators.wrappers import ClippedRows, UnitRows
from paretograd.autograd.accumulation import Accumulation, accumulate
from paretograd.autograd.backward import backward
from paretograd.autograd.capture import CapturedStep, capture
from paretograd.autograd.choice import engine_report
from paretograd.autograd.gramian import gramian, jacobian
from paretograd.autograd.layers.layer import Layer, Part, register_layer
from paretograd.autograd.monitor import Monitor
from paretograd.autograd.step import How, Step
from paretograd.autograd.unconflicting import Projection, Unconflicting
from paretograd.certificates.batches import ExpectedLosses
from paretograd.certificates.metric import METRIC_RESULTS, MetricResult
from paretograd.certificates.run import RunCertificate, RunCheck
from paretograd.certificates.step import Promise, StepCertificate, Verdict
from paretograd.certificates.update import UpdateCertificate
from paretograd.certification import certify, certify_update
from paretograd.descent.certify import TrajectoryCertificate, certify_run
from paretograd.descent.descend import descend
from paretograd.descent.run import Descent
from paretograd.descent.trajectory import Trajectory
from paretograd.errors import (
    DataError,
    DTypeError,
    HypothesisError,
    InfeasibleCapError,
    InputError,
    MissingExtraError,
    NonFiniteGradientError,
    NotAGramianError,
    ParameterError,
    ParetogradError,
    ProcessError,
    ShapeError,
    UnknownNameError,
)
from paretograd.guarantees import RESULTS, Evidence, Guarantee, Hypothesis, Result, Surrogate
from paretograd.problems.base import Problem
from paretograd.problems.registry import problem, problems
from paretograd.reports.rules.counterexamples import Counterexample
from paretograd.reports.rules.table import Answer, TableRow, table
from paretograd.scalarizations.base import Scalarization, Weighting
from paretograd.scalarizations.famo import FAMO
from paretograd.scalarizations.history import DWA, RLW
from paretograd.scalarizations.learned import IMTLL, UncertaintyWeighting
from paretograd.scalarizations.preferences import COSMOS, PBI, STCH, Tchebycheff
from paretograd.scalarizations.registry import scalarizer, scalarizer_names
from paretograd.scalarizations.sums import GLS, LogSum, PNorm, WeightedSum
from paretograd.schedules import Random, RoundRobin, Sequence
from paretograd.solution import Solution, Status
from paretograd.solvers.min_norm import stationarity

if not _frozen:
    _gc.unfreeze()

__version__ = "0.1.0"

__all__ = [
    "COSMOS",
    "CRMOGM",
    "DBMTL",
    "DWA",
    "FAMO",
    "GLS",
    "IMTLG",
    "IMTLL",
    "METRIC_RESULTS",
    "MGDA",
    "PBI",
    "PCD",
    "PIVRG",
    "RESULTS",
    "RGW",
    "RLW",
    "STCH",
    "Accumulation",
    "Aggregator",
    "AlignedMTL",
    "Answer",
    "Blend",
    "CAGrad",
    "CappedMGDA",
    "CapturedStep",
    "ChiSquareMGDA",
    "ClippedMGDA",
    "ClippedRows",
    "ConFIG",
    "Counterexample",
    "CrossAggregator",
    "DTypeError",
    "DataError",
    "Descent",
    "Description",
    "DualProj",
    "EntropicMGDA",
    "Evidence",
    "ExcessMTL",
    "ExpectedLosses",
    "FairGrad",
    "GradDrop",
    "GradNorm",
    "GradVac",
    "GramianAggregator",
    "GreedyDCP",
    "Guarantee",
    "How",
    "Hypothesis",
    "HypothesisError",
    "InfeasibleCapError",
    "InputError",
    "Krum",
    "Layer",
    "LogSum",
    "MConFIG",
    "Mean",
    "MetricResult",
    "MissingExtraError",
    "Mixed",
    "MoCo",
    "MoDo",
    "Monitor",
    "NashMTL",
    "NonFiniteGradientError",
    "Normalized",
    "NotAGramianError",
    "PCGrad",
    "PCGradPlus",
    "PNorm",
    "ParameterError",
    "ParetogradError",
    "Part",
    "PowerMean",
    "Problem",
    "ProcessError",
    "Projection",
    "Promise",
    "Random",
    "Result",
    "RoundRobin",
    "RowAggregator",
    "RunCertificate",
    "RunCheck",
    "SDMGrad",
    "Scalarization",
    "Sequence",
    "ShapeError",
    "Solution",
    "SpectralMGDA",
    "Status",
    "Step",
    "StepCertificate",
    "Subproblem",
    "SubproblemSolution",
    "Surrogate",
    "TableRow",
    "Tchebycheff",
    "Trajectory",
    "TrajectoryCertificate",
    "TrimmedMean",
    "UPGrad",
    "UncertaintyWeighting",
    "Unconflicting",
    "UnitRows",
    "UnknownNameError",
    "UpdateCertificate",
    "Verdict",
    "WeightedSum",
    "Weighting",
    "accumulate",
    "backward",
    "capture",
    "certify",
    "certify_run",
    "certify_update",
    "descend",
    "descent",
    "distributed",
    "engine_report",
    "get",
    "gramian",
    "jacobian",
    "names",
    "problem",
    "problems",
    "register_layer",
    "scalarizer",
    "scalarizer_names",
    "stationarity",
    "subproblem",
    "table",
]
