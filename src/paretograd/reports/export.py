"""A comparison for machines and documents: json, csv, markdown."""

from __future__ import annotations

import csv
import io
import json
from typing import Any

from paretograd.reports import words
from paretograd.reports.compare import Comparison, Row


def to_json(comparison: Comparison) -> str:
    """Everything at full precision; what does not exist (the cosine of a zero direction) is null."""
    data = {
        "m": comparison.m,
        "n": comparison.n,
        "gamma": comparison.gamma,
        "norms": comparison.norms.tolist(),
        "cosines": comparison.cosines.tolist(),
        "rules": [{**_record(row), "weights": row.weights.tolist()} for row in comparison.rows],
    }
    return json.dumps(data, indent=2, allow_nan=False)


def to_csv(comparison: Comparison) -> str:
    """One line per rule, a column for each weight; lists are separated by blanks."""
    out = io.StringIO()
    columns = [*_record(comparison.rows[0]), *(f"w{k}" for k in range(comparison.m))]
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(columns)
    for row in comparison.rows:
        cells = [" ".join(map(str, cell)) if isinstance(cell, list) else cell for cell in _record(row).values()]
        writer.writerow([*cells, *row.weights.tolist()])
    return out.getvalue().rstrip("\n")


def to_markdown(comparison: Comparison) -> str:
    """The table and how to read it, for an issue or a notebook."""
    head = ["rule", "norm of d", "worst cosine", "conflicts", "in hull", "c", "weights", "status"]
    body = [
        [
            row.label.replace("*", r"\*"),
            words.number(row.norm),
            words.cosine(row.worst_cosine),
            words.conflicts(row),
            words.yes_no(row.certificate.in_hull),
            words.number(row.alignment),
            words.weights(row),
            row.status.name.lower(),
        ]
        for row in comparison.rows
    ]
    lines = [" | ".join(cells) for cells in (head, ["---"] * len(head), *body)]
    table = "\n".join(f"| {line} |" for line in lines)
    paragraphs = [words.headline(comparison), table, words.settings(comparison), *words.findings(comparison)]
    return "\n\n".join(paragraph for paragraph in paragraphs if paragraph)


def _record(row: Row) -> dict[str, Any]:
    return {
        "name": row.name,
        "label": row.label,
        "setting": row.setting,
        "norm": row.norm,
        "worst_cosine": row.worst_cosine,
        "conflicts": list(row.conflicts),
        "unknown": list(row.unknown),
        "in_cone": row.certificate.in_cone,
        "in_hull": row.certificate.in_hull,
        "alignment": row.alignment,
        "status": row.status.name.lower(),
        "residual": row.residual,
        "results": list(row.certificate.results),
    }
