"""The theorems on runs, as a table: what each one needs, its bound, what was measured, and the slack."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from rich import box
from rich.console import Group
from rich.table import Table
from rich.text import Text

from paretograd.aggregators.base import Aggregator
from paretograd.certificates.run import RunCheck
from paretograd.descent import Constant, Smooth, StepSize, certify_run, descend
from paretograd.errors import ParameterError
from paretograd.problems.base import Problem
from paretograd.reports.words import number, short_name

#: What `paretograd theory` runs if not told otherwise: a rule of each kind, and one that no theorem covers.
RULES = ("mgda", "upgrad", "nash-mtl*", "capped-mgda", "mas-rr(10)", "rgw")
SEEDS = (0, 1, 2)
#: Runs stop here: below, slopes are differences of rounding errors.
_STOP_GAMMA = 1e-6
_COLOURS = {"holds": "green", "FAILS": "bold red", "not covered": "dim"}


@dataclass(frozen=True)
class Block:
    """The checks of one rule on one problem: for each claim the one of the run with the least slack."""

    problem: Problem
    rule: Aggregator
    step_size: StepSize
    checks: tuple[RunCheck, ...]


def blocks(problems: Sequence[Problem], rules: Sequence[Aggregator], steps: int) -> Iterator[Block]:
    """Run every rule on every problem with the step size of its guarantee, and certify the runs.

    A rule that no theorem covers gets the step that the theorems give the others, 1 / (m L).
    """
    for problem in problems:
        for rule in rules:
            lr = _step_size(problem, rule)
            trajectory = descend(problem, rule, lr, steps, seeds=SEEDS, stop_gamma=_STOP_GAMMA)
            found = certify_run(trajectory, problem=problem).tightest()
            yield Block(
                problem, rule, lr, tuple(check for check in found if not check.claim.startswith("descent lemma"))
            )


def theory_table(found: Sequence[Block], steps: int) -> Group:
    """One row for each theorem, rule and problem."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False, collapse_padding=True, header_style="bold cyan")
    for heading in ("problem", "rule", "theorem", "quantity", "hypotheses"):
        table.add_column(heading, overflow="fold")
    for heading in ("bound", "measured", "slack"):
        table.add_column(heading, justify="right")
    last: Problem | None = None
    for block in found:
        for row, check in enumerate(block.checks):
            table.add_row(
                Text(block.problem.label if block.problem is not last else ""),
                Text(block.rule.label if row == 0 else "", style="bold"),
                Text(short_name(check.label)),
                Text(check.quantity),
                Text(_hypotheses(check), style=_COLOURS[check.verdict]),
                *(number(value, 3) if value == value else "-" for value in (check.bound, check.measured)),
                Text(number(check.slack, 3) if check.slack == check.slack else "-", style=_COLOURS[check.verdict]),
            )
            last = block.problem
        table.add_section()
    failed = sum(check.verdict == "FAILS" for block in found for check in block.checks)
    covered = sum(check.covered for block in found for check in block.checks)
    claims = dict.fromkeys(f"{short_name(check.label)}: {check.claim}." for block in found for check in block.checks)
    notes = [
        f"{covered} checks whose hypotheses hold; {failed or 'none'} of them failed."
        + " This is a bug." * bool(failed),
        f"At most {steps} steps from seeds {', '.join(map(str, SEEDS))}, until gamma < {_STOP_GAMMA:g}; each row is "
        "the run with the least slack. Step: c/L of the rule's guarantee (1/(L |w|_1) for a rule of Theorem 1), "
        "1/(m L) for a rule that no theorem covers. Theorem 1 comes with the c measured on the run and Gamma = gamma, "
        "then with the c that the rule promises. A theorem whose hypotheses a run does not meet says nothing about it.",
        *claims,
    ]
    return Group(table, Text(""), *(Text(note) for note in notes))


def _step_size(problem: Problem, rule: Aggregator) -> StepSize:
    if problem.smoothness is None:
        raise ParameterError(
            f"{problem.name} declares no smoothness constant, which the theorems need; take vlmop2, fonseca, vlmop1 or "
            "quadratic"
        )
    promise = rule.guarantee
    if promise.theorem is None or (promise.alignment is None and not promise.non_conflicting):
        return Constant(1.0 / (problem.m * problem.smoothness))
    return Smooth()


def _hypotheses(check: RunCheck) -> str:
    return "hold" if check.missing is None else f"not so: {check.missing.text}"
