"""What a report says about a recording: the certificates of its steps, and brute force on their Jacobians."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import torch
from support.recorded import jacobians, record
from typer.testing import CliRunner

import paretograd as pg
from paretograd.cli.app import app
from paretograd.reports.watch import describe, write_page
from paretograd.reports.watch.analysis import OTHERS, analyse, conflicting_pairs, other_rules
from paretograd.reports.watch.panels import MOST_LINES, panels
from paretograd.reports.watch.words import answer, loss_rows, other_rows, percent

#: The recorded Gramian is that of the step, made symmetric: float64 rounding of sums of six products.
EXACT = {"rtol": 1e-12, "atol": 1e-12}


class TestNumbers:
    @pytest.mark.parametrize("rule", [pg.UPGrad(), pg.Mean(), pg.MGDA(), pg.PCGrad()], ids=lambda rule: rule.name)
    def test_certificates_are_those_of_the_steps(self, tmp_path, rule):
        steps = record(tmp_path, jacobians(20), rule)
        run = analyse(tmp_path)
        assert run.rules == (rule.label,)
        for i, step in enumerate(steps):
            found = step.certificate
            assert np.flatnonzero(run.raised[i]).tolist() == list(found.conflicts)
            assert np.flatnonzero(run.hidden[i]).tolist() == list(found.unknown)
            assert np.allclose(run.slopes[i], found.slopes, **EXACT)
            assert np.allclose([run.norm[i], run.gamma[i]], [found.norm, found.gamma], **EXACT)
            assert np.allclose(run.weights[i], step.weights, **EXACT)

    def test_brute_force_on_the_jacobians(self, tmp_path):
        rows = jacobians(30)
        record(tmp_path, rows, pg.Mean())
        run = analyse(tmp_path)
        units = [J / np.linalg.norm(J, axis=1, keepdims=True) for J in rows]
        cosines = np.array([unit @ unit.T for unit in units])
        directions = np.array([J.mean(axis=0) for J in rows])
        slopes = np.einsum("tkn,tn->tk", rows, directions)
        assert np.allclose(run.cosines, cosines, **EXACT)
        assert np.allclose(run.lengths, np.linalg.norm(rows, axis=2), **EXACT)
        assert np.array_equal(run.raised, slopes < 0.0)
        assert np.allclose(run.norm, np.linalg.norm(directions, axis=1), **EXACT)
        assert np.allclose(run.gamma, [float(pg.stationarity(torch.from_numpy(J @ J.T))) for J in rows], **EXACT)
        assert np.array_equal(run.losses, np.repeat(1.0 / np.arange(1.0, 31.0), 3).reshape(30, 3))
        first = conflicting_pairs(run)[0]
        apart = cosines[:, 0, 1] < 0.0
        assert (first.first, first.second, first.share) == (0, 1, apart.mean())
        assert (first.early, first.late) == (apart[:10].mean(), apart[-10:].mean())
        assert first.cosine == pytest.approx(cosines[:, 0, 1].mean())

    def test_other_rules_are_those_rules(self, tmp_path):
        rows = jacobians(12)
        record(tmp_path, rows, pg.UPGrad())
        found = other_rules(analyse(tmp_path))
        assert [other.name for other in found] == list(OTHERS)
        for other in found:
            directions = [pg.get(other.name)(torch.from_numpy(J)).numpy() for J in rows]
            slopes = np.array([J @ d for J, d in zip(rows, directions, strict=True)])
            raised = slopes < -1e-9  # far below any slope here that is not zero to rounding
            assert np.array_equal(other.raised, raised.mean(axis=0))
            assert other.any == raised.any(axis=1).mean()
            assert other.count == pytest.approx(raised.sum(axis=1).mean())
            lengths, norms = np.linalg.norm(rows, axis=2), np.linalg.norm(directions, axis=1)
            worst = np.median((slopes / lengths / norms[:, None]).min(axis=1))
            assert other.worst == pytest.approx(worst, abs=1e-7)  # a Gramian knows angles to the root of its rounding
            assert other.norm == pytest.approx(np.median(norms), rel=1e-7)

    def test_groups_are_judged_together(self, tmp_path):
        rows = jacobians(10)
        with pg.Monitor(tmp_path, budget=None) as monitor:
            for J in rows:
                first, second = (torch.zeros(3, dtype=torch.float64, requires_grad=True) for _ in range(2))
                losses = torch.from_numpy(J) @ torch.cat([first, second])
                monitor(pg.backward(losses, pg.MGDA(), [[first], [second]]))
        run = analyse(tmp_path)
        parts = [[pg.MGDA()(torch.from_numpy(J[:, half])).numpy() for half in (slice(3), slice(3, 6))] for J in rows]
        directions = np.array([np.concatenate(part) for part in parts])
        slopes = np.einsum("tkn,tn->tk", rows, directions)
        assert np.allclose(run.slopes, slopes, atol=1e-9)
        assert np.allclose(run.norm, np.linalg.norm(directions, axis=1), atol=1e-9)
        assert np.array_equal(run.raised, slopes < -1e-9)

    def test_updates_directions_and_broken_steps(self, tmp_path):
        steps = record(tmp_path / "a", jacobians(6), pg.UPGrad(), update=True)
        run = analyse(tmp_path / "a")
        assert [np.flatnonzero(row).tolist() for row in run.updated] == [list(step.update.conflicts) for step in steps]
        assert run.updated.any()
        steps = record(tmp_path / "b", jacobians(6), pg.get("graddrop", seed=0))
        run = analyse(tmp_path / "b")
        assert [np.flatnonzero(row).tolist() for row in run.raised] == [list(s.direction.conflicts) for s in steps]
        assert np.isnan(run.weights).all()
        assert "The direction of GradDrop" in describe(tmp_path / "b")
        w = torch.ones(2, requires_grad=True)
        with pg.Monitor(tmp_path / "c", budget=None) as monitor:
            for scale in (1.0, torch.inf, 2.0):
                monitor(pg.backward([w[0] * scale, w[1] - w[0]], pg.UPGrad(), nonfinite="propagate"))
        assert analyse(tmp_path / "c").finite.tolist() == [True, False, True]
        assert "In 1 of them a gradient held NaN or infinity" in describe(tmp_path / "c")


class TestWords:
    def test_the_answer_is_what_was_recorded(self, tmp_path):
        rows = jacobians(60)
        record(tmp_path, rows, pg.Mean(), ("speed", "cost", "noise"), update=True)
        run = analyse(tmp_path)
        text = "\n".join(answer(run, other_rules(run)))
        apart = np.array([J[0] @ J[1] < 0.0 for J in rows])
        late = (
            f"mostly late ({percent(apart[:20].mean())} of the first third, {percent(apart[-20:].mean())} of the last)"
        )
        cosine = np.mean([J[0] @ J[1] / np.linalg.norm(J[0]) / np.linalg.norm(J[1]) for J in rows])
        share = f"{percent(apart.mean())} of the steps (mean cosine {cosine:.2f})"
        assert f"speed and cost conflict in {share}, {late}" in text
        raised = np.array([(J @ J.mean(axis=0) < 0.0) for J in rows])
        assert f"The direction of Mean still raised a loss in {percent(raised.any(axis=1).mean())} of the steps" in text
        assert "The optimizer's updates raised a loss in 100% of the steps" in text
        assert "cost has the longest gradient in" in text
        assert "cost dominates the direction" in text
        assert "On the same gradients, " in text
        assert "MGDA, UPGrad, DualProj, Nash-MTL, FairGrad and IMTL-G in none." in text
        assert "Every loss is lower in the last third than in the first." in text

    def test_without_conflicts_it_says_that_a_sum_may_do(self, tmp_path):
        rows = [np.abs(J) for J in jacobians(5)]
        record(tmp_path, rows, pg.UPGrad())
        text = describe(tmp_path)
        assert "No two losses conflict" in text
        assert "raised no loss in any recorded step" in text
        assert "CAGrad, PCGrad, IMTL-G and Aligned-MTL would have raised no loss" in text

    def test_a_stationary_run_is_called_so(self, tmp_path):
        rows = [np.array([[1.0, 0.01], [-1.0, 0.01]])] * 4
        record(tmp_path, rows, pg.UPGrad())
        text = describe(tmp_path)
        assert "1% of the shortest gradient, so the batches leave little room" in text
        record(tmp_path / "zero", [np.array([[1.0, 0.0], [0.0, 0.0]])] * 4, pg.UPGrad())
        assert "some gradient is zero, so the points are Pareto stationary" in describe(tmp_path / "zero")

    @pytest.mark.parametrize("rows", [jacobians(1), jacobians(2), jacobians(5, m=1), jacobians(30, m=40, n=50)])
    def test_few_records_one_loss_and_many(self, tmp_path, rows):
        record(tmp_path, rows, pg.UPGrad(), values=False)
        run = analyse(tmp_path)
        others = other_rules(run)
        assert all(sentence.endswith(".") and "nan" not in sentence for sentence in answer(run, others))
        assert len(loss_rows(run)) == run.m
        assert len(other_rows(others, run.labels)) == len(OTHERS)
        heat = [panel for panel in panels(run, others) if panel.title == "Weights" and panel.values is not None]
        assert bool(heat) == (run.m > MOST_LINES)

    def test_what_is_missing_in_a_part_of_the_run_is_left_out(self, tmp_path):
        rows = jacobians(9)
        record(tmp_path, rows[:6], pg.UPGrad())
        record(tmp_path, [J * [[0.0], [1.0], [1.0]] for J in rows[6:]], pg.UPGrad(), values=False)
        text = describe(tmp_path)
        assert "some gradient is zero, so the points are Pareto stationary" in text
        assert "nan" not in text
        assert "last third than" not in text

    def test_scalarizations(self, tmp_path):
        record(tmp_path, jacobians(9), pg.STCH(mu=0.1), ("a", "b", "c"))
        text = describe(tmp_path)
        assert "STCH sees the losses only" in text
        assert [panel.title for panel in panels(analyse(tmp_path), [])] == ["Weights", "Losses"]

    @pytest.mark.parametrize(
        ("share", "text"), [(0.0, "0%"), (0.001, "under 1%"), (0.5, "50%"), (0.999, "over 99%"), (1.0, "100%")]
    )
    def test_only_nothing_is_none_and_only_everything_is_all(self, share, text):
        assert percent(share) == text


class TestCommand:
    def test_it_prints_the_answer_first_and_writes_the_page(self, tmp_path, monkeypatch):
        monkeypatch.setenv("COLUMNS", "200")
        record(tmp_path, jacobians(20), pg.Mean(), ("speed", "cost", "noise"))
        result = CliRunner().invoke(app, ["watch", str(tmp_path)])
        assert result.exit_code == 0, result.output
        lines = result.stdout.splitlines()
        assert lines[0].startswith("Mean on 3 losses: 20 records")
        assert lines[1].startswith("- speed and cost conflict in ")
        assert (tmp_path / "monitor.html").exists()
        assert "The page is in" in lines[-1]
        out = tmp_path / "other.html"
        assert CliRunner().invoke(app, ["watch", str(tmp_path / "monitor.jsonl"), "--report", str(out)]).exit_code == 0
        assert out.read_bytes().startswith(b"<!DOCTYPE html>")

    def test_without_plotly_there_are_the_words(self, tmp_path, monkeypatch):
        record(tmp_path, jacobians(4), pg.Mean())
        monkeypatch.setitem(sys.modules, "plotly", None)
        monkeypatch.delitem(sys.modules, "plotly.offline", raising=False)
        result = CliRunner().invoke(app, ["watch", str(tmp_path)])
        assert result.exit_code == 0
        assert "conflict" in result.stdout
        assert "There is no page: the report needs plotly" in result.stderr
        assert CliRunner().invoke(app, ["watch", str(tmp_path), "--report", str(tmp_path / "a.html")]).exit_code == 2

    @pytest.mark.parametrize(
        ("more", "message"),
        [(["--report", "a.png"], "a page ends in .html"), (["--follow", "--report", "a.html"], "writes no page")],
    )
    def test_mistakes(self, tmp_path, more, message):
        record(tmp_path, jacobians(2), pg.Mean())
        result = CliRunner().invoke(app, ["watch", str(tmp_path), *more])
        assert result.exit_code == 2
        assert message in result.stderr

    def test_there_is_no_run(self, tmp_path):
        result = CliRunner().invoke(app, ["watch", str(tmp_path)])
        assert result.exit_code == 2
        assert "there is no recording" in result.stderr

    @pytest.mark.skipif(os.name == "nt", reason="Ctrl-C is sent otherwise there")
    def test_it_follows_a_run_until_it_is_stopped(self, tmp_path):
        record(tmp_path, jacobians(3), pg.Mean())
        command = [sys.executable, "-u", "-m", "paretograd", "watch", str(tmp_path), "--follow", "--every", "0.1"]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        try:
            assert process.stdout is not None
            assert process.stdout.readline().startswith("Mean on 3 losses: 3 records")
            record(tmp_path, jacobians(2, seed=1), pg.Mean())
            end = time.monotonic() + 60
            line = ""
            while not line.startswith("Mean on 3 losses: 5 records"):
                assert time.monotonic() < end
                line = process.stdout.readline()
                if line.startswith("Mean on 3 losses: 4 records"):
                    continue  # it looked between the two
            process.send_signal(signal.SIGINT)
            rest, _ = process.communicate(timeout=30)
            assert rest.splitlines()[-1] == "stopped"
            assert process.returncode == 0
        finally:
            process.kill()
            process.wait()


def test_the_page_is_written_from_python(tmp_path):
    record(tmp_path, jacobians(4), pg.Mean())
    assert write_page(tmp_path) == tmp_path / "monitor.html"
    assert write_page(tmp_path, tmp_path / "new" / "a.html").exists()
    with pytest.raises(pg.ParameterError, match=r"a page ends in \.html"):
        write_page(tmp_path, tmp_path / "a.txt")
    assert not list(Path(tmp_path).glob("*.part"))
