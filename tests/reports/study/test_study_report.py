"""Figures and the page of a study: what they hold, and that they are written whole. The browser has its own file."""

from __future__ import annotations

import base64
import hashlib
import json
import re
import sys
import xml.etree.ElementTree as ET
from pathlib import Path

import numpy as np
import pytest
import torch
from matplotlib.backends.backend_agg import FigureCanvasAgg

import paretograd as pg
from paretograd.reports.study import write_study
from paretograd.reports.study.content import COUNT, PANELS, compose, curves, find_bounds, merged, spaced, thin
from paretograd.reports.study.figures import draw, dynamics, objective_space
from paretograd.reports.study.page import methods_table, shown

HOSTILE = "</script><script>window.hacked = 1</script>"
POOL = ("MGDA", "UPGrad*", "DualProj*", "Nash-MTL*")
NAMES = ["dynamics.png", "dynamics.svg", "objective-space.png", "objective-space.svg", "report.html"]


def descend(
    problem: pg.Problem, *rules: str, steps: int = 400, seeds: tuple[int, ...] = (24, 100)
) -> dict[str, pg.Trajectory]:
    runs = [pg.descend(problem, pg.get(rule), 0.02, steps, seeds=seeds, stop_gamma=0.01) for rule in rules]
    return {run.aggregator: run for run in runs}


@pytest.fixture(scope="module")
def problem() -> pg.Problem:
    return pg.problem("vlmop2")


@pytest.fixture(scope="module")
def runs(problem: pg.Problem) -> dict[str, pg.Trajectory]:
    return descend(problem, "mgda", "upgrad", "upgrad*", "mas-rr(10)")


def bowls(m: int, n: int = 3, smoothness: float | None = 1.0) -> pg.Problem:
    """Half squared distances to m points; nothing is known about its front."""
    centres = torch.randn((m, n), generator=torch.Generator().manual_seed(m), dtype=torch.float64)
    return pg.Problem(
        name="bowls",
        label="Bowls",
        objectives=lambda w: 0.5 * ((w[..., None, :] - centres.to(w.dtype)) ** 2).sum(-1),
        m=m,
        lower=torch.full((n,), -9.0),
        upper=torch.full((n,), 9.0),
        least=(0.0,) * m,
        smoothness=smoothness,
    )


def data_of(page: str) -> dict:
    (text,) = re.findall(r'<script type="application/json" id="study">(.*?)</script>', page)
    return json.loads(text)


class TestFiles:
    def test_figures_and_page_are_written_and_named(self, runs, problem, tmp_path):
        paths = write_study(tmp_path / "deep" / "study", "A study", runs, problem, 100, [], {})
        assert [path.name for path in paths] == NAMES
        assert [path.parent.name for path in paths[:-1]] == ["figures"] * 4
        assert sorted(paths) == sorted(path for path in (tmp_path / "deep").rglob("*") if path.is_file())
        assert paths[0].read_bytes().startswith(b"\x89PNG")
        assert ET.fromstring(paths[1].read_bytes()).tag.endswith("svg")
        assert paths[-1].stat().st_size < 6e6

    def test_the_same_study_gives_the_same_bytes(self, runs, problem, tmp_path):
        first, second = (
            [path.read_bytes() for path in write_study(tmp_path / name, "A study", runs, problem, 100, [], {})]
            for name in ("one", "two")
        )
        assert first == second

    def test_nothing_is_written_where_something_is_wrong(self, runs, problem, tmp_path):
        with pytest.raises(pg.ParameterError, match="the seeds are 24, 100"):
            write_study(tmp_path / "study", "A study", runs, problem, 1, [], {})
        with pytest.raises(pg.ParameterError, match="at least one"):
            write_study(tmp_path / "study", "A study", {}, problem, 100, [], {})
        with pytest.raises(pg.ParameterError, match="2 objectives, Bowls has 3"):
            write_study(tmp_path / "study", "A study", runs, bowls(3), 100, [], {})
        assert not (tmp_path / "study").exists()

    def test_a_write_that_fails_leaves_the_old_file(self, runs, problem, tmp_path, monkeypatch):
        page = write_study(tmp_path, "Old", runs, problem, 100, [], {})[-1]
        monkeypatch.setattr(Path, "replace", lambda self, target: (_ for _ in ()).throw(OSError(28, "No space left")))
        with pytest.raises(pg.InputError, match="No space left"):
            write_study(tmp_path, "New", runs, problem, 100, [], {})
        assert "<title>Old</title>" in page.read_text(encoding="utf-8")
        assert not list(tmp_path.rglob("*.part"))

    @pytest.mark.parametrize("missing", ["plotly", "matplotlib"])
    def test_without_the_extra_an_error_names_it(self, runs, problem, tmp_path, monkeypatch, missing):
        for name in [name for name in sys.modules if name.partition(".")[0] == missing]:
            monkeypatch.delitem(sys.modules, name)
        monkeypatch.setitem(sys.modules, missing, None)
        with pytest.raises(pg.MissingExtraError, match=r"paretograd\[report\]"):
            write_study(tmp_path / "study", "A study", runs, problem, 100, [], {})
        assert not (tmp_path / "study").exists()


