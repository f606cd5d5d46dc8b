"""The panels of a page: their texts, and their data as JSON that is safe in a script element."""

from __future__ import annotations

import html
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from paretograd.geometry.gramian import Array
from paretograd.problems.base import Problem
from paretograd.reports.study.content import Bound, Content, Curve, Finding, spaced

#: plotly's names of matplotlib's markers.
_SYMBOLS = {
    "o": "circle",
    "s": "square",
    "^": "triangle-up",
    "D": "diamond",
    "v": "triangle-down",
    "P": "cross",
    "X": "x",
    "p": "pentagon",
    "*": "star",
}
_SUBSCRIPTS = str.maketrans("0123456789", "₀₁₂₃₄₅₆₇₈₉")
#: Significant digits, more than a screen can show.
_DIGITS = 6
_HEADINGS = {
    "gamma": "Distance to Pareto stationarity",
    "space": "Objective space",
    "parallel": "Where the runs end",
}
_GAMMA = (
    "γ is the length of the shortest weighted average of the gradients. Where it is 0, no direction improves every "
    "objective: the point is Pareto stationary, and a method has done what it can. The axis is logarithmic."
)


@dataclass(frozen=True)
class Panel:
    """One picture of the page.

    Attributes:
        kind: ``loss``, ``gamma``, ``space`` or ``parallel``.
        objective: index of the loss that it shows; unused for the other kinds.
    """

    kind: str
    objective: int = 0


def payload(content: Content, bounds: Sequence[Bound]) -> str:
    """Return the data for page.js as JSON. Labels are escaped, because plotly interprets tags."""
    labels, seeds = list(content.methods), list(content.seeds)
    data = {
        "m": content.m,
        "objectives": _symbols(content),
        "axes": _axes(content),
        "panels": [asdict(panel) for panel in panels(content)],
        "methods": [_method(label, look, i, len(labels)) for i, (label, look) in enumerate(content.methods.items())],
        "one": content.one,
        "seeds": [str(seed) for seed in seeds],
        "stopGamma": content.stop_gamma,
        "runs": [
            {
                "method": labels.index(run.method),
                "seed": seeds.index(run.seed),
                "iterations": run.iterations.tolist(),
                "losses": [numbers(run.losses[:, k]) for k in range(content.panels)],
                "gamma": numbers(run.gamma),
            }
            for run in content.runs
        ],
        "bounds": [
            {
                "seed": seeds.index(bound.seed),
                "methods": [labels.index(method) for method in bound.methods],
                "label": f"bound of {bound.result}",
                "names": html.escape(", ".join(bound.methods)),
                "iterations": (iterations := spaced(bound.last)).tolist(),
                "values": numbers(np.array([bound.at(int(iteration)) for iteration in iterations])),
            }
            for bound in bounds
        ],
        "front": _front(content),
        "parallel": _parallel(content) if content.m > 3 and not content.quantities else None,
    }
    return for_script(data)


def panels(content: Content) -> list[Panel]:
    """Return the panels, in the page's order."""
    found = [*(Panel("loss", k) for k in range(content.panels)), Panel("gamma")]
    if content.m > 1 and not content.quantities:
        found.append(Panel("space" if content.m <= 3 else "parallel"))
    return found


def objective(k: int) -> str:
    """Return the symbol of an objective: ``f₁`` for the first."""
    return f"f{str(k + 1).translate(_SUBSCRIPTS)}"


def _symbols(content: Content) -> list[str]:
    return [html.escape(one.symbol) for one in content.quantities] or [objective(k) for k in range(content.panels)]


def _axes(content: Content) -> list[str]:
    return [html.escape(one.axis) for one in content.quantities] or [f"objective {name}" for name in _symbols(content)]


def for_script(data: object) -> str:
    """Return JSON that cannot end a script element or begin a comment."""
    text = json.dumps(data, allow_nan=False, ensure_ascii=True, separators=(",", ":"))
    return text.replace("&", r"\u0026").replace("<", r"\u003c").replace(">", r"\u003e")


def _method(label: str, look: Curve, place: int, count: int) -> dict[str, Any]:
    symbol = _SYMBOLS[look.symbol] + ("" if look.dash == "solid" else "-open")
    return {
        "label": html.escape(label),
        "colour": look.colour,
        "onDark": look.on_dark,
        "dash": look.dash,
        "symbol": symbol,
        "width": round(2.8 - 1.0 * place / max(1, count - 1), 2),  # the first ones show below the others
    }


