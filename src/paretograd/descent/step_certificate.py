"""The certificate of one recorded step."""

from __future__ import annotations

import torch

from paretograd.certificates.step import StepCertificate
from paretograd.certification import certificate_of
from paretograd.descent.trajectory import Trajectory
from paretograd.errors import ParameterError
from paretograd.geometry.cones import Rounding
from paretograd.geometry.gramian import as_array, gramian
from paretograd.problems.base import Problem


def step_certificate(trajectory: Trajectory, problem: Problem, step: int, run: int) -> StepCertificate:
    """`Trajectory.certificate`: the weights are those of the record, the gradients are computed anew."""
    if not 0 <= run < trajectory.runs:
        raise ParameterError(f"run {run} is not there; the runs are numbered 0 to {trajectory.runs - 1}")
    length = int(trajectory.lengths[run])
    if not 0 <= step < length:
        raise ParameterError(f"step {step} is not there; run {run} took {length} steps, numbered from 0")
    shape = (trajectory.points.shape[2], trajectory.m)
    if (problem.name, problem.n, problem.m) != (trajectory.problem, *shape):
        raise ParameterError(
            f"the run was made on {trajectory.problem} with n={shape[0]} and m={shape[1]}; got {problem.name} with "
            f"n={problem.n} and m={problem.m}"
        )
    point = torch.from_numpy(trajectory.points[step, run]).to(getattr(torch, trajectory.dtype))
    _, J = problem.jacobian(point)
    # The products are float64's; the gradients, and the weights that the run made of them, have its precision.
    rounding = Rounding(rows=0.0 if J.dtype is torch.float64 else torch.finfo(J.dtype).eps)
    return certificate_of(as_array(gramian(J)), trajectory.weights[step, run], trajectory.guarantee, rounding)
