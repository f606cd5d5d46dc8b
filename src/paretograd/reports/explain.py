"""What ``paretograd explain`` says of a rule, as headings and lines."""

from __future__ import annotations

import inspect
from dataclasses import dataclass

from paretograd.aggregators.base import Aggregator
from paretograd.aggregators.normalized import Normalized
from paretograd.aggregators.registry import SCHEDULES
from paretograd.guarantees import Guarantee
from paretograd.reports import paper_table
from paretograd.reports.words import short_name
from paretograd.scalarizations.base import Weighting


@dataclass(frozen=True)
class Section:
    """A heading and the lines below it."""

    heading: str
    lines: tuple[str, ...]


def explain(aggregator: Aggregator | Weighting) -> list[Section]:
    """Formula, use, guarantee, place in the paper, parameters and reference, in the order in which they are needed."""
    about = aggregator.description
    sections = [
        Section("Formula", (about.formula,)),
        Section("When to use it", (about.when,)),
        Section("Guarantee", tuple(_guarantee(aggregator.guarantee))),
        Section("Behaviour", tuple(_behaviour(aggregator.guarantee))),
        *_in_the_paper(aggregator),
        Section("Parameters", tuple(_parameters(aggregator))),
        Section("Reference", (about.reference, *([f"In the paper: {about.paper}"] if about.paper != "-" else []))),
    ]
    return [section for section in sections if section.lines]


def _in_the_paper(aggregator: Aggregator | Weighting) -> list[Section]:
    if isinstance(aggregator, Weighting):
        return []
    return [
        Section("In the framework", tuple(paper_table.framework(aggregator))),
        Section("Hypotheses of Theorem 4", tuple(map(str, paper_table.hypotheses(aggregator)))),
    ]


def _guarantee(promise: Guarantee) -> list[str]:
    note = [f"Note: {promise.note}"] if promise.note else []
    if promise.result is None:
        return ["None: no theorem of the paper covers every direction of this rule.", *note]
    lines = [
        promise.result.name,
        *(f"  needs      {hypothesis}" for hypothesis in promise.result.hypotheses),
        f"  promises   {promise.result.conclusion}",
    ]
    if promise.alignment is not None:
        lines.append(f"  constant   c = {promise.alignment:.4g} for F = {promise.F}")
    lines.extend(
        f"  also       c = {one.alignment:.4g} for F = {one.F} ({short_name(one.theorem)})"
        for one in promise.alternatives
    )
    lines.append(f"  rate       {promise.rate}")
    return lines + note


def _behaviour(promise: Guarantee) -> list[str]:
    if promise.in_hull:
        place = "The weights are >= 0 and sum to 1: d is a weighted average of the gradients."
    elif promise.in_cone:
        place = "The weights are >= 0; their sum varies."
    else:
        place = "The weights may be negative: d may leave the cone of the gradients."
    conflict = (
        "No objective goes up: <d, g_k> >= 0 for every k, to first order."
        if promise.non_conflicting
        else "Some objective may go up: <d, g_k> < 0 is possible."
    )
    lines = [conflict, place]
    if promise.degree is None:
        lines.append("d depends on the scale of the gradients in no simple way.")
    elif promise.degree != 1.0:
        grows = f"by t^{promise.degree:.3g}" if promise.degree else "not at all"
        lines.append(f"Scaling every gradient by t scales d {grows}.")
    if not promise.equivariant:
        lines.append("The order of the objectives, or chance, matters.")
    return lines


def _parameters(aggregator: Aggregator | Weighting) -> list[str]:
    """The ``Args`` of the rule's docstring, each with its default."""
    rule = aggregator.aggregator if isinstance(aggregator, Normalized) else aggregator
    maker = SCHEDULES.get(rule.name.partition("(")[0], type(rule))  # what takes the parameters
    doc = inspect.getdoc(maker) or ""
    _, found, text = doc.partition("\nArgs:\n")
    if not found:
        return []
    taken = inspect.signature(maker).parameters
    described: dict[str, str] = {}
    for line in text.splitlines():
        if not line.startswith("    "):
            break
        name, colon, words = line.strip().partition(": ")
        if colon and name in taken:
            described[name] = words
        elif described:
            described[next(reversed(described))] += f" {line.strip()}"
    described.pop("generator", None)  # an object: nothing to write on a command line
    return [f"{name} ({_default(taken[name])}): {words}" for name, words in described.items()]


def _default(parameter: inspect.Parameter) -> str:
    return "required" if parameter.default is inspect.Parameter.empty else f"default {parameter.default}"