class TestThinning:
    def test_short_curves_stay_whole(self):
        assert thin(np.ones(50), np.ones((50, 2))).tolist() == list(range(50))
        assert thin(np.ones(1), np.ones((1, 2))).tolist() == [0]

    def test_a_falling_curve_keeps_its_start_and_its_ends(self):
        gamma = np.exp(-np.arange(20001) / 4000.0)
        kept = thin(gamma, gamma[:, None])
        assert kept[[0, -1]].tolist() == [0, 20000]
        assert len(kept) <= COUNT
        assert (kept < 100).sum() > 15
        assert np.diff(kept).max() <= 20000 / (COUNT // 4 - 1) + 1

    def test_spikes_and_extremes_are_kept(self):
        generator = np.random.default_rng(0)
        gamma = 1.0 + 0.01 * generator.random(50001)
        losses = generator.random((50001, 2))
        gamma[[12345, 40001]] = 7.0, 0.1
        kept = thin(gamma, losses)
        assert {12345, 40001, *losses.argmin(axis=0).tolist(), *losses.argmax(axis=0).tolist()} <= set(kept.tolist())
        assert len(kept) <= 2 * COUNT

    def test_smooth_curves_are_spaced_by_ratio(self):
        assert spaced(0).tolist() == [0]
        assert spaced(9999)[[0, -1]].tolist() == [0, 9999]


class TestLook:
    def test_a_star_keeps_the_hue_and_changes_the_line(self):
        look = curves(["UPGrad", "UPGrad*", "Something else*", "Something else"])
        for label in ("UPGrad", "Something else"):
            plain, starred = look[label], look[label + "*"]
            assert (plain.colour, plain.on_dark, plain.symbol) == (starred.colour, starred.on_dark, starred.symbol)
            assert (plain.dash, starred.dash) == ("solid", "dash")

    def test_the_papers_methods_look_the_same_in_every_study(self):
        assert curves(["X", "MAS-Rand", "Nash-MTL*"])["Nash-MTL*"] == curves(["Nash-MTL*", "MGDA"])["Nash-MTL*"]

    def test_schedules_have_colours_of_their_own(self):
        look = curves([*POOL, "MAS-Rand", "MAS-RR(1k)", "MAS-RR(2.5k)", "MAS-RR(100)"])
        assert len({curve.colour for curve in look.values()}) == 8

    def test_no_two_methods_look_alike(self):
        labels = [f"rule {i}{star}" for i in range(27) for star in ("", "*")]
        assert len({(curve.colour, curve.dash) for curve in curves(labels).values()}) == 54

    def test_lines_stand_out_from_a_dark_ground(self):
        def luminance(colour: str) -> float:
            parts = np.array([int(colour[i : i + 2], 16) / 255.0 for i in (1, 3, 5)])
            return float(
                np.where(parts <= 0.04045, parts / 12.92, ((parts + 0.055) / 1.055) ** 2.4) @ [0.2126, 0.7152, 0.0722]
            )

        for curve in curves([f"rule {i}" for i in range(9)]).values():
            assert (luminance(curve.on_dark) + 0.05) / (luminance("#15181d") + 0.05) > 3.0


class TestContent:
    def test_the_shown_seed_comes_first(self, runs, problem):
        content = compose("", runs, problem, 100, None)
        assert content.seeds == (100, 24)
        assert [run.method for run in content.shown] == list(runs)
        end = runs["MGDA"].run(1)
        assert content.shown[0].losses[-1] == pytest.approx(end.losses[-1, 0])
        assert content.shown[0].iterations[-1] == end.lengths[0]

    def test_runs_without_seeds_are_numbered(self, problem):
        run = pg.descend(problem, pg.MGDA(), 0.02, 5, starts=[[0.1] * problem.n, [0.2] * problem.n])
        assert compose("", {"MGDA": run}, problem, 1, None).seeds == (1, 0)

    def test_a_front_in_pieces_is_drawn_in_pieces(self):
        zdt3 = pg.problem("zdt3")
        runs = {"MGDA": pg.descend(zdt3, pg.MGDA(), 1e-3, 200)}
        gaps = np.isnan(compose("", runs, zdt3, 0, None).front).any(axis=1).sum()
        assert gaps == 4
        assert not np.isnan(compose("", descend(bowls(2), "mgda"), bowls(2), 100, None).front).any()


class TestBounds:
    def test_they_are_those_of_certify_run(self, runs, problem):
        for finding in find_bounds(runs, problem.smoothness):
            trajectory = runs[finding.method]
            number = trajectory.seeds.index(finding.seed)
            curve = pg.certify_run(trajectory).curve(number)
            assert finding.bound is not None
            assert [finding.bound.at(t) for t in range(len(curve))] == pytest.approx(curve.tolist())
            least = np.minimum.accumulate(trajectory.gamma[: len(curve), number])
            assert (least <= curve).all()
            assert finding.least == least[-1]

    def test_bounds_that_coincide_are_one_line(self, runs, problem):
        findings = find_bounds(runs, problem.smoothness)
        found = merged(findings)
        assert sorted(method for bound in found for method in bound.methods) == sorted([*runs, *runs])
        assert len(found) < len(findings)
        assert all(
            bound.last == max(runs[m].lengths[runs[m].seeds.index(bound.seed)] for m in bound.methods) - 1
            for bound in found
        )

    def test_an_uncovered_run_says_why(self):
        findings = find_bounds(descend(bowls(3), "mgda", "rgw"), 1.0)
        assert [finding.bound is not None for finding in findings] == [True, True, False, False]
        assert findings[-1].why


class TestFigures:
    def test_dynamics_has_the_papers_panels(self, runs, problem):
        figure = dynamics(compose("", runs, problem, 100, 0.01))
        first, second, third = figure.axes
        assert [axes.get_ylabel() for axes in figure.axes] == [
            "objective $f_{1}$",
            "objective $f_{2}$",
            r"$\gamma$, distance to Pareto stationarity",
        ]
        assert {axes.get_xlabel() for axes in figure.axes} == {"iteration"}
        assert [axes.get_yscale() for axes in (first, second, third)] == ["linear", "linear", "log"]
        assert any(list(line.get_ydata()) == [0.01, 0.01] for line in third.lines)
        assert [text.get_text() for text in figure.legends[0].get_texts()] == list(runs)

    def test_a_stop_rule_that_is_not_there_is_not_drawn(self, runs, problem):
        assert not dynamics(compose("", runs, problem, 100, None)).axes[-1].texts

    @pytest.mark.parametrize("m", [1, 3, 12])
    def test_every_number_of_objectives_is_drawn_on_the_page(self, m):
        content = compose("", descend(bowls(m), "mgda", "mean", steps=30), bowls(m), 100, 0.01)
        assert set(draw(content)) == set(NAMES[: 4 if m > 1 else 2])
        for figure in (dynamics(content), *([objective_space(content)] if m > 1 else [])):
            FigureCanvasAgg(figure).draw()
            page = figure.bbox
            for text in (*figure.texts, figure.legends[0]):
                box = text.get_window_extent()
                assert page.x0 <= box.x0 <= box.x1 <= page.x1
                assert page.y0 <= box.y0 <= box.y1 <= page.y1

    def test_labels_are_no_formulas(self, runs, problem):
        run = runs["MGDA"]
        assert len(draw(compose("", {"_cost in $": run, r"$\bad{": run}, problem, 100, 0.01))) == 4

    def test_a_run_without_steps_and_a_gamma_of_zero_are_drawn(self):
        still = pg.descend(bowls(1), pg.MGDA(), 0.1, 3, starts=[[0.0] * 3], stop_gamma=100.0)
        assert still.lengths.tolist() == [0]
        assert draw(compose("", {"MGDA": still}, bowls(1), 0, 0.01))
        far = pg.problem("quadratic")
        zero = pg.descend(far, pg.MGDA(), 0.1, 3, starts=far.pareto_set(1))
        assert draw(compose("", {"MGDA": zero}, far, 0, None))


@pytest.fixture(scope="module")
def page(runs, problem, tmp_path_factory) -> str:
    rows = [{"method": "MGDA", "iterations": 7417, "final f1": 0.123456, "conflicts": None, HOSTILE: HOSTILE}]
    hostile = {**runs, HOSTILE: runs["UPGrad"]}
    folder = tmp_path_factory.mktemp("study")
    path = write_study(folder, HOSTILE, hostile, problem, 100, rows, {HOSTILE: HOSTILE}, stop_gamma=0.01)[-1]
    return path.read_text(encoding="utf-8")


class TestPage:
    def test_it_loads_nothing(self, page):
        (library,) = re.findall(r"<script>(/\*\*.*?)</script>", page, re.DOTALL)
        rest = page.replace(library, "")
        assert library.count("plotly.js") >= 1
        assert not re.findall(r"https?:|src=|<link|@import|url\(", rest)

    def test_its_policy_allows_its_own_scripts_and_nothing_else(self, page):
        (policy,) = re.findall(r'Content-Security-Policy" content="(.*?)"', page)
        scripts = re.findall(r"<script>(.*?)</script>", page, re.DOTALL)
        digests = [base64.b64encode(hashlib.sha256(script.encode()).digest()).decode() for script in scripts]
        assert policy.startswith("default-src 'none'; ")
        assert re.findall("sha256-(.*?)'", policy) == digests
        assert len(scripts) == 2

    def test_what_a_user_wrote_is_text(self, page):
        assert HOSTILE not in page
        # title twice, control, table: head and cell, list: term and value, table of the theorems
        assert page.count("&lt;/script&gt;&lt;script&gt;window.hacked = 1&lt;/script&gt;") == 8
        assert data_of(page)["methods"][-1]["label"].startswith("&lt;/script&gt;")

    def test_its_data_are_the_runs(self, page, runs):
        data = data_of(page)
        assert [panel["kind"] for panel in data["panels"]] == ["loss", "loss", "gamma", "space"]
        assert page.count('<figure class="panel">') == 4
        assert data["seeds"] == ["100", "24"]
        assert data["stopGamma"] == 0.01
        assert len(data["runs"]) == 2 * (len(runs) + 1)
        first = next(run for run in data["runs"] if (run["method"], run["seed"]) == (0, 0))
        assert first["gamma"][-1] == pytest.approx(runs["MGDA"].run(1).gamma[-1, 0], rel=1e-5)
        assert len(first["iterations"]) == len(first["gamma"]) == len(first["losses"][1])
        assert {bound["label"] for bound in data["bounds"]} == {"bound of Corollary 1"}
        assert len(data["front"]) == 2

    def test_its_table_shows_the_rows(self, page):
        assert ">7,417</td>" in page
        assert ">0.1235</td>" in page
        assert "Corollary 1</td>" in page

    def test_values_in_words(self):
        values = [True, 1234, np.int64(5), 0.00012346, np.float32(2.5), float("nan"), None, "text"]
        assert [shown(value) for value in values] == ["yes", "1,234", "5", "0.0001235", "2.5", "-", "-", "text"]

    def test_rows_need_not_have_the_same_columns(self):
        table = methods_table([{"method": "a"}, {"method": "b", "theorem": "Theorem 2"}], {})
        assert table.count("<td") == 4

    @pytest.mark.parametrize("m", [1, 3, 12])
    def test_every_number_of_objectives_has_its_panels(self, m, tmp_path):
        unknown = bowls(m, smoothness=None)
        page = write_study(tmp_path, "Bowls", descend(unknown, "mgda", steps=30), unknown, 100, [], {})[-1].read_text(
            "utf-8"
        )
        data = data_of(page)
        last = {1: ["gamma"], 3: ["gamma", "space"], 12: ["gamma", "parallel"]}[m]
        assert [panel["kind"] for panel in data["panels"]] == ["loss"] * min(m, PANELS) + last
        assert data["bounds"] == []
        assert "None is known for this problem" in page
        assert ("The first 8 of 12 objectives" in page) == (m == 12)
        assert "The Pareto front of this problem is not known" in page or m == 1
