"""Figures and page of the counter-examples. Drawing needs the extra ``report``."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from paretograd.errors import ParameterError
from paretograd.experiments.counterexamples.run import (
    TITLE,
    CounterexampleFolder,
    CounterexampleResults,
    claims,
    read_results,
    run_counterexamples,
    summary,
)
from paretograd.experiments.counterexamples.study import CounterexampleStudy, Example, examples
from paretograd.experiments.study import Kind, options_of
from paretograd.reports.study.content import Content, Curve, Finding, Quantity, Run, curves, find_bounds, thinned_runs
from paretograd.reports.study.figures import DASHES, DPI, plain, rendered
from paretograd.reports.study.page import page, write_files

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_SUMMARY = (
    "Three objectives, whose gradients at the start are those of a counter-example of the paper. Each rule turns the "
    "gradients into one direction d, and takes a step along -d, again and again. A rule that keeps its promise lowers "
    "all three objectives; PCGrad and IMTL-G do not. The three examples differ in their gradients."
)
Looks = Mapping[str, Curve]


def _quantity(k: int) -> Quantity:
    return Quantity(
        f"change of f{k}",
        f"change of objective {k}",
        f"Objective {k}",
        f"The value of objective {k} less that at the start. Above 0, the run has made this objective worse.",
    )


def compose(results: CounterexampleResults) -> Content:
    """The changes of the objectives, for each rule and example."""
    if not results.runs:
        raise ParameterError(f"no run of the study in {results.folder} is done; a report needs at least one")
    runs = [run for case, found in results.runs.items() for run in thinned_runs(case.method, found)]
    return Content(
        title=TITLE,
        problem="counter-examples",
        lr=f"{results.study.lr:g}",
        m=3,
        methods=_looks(results),
        seeds=tuple(dict.fromkeys(run.seed for run in runs)),
        runs=tuple(Run(run.method, run.seed, run.iterations, run.losses - run.losses[0], run.gamma) for run in runs),
        front=np.empty((0, 3)),
        stop_gamma=results.study.stop_gamma or None,
        quantities=tuple(_quantity(k) for k in (1, 2, 3)),
        one="example",
    )


def _looks(results: CounterexampleResults) -> dict[str, Curve]:
    return curves(list(dict.fromkeys(case.method for case in results.study.cases())))


def directions(results: CounterexampleResults, looks: Looks) -> Figure:
    """Cosines between the first direction of each rule and the gradients, one panel for each example."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(12.0, 4.4), dpi=DPI, layout="constrained")
    width = 0.8 / len(looks)
    for axes, example in zip(figure.subplots(1, 3, sharey=True), examples(results.study.z), strict=True):
        for place, (case, found) in enumerate(_of(results, example)):
            cosines = found.slopes[0, 0] / (found.gradient_norms[0, 0] * found.norms[0, 0])
            offset = (place - 0.5 * (len(looks) - 1)) * width
            axes.bar(np.arange(3) + offset, cosines, width, color=looks[case.method].colour, zorder=2)
        axes.axhspan(-1.0, 0.0, color="0.5", alpha=0.12, zorder=0)
        axes.axhline(0.0, color="0.3", linewidth=1.0, zorder=3)
        axes.set_xticks(range(3), [f"$g_{k}$" for k in (1, 2, 3)])
        axes.grid(axis="x", visible=False)
        axes.set_title(f"Example {example.number}: {example.title.partition(':')[0]}", fontsize=10)
        axes.set_ylim(-0.75, 1.05)
        axes.text(0.98, 0.02, "conflict: this objective goes up", transform=axes.transAxes, fontsize=8.5, ha="right")
    figure.axes[0].set_ylabel("cosine between $d$ and the gradient")
    _legend(figure, looks)
    figure.suptitle("The first direction of each rule", fontsize=11)
    return figure