def _front(content: Content) -> list[list[Any]] | None:
    """Return one list for each axis; in parallel coordinates, lines one after another with gaps between them."""
    if not len(content.front):
        return None
    if content.m <= 3:
        return [numbers(column) for column in content.front.T]
    names = [*(objective(k) for k in range(content.m)), None]
    values = [[*numbers(row), None] for row in content.scaled(content.front)]
    return [names * len(values), [value for row in values for value in row]]


def _parallel(content: Content) -> dict[str, Any]:
    first = {run.seed: run for run in reversed(content.runs)}
    return {
        "names": [objective(k) for k in range(content.m)],
        "starts": [numbers(content.scaled(first[seed].losses[0])) for seed in content.seeds],
        "ends": [numbers(content.scaled(run.losses[-1])) for run in content.runs],
        "losses": [numbers(run.losses[-1]) for run in content.runs],
    }


def numbers(values: Array) -> list[float | None]:
    """Return the numbers of a vector with as many digits as a screen needs; None for NaN and infinity."""
    return [float(f"{value:.{_DIGITS}g}") if np.isfinite(value) else None for value in values.tolist()]


def summary(content: Content, problem: Problem) -> str:
    """Describe the study in two sentences."""
    return (
        f"{_count(len(content.methods), 'method')} on {problem.label} ({_count(problem.m, 'objective')}, "
        f"{_count(problem.n, 'variable')}), each from {_count(len(content.seeds), 'random start')}. Every method turns "
        "the gradients of the objectives into one direction, and takes a step along it, again and again."
    )


def heading(panel: Panel, content: Content) -> str:
    """Return the title of a panel."""
    if panel.kind != "loss":
        return _HEADINGS[panel.kind]
    if content.quantities:
        return content.quantities[panel.objective].heading
    name = f", {content.names[panel.objective]}" if content.names else ""
    return f"Objective {objective(panel.objective)}{name}"


def sentence(panel: Panel, content: Content, smoothness: float | None, bounded: bool) -> str:
    """Describe a panel."""
    match panel.kind:
        case "loss" if content.quantities:
            return content.quantities[panel.objective].text
        case "loss":
            return (
                f"The loss {objective(panel.objective)} after each iteration: lower is better. A method that is low "
                "here may be high for another objective: methods end at different trade-offs, none of which is the "
                "best. A marker is the end of a run."
            )
        case "gamma":
            return " ".join(filter(None, (_GAMMA, _stop(content.stop_gamma), _bound(smoothness, bounded))))
        case "space":
            turn = " Drag to turn the picture." if content.m == 3 else ""
            return (
                "Each line is the path of a run through the values of the objectives, from its start (open circle) to "
                f"its end. Lower is better in every direction. {_front_in_words(content)}{turn}"
            )
        case _:
            return (
                f"With {content.m} objectives there is no plane to draw them in: each upright position is an "
                "objective, each line is the end of a run, and the line with open circles is the start. Lower is "
                f"better everywhere. {_front_in_words(content)}"
            )


def theory(findings: Sequence[Finding], smoothness: float | None, one: str) -> str:
    """Describe the table of the theorems, or why there is none."""
    if smoothness is None:
        return (
            "Theorem 1 and Corollary 1 bound the least γ of a run by the smoothness constant L of the objectives. None "
            "is known for this problem, so there is no bound to show."
        )
    covered = sum(finding.bound is not None for finding in findings)
    return (
        "The theorems bound the least γ of a run by its start, the smoothness constant L of the objectives, the step "
        f"sizes and a constant of the method. They cover {covered} of the {_count(len(findings), 'run')} of this "
        f"{one}, with L = {smoothness:.4g}. "
        "A bound holds for every function with that L, so most runs are far below it."
    )


def _stop(stop_gamma: float | None) -> str:
    return "" if stop_gamma is None else f"A run stops when it is below the line at {stop_gamma:g}."


def _bound(smoothness: float | None, bounded: bool) -> str:
    if smoothness is None:
        return ""
    if not bounded:
        return "No theorem covers these runs, so there is no bound."
    return "Dotted: what Corollary 1 (or Theorem 1) promises for the least γ so far. Methods may share a bound."


def _front_in_words(content: Content) -> str:
    if not len(content.front):
        return "The Pareto front of this problem is not known."
    what = {2: "The thick line is", 3: "The grey points are"}.get(content.m, "The thin grey lines are")
    return f"{what} the Pareto front: there, no objective can improve without another getting worse."


def _count(number: int, thing: str) -> str:
    return f"{number} {thing}{'' if number == 1 else 's'}"
