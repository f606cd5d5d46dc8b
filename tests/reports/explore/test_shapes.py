"""Cones and hulls of the explorer against linear and non-negative least squares."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.optimize import linprog, nnls
from support.families import FAMILIES

from paretograd.geometry.gramian import Array
from paretograd.reports.explore.shapes import Region, cone, dual_cone, hull

#: Points of a region are corners of polygons, computed in float64 from unit vectors.
TOL = 1e-9
#: Borders are sampled where the slopes are at least -1e-6.
BORDER = 2e-6


def gaussian(m: int, n: int, seed: int) -> Array:
    return FAMILIES["gaussian"].make(m, n, seed).numpy()


def points(region: Region) -> Array:
    return np.concatenate([np.zeros((1, len(region.lines[0][0]))), *region.polygons, *region.lines])


@pytest.mark.parametrize("n", [2, 3])
@pytest.mark.parametrize("seed", range(6))
class TestRandom:
    def test_points_of_the_cone_are_conic_combinations(self, n: int, seed: int) -> None:
        J = gaussian(3, n, seed)
        region = cone(J)
        for point in [] if region.whole else points(region):
            assert nnls(J.T, point)[1] < BORDER

    def test_no_gradient_conflicts_with_a_point_of_the_dual_cone(self, n: int, seed: int) -> None:
        J = gaussian(3, n, seed)
        region = dual_cone(J)
        units = J / np.linalg.norm(J, axis=1, keepdims=True)
        # By Gordan's theorem, it holds only zero exactly if a weighted average of the gradients vanishes.
        away = linprog(np.zeros(3), A_eq=np.vstack([J.T, np.ones(3)]), b_eq=[*np.zeros(n), 1.0]).status == 2
        assert region.only_zero is not away
        if away:
            assert (points(region) @ units.T).min() > -BORDER

    def test_gradients_lie_in_the_hull_of_its_corners(self, n: int, seed: int) -> None:
        J = gaussian(6, n, seed)
        found = hull(J)
        corners = J[sorted({k for face in found.faces for k in face})]
        for g in J:
            system = np.vstack([corners.T, np.ones(len(corners))])
            assert nnls(system, np.append(g, 1.0))[1] < TOL
        assert {k for edge in found.edges for k in edge} == {k for face in found.faces for k in face}
        if n == 3:  # Euler's formula
            assert len(corners) - len(found.edges) + len(found.faces) == 2


class TestDegenerate:
    def test_opposite_gradients_span_a_line_and_leave_a_plane(self) -> None:
        J = np.array([[1.0, 0.0, 0.0], [-2.0, 0.0, 0.0]])
        assert [line[-1].tolist() for line in cone(J).lines] == [[1.0, 0.0, 0.0], [-1.0, 0.0, 0.0]]
        border = np.concatenate(dual_cone(J).lines)
        assert len(border) > 300
        assert np.abs(border[:, 0]).max() < BORDER

    def test_two_gradients_in_space_span_a_flat_cone(self) -> None:
        region = cone(np.array([[1.0, 0.0, 0.0], [0.0, 2.0, 0.0]]))
        assert len(region.polygons) == 1
        assert np.abs(region.polygons[0][:, 2]).max() < TOL

    @pytest.mark.parametrize("n", [2, 3])
    def test_zero_gradients_forbid_nothing(self, n: int) -> None:
        J = np.zeros((2, n))
        assert dual_cone(J).whole
        assert cone(J).only_zero
        assert hull(J).edges == ()

    def test_a_cone_can_be_everything(self) -> None:
        plane = np.array([[2.0, 0.0], [-1.0, 1.5], [-1.0, -1.5]])
        space = np.concatenate([np.eye(3), -np.ones((1, 3))])
        for J in (plane, space):
            assert cone(J).whole
            assert dual_cone(J).only_zero

    def test_a_half_space_has_a_ray_as_its_dual(self) -> None:
        J = np.array([[1.0, 0.0, 0.0], [-1.0, 1.0, 0.0], [-1.0, -1.0, 0.0], [0.0, 0.0, 1.0]])
        region = dual_cone(J)
        assert not region.only_zero
        assert points(region) @ [0.0, 0.0, 1.0] == pytest.approx(np.linalg.norm(points(region), axis=1))

    def test_hulls_of_points_on_a_line_and_in_a_plane(self) -> None:
        assert hull(np.array([[1.0, 1.0], [3.0, 3.0], [2.0, 2.0]])).edges in (((0, 1),), ((1, 0),))
        flat = hull(np.array([[1.0, 0.0, 1.0], [0.0, 1.0, 1.0], [-1.0, 0.0, 1.0], [0.0, -1.0, 1.0]]))
        assert sorted(flat.faces[0]) == [0, 1, 2, 3]
        assert len(flat.edges) == 4

    def test_a_cube_has_twelve_edges(self) -> None:
        corners = np.array([[x, y, z] for x in (0.0, 1.0) for y in (0.0, 1.0) for z in (0.0, 1.0)])
        assert len(hull(corners).edges) == 12