def runs(results: CounterexampleResults, looks: Looks) -> Figure:
    """Changes of the objectives and gamma over the steps, one row for each example."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(13.0, 8.6), dpi=DPI, layout="constrained")
    grid = figure.subplots(3, 4)
    for row, example in zip(grid, examples(results.study.z), strict=True):
        for place, (case, found) in enumerate(_of(results, example)):
            look, end = looks[case.method], int(found.lengths[0]) + 1
            columns = [*(found.losses[:end, 0] - found.losses[0, 0]).T, found.gamma[:end, 0]]
            for axes, values in zip(row, columns, strict=True):
                width = max(5.5 - 1.1 * place, 1.2)  # rules that do the same lie on each other: the first are wide
                axes.plot(np.arange(end), values, color=look.colour, linestyle=DASHES[look.dash], linewidth=width)
                axes.plot(end - 1, values[-1], marker=look.symbol, color=look.colour, markersize=width + 4.0)
        for k, axes in enumerate(row[:3], start=1):
            axes.axhline(0.0, color="0.3", linewidth=1.0, zorder=1)
            axes.set_yscale("symlog", linthresh=0.01)
            axes.margins(y=0.12)
            axes.set_ylabel(f"change of $f_{k}$")
        row[3].set_yscale("log")
        row[3].set_ylabel(r"$\gamma$, distance to stationarity")
        row[0].set_title(f"Example {example.number}: {example.title}", fontsize=10.5, loc="left")
    for axes in grid[-1]:
        axes.set_xlabel("step")
    _legend(figure, looks)
    figure.suptitle("The runs; above 0, an objective is worse than at the start", fontsize=11)
    return figure


def _of(results: CounterexampleResults, example: Example) -> list[tuple[Any, Any]]:
    """Return the runs on an example that took a step."""
    return [(case, found) for case, found in results.runs.items() if case.example == example and found.lengths[0]]


def _legend(figure: Any, looks: Looks) -> None:
    from matplotlib.lines import Line2D

    handles = [
        Line2D([], [], color=look.colour, linestyle=DASHES[look.dash], marker=look.symbol, linewidth=2.2)
        for look in looks.values()
    ]
    names = [plain(label) for label in looks]
    figure.legend(handles, names, loc="outside lower center", ncols=len(names), frameon=False, fontsize=9)


def _findings(results: CounterexampleResults) -> list[Finding]:
    """Compare the runs with the theorems' bounds. The smoothness constant of every objective is 1."""
    return [bound for case, found in results.runs.items() for bound in find_bounds({case.method: found}, 1.0)]


def _draw(results: CounterexampleResults) -> list[Path]:
    content, looks = compose(results), _looks(results)

    def figures() -> dict[str, Figure]:
        return {"counterexample_directions": directions(results, looks), "counterexample_runs": runs(results, looks)}

    details = {
        **{f"finding {place}": claim.sentence for place, claim in enumerate(claims(results), start=1)},
        **{f"gradients of example {one.number}": str(one.rows) for one in examples(results.study.z)},
        "command": results.study.command(),
    }
    rows = [
        {"method": row["method"], "example": row["example"]}
        | {f"d·g{k}": row[f"slope_{k}"] for k in (1, 2, 3)}
        | {"least weight": min(row[f"weight_{k}"] for k in (1, 2, 3))}
        | {f"change of f{k}": row[f"change_f{k}"] for k in (1, 2, 3)}
        | {"steps with a conflict": row["conflicting_steps"], "steps": row["steps"], "last γ": row["final_gamma"]}
        for row in results.rows
    ]
    text = page(content, _SUMMARY, 1.0, _findings(results), rows, details)
    return write_files(results.folder, rendered(figures), text)


def _numbers(results: CounterexampleResults) -> str:
    return f"{results.folder / CounterexampleFolder.results} (all steps)"


COUNTEREXAMPLES = Kind(
    name="counterexamples",
    title=TITLE,
    source="sections PCGrad and IMTL-G of the appendix",
    options=options_of(CounterexampleStudy),
    run_options=(),
    read_study=CounterexampleStudy.from_options,
    run=run_counterexamples,
    read_results=read_results,
    summary=summary,
    numbers=_numbers,
    draw=_draw,
)
