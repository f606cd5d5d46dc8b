"""Tables and verdicts of the engine benchmark, on the console and on its page."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from common import ROOT, fill, markdown_table
from engine_cases import CASES
from engine_methods import AUTO, CAPTURED, FLOOR, LOOP, PEER, PLAIN
from engine_models import PRECISIONS

PAGE = ROOT / "docs" / "engine-benchmark.md"
RESULTS = ROOT / "benchmarks" / "results"

#: Names of the two parts that are not models: small checks of the engines, and a given Jacobian.
CHECKS, COMBINE = "checks", "combine"

#: Version of the format of the results.
FORMAT = 2

Section = dict[str, Any]
Table = list[list[str]]


def part_key(name: str, precision: str | None) -> str:
    return name if precision is None else f"{name}, {precision}"


def read(path: Path) -> dict[str, Any] | None:
    """Return the results in the file; None if there is no file, or if it is of an earlier format."""
    results = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    return results if results.get("format") == FORMAT else None


def models(results: dict[str, Any]) -> list[Section]:
    """Return the sections of the models that were measured, in the order of `CASES`."""
    keys = (part_key(name, precision) for name in CASES[results["device"]] for precision in PRECISIONS)
    return [results["parts"][key] for key in keys if key in results["parts"]]


def least(section: Section, match: Callable[[str], bool], key: str) -> float | None:
    """Return the smallest value among the methods whose label matches."""
    found = [r.get(key) for r in section["methods"] if match(r["method"]) and not r["failure"]]
    return min((value for value in found if value is not None), default=None)


def ratio(section: Section, subject: str, rivals: Callable[[str], bool], key: str) -> float | None:
    """Return the ratio to the best of the rivals; infinity if the subject failed, and None if all its rivals did."""
    mine, theirs = least(section, lambda label: label == subject, key), least(section, rivals, key)
    if not theirs:
        return None
    return math.inf if mine is None else mine / theirs


@dataclass(frozen=True)
class Target:
    """A ratio that should not exceed a limit on any model, or in the geometric mean.

    Attributes:
        subject: label of the method.
        rivals: selects the methods by their labels; the least of their numbers counts.
        key: of the compared number.
        limit: the greatest ratio.
        words: what is compared with what.
        precisions: those in which it is required.
        mean: compare the geometric mean over the models.
        only: name of the model to which it applies; None for all.
    """

    subject: str
    rivals: Callable[[str], bool]
    key: str
    limit: float
    words: str
    precisions: tuple[str, ...] = tuple(PRECISIONS)
    mean: bool = False
    only: str | None = None

    def verdict(self, sections: list[Section]) -> list[str] | None:
        """Return the target, whether it is met, and the numbers; None if no model tells."""
        ratios = {
            f"{section['name']} in {section['precision']}": found
            for section in sections
            if section["precision"] in self.precisions and self.only in (None, section["name"])
            if (found := ratio(section, self.subject, self.rivals, self.key)) is not None
        }
        if not ratios:
            return None
        worst = max(ratios, key=lambda name: ratios[name])
        if self.mean:
            value = math.prod(ratios.values()) ** (1 / len(ratios))
            shown = f"{value:.2f}, the mean of {len(ratios)}"
        else:
            value = ratios[worst]
            shown = f"{value:.2f} ({worst}), the greatest of {len(ratios)}"
        if math.isinf(value):
            shown = f"failed on {', '.join(name for name, value in ratios.items() if math.isinf(value))}"
        asked = f"{self.words} at most {self.limit:g}{', in the geometric mean' if self.mean else ''}"
        return [asked, "met" if value <= self.limit else "short", shown]


def is_floor(label: str) -> bool:
    return label == FLOOR


def is_plain(label: str) -> bool:
    return label == PLAIN


def is_loop(label: str) -> bool:
    return label == LOOP


def is_peer(label: str) -> bool:
    return label.startswith(PEER)


def is_rival(label: str) -> bool:
    return is_loop(label) or is_peer(label)


def _captured(precision: str, each: float, mean: float) -> list[Target]:
    words = f"captured step in {precision}, time over TorchJD's least:"
    return [
        Target(CAPTURED, is_peer, "median_ms", each, words, (precision,)),
        Target(CAPTURED, is_peer, "median_ms", mean, words, (precision,), mean=True),
    ]


def _no_worse(key: str, limit: float, what: str, rivals: Callable[[str], bool] = is_peer) -> Target:
    other = "TorchJD's least" if rivals is is_peer else "the plain sum"
    words = f"MLP, {what} of `auto` over {other}, as with the first engine:"
    return Target(AUTO, rivals, key, limit, words, ("float32",), only="MLP")


_EAGER = [
    Target(AUTO, is_rival, "median_ms", 1.03, "`auto`, time over the least of the loop and TorchJD:"),
    Target(AUTO, is_rival, "extra_mib", 1.05, "`auto`, memory over the least of the loop and TorchJD:"),
]

#: Of each device. The ratios of the MLP on the CPU are those that the first version of the engine reached, with 1% for
#: the repeatability of memory. Its time is compared with the plain sum: TorchJD's varies by a third between runs.
TARGETS = {
    "cpu": [
        *_EAGER,
        _no_worse("median_ms", 3.06, "time", is_plain),
        _no_worse("extra_mib", 0.216, "memory"),
        _no_worse("untuned_mib", 0.315, "memory under glibc's defaults"),
    ],
    "cuda": [
        Target(CAPTURED, is_floor, "median_ms", 1.12, "captured step in bfloat16, time over the floor:", ("bfloat16",)),
        *_captured("bfloat16", 0.8, 0.6),
        *_captured("float32", 1.0, 0.75),
        *_EAGER,
    ],
}

#: Largest time of a rule on a given Jacobian, in units of the time to read the Jacobian twice.
COMBINE_TARGET = 1.25


def verdicts(results: dict[str, Any]) -> Table:
    """Return each target, whether it is met, and the numbers."""
    sections = models(results)
    found = [target.verdict(sections) for target in TARGETS[results["device"]]]
    if section := results["parts"].get(COMBINE):
        mine = least(section, lambda label: label.startswith("paretograd"), "median_ms")
        reading = least(section, lambda label: label == section["reading"], "median_ms")
        if mine is not None and reading:
            asked = f"combining, time over reading the Jacobian twice: at most {COMBINE_TARGET}"
            met = "met" if mine <= COMBINE_TARGET * reading else "short"
            found.append([asked, met, f"{mine / reading:.2f}: {mine:.3g} ms over {reading:.3g}"])
    return [["target", "", "numbers"], *(verdict for verdict in found if verdict)]


def summary(results: dict[str, Any]) -> Table:
    """Return the ratios on each model of which the targets speak."""
    columns = {
        "captured / floor": (CAPTURED, is_floor, "median_ms"),
        "captured / TorchJD": (CAPTURED, is_peer, "median_ms"),
        "auto / loop": (AUTO, is_loop, "median_ms"),
        "auto / TorchJD": (AUTO, is_peer, "median_ms"),
        "memory, auto / loop": (AUTO, is_loop, "extra_mib"),
        "memory, auto / TorchJD": (AUTO, is_peer, "extra_mib"),
    }
    if results["device"] == "cpu":
        columns = {name: column for name, column in columns.items() if CAPTURED not in column}
    lines = [["model", "precision", *columns]]
    for section in models(results):
        ratios = (ratio(section, *column) for column in columns.values())
        shown = ("-" if value is None else "failed" if math.isinf(value) else f"{value:.2f}" for value in ratios)
        lines.append([section["name"], section["precision"], *shown])
    return lines


def cells(record: dict[str, Any], unit: float | None, keys: list[str]) -> list[str]:
    def shown(value: float | None, form: Callable[[float], str]) -> str:
        return "-" if value is None else form(value)

    def milliseconds(value: float) -> str:
        return f"{value:,.0f}" if value >= 99.5 else f"{value:.3g}"

    def mebibytes(value: float) -> str:
        return f"{value:,.0f}" if value >= 9.95 else f"{value:.1f}"

    ratio = None if unit is None or record["median_ms"] is None else record["median_ms"] / unit
    return [
        record["method"],
        *(shown(record[key], milliseconds) for key in ("median_ms", "best_ms")),
        shown(ratio, lambda value: f"{value:.2f}"),
        *(shown(record.get(key), mebibytes) for key in keys),
        shown(record["error"], lambda value: f"{value:.0e}"),
    ]


def method_table(section: Section) -> Table:
    """Return the rows of one model, headings first."""
    name = section.get("reading", PLAIN)
    unit = least(section, lambda label: label == name, "median_ms")
    headings, keys = ["method", "median, ms", "best, ms", f"times {name}", "extra memory, MiB"], ["extra_mib"]
    if any("untuned_mib" in record for record in section["methods"]):
        headings.append("glibc's defaults, MiB")
        keys.append("untuned_mib")
    return [[*headings, "error"], *(cells(record, unit, keys) for record in section["methods"])]


def check_table(section: Section) -> Table:
    engines = [key for key in section["records"][0] if "," not in key and key not in ("name", "failures", "loop")]
    found = [["model", *engines, "loop against float64"]]
    for record in section["records"]:
        line = [record["name"]]
        for key in (*engines, "loop"):
            skipped = "" if record[f"{key}, step taken"] is not False else " (step skipped)"
            line.append("-" if record[key] is None else f"{record[key]:.0e}{skipped}")
        found.append(line)
    return found


def notes(section: Section) -> list[str]:
    """Return what a table of methods does not show: the reference of the errors, ways and failures."""
    found = []
    if "reference" in section:
        own = f", whose own error against float32 is {section['loop_error']:.0e}" if "loop_error" in section else ""
        found.append(f"{section['repeats']} repetitions. Errors are against the loop in {section['reference']}{own}.")
    for record in section["methods"]:
        if record.get("how") and record["method"] == AUTO:
            found.append(f"{record['method']}: {record['how'].removesuffix('.')}.")
        if record["failure"]:
            found.append(f"{record['method']} failed: `{record['failure']}`")
    return found


def parts(results: dict[str, Any]) -> Iterator[tuple[str, Table, list[str], int]]:
    """Return title, table, notes, and number of left-aligned columns of each part."""
    yield "Targets", verdicts(results), [], 3
    yield "Ratios", summary(results), [], 2
    if section := results["parts"].get(CHECKS):
        note = "Relative difference of the direction from the loop's in the same precision, and the loop's own error."
        yield "Correctness", check_table(section), [note], 1
    for section in models(results):
        title = f"{section['name']} in {section['precision']}: {section['detail']}; {section['losses']} losses,"
        title += f" {section['shared'] / 1e6:.1f} million shared parameters"
        yield title, method_table(section), notes(section), 1
    if section := results["parts"].get(COMBINE):
        yield section["name"], method_table(section), notes(section), 1


def machines(results: dict[str, Any]) -> list[str]:
    """Return the distinct descriptions of the machine, and the load averages."""
    found = list(dict.fromkeys(part["machine"] for part in results["parts"].values()))
    loads = [load for part in results["parts"].values() for load in part["load"]]
    return [f"Measured on: {'; and on: '.join(found)}.", f"Load average {min(loads):.1f} to {max(loads):.1f}."]


def console(results: dict[str, Any]) -> str:
    lines = machines(results)
    for title, table, remarks, names in parts(results):
        widths = [max(len(row[i]) for row in table) for i in range(len(table[0]))]
        lines += ["", title]
        for row in table:
            padded = (x.ljust(w) if i < names else x.rjust(w) for i, (x, w) in enumerate(zip(row, widths, strict=True)))
            lines.append("  ".join(padded).rstrip())
        lines += remarks
    return "\n".join(lines)


def markdown(results: dict[str, Any]) -> str:
    """Return the section of the page for one device."""
    lines = [f"## {'GPU' if results['device'] == 'cuda' else 'CPU'}", "", *machines(results)]
    for title, table, remarks, names in parts(results):
        lines += ["", f"### {title}", "", *markdown_table(table[0], table[1:], names)]
        lines += [line for remark in remarks for line in ("", remark)]
    return "\n".join(lines)


def render() -> None:
    """Update the tables of the devices with saved results; the tables of others stay as they are."""
    for device in CASES:
        if results := read(RESULTS / f"engine-{device}.json"):
            fill(PAGE, markdown(results), *(f"<!-- {edge} generated: {device} -->" for edge in ("begin", "end")))
            print(f"updated the tables of {device} in {PAGE.relative_to(ROOT)}", file=sys.stderr)
        else:
            print(f"no results for {device}: its tables stay as they are", file=sys.stderr)
