"""Slow and independent answers for every rule of the paper, as float64 arrays, from a float64 Jacobian J (m,
n).

What a function returns is the exact answer for the J given, rounded once, unless it says otherwise:
optimality is checked in fixed point with 300 digits, so that badly scaled rows and exact dependence do no
harm. `brute` (all faces) and `float64` (scipy, Clarabel) hold second opinions; `test_references` compares
them.
"""

from . import brute, float64
from .aligned import aligned_mtl
from .cagrad import NotUniqueError, cagrad
from .classic import SlowError, config, imtl_g, pcgrad, pcgrad_plus
from .cones import dualproj, greedy_dcp, project_dual_cone, projected_gradients, upgrad
from .gradvac import gradvac
from .krum import krum
from .power import (
    StationaryError,
    fairgrad,
    nash_mtl,
    pivrg,
    power_equation,
    power_mean,
    power_mean_residual,
    power_residual,
)
from .priority import pcd
from .qp import Point, gamma, is_stationary, min_norm_point
from .robust import chi_square, entropic
from .spectral import spectral_min_norm_point

__all__ = [
    "NotUniqueError",
    "Point",
    "SlowError",
    "StationaryError",
    "aligned_mtl",
    "brute",
    "cagrad",
    "chi_square",
    "config",
    "dualproj",
    "entropic",
    "fairgrad",
    "float64",
    "gamma",
    "gradvac",
    "greedy_dcp",
    "imtl_g",
    "is_stationary",
    "krum",
    "min_norm_point",
    "nash_mtl",
    "pcd",
    "pcgrad",
    "pcgrad_plus",
    "pivrg",
    "power_equation",
    "power_mean",
    "power_mean_residual",
    "power_residual",
    "project_dual_cone",
    "projected_gradients",
    "spectral_min_norm_point",
    "upgrad",
]
