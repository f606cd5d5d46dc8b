"""``paretograd run``, ``reproduce`` and ``report``: studies in folders, and what is printed of them.

A new study is one folder in `paretograd.experiments` and one row in `STUDIES`. Its dataclass declares its options (see
`paretograd.experiments.study`); the commands read them from there.
"""

from __future__ import annotations

import os
import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import fields
from inspect import Parameter, signature
from pathlib import Path
from typing import Annotated, Any

import typer
from rich import box
from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from paretograd.aggregators.registry import read_rule, split_list
from paretograd.errors import InputError, MissingExtraError, ParetogradError, UnknownNameError
from paretograd.experiments import Method, Study
from paretograd.experiments.counterexamples.report import COUNTEREXAMPLES
from paretograd.experiments.fairness.report import FAIRNESS
from paretograd.experiments.federated.report import FEDERATED
from paretograd.experiments.folder import TEXTS, read_config
from paretograd.experiments.optimizers.report import OPTIMIZER_STUDY
from paretograd.experiments.progress import Bars
from paretograd.experiments.study import WORK, Kind, Option, Summary, flag, options_of
from paretograd.experiments.synthetic.report import METRICS_EVERY, SYNTHETIC, paper_kinds
from paretograd.problems.registry import problem as make_problem

#: The studies of the paper, by name.
STUDIES: dict[str, Kind] = {
    kind.name: kind for kind in (*paper_kinds(), COUNTEREXAMPLES, FAIRNESS, FEDERATED, OPTIMIZER_STUDY)
}
#: Largest number of seeds; a larger number was probably meant as a seed.
_MOST_SEEDS = 1000
#: Options of ``run`` and ``reproduce`` that are no part of a study, and their defaults.
_SHARED = WORK | {"report": Option("Draw the figures and write report.html.", type=bool, switch=True)}
_DEFAULTS = {"out": None, "resume": False, "overwrite": False, "checkpoint_every": 5.0, "report": True}
#: So that the table fits 80 columns.
_IN_TWO_LINES = {"conflicts": "con-\nflicts", "left box": "left\nbox"}


def console() -> Console:
    """Return a console on standard output."""
    made = Console(highlight=False)
    if not made.is_terminal and "COLUMNS" not in os.environ:
        made.width = 120  # a file or a pipe has no width of its own; 80 would fold the tables
    return made


@contextmanager
def errors_in_words() -> Iterator[None]:
    """Print the library's own errors as one message and exit with 2; any other is a bug and keeps its traceback."""
    try:
        yield
    except ParetogradError as error:
        typer.echo(f"error: {error}", err=True)
        raise typer.Exit(2) from None


def _takes(parameters: Sequence[Parameter]) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Replace ``**options`` in the signature of a command by these parameters and those of every run."""
    shared = [_parameter(name, declared, _DEFAULTS[name]) for name, declared in _SHARED.items()]

    def changed(command: Callable[..., None]) -> Callable[..., None]:
        found = signature(command, eval_str=True)
        own = [one for one in found.parameters.values() if one.kind is not Parameter.VAR_KEYWORD]
        every = [one.replace(kind=Parameter.KEYWORD_ONLY) for one in (*own, *parameters, *shared)]
        command.__signature__ = found.replace(parameters=every)  # type: ignore[attr-defined]
        return command

    return changed


def _parameter(name: str, declared: Option, default: Any = None, panel: str | None = None) -> Parameter:
    """Convert an option to a parameter for typer."""
    info = typer.Option(
        f"{flag(name)}/--no-{flag(name)[2:]}" if declared.switch else flag(name),
        metavar=declared.metavar,
        min=declared.least,
        help=declared.help,
        rich_help_panel=panel,
    )
    kind = declared.type if default is not None else declared.type | None
    return Parameter(name, Parameter.KEYWORD_ONLY, default=default, annotation=Annotated[kind, info])


def _for_studies() -> list[Parameter]:
    """Collect the options of all studies, in panels by study; options that most studies share come first."""
    owners: dict[str, list[str]] = {}
    for kind in STUDIES.values():
        for name in kind.options:
            owners.setdefault(name, []).append(kind.name)
    made = []
    for name, having in sorted(owners.items(), key=lambda entry: -len(entry[1])):
        panel = f"For {' and '.join(filter(None, (', '.join(having[:-1]), having[-1])))}"
        made.append(_parameter(name, STUDIES[having[0]].options[name], panel=panel))
    return made


def _for_problems() -> list[Parameter]:
    """Collect the options of a study on a test problem that are plain values."""
    defaults = {entry.name: entry.default for entry in fields(Study)}
    made = [_parameter(name, declared, defaults[name]) for name, declared in options_of(Study).items()]
    return [*made, _parameter("metrics_every", METRICS_EVERY)]


@_takes(_for_studies())
def reproduce(
    name: Annotated[str | None, typer.Argument(help=f"{', '.join(STUDIES)}. Without a name: what they are.")] = None,
    **options: Any,
) -> None:
    """Reproduce a study of the paper: figures, table and report, by the authors' protocol."""
    with errors_in_words():
        if name is None:
            width = max(map(len, STUDIES)) + 2
            for kind in STUDIES.values():
                typer.echo(f"{kind.name:{width}}{kind.title}" + f" ({kind.source})" * bool(kind.source))
            typer.echo("\nNext: paretograd reproduce vlmop2")
            return
        kind = _find_kind(name)
        allowed = {*kind.options, *_SHARED}
        given = [flag(key) for key, value in options.items() if value is not None and key not in allowed]
        if given:
            raise InputError(f"reproduce {name} has no {', '.join(given)}; see paretograd reproduce --help")
        _follow(kind, kind.make(options), kind.name, options)


