"""Colours and markers of the pictures; readable with colour-blind eyes and in grey."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

GRADIENT = "#1a1a1a"

#: Up to this many gradients are named in a picture; more are drawn as thin lines.
LABELLED = 12

#: The ground of a name, so that no line runs through it.
BEHIND: dict[str, Any] = {"facecolor": "white", "edgecolor": "none", "alpha": 0.75, "boxstyle": "round,pad=0.12"}

#: From Okabe and Ito's and Tol's palettes, in an order in which neighbours differ in lightness, too.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#882255", "#56B4E9", "#E69F00", "#332288", "#CC79A7", "#44AA99")
#: The same hues for a dark ground.
ON_DARK = ("#4DA9E8", "#FF8A3D", "#2CC99B", "#C94B86", "#A6DBFF", "#FFC845", "#9D8CFF", "#F6BBDD", "#8FE0D2")
MARKERS = ("o", "s", "^", "D", "v", "P", "X")  # seven and nine: 63 pairs before one repeats


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
    return Stroke(COLOURS[index % len(COLOURS)], MARKERS[index % len(MARKERS)], dashed)
