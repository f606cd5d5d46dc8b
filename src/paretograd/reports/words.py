"""Numbers and findings in words: what a newcomer should see in a comparison."""

from __future__ import annotations

import re
from collections.abc import Sequence

from paretograd.aggregators.registry import get, names
from paretograd.guarantees import RESULTS
from paretograd.reports.compare import Comparison, Row
from paretograd.reports.roster import EXAMPLE_PARAMETERS
from paretograd.solution import Status

#: Weights that a table shows of each rule.
SHOWN_WEIGHTS = 6

_FLOAT = re.compile(r"\d+\.\d{4,}")


def number(value: float | None, digits: int = 3) -> str:
    """A number in a table; a dash where there is none."""
    return "-" if value is None else f"{value + 0.0:.{digits}g}"


def cosine(value: float | None) -> str:
    """A cosine in a table, where rounding errors are zero."""
    if value is None or 1e-9 < abs(value) < 5e-4:
        return number(value, 1)
    return f"{round(value, 3) + 0.0:.3f}"


def yes_no(value: bool) -> str:
    """A truth in a table."""
    return "yes" if value else "no"


def weights(row: Row) -> str:
    """The first weights of a rule, shortened."""
    shown = [f"{value + 0.0:.3f}" if 1e-3 <= abs(value) < 1e3 else f"{value + 0.0:.2g}" for value in row.weights]
    return " ".join(shown[:SHOWN_WEIGHTS]) + (" ..." if len(shown) > SHOWN_WEIGHTS else "")


def objectives(indices: Sequence[int], limit: int = 8) -> str:
    """A list of objectives, shortened; ``none`` if there are none."""
    return ", ".join(map(str, indices[:limit])) + (", ..." if len(indices) > limit else "") or "none"


def conflicts(row: Row) -> str:
    """The objectives that a rule increases, and in parentheses those of which rounding hides it."""
    if not row.unknown:
        return objectives(row.conflicts)
    known = objectives(row.conflicts) + " " if row.conflicts else ""
    return f"{known}({objectives(row.unknown)}?)"


def short_name(result: str | None) -> str:
    """``Theorem 2`` for the label of a result of the paper; a dash for None."""
    return "-" if result is None else RESULTS[result].name.partition(" (")[0]


def headline(comparison: Comparison) -> str:
    """Sizes and stationarity in one line."""
    return f"{comparison.m} objectives, {comparison.n} parameters, gamma = {number(comparison.gamma, 4)}"


def settings(comparison: Comparison) -> str:
    """The rules with parameters other than their defaults; empty if there are none."""
    plain = {repr(get(name)) for name in names() if name not in EXAMPLE_PARAMETERS}
    shown = dict.fromkeys(row.setting.removesuffix(".normalized()") for row in comparison.rows)
    short = [_FLOAT.sub(lambda found: f"{float(found[0]):.4g}", setting) for setting in shown if setting not in plain]
    return f"Shown with {', '.join(short)}." if short else ""


def findings(comparison: Comparison) -> list[str]:
    """How to read the table, in a few sentences: gamma, then who conflicts with whom, then what went wrong."""
    return [_about_gamma(comparison), _about_conflicts(comparison.rows), *_about_status(comparison.rows)]


def _about_gamma(comparison: Comparison) -> str:
    if comparison.stationary:
        return (
            "gamma is zero to rounding: this point is Pareto stationary, some weighted average of the gradients "
            "vanishes, and no direction decreases every objective."
        )
    return (
        f"gamma = {number(comparison.gamma, 4)} is the length of the shortest weighted average of the gradients "
        "(MGDA's d). It is above zero, so some direction decreases every objective; where it reaches zero the point "
        "is Pareto stationary."
    )


def _about_conflicts(rows: Sequence[Row]) -> str:
    hurt: dict[int, list[str]] = {}
    for row in rows:
        for k in row.conflicts:
            hurt.setdefault(k, []).append(row.label)
    hidden = [row.label for row in rows if row.unknown]
    unsure = f" For {_listed(hidden)}, rounding hides whether some objectives (those with ?) go up." if hidden else ""
    if not hurt:
        none = "No rule conflicts here: a small step along -d increases no objective."
        return none if not hidden else f"No rule is seen to conflict here.{unsure}"
    parts = [f"objective {k} under {_listed(labels)}" for k, labels in sorted(hurt.items())[:4]]
    more = f"; and {len(hurt) - 4} more objectives" if len(hurt) > 4 else ""
    return f"A small step along -d increases {'; '.join(parts)}{more}. The other rules increase none.{unsure}"


def _about_status(rows: Sequence[Row]) -> list[str]:
    seen: dict[Status, list[str]] = {}
    for row in rows:
        if row.status is not Status.OPTIMAL:
            seen.setdefault(row.status, []).append(row.label)
    return [f"{status.name.lower()} ({_listed(labels)}): {status.value}." for status, labels in seen.items()]


def _listed(labels: Sequence[str]) -> str:
    return labels[0] if len(labels) == 1 else f"{', '.join(labels[:-1])} and {labels[-1]}"
