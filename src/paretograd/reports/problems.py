"""Test problems in a terminal: the list of all, and all about one."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable

from rich import box
from rich.console import Group
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from paretograd.problems.base import Problem
from paretograd.reports import words


def problems_table(problems: Iterable[Problem]) -> Group:
    """Every problem with its sizes, its box and what is known about it."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False, collapse_padding=True, header_style="bold cyan")
    for heading, right in (("name", False), ("m", True), ("n", True), ("box", False), ("L", True)):
        table.add_column(heading, justify="right" if right else "left", overflow="fold")
    for heading in ("convex", "front", "gradient"):
        table.add_column(heading)
    for problem in problems:
        table.add_row(
            Text(problem.name, style="bold"),
            str(problem.m),
            str(problem.n),
            Text(box_in_words(problem)),
            words.number(problem.smoothness, 4),
            words.yes_no(problem.convex),
            "known" if problem.pareto_front is not None else "-",
            _gradient(problem),
        )
    notes = [
        "m objectives of n variables, with the default parameters. L: every objective's gradient is L-Lipschitz on the "
        "box; a dash where there is no such number.",
        "Next: paretograd problems NAME",
    ]
    return Group(table, Text(""), *(Text(note) for note in notes))


def about(problem: Problem) -> Group:
    """One problem in full."""
    least = ", ".join(words.number(value, 6) for value in problem.least[:8]) + (", ..." if problem.m > 8 else "")
    known = "known" if problem.pareto_set is not None else "unknown"
    sections = {
        "Objectives": [problem.formula, f"m = {problem.m}, n = {problem.n}. {problem.note}".rstrip()],
        "What is known": [
            f"box {box_in_words(problem)}",
            f"L = {words.number(problem.smoothness, 6)}" if problem.smoothness else "no smoothness constant",
            f"{'convex' if problem.convex else 'not convex'}; lower bounds {least}; Pareto set and front {known}; "
            f"Jacobian by {_gradient(problem)}",
        ],
        "In Python, with every default": [f"pg.{problem!r}"],
        "Source": [problem.source],
    }
    title = Text.assemble((problem.label, "bold"), f"   {problem.name}")
    parts: list[Text | Padding] = [title]
    for heading, lines in sections.items():
        parts += [Text(""), Text(heading, style="bold cyan")]
        parts += [Padding(Text(line), (0, 0, 0, 2), expand=False) for line in lines]
    return Group(*parts)


def box_in_words(problem: Problem) -> str:
    """``[-2, 2]^4``, ``[0, 1] x [-5, 5]^9``, or ``R^4`` where there are no bounds."""
    pairs = zip(problem.lower.tolist(), problem.upper.tolist(), strict=True)
    sides = []
    for (low, high), equal in itertools.groupby(pairs):
        open_ = math.isinf(low) and math.isinf(high)
        count = sum(1 for _ in equal)
        sides.append(("R" if open_ else f"[{low:g}, {high:g}]") + (f"^{count}" if count > 1 else ""))
    return " x ".join(sides)


def _gradient(problem: Problem) -> str:
    return "autograd" if problem.closed_jacobian is None else "closed form"
