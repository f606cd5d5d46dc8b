"""Answers of the page's server: what the library computes for the gradients and rules of a request.

A request is ``{"gradients": [[3, 0], [-1, 1]], "rules": ["mgda", "capped-mgda(cap=0.6)*"]}``. The answer holds numbers
and texts that the page shows as they are.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from inspect import signature
from typing import Any

import numpy as np
import torch
from torch import Tensor

from paretograd.aggregators.base import Aggregator
from paretograd.aggregators.registry import REGISTRY, Written, get, maker_of, read_rule, spelled, written_parameters
from paretograd.certificates.step import StepCertificate
from paretograd.certification import certify
from paretograd.errors import DTypeError, InputError, ParetogradError, ShapeError, UnknownNameError
from paretograd.geometry.gramian import Array, gramian
from paretograd.reports import words
from paretograd.reports.compare import Row, compare
from paretograd.reports.explore.choices import dials
from paretograd.reports.explore.shapes import Region, cone, dual_cone, hull
from paretograd.reports.palette import LABELLED

#: Most gradients, and most rules.
MOST = LABELLED
#: Coordinates are at most this large.
FARTHEST = 1e6
#: Most characters of a rule.
_LONGEST = 200

_PROGRAM = """\
import torch

import paretograd as pg

J = torch.tensor({rows}, dtype=torch.float64)  # one gradient per row
G = pg.gramian(J)
print("gamma =", float(pg.stationarity(G)))
for name in {rules}:
    rule = pg.get(name)
    weights = rule.weights(G)
    print(name, "d =", (weights @ J).tolist())
    print(pg.certify(G, weights, rule))
