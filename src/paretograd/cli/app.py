"""Commands and their arguments; the work is done in :mod:`paretograd.reports`."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from paretograd import __version__
from paretograd.aggregators.registry import split_list
from paretograd.cli import studies
from paretograd.cli.explore import explore
from paretograd.cli.files import read_jacobian
from paretograd.cli.studies import console as _console
from paretograd.cli.studies import errors_in_words as _errors_in_words
from paretograd.cli.watch import watch
from paretograd.errors import InputError
from paretograd.reports import export, tables
from paretograd.reports.compare import compare as run_comparison
from paretograd.reports.coverage import coverage
from paretograd.reports.roster import Parameter, build, build_any, roster

app = typer.Typer(
    name="paretograd",
    help="Train on several objectives at once: see which aggregation rules there are, what each one promises, and "
    "what they make of your gradients.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


class Format(StrEnum):
    """How a comparison is printed."""

    TABLE = "table"
    MARKDOWN = "markdown"
    CSV = "csv"
    JSON = "json"


Parameters = Annotated[
    list[str] | None,
    typer.Option(
        "--param",
        metavar="KEY=VALUE",
        help="Set a parameter of every rule that takes it (c=0.4, eps=0.2, preference=1,2,1), or of one rule "
        "(cagrad.c=0.4). Repeat it for several.",
    ),
]


def _version(asked: bool) -> None:
    if asked:
        typer.echo(f"paretograd {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version and stop.")
    ] = False,
) -> None:
    pass


@app.command("list")
def list_rules() -> None:
    """Which rules are there, and what does each one promise?"""
    from paretograd.aggregators.registry import SCHEDULES, names

    _console().print(tables.rules_table(build(name) for name in (*names(), *SCHEDULES)))


@app.command()
def explain(
    name: Annotated[
        str | None,
        typer.Argument(
            help="A rule's name, such as mgda or capped-mgda; 'upgrad*' is normalized. Without a name: Table 1 of the "
            "paper, the rules as solutions of one problem."
        ),
    ] = None,
    param: Parameters = None,
) -> None:
    """What does a rule compute, what is proven about it, and when should I use it?"""
    with _errors_in_words():
        parameters = [Parameter.parse(written) for written in param or []]
        if name is not None:
            _console().print(tables.explanation(build_any(name, parameters)))
        elif parameters:
            raise InputError("--param belongs to a rule; name it, such as paretograd explain cagrad --param c=0.4")
        else:
            _console().print(tables.framework_table())


@app.command()
def theorems(
    plot: Annotated[
        Path | None,
        typer.Option(metavar="OUT.svg", help="Draw how the theorems follow from each other to this png, pdf or svg."),
    ] = None,
    metric: Annotated[
        bool, typer.Option("--metric", help="Show what holds for preconditioned updates and for momentum instead.")
    ] = False,
    table: Annotated[
        bool, typer.Option("--table", help="Show which properties every rule has, and which are refuted, instead.")
    ] = False,
    only: Annotated[
        str | None,
        typer.Option(metavar="NAMES", help="With --table: only these rules, with their counter-examples: mgda,upgrad*"),
    ] = None,
) -> None:
    """Which theorem covers which rule, and which rules does none cover?"""
    with _errors_in_words():
        if metric + table + (plot is not None) > 1:
            raise InputError("--plot, --metric and --table show different things; give one of them")
        if only is not None and not table:
            raise InputError("--only selects rules of --table; add --table")
        if table:
            from paretograd.reports.rules import terminal
            from paretograd.reports.rules.table import rows_of
            from paretograd.reports.rules.table import table as rule_table

            if only is not None:
                _console().print(terminal.rule_details(rows_of(_split(only))))
            else:
                _console().print(terminal.rule_table(rule_table(), _console().width))
            return
        if metric:
            _console().print(tables.metric_table())
            return
        if plot is not None:
            from paretograd.reports import figures, flowchart

            figures.check_target(plot)
        found = coverage()
        _console().print(tables.coverage_tables(found))
        if plot is not None:
            figures.save(flowchart.draw(found), plot)
            typer.echo(f"\nThe picture is in {plot}")


@app.command("problems")
def list_problems(
    name: Annotated[
        str | None, typer.Argument(help="A problem's name, such as vlmop2, for all about it. Without one: the list.")
    ] = None,
) -> None:
    """Which test problems are there, and what is known about them?"""
    from paretograd.problems.registry import problem, problems
    from paretograd.reports.problems import about, problems_table

    with _errors_in_words():
        if name is not None:
            _console().print(about(problem(name)))
        else:
            _console().print(problems_table(problem(known) for known in problems()))


@app.command()
def theory(
    problem: Annotated[
        list[str] | None, typer.Option(metavar="NAME", help="A problem of paretograd problems; repeat it for several.")
    ] = None,
    only: Annotated[
        str | None, typer.Option(metavar="NAMES", help="Only these rules, separated by commas: mgda,upgrad*")
    ] = None,
    steps: Annotated[int, typer.Option(min=1, help="Take at most this many steps.")] = 500,
) -> None:
    """Do the theorems hold on real runs? Their hypotheses, bounds, and what was measured."""
    from paretograd.problems.registry import problem as make
    from paretograd.reports.theory import RULES, blocks, theory_table

    with _errors_in_words():
        chosen = [make(name) for name in problem] if problem else [make("vlmop2"), make("quadratic", m=3)]
        rules = [build(name) for name in (_split(only) if only is not None else RULES)]
        _console().print(theory_table(list(blocks(chosen, rules, steps)), steps))


@app.command()
def compare(
    file: Annotated[
        str,
        typer.Argument(
            metavar="FILE",
            help="Your gradients, one per row: a csv (commas or blanks, # comments, a header if you like) or an npy "
            "file; - for standard input; the word 'example' for the one that comes with paretograd.",
        ),
    ],
    plot: Annotated[
        Path | None,
        typer.Option(
            metavar="OUT.png", help="Draw gradients, cone, dual cone and directions to this png, pdf or svg file."
        ),
    ] = None,
    only: Annotated[
        str | None, typer.Option(metavar="NAMES", help="Only these rules, separated by commas: mgda,upgrad*")
    ] = None,
    stars: Annotated[bool, typer.Option("--stars", help="Add the normalized variants, too.")] = False,
    param: Parameters = None,
    form: Annotated[Format, typer.Option("--format", help="How to print the comparison.")] = Format.TABLE,
    as_json: Annotated[bool, typer.Option("--json", help="Short for --format json.")] = False,
) -> None:
    """What do the rules make of my gradients? Who goes up, who goes down, and how far is it to stationarity?

    Random rules draw with seed 0, so that the answer stays the same; --param seed=1 draws anew.
    """
    with _errors_in_words():
        if plot is not None:
            from paretograd.reports import figures

            figures.check_target(plot)  # before any work: a wrong suffix or a missing matplotlib
        parameters = [Parameter.parse(written) for written in param or []]
        jacobian = read_jacobian(file)
        chosen = _split(only) if only is not None else None
        comparison = run_comparison(jacobian, roster(len(jacobian), chosen, parameters, stars))
        figure = figures.draw(comparison) if plot is not None else None
        form = Format.JSON if as_json else form
        if form is Format.TABLE:
            _console().print(tables.comparison_report(comparison))
        else:
            writers = {Format.JSON: export.to_json, Format.CSV: export.to_csv, Format.MARKDOWN: export.to_markdown}
            typer.echo(writers[form](comparison))
        if plot is not None and figure is not None:
            figures.save(figure, plot)
            # Beside the data, which stays clean for the next program.
            typer.echo(f"\nThe picture is in {plot}", err=form is not Format.TABLE)


def _split(names: str) -> list[str]:
    chosen = split_list(names)
    if not chosen:
        raise InputError("--only is empty; name at least one rule, such as --only mgda,upgrad")
    return chosen


app.command()(explore)
app.command()(studies.run)
app.command()(studies.reproduce)
app.command()(studies.report)
app.command("watch")(watch)


@app.command(add_help_option=False, context_settings={"allow_extra_args": True, "ignore_unknown_options": True})
def bench(context: typer.Context) -> None:
    """Compare all rules on real tasks, each tuned with the same budget: list, run, cost, report."""
    from paretograd.bench.program import run_program

    raise typer.Exit(run_program(context.args, "paretograd bench"))
