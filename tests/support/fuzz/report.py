"""What a run of the fuzzer found, as text."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction

from .campaign import Tally, Violation


def describe(violation: Violation, count: int) -> str:
    """A violation with its input as Python literals."""
    given, check = violation.given, violation.check
    dtype = "torch.float32" if given.single else "torch.float64"
    lines = [
        f"{violation.rule}: {check.name} (found {count} times; family {given.family}, seed {violation.seed})",
        f"    {check.excess:.3g} times what is allowed" + (f"; {check.detail}" if check.detail else ""),
        f"    J = torch.tensor({_shown(given.rows)}, dtype={dtype})",
    ]
    ideals = given.ideals or ()
    lines += [f"    ideal rows: {[[_ratio(x) for x in row] for row in ideal]}".replace("'", "") for ideal in ideals]
    return "\n".join(lines)


def _shown(rows: Sequence[Sequence[float]]) -> str:
    return "[" + ", ".join("[" + ", ".join(repr(x) for x in row) + "]" for row in rows) + "]"


def _ratio(x: Fraction) -> str:
    """A rational as it is, or as a float where it is one that would be long to write."""
    return str(x) if len(str(x)) < 12 or Fraction(float(x)) != x else repr(float(x))


def table(tally: Tally) -> str:
    """Rules by properties: violations / checks; rules without a violation in one line at the end."""
    rules = list(dict.fromkeys(rule for rule, _ in tally.checks))
    failed = [rule for rule in rules if any(kind[0] == rule for kind in tally.violations)]
    names = list(dict.fromkeys(name for _, name in tally.checks))
    shown = [name for name in names if any(kind[1] == name for kind in tally.violations)]
    lines = []
    if failed:
        cells = [["rule", *shown]]
        for rule in failed:
            row = []
            for name in shown:
                checks, bad = tally.checks.get((rule, name), 0), tally.violations.get((rule, name), 0)
                row.append(f"{bad}/{checks}" if bad else "." if checks else "")
            cells.append([rule, *row])
        widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
        lines += [
            "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in cells
        ]
    lines.append(f"{len(rules) - len(failed)} of {len(rules)} rules without a violation")
    lines += [
        f"  {name:<12}{_total(tally.checks, name):>10} checks {_total(tally.violations, name):>8} violations"
        for name in names
    ]
    return "\n".join(lines)


def _total(counts: dict[tuple[str, str], int], name: str) -> int:
    return sum(count for (_, kind), count in counts.items() if kind == name)