"""


def answer(request: object) -> dict[str, Any]:
    """Compute everything that the page shows for a request; a rule that fails says why and stops no other.

    Raises:
        InputError: for a request that makes no sense as a whole.
        DTypeError: for a coordinate that is no number.
    """
    if not isinstance(request, Mapping) or not {"gradients", "rules"} <= request.keys():
        raise InputError('a request is an object with "gradients", a list of rows, and "rules", a list of names')
    J = read_gradients(request["gradients"])
    texts = read_texts(request["rules"])
    comparison = compare(J, [])
    found, records, programs = [], [], []
    for text in texts:
        try:
            written = _complete(text)
            rule = get(_spell(written))
            row = compare(J, [rule]).rows[0]
        except ParetogradError as error:
            records.append(_common(text, len(J)) | {"error": str(error)})
            continue
        found.append(row)
        records.append(_common(text, len(J)) | _record(row, rule, certify(gramian(J), _weights(row), rule)))
        programs.append(_spell(written))
    comparison = replace(comparison, rows=tuple(found))
    gradients = comparison.jacobian
    return {
        "dimensions": comparison.n,
        "gamma": "0" if comparison.stationary else words.number(comparison.gamma, 4),
        "findings": words.findings(comparison) if found else words.findings(comparison)[:1],
        "norms": [words.number(norm) for norm in comparison.norms],
        "cosines": [[words.cosine(value) for value in row] for row in comparison.cosines],
        "cone": _region(cone(gradients)),
        "dual": _region(dual_cone(gradients)),
        "hull": asdict(hull(gradients)),
        "rules": records,
        "program": program(gradients, programs),
    }


def read_gradients(given: object) -> Tensor:
    """Return the gradients of a request, shape ``(m, 2)`` or ``(m, 3)``."""
    if not isinstance(given, list) or not 2 <= len(given) <= MOST:
        count = f"{len(given)} of them" if isinstance(given, list) else repr(type(given).__name__)
        raise ShapeError(f"the page takes a list of 2 to {MOST} gradients; got {count}")
    widths = {len(row) if isinstance(row, list) else 0 for row in given}
    if widths not in ({2}, {3}):
        raise ShapeError("each gradient is a list of 2 numbers, or each is a list of 3 numbers")
    for k, row in enumerate(given):
        for value in row:
            if isinstance(value, bool) or not isinstance(value, int | float):
                raise DTypeError(f"a coordinate of gradient {k} is no number; write one such as -0.25")
            if not abs(value) <= FARTHEST:
                raise InputError(
                    f"a coordinate of gradient {k} is {str(value)[:20]}; it must be finite and between "
                    f"-{FARTHEST:g} and {FARTHEST:g}"
                )
    return torch.tensor(given, dtype=torch.float64, device="cpu")


def read_texts(given: object) -> list[str]:
    """Return the rules of a request as text."""
    if not isinstance(given, list) or not all(isinstance(text, str) for text in given):
        raise InputError('"rules" is a list of names, such as ["mgda", "capped-mgda(cap=0.6)"]')
    if len(given) > MOST:
        raise InputError(f"the page shows at most {MOST} rules at once; got {len(given)}")
    return given


def program(gradients: Array, rules: Sequence[str]) -> str:
    """Return a Python program that computes what the page shows."""
    rows = "[" + ", ".join(str([float(value) for value in row]) for row in gradients) + "]"
    names = "[" + ", ".join(f'"{name}"' for name in rules) + "]"
    return _PROGRAM.format(rows=rows, rules=names)


def _complete(text: str) -> Written:
    """Return a rule as written, with seed 0 if it draws numbers: an answer reads the same twice."""
    if len(text) > _LONGEST:
        raise InputError(f"a rule has at most {_LONGEST} characters; got {len(text)}")
    plain = read_rule(text)
    if spelled(plain.name) not in REGISTRY:
        maker_of(plain.name)  # raises, with a suggestion, on an unknown name
        raise UnknownNameError(
            f"{plain.name} is no single rule for a Gramian, and the page shows only these: {', '.join(REGISTRY)}"
        )
    parameters = written_parameters(plain)
    taken = signature(maker_of(plain.name)).parameters
    draws = "order" not in taken or parameters.get("order", taken["order"].default) == "shuffled"
    if "seed" in taken and draws:
        parameters = {"seed": 0} | parameters
    return Written(spelled(plain.name), (), tuple(parameters.items()), plain.starred)


def _spell(written: Written) -> str:
    inside = ", ".join(f"{key}={_value(value)}" for key, value in written.keywords)
    return f"{written.name}{f'({inside})' if inside else ''}{'*' if written.starred else ''}"


def _value(value: object) -> str:
    """Return a value as the registry reads it."""
    return str(value).lower() if value is None or isinstance(value, bool) else str(value)


def _common(text: str, m: int) -> dict[str, Any]:
    """Return what the page needs to show a rule, even one that fails: its name, parameters and sliders."""
    try:
        written = _complete(text)
    except ParetogradError:
        return {"text": text, "label": text[:40], "name": "", "starred": False, "parameters": {}, "dials": []}
    label, taken = REGISTRY[written.name].label, signature(REGISTRY[written.name]).parameters
    values = {key: parameter.default for key, parameter in taken.items()} | dict(written.keywords)
    return {
        "text": text,
        "name": written.name,
        "label": f"{label}*" if written.starred else label,
        "starred": written.starred,
        "parameters": {key: _value(value) for key, value in written.keywords},
        "dials": [asdict(dial) | {"value": _value(values[dial.key])} for dial in dials(written.name, m)],
    }


def _record(row: Row, rule: Aggregator, certificate: StepCertificate) -> dict[str, Any]:
    promises = [str(promise) for promise in certificate.promises]
    applies = [words.short_name(result) for result in certificate.results]
    facts = {
        "|d|": words.number(row.norm),
        "slopes ⟨d, gₖ⟩": _slopes(certificate),
        "conflicts": words.conflicts(row),
        "weights": words.weights(row),
        "lies in": "convex hull" if certificate.in_hull else "cone" if certificate.in_cone else "neither cone nor hull",
        "applies": ", ".join(applies) or "no theorem",
        "promises": "; ".join(promises) or "nothing",
        "status": row.status.value if row.status.name != "OPTIMAL" else "",
    }
    return {
        "direction": row.direction.tolist(),
        "unit": (row.direction / row.norm).tolist() if row.worst_cosine is not None else None,
        "conflicts": list(row.conflicts),
        "facts": [[name, text] for name, text in facts.items() if text],
    }


def _slopes(certificate: StepCertificate) -> str:
    """Return the slopes as text; zero if its rounding error is larger."""
    shown = []
    for k, (slope, error) in enumerate(zip(certificate.slopes, certificate.slope_errors, strict=True)):
        known = "0" if abs(slope) <= error else words.number(slope, 4)
        shown.append("not known" if k in certificate.unknown else known)
    return ", ".join(shown)


def _weights(row: Row) -> Tensor:
    return torch.from_numpy(np.ascontiguousarray(row.weights))


def _region(region: Region) -> dict[str, Any]:
    return {
        "polygons": [np.round(polygon, 4).tolist() for polygon in region.polygons],
        "lines": [np.round(line, 4).tolist() for line in region.lines],
        "whole": region.whole,
        "zero": region.only_zero,
    }
