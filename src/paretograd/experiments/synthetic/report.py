"""Output of a study on a test problem: its summary, figures and page."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path

from paretograd.experiments.folder import versions
from paretograd.experiments.study import Kind, Option, Summary
from paretograd.experiments.synthetic import table
from paretograd.experiments.synthetic.run import Results, read_study, run_study
from paretograd.experiments.synthetic.study import PAPER, Study, paper_study, title_of

#: Remarks about single runs that are printed; the file has all of them.
_REMARKS = 6
METRICS_EVERY = Option(
    "metrics.csv has every K-th step, and the last of each run; 10 if not given.", "K", type=int, least=1
)
_OPTIONS = {
    "authors_lr": Option("Nash-MTL* with lr 0.005, as in the authors' runs; the others 0.001.", type=bool),
    "metrics_every": METRICS_EVERY,
}


def _summary(results: Results, width: int) -> Summary:
    study = results.study
    problem = study.make_problem()
    setting = (
        f"{problem.label}, m = {problem.m}, n = {problem.n}; seeds {', '.join(map(str, study.seeds))}; "
        f"lr {study.lr}; {study.dtype}"
    )
    remarks = table.notes(study, results.trajectories)
    more = len(remarks) - _REMARKS
    if more > 0:
        remarks = [*remarks[:_REMARKS], f"And {more} more: see {results.folder / 'table.md'}."]
    rows = results.rows
    return Summary(
        title=title_of(study),
        lines=(setting, table.heading(study)),
        tables={"": table.for_people(study, rows)},
        legend=table.legend(study, rows),
        remarks=remarks,
        claims=table.claims(study, rows),
        in_short=table.in_short(study, rows),
    )


def _numbers(results: Results) -> str:
    every = results.metrics_every
    thinned = "all steps" if every == 1 else f"one step in {every}"
    return f"{results.folder / 'metrics.csv'} ({thinned}), {results.folder / 'trajectories'} (all)"


def _draw(results: Results) -> list[Path]:
    from paretograd.reports.study import write_study

    study = results.study
    return write_study(
        results.folder,
        title_of(study),
        results.trajectories,
        study.make_problem(),
        study.shown_seed,
        table.for_page(study, results.rows),
        _details(study),
        stop_gamma=study.stop_gamma or None,
    )


def _details(study: Study) -> dict[str, str]:
    """The configuration as the page shows it."""
    return {
        "problem": repr(study.make_problem()),
        "seeds": ", ".join(map(str, study.seeds)),
        "step size": study.lr,
        "a run ends at the first of": table.ends(study),
        "precision": study.dtype,
        "versions": ", ".join(f"{name} {version}" for name, version in versions().items()),
        "command": study.command(),
    }


#: Any study on a test problem; ``paretograd run`` makes them.
SYNTHETIC = Kind(
    name="run",
    title="Rules on a test problem",
    source="",
    options=_OPTIONS,
    run_options=("metrics_every",),
    read_study=Study,
    run=run_study,
    read_results=read_study,
    summary=_summary,
    numbers=_numbers,
    draw=_draw,
)


def paper_kinds() -> list[Kind]:
    """The paper's studies on test problems."""
    return [
        replace(
            SYNTHETIC,
            name=name,
            title=paper.title,
            source=f"figure {paper.figure}" if paper.figure else "",
            read_study=partial(paper_study, name),
        )
        for name, paper in PAPER.items()
    ]
