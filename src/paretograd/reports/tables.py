"""What the commands print in a terminal, with rich."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from rich import box
from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from paretograd.aggregators.base import Aggregator
from paretograd.aggregators.registry import FURTHER, WRAPPERS
from paretograd.certificates.metric import METRIC_RESULTS
from paretograd.reports import paper_table, words
from paretograd.reports.compare import Comparison
from paretograd.reports.coverage import REMARKS, Coverage
from paretograd.reports.explain import Section, explain
from paretograd.scalarizations.base import Weighting
from paretograd.scalarizations.registry import SCALARIZERS
from paretograd.solution import Status

#: Gradients are listed one by one up to this many.
_LISTED = 8


def rules_table(rules: Iterable[Aggregator]) -> Group:
    """Every rule with what the theory promises about it."""
    table = _table(("name", "left"), ("in the paper", "left"), ("guarantee", "left"))
    for heading in ("non-\nconflicting", "hull", "c"):
        table.add_column(heading, justify="center")
    for rule in rules:
        promise = rule.guarantee
        theorem = promise.result.name if promise.result is not None else "-"
        table.add_row(
            Text(rule.name, style="bold"),
            Text(rule.label),
            Text(theorem),
            _flag(promise.non_conflicting),
            _flag(promise.in_hull),
            words.number(promise.alignment),
        )
    notes = [
        "non-conflicting: no objective goes up, for any gradients. hull: d is a weighted average of the gradients. "
        "c: the constant of condition (A), <d, grad F> >= c |d|^2.",
        "A star asks for the normalized variant, whose weights are divided by the sum of their magnitudes: "
        "upgrad*, nash-mtl*. In a shell, quote it: 'upgrad*'.",
        "mas-rand and mas-rr(N) take turns with MGDA, Nash-MTL*, UPGrad* and DualProj*: at random, or N steps each.",
        f"More rules: {', '.join(FURTHER)} need rows, losses or several batches; {', '.join(SCALARIZERS)} see the "
        f"losses only; {', '.join(f'{name}(RULE)' for name in WRAPPERS)} are around another rule. paretograd theorems "
        "--table compares all.",
        "Next: paretograd explain NAME, paretograd theorems, or paretograd compare example",
    ]
    return Group(table, Text(""), *(Text(note) for note in notes))


def explanation(rule: Aggregator | Weighting) -> Group:
    """One rule in full."""
    title = Text.assemble((rule.label, "bold"), f"   {rule.name}   ", (repr(rule), "dim"))
    return Group(title, *(_section(section) for section in explain(rule)))


def framework_table() -> Group:
    """Table 1 of the paper, with the difference between each rule and what its s and r give."""
    table = _table(("rule", "left"), ("s(x)", "left"), ("r", "left"), ("theorem", "left"), ("|d - d'| / |d|", "right"))
    table.add_column("compared")
    for row, difference in paper_table.differences():
        table.add_row(
            Text(row.label, style="bold"),
            Text(row.s),
            Text(row.r),
            Text(words.short_name(row.result)),
            words.number(difference, 1),
            Text(paper_table.COMPARED[row.length]),
        )
    title = Text("Table 1 of the paper: the rules as solutions of one subproblem", style="bold")
    return Group(title, Text(""), table, Text(""), *(Text(note) for note in paper_table.LEGEND))


def coverage_tables(found: Coverage) -> Group:
    """Which result covers which rules, and the rules that none covers."""
    covered = _table(("result", "left"), ("rules", "left"), ("c", "right"), ("F", "left"))
    before = None
    for entry in found.covered:
        rules = (
            Text(", ".join(entry.labels), style="bold")
            if entry.rules
            else Text(REMARKS[entry.result.label], style="dim")
        )
        name = entry.result.name if entry.result is not before else ""
        covered.add_row(Text(name), rules, entry.constant, Text(entry.surrogate))
        before = entry.result
    uncovered = _table(("no theorem covers", "left"), ("note", "left"))
    for rule in found.uncovered:
        uncovered.add_row(Text(rule.label, style="bold"), Text(rule.guarantee.note))
    notes = [
        "Each rule stands by the most specific result that covers it, with default parameters; a starred variant is "
        "listed where it has another one. c: the constant of condition (A), <d, grad F> >= c |d|^2; without one, the "
        "promise is for the step of paretograd explain NAME.",
        "Next: paretograd explain NAME",
    ]
    return Group(*_spaced([covered, uncovered, *(Text(note) for note in notes)]))


def metric_table() -> Group:
    """Return the statements about updates in a metric: those that are proved, and those that are refuted."""
    table = _table(("statement", "left"), ("if", "left"), ("then", "left"), ("because", "left"))
    for result in METRIC_RESULTS.values():
        table.add_row(
            Text(result.name, style="bold"),
            Text("; ".join(result.hypotheses)),
            Text(
                result.conclusion if result.proved else f"NOT: {result.conclusion}",
                style="" if result.proved else "red",
            ),
            Text(result.reason),
        )
    note = (
        "A step from w is w - eta u, with u = P d for a combination d of the gradients; |d|_P^2 = d' P d, and |u|^2 = "
        "u' P^-1 u. NOT: the counter-example refutes it."
    )
    return Group(table, Text(""), Text(note))


def comparison_report(comparison: Comparison) -> Group:
    """The gradients, the table of the rules, and how to read it."""
    parts: list[RenderableType] = [Text(words.headline(comparison), style="bold")]
    if comparison.m <= _LISTED:
        parts.append(_gradients_table(comparison))
    else:
        low, high = float(comparison.norms.min()), float(comparison.norms.max())
        parts.append(Text(f"gradient norms from {words.number(low)} to {words.number(high)}"))
    parts.append(_comparison_table(comparison))
    legend = (
        "worst: min_k cos(d, g_k), below 0 where some objective goes up.  hull: whether d is a weighted average of the "
        "gradients.  c: <d, sum_k g_k> / |d|^2, above 0 for condition (A).  "
        "Objectives are numbered from 0, in the order of the rows."
    )
    parts.append(Text(f"{legend}  {words.settings(comparison)}".rstrip(), style="dim"))
    parts += [Text(sentence) for sentence in words.findings(comparison)]
    return Group(*_spaced(parts))


def _gradients_table(comparison: Comparison) -> Table:
    table = _table(("objective", "right"), ("|g|", "right"))
    for k in range(comparison.m):
        table.add_column(f"cos {k}", justify="right")
    for k, (norm, cosines) in enumerate(zip(comparison.norms, comparison.cosines, strict=True)):
        shown = [Text(f"{value:.2f}", style="red" if value < 0.0 else "") for value in cosines.tolist()]
        table.add_row(str(k), words.number(float(norm)), *shown)
    return table


def _comparison_table(comparison: Comparison) -> Table:
    odd = any(row.status is not Status.OPTIMAL for row in comparison.rows)
    table = _table(("rule", "left"), ("|d|", "right"), ("worst", "right"), ("conflicts", "left"), ("hull", "left"))
    table.add_column("c", justify="right")
    table.add_column("weights" + (f" (first {words.SHOWN_WEIGHTS})" if comparison.m > words.SHOWN_WEIGHTS else ""))
    if odd:
        table.add_column("status")
    for row in comparison.rows:
        cells = [
            Text(row.label, style="bold"),
            Text(words.number(row.norm)),
            Text(words.cosine(row.worst_cosine), style="red" if row.conflicts else ""),
            Text(words.conflicts(row), style="red" if row.conflicts else "dim"),
            Text(words.yes_no(row.certificate.in_hull)),
            Text(words.number(row.alignment)),
            Text(words.weights(row)),
        ]
        if odd:
            cells.append(Text("" if row.status is Status.OPTIMAL else row.status.name.lower(), style="yellow"))
        table.add_row(*cells)
    return table


def _section(section: Section) -> RenderableType:
    lines = [Padding(Text(line), (0, 0, 0, 2), expand=False) for line in section.lines]
    return Group(Text(""), Text(section.heading, style="bold cyan"), *lines)


def _table(*columns: tuple[str, str]) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False, collapse_padding=True, header_style="bold cyan")
    for heading, justify in columns:
        table.add_column(heading, justify="right" if justify == "right" else "left", overflow="fold")
    return table


def _flag(value: bool) -> Text:
    return Text(words.yes_no(value), style="green" if value else "dim")


def _spaced(parts: Sequence[RenderableType]) -> list[RenderableType]:
    return [piece for part in parts for piece in (part, Text(""))][:-1]
