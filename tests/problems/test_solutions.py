"""The reference solutions solve their equations, and agree with other methods and with published numbers."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from support.fields import field_by_autograd

from paretograd.problems import solutions


def uniform(lower, upper, n=300):
    unit = torch.rand(n, len(lower), generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    low, high = torch.tensor(lower, dtype=torch.float64), torch.tensor(upper, dtype=torch.float64)
    return low + (high - low) * unit


class TestBurgers:
    def test_the_steepest_slope_is_the_published_one(self):
        """Basdevant et al. (1986): at x = 0 and pi t = 1.6037 the slope is -152.00516, and steepest."""
        times = torch.linspace(0.45, 0.57, 25, dtype=torch.float64)
        times[12] = 1.6037 / math.pi
        points = torch.stack((torch.zeros_like(times), times), dim=1)
        slopes = field_by_autograd(lambda at: solutions.burgers(at).unsqueeze(-1), points, (0.0, 0.0)).slope[0, 0]
        assert slopes[12].item() == pytest.approx(-152.00516, abs=1e-4)
        assert slopes.argmin() == 12

    def test_the_solution_is_that_of_another_quadrature(self):
        """The trapezoidal rule on the integrals of Cole and Hopf, at times from early to late."""
        z = np.linspace(-12.0, 12.0, 20_001)
        for x, t in ((-0.7, 0.01), (0.3, 0.2), (0.02, 0.6), (0.9, 1.0)):
            y = x - z * math.sqrt(4.0 * solutions.VISCOSITY * t)
            weights = np.exp(-z * z - (np.cos(math.pi * y) + 1.0) / (2.0 * math.pi * solutions.VISCOSITY))
            expected = -(weights * np.sin(math.pi * y)).sum() / weights.sum()
            found = solutions.burgers(torch.tensor([[x, t]], dtype=torch.float64)).item()
            assert found == pytest.approx(expected, abs=1e-10)


class TestSchroedinger:
    def distance(self, one, other):
        return float((one - other).norm() / other.norm())

    def test_finer_grids_converge(self):
        """To 1e-5, as the docstring says: the kink at the walls forbids more."""
        finest = solutions.schroedinger(1600, 800)[::16, ::8]
        errors = [
            self.distance(solutions.schroedinger(nodes, steps)[:: steps // 50, :: nodes // 200], finest)
            for nodes, steps in ((200, 50), (200, 100), (400, 400))
        ]
        assert errors[0] > 5.0 * errors[1] > 25.0 * errors[2]
        assert errors[2] < 1.5e-5

    def test_on_a_wide_interval_it_is_the_bound_state_of_two_solitons(self):
        """The closed form on the whole line (Satsuma and Yajima, 1974); at 15 it is below 2e-6."""
        nodes, steps, half_width = 512, 400, 15.0
        x = half_width * (2.0 * torch.arange(nodes, dtype=torch.float64) / nodes - 1.0)
        t = torch.linspace(0.0, math.pi / 4.0, steps + 1, dtype=torch.float64).unsqueeze(1)
        above = torch.cosh(3.0 * x) + 3.0 * torch.exp(4j * t) * torch.cosh(x)
        below = torch.cosh(4.0 * x) + 4.0 * torch.cosh(2.0 * x) + 3.0 * torch.cos(4.0 * t)
        expected = 4.0 * torch.exp(0.5j * t) * above / below
        assert self.distance(solutions.schroedinger(nodes, steps, half_width), expected) < 5e-6

    def test_mass_and_energy_are_conserved(self):
        """The steps keep the mass but for rounding, and the energy up to the error of the method."""
        h = solutions.schroedinger()
        nodes = h.shape[1]
        wave = 2.0 * math.pi * torch.fft.fftfreq(nodes, 2.0 * solutions.HALF_WIDTH / nodes, dtype=torch.float64)
        mass = h.abs().square().mean(1)
        slope = torch.fft.ifft(1j * wave * torch.fft.fft(h))
        energy = (0.5 * slope.abs().square() - 0.5 * h.abs() ** 4).mean(1)
        assert (mass / mass[0] - 1.0).abs().max() < 1e-11
        assert (energy / energy[0] - 1.0).abs().max() < 1e-4

    def test_it_is_even_and_begins_with_the_initial_value(self):
        h = solutions.schroedinger()
        x = torch.linspace(-5.0, 5.0, h.shape[1] + 1, dtype=torch.float64)[:-1]
        torch.testing.assert_close(h[0], (2.0 / torch.cosh(x)).to(h.dtype))
        torch.testing.assert_close(h[:, 1:], h[:, 1:].flip(1), rtol=1e-8, atol=1e-9)


class TestFlows:
    """The steady and the unsteady Navier-Stokes equations, in float64; the terms are up to 30 in size."""

    def test_kovasznay(self):
        u, slope, laplacian = field_by_autograd(solutions.kovasznay, uniform((-0.5, -0.5), (1.0, 1.5)), (1.0, 1.0))
        for i in (0, 1):
            carried = (u[:2] * slope[i]).sum(0)
            assert (carried + slope[2, i] - solutions.KOVASZNAY_VISCOSITY * laplacian[i]).abs().max() < 1e-11
        assert (slope[0, 0] + slope[1, 1]).abs().max() < 1e-12

    def test_beltrami(self):
        u, slope, laplacian = field_by_autograd(
            solutions.beltrami, uniform((-1.0, -1.0, -1.0, 0.0), (1.0, 1.0, 1.0, 1.0)), (1.0, 1.0, 1.0, 0.0)
        )
        for i in (0, 1, 2):
            carried = (u[:3] * slope[i, :3]).sum(0)
            assert (slope[i, 3] + carried + slope[3, i] - laplacian[i]).abs().max() < 1e-11
        assert (slope[0, 0] + slope[1, 1] + slope[2, 2]).abs().max() < 1e-12

    def test_the_vorticity_of_a_beltrami_flow_is_parallel_to_its_velocity(self):
        points = uniform((-1.0, -1.0, -1.0, 0.0), (1.0, 1.0, 1.0, 1.0))
        u, slope, _ = field_by_autograd(solutions.beltrami, points, (0.0,) * 4)
        vorticity = torch.stack((slope[2, 1] - slope[1, 2], slope[0, 2] - slope[2, 0], slope[1, 0] - slope[0, 1]))
        assert torch.linalg.cross(vorticity, u[:3], dim=0).abs().max() < 1e-11
