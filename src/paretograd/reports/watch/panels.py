"""The pictures of a recording's page, as data: lines and heat maps over the steps."""

from __future__ import annotations

import html
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from paretograd.certificates.update import CONFLICT
from paretograd.geometry.gramian import Array
from paretograd.reports.study.content import curves
from paretograd.reports.study.panels import for_script, numbers
from paretograd.reports.watch.analysis import Other, Run, conflicting_pairs

#: More losses than this are drawn as a heat map rather than as lines.
MOST_LINES = 9
#: Points of a line and columns of a heat map, at most: means of neighbouring records.
_POINTS, _COLUMNS = 120, 100
#: Pairs of losses in the picture of conflicts over time, at most.
_PAIRS = 24


@dataclass(frozen=True)
class Line:
    """A line over the steps.

    Attributes:
        label: its name.
        values: one for each bin.
        loss: number of the loss that it is about; None if it is about all.
    """

    label: str
    values: Array
    loss: int | None = None


@dataclass(frozen=True)
class Panel:
    """One picture.

    Attributes:
        title: of the picture.
        text: what it shows, for someone who sees it for the first time.
        axis: title of the upright axis; of the colours, in a heat map.
        lines: the lines; empty for a heat map.
        steps: first axis of lines, and of a heat map over time.
        logarithmic: whether the upright axis is.
        rows: labels of the rows of a heat map.
        columns: labels of its columns; empty for a heat map over time.
        values: of a heat map, shape ``(rows, columns)``.
        signed: True if its values are cosines, from -1 to 1; False if they are shares or weights from 0.
    """

    title: str
    text: str
    axis: str
    lines: tuple[Line, ...] = ()
    steps: Array | None = None
    logarithmic: bool = False
    rows: tuple[str, ...] = ()
    columns: tuple[str, ...] = ()
    values: Array | None = None
    signed: bool = False

    @property
    def height(self) -> int:
        """Height in pixels: a row of a heat map needs room for its name, up to some length."""
        return min(max(360, 17 * len(self.rows) + 110), 1000)


class _Bins:
    """Neighbouring records, averaged."""

    def __init__(self, steps: NDArray[np.int64], most: int) -> None:
        self._parts = np.array_split(np.arange(len(steps)), min(most, len(steps)))
        self.steps = self.mean(steps.astype(float))

    def mean(self, values: Array) -> Array:
        """Return the means over the records, first axis, without NaN; NaN if there is nothing else."""
        found = []
        for part in self._parts:
            each = values[part]
            known = np.isfinite(each)
            count = known.sum(axis=0)
            total = np.where(known, each, 0.0).sum(axis=0)
            found.append(np.where(count > 0, total / np.maximum(count, 1), np.nan))
        return np.array(found)


def panels(run: Run, others: Sequence[Other]) -> list[Panel]:
    """Return the pictures, the answer to "who conflicts with whom?" first."""
    bins = _Bins(run.steps, _POINTS)
    found = []
    if run.has_gradients:
        found += _of_pairs(run) if run.m > 1 else []
        found += [_raised(run, bins), _gamma(run, bins)]
    if np.isfinite(run.weights).any():
        text = "The weight that the rule gives each gradient in its direction."
        found.append(_by_loss("Weights", text, "weight", run, run.weights, False))
    if run.has_gradients:
        text = "The length of each gradient over the shared parameters. A long one pulls a plain sum towards its loss."
        found.append(_by_loss("Lengths of the gradients", text, "|g|", run, run.lengths, True))
    if np.isfinite(run.losses).any():
        text = "The values of the losses on the batches of the recorded steps."
        positive = bool((run.losses[np.isfinite(run.losses)] > 0.0).all())
        found.append(_by_loss("Losses", text, "loss", run, run.losses, positive))
    if others:
        found.append(_other_rules(run, others))
    return found


def payload(found: Sequence[Panel], labels: Sequence[str]) -> str:
    """Return the data for watch.js as JSON. Labels are escaped, because plotly interprets tags."""
    looks = curves(labels)
    return for_script(
        {
            "losses": [{"colour": look.colour, "onDark": look.on_dark, "dash": look.dash} for look in looks.values()],
            "panels": [_data(panel) for panel in found],
        }
    )