def report(
    folder: Annotated[Path, typer.Argument(help="The folder of a study, finished or not: runs/fairness")],
) -> None:
    """Draw the figures and the page of a study from its folder; nothing is run."""
    with errors_in_words():
        kind = kind_in(folder)
        for path in kind.draw(kind.read_results(folder)):
            typer.echo(path)


@_takes(_for_problems())
def run(
    problem: Annotated[str, typer.Argument(help="A problem of paretograd problems, such as vlmop2 or dtlz2.")],
    aggregators: Annotated[
        str,
        typer.Option(metavar="RULES", help="Rules separated by commas; quote them: 'mgda,upgrad*,mas-rr(100)'."),
    ] = "mgda,upgrad,dualproj,nash-mtl",
    seeds: Annotated[
        str, typer.Option(metavar="SEEDS", help="How many (5 means 0 to 4), or which: 24,42,48. One seed alone: 100,")
    ] = "1",
    lr: Annotated[
        str,
        typer.Option(
            metavar="LR",
            help="Step size: a number, or smooth, aligned, monotone (the theorems', which need the problem's "
            "smoothness constant) or armijo (line search). Parameters in parentheses: 'armijo(start=0.5)'.",
        ),
    ] = "0.001",
    param: Annotated[
        list[str] | None,
        typer.Option("--param", metavar="KEY=VALUE", help="A parameter of the problem: n=6, m=3. Repeat it."),
    ] = None,
    lr_for: Annotated[
        list[str] | None,
        typer.Option(
            "--lr-for", metavar="RULE=LR", help="Another step size for one rule: 'nash-mtl*=0.005'. Repeat it."
        ),
    ] = None,
    **options: Any,
) -> None:
    """Compare rules on a test problem: whole runs, with checkpoints, a table, figures and a report."""
    with errors_in_words():
        name, parameters = _read_parameters(problem, param or [])
        study = Study(
            problem=name,
            parameters=parameters,
            methods=_read_methods(aggregators, lr, lr_for or []),
            seeds=_read_seeds(seeds),
            **{key: options[key] for key in options_of(Study)},
        )
        _follow(SYNTHETIC, study, name, options)


def _follow(kind: Kind, study: Any, name: str, options: Mapping[str, Any]) -> None:
    """Run a study under bars, print its summary, draw its report; after an interrupt, print how to resume.

    Args:
        kind: of the study.
        study: what is run.
        name: of its folder, unless ``out`` is among the options.
        options: of the command; those of the study itself are in it already.
    """
    folder, to_run = options["out"] or Path("runs") / name, kind.to_run(options)
    work = {key: options[key] for key in ("resume", "overwrite", "checkpoint_every")}
    try:
        with Bars() as bars:
            results = kind.run(study, folder, **work, **to_run, watch=bars)
        summary = kind.summary(results, console().width)
        console().print(shown(summary))
        console().print(_places(folder, _drawn(kind, results) if options["report"] else [], kind.numbers(results)))
        if summary.in_short:
            console().print(Text(f"\n{summary.in_short}"))
    except KeyboardInterrupt:
        more = "".join(f" {flag(key)} {shlex.quote(str(value))}" for key, value in to_run.items())
        go_on = f"{study.command()}{more} --out {shlex.quote(str(folder))} --resume"
        typer.echo(f"interrupted; what was done is in {folder}. Go on with:\n  {go_on}", err=True)
        raise typer.Exit(130) from None


