"""The numbers that the page draws, as JSON that is safe inside of a script element."""

from __future__ import annotations

import html
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from paretograd.geometry.gramian import Array
from paretograd.reports.palette import Curve
from paretograd.reports.study.bounds import Bound
from paretograd.reports.study.content import Content
from paretograd.reports.study.thinning import spaced

#: matplotlib's markers in plotly's words.
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
#: Digits that are kept: more than a screen can show.
_DIGITS = 6


@dataclass(frozen=True)
class Panel:
    """One picture of the page.

    Attributes:
        kind: ``loss``, ``gamma``, ``space`` or ``parallel``.
        objective: the number of the loss that it shows, from 0; of no meaning for the other kinds.
    """

    kind: str
    objective: int = 0


def payload(content: Content, bounds: Sequence[Bound]) -> str:
    """Everything that page.js reads. Labels are escaped for plotly, which reads tags in them."""
    labels, seeds = list(content.methods), list(content.seeds)
    data = {
        "m": content.m,
        "objectives": _symbols(content),
        "axes": _axes(content),
        "panels": [asdict(panel) for panel in panels(content)],
        "methods": [_method(label, look, i, len(labels)) for i, (label, look) in enumerate(content.methods.items())],
        "seeds": [str(seed) for seed in seeds],
        "stopGamma": content.stop_gamma,
        "runs": [
            {
                "method": labels.index(run.method),
                "seed": seeds.index(run.seed),
                "iterations": run.iterations.tolist(),
                "losses": [_numbers(run.losses[:, k]) for k in range(content.panels)],
                "gamma": _numbers(run.gamma),
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
                "values": _numbers(np.array([bound.at(int(iteration)) for iteration in iterations])),
            }
            for bound in bounds
        ],
        "front": _front(content),
        "parallel": _parallel(content) if content.m > 3 and not content.quantities else None,
    }
    return for_script(data)


def panels(content: Content) -> list[Panel]:
    """What each panel shows, in the page's order."""
    found = [*(Panel("loss", k) for k in range(content.panels)), Panel("gamma")]
    if content.m > 1 and not content.quantities:
        found.append(Panel("space" if content.m <= 3 else "parallel"))
    return found


def objective(k: int) -> str:
    """``f₁`` for the first objective."""
    return f"f{str(k + 1).translate(_SUBSCRIPTS)}"


def _symbols(content: Content) -> list[str]:
    return [html.escape(one.symbol) for one in content.quantities] or [objective(k) for k in range(content.panels)]


def _axes(content: Content) -> list[str]:
    return [html.escape(one.axis) for one in content.quantities] or [f"objective {name}" for name in _symbols(content)]


def for_script(data: object) -> str:
    """JSON in which nothing can end a script element or begin a comment."""
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
    """One list for each axis; in parallel coordinates the lines one after another, with gaps between them."""
    if not len(content.front):
        return None
    if content.m <= 3:
        return [_numbers(column) for column in content.front.T]
    names = [*(objective(k) for k in range(content.m)), None]
    values = [[*_numbers(row), None] for row in content.scaled(content.front)]
    return [names * len(values), [value for row in values for value in row]]


def _parallel(content: Content) -> dict[str, Any]:
    first = {run.seed: run for run in reversed(content.runs)}
    return {
        "names": [objective(k) for k in range(content.m)],
        "starts": [_numbers(content.scaled(first[seed].losses[0])) for seed in content.seeds],
        "ends": [_numbers(content.scaled(run.losses[-1])) for run in content.runs],
        "losses": [_numbers(run.losses[-1]) for run in content.runs],
    }


def _numbers(values: Array) -> list[float | None]:
    return [float(f"{value:.{_DIGITS}g}") if np.isfinite(value) else None for value in values.tolist()]
