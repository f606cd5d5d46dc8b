"""The data and the geometry behind tables and pictures."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from matplotlib.backends.backend_agg import FigureCanvasAgg
from mpl_toolkits.mplot3d import proj3d
from scipy.optimize import nnls

import paretograd as pg
from paretograd.reports import export, figures, sphere, words
from paretograd.reports.compare import compare
from paretograd.reports.explain import explain
from paretograd.reports.roster import Parameter, build, roster
from paretograd.reports.scene import Sector, compose, cone_sectors, dual_sectors

PLANE = torch.tensor([[2.0, 0.3], [-1.0, 1.2]], dtype=torch.float64)
SPACE = torch.tensor([[2.0, 2.2, 1.1], [0.7, -2.3, -1.5], [-0.4, -0.4, 0.1]], dtype=torch.float64)


def full(jacobian):
    return compare(jacobian, roster(len(jacobian)))


def gaussian(m, n, seed=0):
    return torch.randn((m, n), generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def within(sectors: list[Sector], angle: float) -> bool:
    return any((angle - sector.start) % (2.0 * np.pi) <= sector.width for sector in sectors)


class TestCompare:
    def test_gradients_are_described(self):
        found = full(SPACE)
        assert (found.m, found.n) == (3, 3)
        assert found.norms == pytest.approx(SPACE.norm(dim=1).numpy())
        assert np.diag(found.cosines) == pytest.approx(np.ones(3))
        assert found.gamma == pytest.approx(float(pg.MGDA()(SPACE).norm()))
        assert not found.stationary

    def test_zero_gradient_has_no_cosine_and_makes_the_point_stationary(self):
        found = full(torch.tensor([[1.0, 0.0], [0.0, 0.0]], dtype=torch.float64))
        assert found.stationary
        assert found.cosines[1].tolist() == [0.0, 0.0]
        mean = found.rows[0]
        assert mean.worst_cosine == pytest.approx(1.0)  # over the gradients that have a direction

    def test_zero_direction_has_no_cosine_and_no_alignment(self):
        found = full(torch.tensor([[1.0, 0.0], [-1.0, 0.0]], dtype=torch.float64))
        mgda = next(row for row in found.rows if row.name == "mgda")
        assert mgda.worst_cosine is None
        assert mgda.alignment is None

    def test_promises_are_kept_in_the_table(self):
        for seed in range(5):
            for row, rule in zip(full(gaussian(6, 9, seed)).rows, roster(6), strict=True):
                if rule.guarantee.non_conflicting:
                    assert row.conflicts == ()
                if rule.guarantee.in_hull:
                    assert row.certificate.in_hull


class TestRoster:
    def test_every_rule_once_in_the_registrys_order(self):
        assert [rule.name for rule in roster(4)] == pg.names()

    def test_parameters_are_read_by_what_the_rule_expects(self):
        rule = build("capped-mgda", [Parameter.parse("cap=0.3")])
        assert repr(rule) == "CappedMGDA(cap=0.3)"
        assert build("power-mean", [Parameter.parse("p=-inf")]).guarantee.in_hull
        assert repr(build("upgrad*", [Parameter.parse("preference=1, 2 3")])).startswith("UPGrad(preference=[1.0, 2.0")
        assert build("nash-mtl", [Parameter.parse("max_norm=none")]).max_norm is None
        assert build("clipped-mgda", [Parameter.parse("renormalize=no")]).renormalize is False
        assert build("pcgrad", [Parameter.parse("pcgrad.order=shuffled")]).order == "shuffled"

    def test_a_parameter_for_one_rule_leaves_the_others(self):
        rules = {rule.name: rule for rule in roster(3, parameters=[Parameter.parse("clipped-mgda.cap=0.9")])}
        assert rules["clipped-mgda"].cap == 0.9
        assert rules["capped-mgda"].eps == 0.5


class TestWords:
    def test_conflicts_are_named_by_objective(self):
        text = " ".join(words.findings(full(SPACE)))
        assert "objective 2 under Mean" in text
        assert "The other rules increase none." in text

    def test_no_conflict(self):
        found = compare(PLANE, roster(2, ["mgda", "upgrad"]))
        assert "No rule conflicts here" in words.findings(found)[1]

    def test_what_rounding_hides_is_said(self):
        found = compare(torch.tensor([[1.0, 2.0], [-3.0, -6.0]], dtype=torch.float64), roster(2, ["mgda"]))
        assert words.conflicts(found.rows[0]) == "(0, 1?)"
        assert found.rows[0].alignment is None
        assert "For MGDA, rounding hides whether some objectives" in words.findings(found)[1]

    def test_odd_statuses_are_explained(self):
        found = full(torch.tensor([[1.0, 0.0], [-1.0, 0.0]], dtype=torch.float64))
        assert any(pg.Status.STATIONARY.value in sentence for sentence in words.findings(found))

    @pytest.mark.parametrize(
        ("value", "text"), [(None, "-"), (-3e-16, "0.000"), (0.12345, "0.123"), (-1e-5, "-1e-05"), (-1.0, "-1.000")]
    )
    def test_cosines_are_rounded_without_hiding_a_conflict(self, value, text):
        assert words.cosine(value) == text


class TestExport:
    def test_json_has_no_infinity(self):
        found = full(torch.zeros((2, 3), dtype=torch.float64))
        data = json.loads(export.to_json(found), parse_constant=lambda name: pytest.fail(f"{name} in json"))
        assert data["gamma"] == 0.0
        assert len(data["rules"]) == len(pg.names())

    def test_markdown_escapes_the_star(self):
        assert r"| UPGrad\* |" in export.to_markdown(compare(PLANE, roster(2, ["upgrad*"])))


class TestExplain:
    def test_parameters_come_with_default_and_meaning(self):
        lines = next(section.lines for section in explain(pg.CAGrad()) if section.heading == "Parameters")
        assert len(lines) == 1
        assert lines[0].startswith("c (default 0.5): radius of the ball")
        assert lines[0].endswith("goes up.")

    def test_rule_without_guarantee_says_so(self):
        lines = next(section.lines for section in explain(pg.IMTLG()) if section.heading == "Guarantee")
        assert lines[0].startswith("None:")


class TestSectors:
    @given(angles=st.lists(st.floats(0.0, 6.28), min_size=1, max_size=5), probe=st.floats(0.0, 6.28))
    def test_dual_sectors_hold_exactly_the_directions_without_conflict(self, angles, probe):
        gradients = np.stack([np.cos(angles), np.sin(angles)], axis=1)
        worst = float((gradients @ [np.cos(probe), np.sin(probe)]).min())
        if abs(worst) > 1e-6:
            assert within(dual_sectors(gradients), probe) == (worst > 0.0)

    @given(angles=st.lists(st.floats(0.0, 6.28), min_size=1, max_size=5), probe=st.floats(0.0, 6.28))
    def test_cone_sectors_hold_exactly_the_conic_combinations(self, angles, probe):
        gradients = np.stack([np.cos(angles), np.sin(angles)], axis=1)
        residual = nnls(gradients.T, np.array([np.cos(probe), np.sin(probe)]))[1]
        gaps = np.diff(np.sort([*angles, min(angles) + 2.0 * np.pi]))
        if abs(gaps.max() - np.pi) < 1e-3 or 0.0 < residual < 1e-6:
            return  # on the edge between two answers
        if residual > 0.0:
            assert not within(cone_sectors(gradients), probe)
        elif min(abs(np.exp(1j * np.array(angles)) - np.exp(1j * probe))) > 1e-6:
            assert within(cone_sectors(gradients), probe)

    def test_opposite_gradients_leave_a_line(self):
        opposite = np.array([[1.0, 0.0], [-2.0, 0.0]])
        assert [sector.width for sector in cone_sectors(opposite)] == [0.0, 0.0]
        starts = sorted(sector.start % (2.0 * np.pi) for sector in dual_sectors(opposite))
        assert starts == pytest.approx([np.pi / 2, 3 * np.pi / 2])

    def test_zero_gradients_forbid_nothing(self):
        assert cone_sectors(np.zeros((2, 2))) == []
        assert dual_sectors(np.zeros((2, 2))) == [Sector(0.0, 2.0 * np.pi)]


class TestSphere:
    @pytest.mark.parametrize("seed", range(8))
    def test_facet_normals_describe_the_cone(self, seed):
        """Bipolar theorem: x is a conic combination of the gradients iff no facet normal points away from it."""
        gradients = gaussian(4, 3, seed).numpy()
        normals = sphere.facet_normals(gradients)
        for x in gaussian(50, 3, seed + 100).numpy():
            residual = nnls(gradients.T, x)[1] / np.linalg.norm(x)
            assert (residual < 1e-9) == bool((normals @ x >= 0.0).all())

    def test_patch_lies_in_the_region_and_fills_it(self):
        normals = SPACE.numpy()
        pieces = sphere.patch(normals)
        corners = np.concatenate(pieces)
        assert (corners @ normals.T).min() >= -1e-9
        area = sum(
            0.5 * np.linalg.norm(np.cross(piece[k] - piece[0], piece[k + 1] - piece[0]))
            for piece in pieces
            for k in range(1, len(piece) - 1)
        )
        # Three planes through the origin cut out a triangle of area (sum of its angles) - pi.
        units = normals / np.linalg.norm(normals, axis=1, keepdims=True)
        angles = [np.pi - np.arccos(units[i] @ units[j]) for i, j in ((0, 1), (1, 2), (2, 0))]
        assert area == pytest.approx(sum(angles) - np.pi, rel=0.01)

    def test_border_runs_along_the_planes(self):
        arcs = sphere.border(SPACE.numpy())
        assert len(arcs) == 3
        for arc in arcs:
            assert (arc @ SPACE.numpy().T).min() >= -1e-5
            assert np.abs(arc @ SPACE.numpy().T).min(axis=1).max() < 1e-9

    def test_flat_cones(self):
        assert sphere.flat_sector(SPACE.numpy()) is None
        flat = sphere.flat_sector(np.array([[1.0, 0.0, 0.0], [0.0, 2.0, 0.0]]))
        assert flat is not None
        assert (flat >= -1e-12).all()
        assert np.abs(flat[:, 2]).max() < 1e-12
        assert len(sphere.facet_normals(np.array([[1.0, 0.0, 0.0], [0.0, 2.0, 0.0]]))) == 0


class TestScene:
    def test_similar_norms_keep_their_lengths(self):
        scene = compose(compare(PLANE, roster(2, ["mean", "upgrad"])))
        assert not scene.unit
        assert scene.gradients == pytest.approx(PLANE.numpy())
        assert scene.arrows[0].tip == pytest.approx(pg.Mean()(PLANE).numpy())

    def test_very_different_norms_become_unit_length_and_the_caption_says_so(self):
        scene = compose(compare(PLANE * torch.tensor([[100.0], [1.0]]), roster(2, ["mean", "upgrad"])))
        assert scene.unit
        assert np.linalg.norm(scene.gradients, axis=1) == pytest.approx(np.ones(2))
        assert "length 1" in figures.caption(scene)

    def test_directions_that_coincide_share_an_arrow(self):
        """For two objectives PCGrad is UPGrad."""
        scene = compose(compare(PLANE, roster(2, ["upgrad", "mean", "pcgrad", "pcgrad+"])))
        assert [arrow.labels for arrow in scene.arrows] == [("UPGrad", "PCGrad", "PCGrad+"), ("Mean",)]

    def test_gradients_in_a_plane_lose_nothing(self):
        J = PLANE @ torch.linalg.qr(gaussian(7, 2)).Q.T
        scene = compose(full(J))
        assert not scene.projected
        assert "all of them" in scene.title
        assert scene.gradients @ scene.gradients.T == pytest.approx(pg.gramian(J).numpy())

    def test_projection_is_told_in_the_title(self):
        scene = compose(full(gaussian(4, 5)))
        assert scene.projected
        assert "projected onto\ntheir first two principal directions" in scene.title
        assert "% of squared length" in scene.title

    def test_zero_directions_are_listed(self):
        scene = compose(full(torch.tensor([[1.0, 0.0], [-1.0, 0.0]], dtype=torch.float64)))
        assert "MGDA" in scene.zero


JACOBIANS = {
    "plane": PLANE,
    "plane, very different norms": PLANE * torch.tensor([[100.0], [1.0]]),
    "plane, opposite": torch.tensor([[1.0, 0.0], [-1.0, 0.0]], dtype=torch.float64),
    "plane, cone is everything": torch.tensor([[1.0, 0.2], [-0.5, 1.0], [-0.3, -1.0]], dtype=torch.float64),
    "space": SPACE,
    "space, flat cone": gaussian(2, 3),
    "space, cone is everything": torch.cat([torch.eye(3), -torch.ones(1, 3)]).double(),
    "space, a zero gradient": torch.cat([SPACE, torch.zeros(1, 3)]).double(),
    "space, parallel": torch.tensor([[1.0, 2.0, 2.0], [2.0, 4.0, 4.0]], dtype=torch.float64),
    "projected": gaussian(4, 5),
    "projected, many": gaussian(20, 50),
    "all zero": torch.zeros((2, 2), dtype=torch.float64),
    "space, all zero": torch.zeros((2, 3), dtype=torch.float64),
    "projected, all zero": torch.zeros((2, 4), dtype=torch.float64),
}


def _on_page(axes, text) -> tuple[float, float]:
    """Where a text stands, in pixels; 3-D texts do not know it themselves."""
    spot = text.get_position()
    if hasattr(text, "get_position_3d"):
        spot = proj3d.proj_transform(*text.get_position_3d(), axes.M)[:2]
    return tuple(axes.transData.transform(spot))


class TestFigure:
    @pytest.mark.parametrize("jacobian", JACOBIANS.values(), ids=JACOBIANS)
    def test_every_rule_is_in_the_legend_and_every_text_on_the_page(self, jacobian):
        found = full(jacobian)
        figure = figures.draw(found)
        assert tuple(figure.get_size_inches()) == figures.SIZE
        (legend,) = figure.legends
        entries = " ".join(text.get_text() for text in legend.get_texts()).replace("\n", " ")
        for row in found.rows:
            assert row.label in entries
        (axes,) = figure.axes
        assert axes.get_xlabel()
        assert axes.get_ylabel()
        FigureCanvasAgg(figure).draw()
        page, box = figure.bbox, legend.get_window_extent()
        assert box.x1 <= page.x1
        assert box.y0 >= page.y0
        for text in figure.texts:
            inside = text.get_window_extent()
            assert inside.x0 >= page.x0
            assert inside.x1 <= page.x1
            assert not inside.overlaps(box)
        for text in axes.texts:
            x, y = _on_page(axes, text)
            assert page.x0 + 10 <= x <= box.x0 - 10
            assert page.y0 + 10 <= y <= page.y1 - 10

    def test_conflicting_directions_are_dashed_and_say_with_whom(self):
        (legend,) = figures.draw(compare(SPACE, roster(3, ["mean", "upgrad"]))).legends
        entries = {text.get_text(): line for text, line in zip(legend.get_texts(), legend.legend_handles, strict=True)}
        assert entries["Mean (conflicts with $g_{2}$)"].get_linestyle() == "--"
        assert entries["UPGrad"].get_linestyle() == "-"

    def test_plane_has_equal_aspect(self):
        (axes,) = figures.draw(full(PLANE)).axes
        assert axes.get_aspect() == 1.0

    def test_one_parameter_is_refused(self):
        with pytest.raises(pg.ShapeError, match="two or more parameters"):
            figures.draw(full(torch.tensor([[1.0], [2.0]], dtype=torch.float64)))
