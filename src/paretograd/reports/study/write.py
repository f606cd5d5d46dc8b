"""``write_study``: a study's figures and its page, written to its folder."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from paretograd.descent.trajectory import Trajectory
from paretograd.disk import replacing
from paretograd.problems.base import Problem
from paretograd.reports.study.bounds import find_bounds
from paretograd.reports.study.content import compose
from paretograd.reports.study.figures import draw
from paretograd.reports.study.page import page
from paretograd.reports.study.words import summary


def write_study(
    folder: str | Path,
    title: str,
    trajectories: Mapping[str, Trajectory],
    problem: Problem,
    shown_seed: int,
    rows: Sequence[Mapping[str, object]],
    details: Mapping[str, str],
    *,
    stop_gamma: float | None = None,
) -> list[Path]:
    """Write ``figures/*.png``, ``figures/*.svg`` and ``report.html``; return their paths, the report last.

    Everything is drawn before anything is written, and each file is written whole or not at all. Files of those names
    are replaced. Needs the extra ``paretograd[report]``.

    Args:
        folder: of the study; made if it is not there.
        title: of the report.
        trajectories: label of a method to its runs, in the order of legends.
        problem: what all of them minimise.
        shown_seed: the runs of the figures, and those that the report shows first.
        rows: the table of methods, one mapping of column to value for each.
        details: the configuration, as the report shows it.
        stop_gamma: where the runs stop, drawn as a line; None where they do not stop by gamma.
    """
    content = compose(title, trajectories, problem, shown_seed, stop_gamma)
    figures, findings = draw(content), find_bounds(trajectories, problem.smoothness)
    text = page(content, summary(content, problem), problem.smoothness, findings, rows, details)
    return write_files(Path(folder), figures, text)


def write_files(folder: Path, figures: Mapping[str, bytes], page: str) -> list[Path]:
    """Write figures and page to a study's folder, each whole or not at all; returns their paths, the page last."""
    contents = {folder / "figures" / name: data for name, data in figures.items()}
    contents[folder / "report.html"] = page.encode()
    for path, data in contents.items():
        with replacing(path) as file:
            file.write(data)
    return list(contents)