def _data(panel: Panel) -> dict[str, Any]:
    return {
        "axis": html.escape(panel.axis),
        "logarithmic": panel.logarithmic,
        "height": panel.height,
        "steps": None if panel.steps is None else numbers(panel.steps),
        "lines": [
            {"label": html.escape(line.label), "loss": line.loss, "values": numbers(line.values)}
            for line in panel.lines
        ],
        "rows": [html.escape(row) for row in panel.rows],
        "columns": [html.escape(column) for column in panel.columns],
        "values": None if panel.values is None else [numbers(row) for row in panel.values],
        "signed": panel.signed,
    }


def _of_pairs(run: Run) -> list[Panel]:
    cosines = run.cosines[run.finite]
    share = (cosines < -CONFLICT).mean(axis=0)
    np.fill_diagonal(share, np.nan)
    pairs = conflicting_pairs(run)[:_PAIRS]
    bins = _Bins(run.steps, _COLUMNS)
    over_time = np.array([bins.mean(run.cosines[:, pair.first, pair.second]) for pair in pairs])
    some = f" The {_PAIRS} pairs that conflict most often are shown." if run.m * (run.m - 1) // 2 > _PAIRS else ""
    matrix = Panel(
        title="Who conflicts with whom",
        text="The share of the steps in which the gradients of two losses point apart: a small step that lowers one of "
        "them alone raises the other.",
        axis="share of steps",
        rows=run.labels,
        columns=run.labels,
        values=share,
    )
    when = Panel(
        title="When they conflict",
        text="The cosine between two gradients over the steps. Below 0 they conflict (orange), above 0 they help each "
        f"other (blue).{some}",
        axis="cosine",
        rows=tuple(f"{run.labels[pair.first]} · {run.labels[pair.second]}" for pair in pairs),
        steps=bins.steps,
        values=over_time,
        signed=True,
    )
    return [matrix, when]


def _raised(run: Run, bins: _Bins) -> Panel:
    lines = [Line("by the direction", bins.mean(run.raised.sum(axis=1)))]
    if np.isfinite(run.updated).any():
        lines.append(Line("by the update", bins.mean(run.updated.sum(axis=1))))
    return Panel(
        title="Losses that are raised",
        text=f"How many of the {run.m} losses a small step increases, to first order on their batch. 0 is best.",
        axis="losses raised",
        lines=tuple(lines),
        steps=bins.steps,
    )


def _gamma(run: Run, bins: _Bins) -> Panel:
    return Panel(
        title="Distance to Pareto stationarity",
        text="γ is the length of the shortest weighted average of the gradients. At 0 no direction lowers every loss. "
        "It cannot exceed the shortest gradient: a wide gap between the two lines is a trade-off between the losses.",
        axis="length",
        lines=(
            Line("γ", bins.mean(run.gamma)),
            Line("shortest gradient", bins.mean(run.lengths.min(axis=1))),
            Line("direction", bins.mean(run.norm)),
        ),
        steps=bins.steps,
        logarithmic=True,
    )


def _by_loss(title: str, text: str, axis: str, run: Run, values: Array, logarithmic: bool) -> Panel:
    """Draw one line for each loss, or a heat map if there are too many."""
    if run.m <= MOST_LINES:
        bins = _Bins(run.steps, _POINTS)
        means = bins.mean(values)
        lines = tuple(Line(label, means[:, k], k) for k, label in enumerate(run.labels))
        return Panel(title, text, axis, lines=lines, steps=bins.steps, logarithmic=logarithmic)
    bins = _Bins(run.steps, _COLUMNS)
    means = bins.mean(values).T
    if logarithmic:
        with np.errstate(divide="ignore"):
            means, axis = np.log10(means), f"log10 {axis}"
    return Panel(title, text, axis, rows=run.labels, steps=bins.steps, values=means)


def _other_rules(run: Run, others: Sequence[Other]) -> Panel:
    return Panel(
        title="What other rules would have raised",
        text="The share of the steps in which each rule's direction, computed from the recorded gradients, raises each "
        "loss. It is about single steps: another rule would have led the run elsewhere.",
        axis="share of steps",
        rows=tuple(other.label for other in others),
        columns=run.labels,
        values=np.array([other.raised for other in others]),
    )
