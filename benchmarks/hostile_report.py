"""Tables and verdicts from the outcomes of `hostile_run`, for the terminal, the docs and as JSON."""

from __future__ import annotations

import json
import platform
import statistics
from collections.abc import Sequence
from dataclasses import asdict
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

from common import ROOT, fill, markdown_table, processor, replace

if TYPE_CHECKING:
    from hostile_run import Outcome

PAGE = ROOT / "docs" / "hostile.md"
RESULTS = ROOT / "benchmarks" / "results" / "hostile.json"
#: Largest relative accuracy loss at which a rule still counts as robust.
LOSS = 0.1
#: Attacks in each column of the tables. Attacks that are dropped in every round share one column, showing the worst.
COLUMNS = {
    "none": ["none"],
    "sign flip": ["sign flip"],
    "literal noise": ["sign flip, literal noise"],
    "zero": ["zero"],
    "opposite": ["opposite"],
    "scaled": ["scaled"],
    "labels": ["label flip"],
    "examples": ["huge num-examples"],
    "statistics": ["statistics"],
    "dropped": ["NaN", "wrong shape", "wrong keys"],
    "two collude": ["two collude"],
    "two, to the bound": ["two collude, to the bound"],
}
#: Columns with two attackers.
TWO = ("two collude", "two collude, to the bound")
BOUNDS = {
    "clip": 'Updates shortened to the median length: `bound="clip"`, the default',
    "normalize": 'Updates of the median length: `bound="normalize"`',
    "none": 'Updates of any length: `bound="none"`',
}
Table = dict[tuple[str, str, str], float]


def means(outcomes: Sequence[Outcome]) -> Table:
    """Return the mean accuracy over seeds by rule, bound and attack."""
    return {key: statistics.fmean(values) for key, values in _by_seed(outcomes).items()}


def _by_seed(outcomes: Sequence[Outcome]) -> dict[tuple[str, str, str], list[float]]:
    found: dict[tuple[str, str, str], list[float]] = {}
    for outcome in outcomes:
        found.setdefault((outcome.rule, outcome.bound, outcome.attack), []).append(outcome.accuracy)
    return found


def rows(outcomes: Sequence[Outcome], bound: str, mark: str = "**") -> list[list[str]]:
    """Return one row per rule with the bound, in percent; losses of more than a tenth are marked."""
    table, found = means(outcomes), []
    for rule in dict.fromkeys(outcome.rule for outcome in outcomes if outcome.bound == bound):
        unharmed = table[rule, bound, "none"]
        values = [min(table[rule, bound, attack] for attack in attacks) for attacks in COLUMNS.values()]
        shown = (f"{100 * value:.0f}" for value in values)
        lost = (value < (1.0 - LOSS) * unharmed for value in values)
        found.append([rule, *(f"{mark}{text}{mark}" if bad else text for text, bad in zip(shown, lost, strict=True))])
    return found


def verdicts(outcomes: Sequence[Outcome]) -> list[tuple[str, bool, str]]:
    """Return each requirement, whether it is met, and the case that violates it or comes closest."""
    errors = [f"{o.rule}, {o.bound}, {o.attack}, seed {o.seed}: {o.error}" for o in outcomes if o.error]
    broken = [f"{o.rule}, {o.bound}, {o.attack}, seed {o.seed}" for o in outcomes if not o.finite]
    count = f"{len(outcomes)} runs"
    return [
        ("nothing crashes the server", not errors, "; ".join(errors[:5]) or count),
        ("no NaN reaches the model", not broken, "; ".join(broken[:5]) or count),
        *(_kept(outcomes, bound) for bound in ("clip", "normalize") if _promised(outcomes, bound)),
    ]


def _promised(outcomes: Sequence[Outcome], bound: str) -> list[str]:
    return list(dict.fromkeys(o.rule for o in outcomes if o.promised and o.bound == bound))


def _kept(outcomes: Sequence[Outcome], bound: str) -> tuple[str, bool, str]:
    """Return the verdict on trusted and capped MGDA with bounded lengths, for one attacker in ten."""
    table, one = means(outcomes), [a for attacks in COLUMNS.values() for a in attacks if a not in ("none", *TWO)]
    ratios = {
        f"{rule}, {attack}": table[rule, bound, attack] / table[rule, bound, "none"]
        for rule in _promised(outcomes, bound)
        for attack in one
    }
    worst = min(ratios, key=lambda name: ratios[name])
    what = f'one attacker in ten costs trusted or capped MGDA with bound="{bound}" at most {LOSS:.0%} of the accuracy'
    return what, ratios[worst] >= 1.0 - LOSS, f"keeps {ratios[worst]:.1%}: {worst}"


