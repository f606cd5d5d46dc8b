"""Choices of the page: rules with their sliders, and presets. All of it is data."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import torch

from paretograd.aggregators.registry import REGISTRY, get
from paretograd.geometry.gramian import Array
from paretograd.reports.palette import COLOURS, ON_DARK
from paretograd.reports.sphere import viewpoint

Rows = tuple[tuple[float, ...], ...]


@dataclass(frozen=True)
class Dial:
    """A slider for a parameter of a rule.

    Attributes:
        key: name of the parameter.
        label: of the slider.
        low: its left end.
        high: its right end.
        start: value of a rule that was just chosen; it suits every m.
        log: whether equal distances on the slider are equal ratios.
        whole: whether only whole numbers are possible.
    """

    key: str
    label: str
    low: float
    high: float
    start: float
    log: bool = False
    whole: bool = False


def dials(name: str, m: int) -> tuple[Dial, ...]:
    """Return the sliders of a rule for m objectives."""
    seed = Dial("seed", "seed", 0.0, 20.0, 0.0, whole=True)
    every: dict[str, tuple[Dial, ...]] = {
        "capped-mgda": (Dial("cap", "largest weight C", 1.0 / m, 1.0, 0.6),),
        "clipped-mgda": (Dial("cap", "largest weight C", 0.05, 1.0, 0.3),),
        "entropic-mgda": (Dial("temperature", "temperature", 1e-3, 10.0, 0.1, log=True),),
        "chi-square-mgda": (Dial("radius", "radius rho", 0.0, m - 1.0, 0.5),),
        "power-mean": (Dial("p", "exponent p", -10.0, 1.0, 0.0),),
        "nash-mtl": (Dial("max_norm", "largest |d|", 0.1, 10.0, 1.0, log=True),),
        "fairgrad": (Dial("alpha", "fairness alpha", 0.0, 10.0, 2.0),),
        "cagrad": (Dial("c", "radius c", 0.0, 2.0, 0.5),),
        "gradvac": (Dial("target", "target cosine", -1.0, 1.0, 0.0), seed),
        "pcd": (Dial("tau", "share of progress tau", 0.0, 1.0, 0.02),),
        "krum": (Dial("selected", "gradients to average", 1.0, float(m), 1.0, whole=True),),
        "rgw": (seed,),
    }
    return every.get(name, ())


def first_text(name: str) -> str:
    """Return the rule as text, with the first value of each slider."""
    given = ", ".join(f"{dial.key}={dial.start:g}" for dial in dials(name, 2))
    return f"{name}({given})" if given else name


@dataclass(frozen=True)
class Preset:
    """Gradients that show something.

    Attributes:
        name: a word or two.
        about: what to look at.
        gradients: one per row.
        rules: as text.
    """

    name: str
    about: str
    gradients: Rows
    rules: tuple[str, ...]


_USUAL = ("mean", "mgda", "upgrad")
_FAILS = ("pcgrad", "imtl-g", "pcgrad+", "upgrad", "mgda")

#: The counter-examples are those of ``paretograd reproduce counterexamples``; a test compares them.
PRESETS = (
    Preset(
        "Conflict",
        "The mean follows the long gradient and increases the other objective. UPGrad and MGDA stay in the dual cone.",
        ((3.0, 0.0), (-1.0, 1.0)),
        (*_USUAL, "cagrad(c=0.5)"),
    ),
    Preset(
        "Stationary",
        "Zero lies in the convex hull: gamma is 0, the dual cone holds only zero, and no direction decreases all.",
        ((2.0, 0.0), (-1.0, 1.5), (-1.0, -1.5)),
        (*_USUAL, "cagrad(c=0.5)"),
    ),
    Preset(
        "Parallel",
        "Two gradients of one direction: there is nothing to decide but the length.",
        ((2.0, 1.0), (0.8, 0.4)),
        (*_USUAL, "nash-mtl(max_norm=1)"),
    ),
    Preset(
        "Opposite",
        "Two gradients of opposite directions: a line is left on which neither objective changes to first order.",
        ((2.0, 1.0), (-1.0, -0.5)),
        _USUAL,
    ),
    Preset(
        "Long and short",
        "MGDA follows the short gradient and the mean the long one. Move the cap from 1/m to 1 to go between them.",
        ((3.0, 2.0), (-0.6, 0.9)),
        ("mean", "mgda", "capped-mgda(cap=0.7)", "nash-mtl(max_norm=1)"),
    ),
    Preset(
        "Three in space",
        "The gradients that paretograd compare has as its example. Drag beside them to turn the picture.",
        ((2.0, 2.2, 1.1), (0.7, -2.3, -1.5), (-0.4, -0.4, 0.1)),
        _USUAL,
    ),
    Preset(
        "PCGrad conflicts",
        "Counter-example 1 of the paper: one pass of projections leaves a conflict with gradient 0.",
        ((1.0, 3.0**0.5, 0.1), (-2.0, 0.0, 0.1), (1.0, -(3.0**0.5), 0.1)),
        _FAILS,
    ),
    Preset(
        "IMTL-G conflicts",
        "Counter-example 2 of the paper: IMTL-G conflicts with all gradients.",
        ((8.660254, -5.0, 0.0), (-8.660254, -5.0, 0.0), (0.0, -0.99498744, 0.1)),
        _FAILS,
    ),
    Preset(
        "IMTL-G leaves the cone",
        "Counter-example 3 of the paper: two gradients of counter-example 2 divided by 10.",
        ((0.8660254, -0.5, 0.0), (-0.8660254, -0.5, 0.0), (0.0, -0.99498744, 0.1)),
        _FAILS,
    ),
)


def catalogue() -> dict[str, Any]:
    """Return the rules, the presets and the colours, for the page."""
    rules = [
        {"name": name, "label": cls.label, "about": cls.description.when, "text": first_text(name)}
        for name, cls in REGISTRY.items()
    ]
    return {"rules": rules, "presets": [_with_view(preset) for preset in PRESETS], "colours": [COLOURS, ON_DARK]}


def _with_view(preset: Preset) -> dict[str, Any]:
    """Add from where to look at a preset in space: elevation and azimuth in degrees."""
    J = torch.tensor(preset.gradients, dtype=torch.float64, device="cpu")
    if J.shape[1] == 2:
        return asdict(preset)
    tips = torch.stack([get(text)(J) for text in preset.rules])
    return asdict(preset) | {"view": viewpoint(_units(J), _units(tips))}


def _units(rows: torch.Tensor) -> Array:
    units: Array = torch.nn.functional.normalize(rows, eps=1e-12).numpy()
    return units
