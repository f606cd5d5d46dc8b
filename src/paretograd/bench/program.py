"""``paretograd bench``: list, run, cost and report. ``python -m paretograd.bench`` is the same without any extra."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path

from paretograd.aggregators.registry import split_list
from paretograd.bench.cost import measure_costs
from paretograd.bench.protocol import SINGLE, Protocol
from paretograd.bench.report import (
    findings,
    notes,
    overall_notes,
    overall_table,
    read_reports,
    task_folders,
    task_table,
    write_report,
)
from paretograd.bench.roster import RULES, dial_of
from paretograd.bench.run import run_task
from paretograd.bench.tasks import TASKS, task_of
from paretograd.errors import InputError, MissingExtraError, ParetogradError
from paretograd.experiments.progress import Bars, Lines, Watch

_OUT = Path("runs") / "bench"


def run_program(arguments: Sequence[str] | None = None, prog: str = "python -m paretograd.bench") -> int:
    """Carry out a command; returns the exit code: 0, 2 for invalid input, 130 after an interrupt.

    Args:
        arguments: None for those of this process.
        prog: how the user called it.
    """
    given = _parser(prog).parse_args(arguments)
    try:
        given.act(given)
    except ParetogradError as error:
        sys.stderr.write(f"error: {error}\n")
        return 2
    except KeyboardInterrupt:
        sys.stderr.write("interrupted; the same command goes on where it stopped\n")
        return 130
    return 0


def _parser(prog: str) -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(
        prog=prog, description="Compare all rules on real tasks: every rule is tuned with the same budget."
    )
    commands = made.add_subparsers(required=True, metavar="COMMAND")
    listed = commands.add_parser("list", help="tasks and rules", description="Show the tasks and the rules.")
    listed.set_defaults(act=_list)
    run = commands.add_parser(
        "run",
        help="train what is not done yet",
        description="Tune and train every rule on a task. The same command goes on after an interrupt. Run it several "
        "times side by side to use several processes or GPUs: each takes the settings that are free.",
    )
    run.set_defaults(act=_run)
    cost = commands.add_parser(
        "cost",
        help="measure time and memory of a step",
        description="Measure the time and memory of a step of each rule.",
    )
    cost.set_defaults(act=_cost)
    report = commands.add_parser("report", help="tables and figures", description="Write tables and figures.")
    report.set_defaults(act=_report)
    for command in (run, cost):
        command.add_argument("task", help=f"{', '.join(TASKS)}, module:Class, or a Python file with one task")
        command.add_argument("--small", action="store_true", help="the variant for two CPU cores")
        command.add_argument(
            "--made", action="store_true", help="invented data, to try the command without the real ones"
        )
        command.add_argument(
            "--rules", default="", help="only these, separated by commas; 'single' trains each loss alone"
        )
        command.add_argument("--rule", action="append", default=[], metavar="MODULE:CLASS", help="also a rule of yours")
        command.add_argument("--data-dir", type=Path, help="holds the data; if not given: $PARETOGRAD_DATA, a download")
        command.add_argument("--device", default="auto", help="auto, cpu or cuda")
    run.add_argument("--optimizers", default="", help="sgd, adamw; both if not given")
    run.add_argument("--trials", type=int, default=10, help="hyper-parameters to try for each rule and optimizer (10)")
    run.add_argument("--seeds", type=int, default=5, help="networks to train with the chosen ones (5)")
    run.add_argument("--steps", type=int, help="training steps; the task's own if not given")
    run.add_argument("--checkpoint-every", type=float, default=10.0, help="seconds of work that a kill can lose (10)")
    report.add_argument("--pack", action="store_true", help="also write all runs of a task to one file, TASK/runs.npz")
    report.add_argument("--optimizer", help="only this one; if not given, the better one on validation rows")
    for command in (run, cost, report):
        command.add_argument("--out", type=Path, default=_OUT, help=f"the folder of the benchmark ({_OUT})")
    return made


def _list(given: argparse.Namespace) -> None:
    _say("Tasks")
    for name in TASKS:
        task = task_of(name)
        _say(f"  {name:20} {len(task.objectives):3} losses  {task.summary}")
        for source in task.sources:
            _say(f"  {'':20}             data: {source.title} (licence: {source.licence})")
    _say("\nRules, and the parameter of each that is tuned beside the learning rate")
    for name in RULES:
        dial = dial_of(name)
        _say(f"  {name:20} {'' if dial is None else f'{dial.name}: {dial.words}'}".rstrip())
    _say(f"  {SINGLE:20} one network for each loss, as the reference")


def _rules(given: argparse.Namespace) -> list[str]:
    """Return the rules that were asked for; with ``--rule`` alone, only the user's own."""
    return [*split_list(given.rules), *given.rule]


def _run(given: argparse.Namespace) -> None:
    protocol = Protocol(
        given.task, small=given.small, made=given.made, trials=given.trials, seeds=given.seeds, steps=given.steps
    )
    with _display() as watch:
        place = run_task(
            protocol,
            given.out,
            rules=_rules(given),
            optimizers=split_list(given.optimizers),
            data_dir=given.data_dir,
            device=given.device,
            checkpoint_every=given.checkpoint_every,
            watch=watch,
        )
    _say(f"results: {place.path}\ntables and figures: paretograd bench report --out {given.out}")


def _display() -> Bars | nullcontext[Watch]:
    """Return bars if there is a terminal and rich is installed; otherwise lines."""
    if sys.stderr.isatty():
        try:
            return Bars()
        except ModuleNotFoundError:
            pass
    return nullcontext(Lines(_say))


def _cost(given: argparse.Namespace) -> None:
    protocol = Protocol(given.task, small=given.small, made=given.made)
    measure_costs(protocol, given.out, rules=_rules(given), data_dir=given.data_dir, device=given.device, tell=_say)


def _report(given: argparse.Namespace) -> None:
    reports = read_reports(given.out, given.optimizer)
    if not any(report.rows for report in reports):
        raise InputError(f"no setting in {given.out} is finished yet")
    if len(reports) > 1:
        _print("All tasks", overall_table(reports), overall_notes(reports))
    for report in reports:
        _print(report.task.title, task_table(report), notes(report))
    for told in findings(reports):
        _say(told)
    _say(f"\ntables   {write_report(given.out, reports)}")
    for place in task_folders(given.out) if given.pack else ():
        if place.outcomes():
            _say(f"runs     {place.pack()}")
    try:
        from paretograd.bench.figures import draw

        paths = draw(given.out, reports)
    except MissingExtraError as error:
        _say(f"figures  none: {error}")
    else:
        if paths:
            _say(f"figures  {paths[0].parent}")


def _print(title: str, table: Sequence[dict[str, str]], below: Sequence[str]) -> None:
    """Print a table in columns, with sentences below."""
    _say(title)
    if table:
        heads = list(table[0])
        widths = {head: max(len(head), *(len(row[head]) for row in table)) for head in heads}
        for row in ({head: head for head in heads}, *table):
            cells = [
                row[head].ljust(widths[head]) if n < 2 else row[head].rjust(widths[head])
                for n, head in enumerate(heads)
            ]
            _say("  ".join(cells).rstrip())
    for told in below:
        _say(told)
    _say("")


def _say(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()