def spread(outcomes: Sequence[Outcome]) -> float:
    """Return the median over rules and attacks of the standard deviation over seeds."""
    return statistics.median(statistics.pstdev(values) for values in _by_seed(outcomes).values())


def console(outcomes: Sequence[Outcome]) -> str:
    """Return aligned tables and the verdicts."""
    lines = []
    for bound, title in BOUNDS.items():
        body = rows(outcomes, bound, mark="!")
        if not body:
            continue
        table = [["rule", *COLUMNS], *body]
        widths = [max(len(row[i]) for row in table) for i in range(len(table[0]))]
        lines += ["", title.replace("`", "")]
        lines += [
            "  ".join(x.rjust(w) if i else x.ljust(w) for i, (x, w) in enumerate(zip(row, widths, strict=True)))
            for row in table
        ]
    lines.append("")
    lines += [f"{'met   ' if met else 'MISSED'}  {what} ({why})" for what, met, why in verdicts(outcomes)]
    return "\n".join(lines)


def drops(outcomes: Sequence[Outcome]) -> list[list[str]]:
    """Return the numbers of dropped replies for each attack."""
    found = []
    for attack in dict.fromkeys(outcome.attack for outcome in outcomes):
        members = [outcome for outcome in outcomes if outcome.attack == attack]
        honest = {b: sum(o.honest_dropped for o in members if (o.bound == "none") == b) for b in (False, True)}
        hostile = sum(o.hostile_dropped for o in members)
        found.append([attack, *(f"{number:,}" for number in (hostile, honest[False], honest[True]))])
    return found


def machine() -> str:
    """Return the processor and the versions as text."""
    packages = ", ".join(f"{name} {version(name)}" for name in ("torch", "numpy", "scipy"))
    return f"{processor()}; Python {platform.python_version()}, {packages}"


def markdown(outcomes: Sequence[Outcome], facts: dict[str, Any]) -> str:
    """Return the text between the markers of the page."""
    seeds = len({outcome.seed for outcome in outcomes})
    lines = [
        f"`{facts['command']}`, {facts['seconds']:.0f} s on {facts['machine']}.",
        "",
        f"Accuracy in percent, the mean over {seeds} seeds; the standard deviation over seeds is "
        f"{100 * spread(outcomes):.1f} in the median cell. Bold: the attack costs more than {LOSS:.0%} of the accuracy "
        "in the first column.",
    ]
    for bound, title in BOUNDS.items():
        # A cap stays on one line in a narrow column.
        body = [[rule.replace(" = ", "&nbsp;=&nbsp;"), *cells] for rule, *cells in rows(outcomes, bound)]
        lines += ["", f"### {title}", "", *markdown_table(["rule", *COLUMNS], body)]
    lines += ["", "### What must hold", ""]
    checked = ([what, "yes" if met else "no", why] for what, met, why in verdicts(outcomes))
    lines += markdown_table(["promise", "kept", "closest"], checked, names=3)
    lines += ["", "### What the server dropped", ""]
    why = "Honest replies are dropped if the model has grown so large that training from it gives NaN."
    lines += [f"Number of dropped replies over all rules, rounds and seeds. {why}", ""]
    headings = ["attack", "attackers' replies", "honest replies, with a bound", "honest replies, without"]
    lines += markdown_table(headings, drops(outcomes))
    return "\n".join(lines)


def write(outcomes: Sequence[Outcome], command: str, seconds: float) -> list[Path]:
    """Write the raw results and update the tables on the page."""
    cells = [{name: value for name, value in asdict(o).items() if name != "model"} for o in outcomes]
    facts = {"command": command, "seconds": round(seconds, 1), "machine": machine()}
    lines = ",\n".join(json.dumps(cell) for cell in cells)  # one line per outcome
    replace(RESULTS, f'{json.dumps(facts)[:-1]}, "outcomes": [\n{lines}\n]}}\n')
    return [RESULTS.relative_to(ROOT), render()]


def render() -> Path:
    """Update the tables on the page from the saved results."""
    from hostile_run import Outcome

    facts = json.loads(RESULTS.read_text(encoding="utf-8"))
    fill(PAGE, markdown([Outcome(**cell) for cell in facts["outcomes"]], facts))
    return PAGE.relative_to(ROOT)
