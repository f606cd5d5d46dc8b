"""The sentences of a report: what each panel shows, for someone who sees it for the first time."""

from __future__ import annotations

from collections.abc import Sequence

from paretograd.problems.base import Problem
from paretograd.reports.study.bounds import Finding
from paretograd.reports.study.content import Content
from paretograd.reports.study.payload import Panel, objective

_HEADINGS = {
    "gamma": "Distance to Pareto stationarity",
    "space": "Objective space",
    "parallel": "Where the runs end",
}


def summary(content: Content, problem: Problem) -> str:
    """What was run, in two sentences."""
    return (
        f"{_count(len(content.methods), 'method')} on {problem.label} ({_count(problem.m, 'objective')}, "
        f"{_count(problem.n, 'variable')}), each from {_count(len(content.seeds), 'random start')}. Every method turns "
        "the gradients of the objectives into one direction, and takes a step along it, again and again."
    )


def heading(panel: Panel, content: Content) -> str:
    """The title of a panel."""
    if panel.kind != "loss":
        return _HEADINGS[panel.kind]
    if content.quantities:
        return content.quantities[panel.objective].heading
    name = f", {content.names[panel.objective]}" if content.names else ""
    return f"Objective {objective(panel.objective)}{name}"


def sentence(panel: Panel, content: Content, smoothness: float | None, bounded: bool) -> str:
    """What the panel shows."""
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
                f"its end. Lower is better in every direction. {_front(content)}{turn}"
            )
        case _:
            return (
                f"With {content.m} objectives there is no plane to draw them in: each upright position is an "
                "objective, each line is the end of a run, and the line with open circles is the start. Lower is "
                f"better everywhere. {_front(content)}"
            )


def theory(findings: Sequence[Finding], smoothness: float | None) -> str:
    """What the table of the theorems is, or why there is none."""
    if smoothness is None:
        return (
            "Theorem 1 and Corollary 1 bound the least γ of a run by the smoothness constant L of the objectives. None "
            "is known for this problem, so there is no bound to show."
        )
    covered = sum(finding.bound is not None for finding in findings)
    return (
        "The theorems bound the least γ of a run by its start, the smoothness constant L of the objectives, the step "
        f"sizes and a constant of the method. They cover {covered} of the {_count(len(findings), 'run')} of this seed, "
        f"with L = {smoothness:.4g}. A bound holds for every function with that L, so most runs are far below it."
    )


_GAMMA = (
    "γ is the length of the shortest weighted average of the gradients. Where it is 0, no direction improves every "
    "objective: the point is Pareto stationary, and a method has done what it can. The axis is logarithmic."
)


def _stop(stop_gamma: float | None) -> str:
    return "" if stop_gamma is None else f"A run stops when it is below the line at {stop_gamma:g}."


def _bound(smoothness: float | None, bounded: bool) -> str:
    if smoothness is None:
        return ""
    if not bounded:
        return "No theorem covers these runs, so there is no bound."
    return "Dotted: what Corollary 1 (or Theorem 1) promises for the least γ so far. Methods may share a bound."


def _front(content: Content) -> str:
    if not len(content.front):
        return "The Pareto front of this problem is not known."
    what = {2: "The thick line is", 3: "The grey points are"}.get(content.m, "The thin grey lines are")
    return f"{what} the Pareto front: there, no objective can improve without another getting worse."


def _count(number: int, thing: str) -> str:
    return f"{number} {thing}{'' if number == 1 else 's'}"
