"""What a running study reports: lines, bars and the time left."""

from __future__ import annotations

import math
import re

from paretograd.experiments import Method, Study, Watch, run_study
from paretograd.experiments.progress import Bars, Lines, Pace


def test_a_watch_is_told_what_happens(tmp_path):
    class Notebook(Watch):
        def __init__(self):
            self.lines = []

        def begin(self, labels, steps):
            self.lines.append((labels, steps))

        def steps(self, taken, running, gamma):
            assert (running > 0) == (gamma == gamma)

        def finished(self, label, before):
            self.lines.append((label, before))

    methods = (Method("mgda", "0.1"), Method("upgrad*", "0.1"))
    study = Study(problem="vlmop2", methods=methods, seeds=(24, 42), steps=40)
    first, second = Notebook(), Notebook()
    run_study(study, tmp_path, watch=first)
    run_study(study, tmp_path, resume=True, watch=second)
    assert first.lines == [(("MGDA", "UPGrad*"), 40), ("MGDA", False), ("UPGrad*", False)]
    assert second.lines[1:] == [("MGDA", True), ("UPGrad*", True)]


class TestProgress:
    def test_time_left(self, monkeypatch):
        now = [100.0]
        monkeypatch.setattr("paretograd.experiments.progress.time.monotonic", lambda: now[0])
        pace = Pace()
        pace.begin(3, 1000)
        assert pace.left_in_all() == ""
        pace.method(500)
        assert pace.left_here() == ""
        now[0] = 110.0
        pace.steps(600)
        assert pace.seconds_per_step == 0.1
        assert (pace.left_here(), pace.left_in_all()) == ("0:00:40", "0:04:00")
        pace.finished()
        assert pace.left_in_all() == ""

    def test_lines(self, monkeypatch):
        now = [100.0]
        monkeypatch.setattr("time.monotonic", lambda: now[0])
        told: list[str] = []
        lines = Lines(told.append)
        lines.begin(["MGDA", "Mean"], 1000)
        lines.finished("MGDA", before=True)
        lines.method("Mean", 10)
        lines.losses([0.5, 0.25, 0.125])
        lines.steps(20, 4, 0.1)
        now[0] = 120.0
        lines.steps(30, 1, 0.1)
        lines.finished("Mean", before=False)
        assert told == [
            "[1/2] MGDA: was done before",
            "[2/2] Mean: goes on after step 10",
            "[2/2] Mean: step 30 of 1,000, 1 run, losses 0.50000 0.25000 0.12500, gamma 0.10000, 1000.0 ms a step, "
            "at most 0:16:10 left, 0:16:10 for all",
            "[2/2] Mean: done, 30 steps, 1000.0 ms a step",
        ]

    def test_a_study_without_losses_and_gamma(self, monkeypatch):
        now = [100.0]
        monkeypatch.setattr("time.monotonic", lambda: now[0])
        told: list[str] = []
        lines = Lines(told.append)
        lines.begin(["settings"], 10)
        lines.method("settings", 0)
        now[0] = 120.0
        lines.steps(5, 5, math.nan)
        assert told[-1] == (
            "[1/1] settings: step 5 of 10, 5 runs, 4000.0 ms a step, at most 0:00:20 left, 0:00:20 for all"
        )

    def test_bars(self, monkeypatch):
        monkeypatch.setenv("COLUMNS", "80")
        with Bars() as bars:
            bars.begin(["MGDA", "Mean"], 10)
            bars.method("MGDA", 0)
            bars.losses([0.5, 0.25, 0.125])
            bars.steps(3, 2, 0.1)
            states = [task.fields["state"] for task in bars._bars.tasks]
            assert re.fullmatch(r"0 of 2, at most \d:\d\d:\d\d left", states[0])
            assert states[1] == "step 3, 2 runs, f 0.500 0.250 0.125, gamma 0.1000"
            bars.finished("MGDA", before=False)
            assert bars._bars.tasks[0].fields["state"] == "1 of 2"
