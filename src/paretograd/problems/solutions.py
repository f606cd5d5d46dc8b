"""Solutions of the equations on which physics-informed networks are tried, in float64 on the CPU."""

from __future__ import annotations

import math
from functools import cache

import numpy as np
import torch
from torch import Tensor

#: Viscosity of Burgers' equation.
VISCOSITY = 0.01 / math.pi
#: Nodes of the quadrature for its solution; more of them change it by rounding errors only.
_NODES = 140

#: Half the width of the interval for the Schroedinger equation, and the end of its time.
HALF_WIDTH, DURATION = 5.0, math.pi / 4.0

#: Viscosity of Kovasznay's flow, 1 / Reynolds number, and the rate at which its wake decays.
KOVASZNAY_VISCOSITY = 1.0 / 40.0
_DECAY = 0.5 / KOVASZNAY_VISCOSITY - math.hypot(0.5 / KOVASZNAY_VISCOSITY, 2.0 * math.pi)


def burgers(points: Tensor) -> Tensor:
    """Solve Burgers' equation for u(x, 0) = -sin(pi x) by the Cole-Hopf transform and Gauss-Hermite quadrature.

    As in Basdevant et al. (1986), for times above zero: u is a quotient of two integrals over the real line, with
    the weight exp(-z^2). Points at time zero get the initial value.
    """
    nodes, weights = (torch.from_numpy(part) for part in np.polynomial.hermite.hermgauss(_NODES))
    x, t = points.double().unbind(-1)
    y = x.unsqueeze(-1) - (4.0 * VISCOSITY * t).sqrt().unsqueeze(-1) * nodes
    logs = weights.log() - torch.cos(math.pi * y) / (2.0 * math.pi * VISCOSITY)
    return -(torch.softmax(logs, dim=-1) * torch.sin(math.pi * y)).sum(-1)


@cache
def schroedinger(nodes: int = 400, steps: int = 400, half_width: float = HALF_WIDTH) -> Tensor:
    """Solve i h_t + h_xx / 2 + |h|^2 h = 0 for h(x, 0) = 2 / cosh(x), periodic in x, by a split-step Fourier method.

    Both parts of the equation are solved exactly in turn, composed to fourth order (Yoshida, Physics Letters A 150,
    1990). The initial value has a kink where the interval closes, by 0.05 in its slope, which limits the accuracy:
    four times the nodes and the steps change the solution by 1e-5, relative to its size.

    Args:
        nodes: their number, at equal distances from -half_width on.
        steps: their number, until time pi / 4, at which |h| is largest.
        half_width: of the interval.

    Returns:
        Complex values at all times and nodes, shape (steps + 1, nodes). Do not change them: they are cached.
    """
    x = half_width * (2.0 * torch.arange(nodes, dtype=torch.float64, device="cpu") / nodes - 1.0)
    wave = (math.pi / half_width) * nodes * torch.fft.fftfreq(nodes, dtype=torch.float64, device="cpu")
    outer = 1.0 / (2.0 - 2.0 ** (1.0 / 3.0))
    parts = [(DURATION / steps) * share for share in (outer, 1.0 - 2.0 * outer, outer)]
    drifts = [torch.exp(-0.5j * part * wave.square()) for part in parts]
    h = (2.0 / torch.cosh(x)).to(torch.complex128)
    found = [h]
    for _ in range(steps):
        for part, drift in zip(parts, drifts, strict=True):
            h = _turn(h, part / 2.0)
            h = _turn(torch.fft.ifft(drift * torch.fft.fft(h)), part / 2.0)
        found.append(h)
    return torch.stack(found)


def _turn(h: Tensor, time: float) -> Tensor:
    """Solve i h_t + |h|^2 h = 0, which keeps |h|."""
    return h * torch.exp(1j * time * h.abs().square())


def kovasznay(points: Tensor) -> Tensor:
    """Return velocity and pressure (u, v, p) of Kovasznay's laminar flow behind a grid (1948) at points (x, y)."""
    x, y = points.double().unbind(-1)
    wake = torch.exp(_DECAY * x)
    u = 1.0 - wake * torch.cos(2.0 * math.pi * y)
    v = _DECAY / (2.0 * math.pi) * wake * torch.sin(2.0 * math.pi * y)
    return torch.stack((u, v, 0.5 * (1.0 - wake.square())), dim=-1)


def beltrami(points: Tensor) -> Tensor:
    """Return velocity and pressure (u, v, w, p) of a Beltrami flow at points (x, y, z, t).

    By Ethier and Steinman (International Journal for Numerical Methods in Fluids 19, 1994), with a = d = 1 and
    viscosity 1. Velocity and vorticity are parallel.
    """
    space, t = points.double()[..., :3], points.double()[..., 3:]
    after = space.roll(-1, dims=-1)  # (y, z, x) at (x, y, z)
    grown, angle = space.exp(), space + after
    sines, cosines = angle.sin(), angle.cos()
    velocity = -(grown * sines.roll(-1, dims=-1) + grown.roll(1, dims=-1) * cosines) * torch.exp(-t)
    product = sines * cosines.roll(1, dims=-1) * grown.roll(-1, dims=-1) * grown.roll(1, dims=-1)
    pressure = -0.5 * (grown.square() + 2.0 * product).sum(-1, keepdim=True) * torch.exp(-2.0 * t)
    return torch.cat((velocity, pressure), dim=-1)
