"""Colours and markers of the pictures; readable with colour-blind eyes and in grey."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

GRADIENT = "#1a1a1a"

#: Up to this many gradients are named in a picture; more are drawn as thin lines.
LABELLED = 12

#: The ground of a name, so that no line runs through it.
BEHIND: dict[str, Any] = {"facecolor": "white", "edgecolor": "none", "alpha": 0.75, "boxstyle": "round,pad=0.12"}

#: From Okabe and Ito's and Tol's palettes, in an order in which neighbours differ in lightness, too.
_COLOURS = ("#0072B2", "#D55E00", "#009E73", "#882255", "#56B4E9", "#E69F00", "#332288", "#CC79A7", "#44AA99")
_MARKERS = ("o", "s", "^", "D", "v", "P", "X")  # seven and nine: 63 pairs before one repeats
#: One for each colour, for the end of a curve.
_ENDS = (*_MARKERS, "p", "*")
#: The same hues for a dark ground.
_ON_DARK = ("#4DA9E8", "#FF8A3D", "#2CC99B", "#C94B86", "#A6DBFF", "#FFC845", "#9D8CFF", "#F6BBDD", "#8FE0D2")

#: Numbers of the colours that the paper's methods have in every figure.
_OWN = {"MGDA": 0, "UPGrad": 1, "DualProj": 2, "Nash-MTL": 3, "MAS-Rand": 7}
#: Numbers for the others, in the order in which they are given out; no schedule looks like a rule of its pool.
_SCHEDULES = (6, 5, 4, 8)
_OTHERS = (4, 5, 8, 6, 7, 0, 1, 2, 3)
#: Line styles of methods and of their starred variants; the later pairs are for more methods than there are colours.
_DASHES = (("solid", "dash"), ("dashdot", "longdash"), ("longdashdot", "dot"))


def gradient_width(count: int) -> float:
    """Line width of a gradient's arrow, in points."""
    return 3.0 if count <= LABELLED else 1.3


@dataclass(frozen=True)
class Area:
    """How a cone is filled."""

    face: str
    edge: str
    hatch: str
    alpha: float
    zorder: float

    def patch(self) -> dict[str, Any]:
        """Keywords of a matplotlib patch."""
        return {
            "facecolor": (self.face, self.alpha),
            "edgecolor": self.edge,
            "hatch": self.hatch,
            "linewidth": 1.0,
            "zorder": self.zorder,
        }


#: The dual cone lies over the cone: grey and blue mix without a third colour.
CONE = Area("#BDBDBD", "#8C8C8C", "", 0.4, 0.5)
DUAL = Area("#7CC3F2", "#3B8FC4", "///", 0.3, 0.6)


@dataclass(frozen=True)
class Stroke:
    """How a direction is drawn; dashed where it conflicts with some gradient."""

    colour: str
    symbol: str
    dashed: bool

    def line(self) -> dict[str, Any]:
        """Keywords of the shaft."""
        return {"color": self.colour, "linewidth": 1.8, "linestyle": (0, (3, 1.5)) if self.dashed else "-"}

    def marker(self) -> dict[str, Any]:
        """Keywords of the marker at the tip."""
        hollow = {"markerfacecolor": "white"} if self.dashed else {"markerfacecolor": self.colour}
        return {
            "marker": self.symbol,
            "color": self.colour,
            "markersize": 7.5,
            "markeredgewidth": 1.6,
            "linestyle": "none",
            **hollow,
        }


def stroke(index: int, dashed: bool) -> Stroke:
    """The stroke of the arrow with this number."""
    return Stroke(_COLOURS[index % len(_COLOURS)], _MARKERS[index % len(_MARKERS)], dashed)


@dataclass(frozen=True)
class Curve:
    """How a method's line is drawn in every figure of a study.

    Attributes:
        colour: on a light ground.
        on_dark: the same hue on a dark ground.
        dash: plotly's name of the line style.
        symbol: matplotlib's marker of the line's end.
    """

    colour: str
    on_dark: str
    dash: str
    symbol: str


def curves(labels: Sequence[str]) -> dict[str, Curve]:
    """A curve for each method of a study, no two alike (up to 27 methods and their stars).

    The paper's methods have the same colour everywhere. A starred variant has the colour of its method and another
    line style; a mixed schedule has a colour that is no rule's of its pool.
    """
    methods = list(dict.fromkeys(label.removesuffix("*") for label in labels))
    numbers = {method: _OWN[method] for method in methods if method in _OWN}
    for method in methods:
        if method not in numbers:
            wanted = (*(_SCHEDULES if method.startswith("MAS-") else ()), *_OTHERS)
            used = [number % len(_COLOURS) for number in numbers.values()]
            rounds = min(used.count(number) for number in wanted)
            found = next(number for number in wanted if used.count(number) == rounds)
            numbers[method] = found + rounds * len(_COLOURS)
    return {label: _curve(numbers[label.removesuffix("*")], label.endswith("*")) for label in labels}


def _curve(number: int, starred: bool) -> Curve:
    turn, hue = divmod(number, len(_COLOURS))
    dash = _DASHES[turn % len(_DASHES)][starred]
    return Curve(_COLOURS[hue], _ON_DARK[hue], dash, _ENDS[(hue + turn) % len(_ENDS)])