def _drawn(kind: Kind, results: Any) -> list[Path]:
    """Draw figures and page; if an extra is missing, say so and continue: the numbers are complete without them."""
    try:
        return kind.draw(results)
    except MissingExtraError as error:
        typer.echo(f"no report: {error}; then run: paretograd report {results.folder}", err=True)
        return []


def _find_kind(name: str) -> Kind:
    """Return the study with this name."""
    found = STUDIES.get(name.strip().lower())
    if found is None:
        raise UnknownNameError(f"no study of the paper is called {name!r}; there are {', '.join(STUDIES)}")
    return found


def kind_in(folder: Path) -> Kind:
    """Return the kind of the study in a folder. The configuration of a study on a test problem names no kind."""
    experiment = read_config(folder / "config.json")["study"].get("experiment")
    return STUDIES.get(experiment, SYNTHETIC)


def shown(summary: Summary) -> Group:
    """Render title, tables, legend, remarks and claims of a study."""
    tables: list[RenderableType] = []
    for title, rows in summary.tables.items():
        tables += [*([Text(title, style="bold")] if title else []), _table(rows), Text("")]
    return Group(
        Text(summary.title, style="bold"),
        *map(Text, summary.lines),
        Text(""),
        *tables,
        Text(summary.legend, style="dim"),
        *map(Text, summary.remarks),
        *(Text(claim.sentence) for claim in summary.claims),
    )


def _places(folder: Path, report: Sequence[Path], numbers: str) -> Group:
    """List the files with the results of a study."""
    figures = dict.fromkeys(path.parent for path in report if path.suffix != ".html")
    return Group(
        Text(""),
        *(Text.assemble("report   ", (str(path), "bold")) for path in report if path.suffix == ".html"),
        *(Text(f"figures  {path}") for path in figures),
        Text(f"table    {folder / 'table.md'}, {folder / 'table.csv'}"),
        Text(f"numbers  {numbers}"),
    )


def _table(rows: Sequence[Mapping[str, str]]) -> Table:
    """Render rows of texts, one for each method, below their headings."""
    made = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False, collapse_padding=True, header_style="bold cyan")
    wraps = "ended by" if "ended by" in rows[0] else "method"
    for heading in rows[0]:
        name = _IN_TWO_LINES.get(heading, heading.replace("seed ", "seed\n"))
        made.add_column(
            name, justify="left" if heading in TEXTS else "right", no_wrap=heading != wraps, overflow="fold"
        )
    for row in rows:
        made.add_row(*(Text(text, style="bold" if heading == "method" else "") for heading, text in row.items()))
    return made


def _read_parameters(name: str, written: Sequence[str]) -> tuple[str, dict[str, Any]]:
    """Return the problem's name and all its parameters, from ``vlmop2`` and ``n=6``."""
    for part in written:
        if "=" not in part:
            raise InputError(f"--param {part!r}: write key=value, such as --param n=6")
    parameters: dict[str, Any] = {}
    for part in written:
        for key, value in read_rule(f"problem({part})").keywords:
            if key in parameters:
                raise InputError(f"--param gives {key} twice")
            parameters[key] = value
    made = make_problem(name, **parameters)
    return made.name, dict(made.parameters)


def _read_seeds(written: str) -> tuple[int, ...]:
    """Parse seeds: ``5`` means 0 to 4, ``24,42`` these two, and ``100,`` this one alone."""
    parts = split_list(written)
    try:
        numbers = tuple(int(part) for part in parts)
    except ValueError:
        numbers = ()
    if not numbers:
        raise InputError(f"--seeds {written!r}: a count such as 5, or seeds separated by commas such as 24,42,48")
    if "," in written:
        return numbers
    count = numbers[0]
    if not 1 <= count <= _MOST_SEEDS:
        raise InputError(
            f"--seeds {count} asks for that many runs; it can be 1 to {_MOST_SEEDS}. For the seed {count} alone write "
            f"--seeds {count},"
        )
    return tuple(range(count))


def _read_methods(aggregators: str, lr: str, lr_for: Sequence[str]) -> tuple[Method, ...]:
    """Parse a list of rules, each with its step size."""
    rules = split_list(aggregators)
    if not rules:
        raise InputError("--aggregators is empty; name at least one rule, such as --aggregators mgda,upgrad")
    own: dict[str, str] = {}
    for part in lr_for:
        rule, _, value = part.rpartition("=")
        if rule.strip() not in rules or not value.strip():
            raise InputError(
                f"--lr-for {part!r}: write RULE=LR with a rule of --aggregators ({', '.join(rules)}), such as "
                f"{rules[0]}=0.005"
            )
        own[rule.strip()] = value.strip()
    return tuple(Method(rule, own.get(rule, lr)) for rule in rules)
