"""Tables and verdicts of the engine benchmark, on the console and on its page."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterable
from typing import Any

from common import ROOT, fill, markdown_table
from engine_methods import OURS, PEER, PLAIN

PAGE = ROOT / "docs" / "engine-benchmark.md"
RESULTS = ROOT / "benchmarks" / "results"
COMBINE = "combine"  # name of the benchmark with a given Jacobian

#: Fractions of TorchJD's best time and memory, and of the time to read the Jacobian twice.
TARGETS = {"cpu": (1 / 3, 1 / 3), "cuda": (0.6, 0.4)}
COMBINE_TARGET = 1.25


def cells(record: dict[str, Any], reference: float | None) -> list[str]:
    def shown(value: float | None, form: Callable[[float], str]) -> str:
        return "-" if value is None else form(value)

    def milliseconds(value: float) -> str:
        return f"{value:,.0f}" if value >= 99.5 else f"{value:.3g}"

    def mebibytes(value: float) -> str:
        return f"{value:,.0f}" if value >= 9.95 else f"{value:.1f}"

    ratio = None if reference is None or record["median_ms"] is None else record["median_ms"] / reference
    return [
        record["method"],
        *(shown(record[key], milliseconds) for key in ("median_ms", "best_ms")),
        shown(ratio, lambda value: f"{value:.2f}"),
        *(shown(record[key], mebibytes) for key in ("extra_mib", "untuned_mib") if key in record),
        shown(record["error"], lambda value: f"{value:.0e}"),
    ]


def tables(results: dict[str, Any]) -> Iterable[tuple[str, list[list[str]]]]:
    """Return the title and the rows of each table, headings first."""
    for section in (*results["models"], *([results["combining"]] if results.get("combining") else [])):
        reference_name = section.get("reading", PLAIN)
        title = section["name"]
        if "shared" in section:
            title += f"; {section['shared'] / 1e6:.1f} million shared parameters"
        reference = _value(section, lambda name, wanted=reference_name: name == wanted, "median_ms")
        headings = ["method", "median, ms", "best, ms", f"times {reference_name}", "extra memory, MiB"]
        headings += ["glibc's defaults, MiB", "error"] if "untuned_mib" in section["methods"][0] else ["error"]
        yield title, [headings, *(cells(record, reference) for record in section["methods"])]


def _value(section: dict[str, Any], match: Callable[[str], bool], key: str) -> float | None:
    """Return the smallest value among the methods whose name matches."""
    found = [r[key] for r in section["methods"] if match(r["method"]) and r[key] is not None]
    return min(found, default=None)


def verdicts(results: dict[str, Any]) -> list[tuple[str, bool, str]]:
    """Return each target, whether it is met, and the numbers."""
    found = []
    for section in results["models"]:
        time, memory = TARGETS[results["device"]]
        asks = [("median_ms", time, "time", "ms"), ("extra_mib", memory, "memory", "MiB")]
        if "untuned_mib" in section["methods"][0]:
            asks.append(("untuned_mib", memory, "memory under glibc's defaults", "MiB"))
        for key, factor, what, unit in asks:
            mine = _value(section, lambda name: name == OURS, key)
            theirs = _value(section, lambda name: name.startswith(PEER), key)
            if mine is not None and theirs:
                asked = f"{section['name']}: {what} at most {factor:.2g} of TorchJD's least"
                shown = f"{mine:.3g} {unit} against {theirs:.3g}: {mine / theirs:.2f}"
                found.append((asked, mine <= factor * theirs, shown))
    if section := results.get("combining"):
        mine = _value(section, lambda name: name.startswith("paretograd"), "median_ms")
        reading = _value(section, lambda name: name == section["reading"], "median_ms")
        if mine is not None and reading:
            shown = f"{mine:.3g} ms against {reading:.3g}: {mine / reading:.2f}"
            asked = f"combining: at most {COMBINE_TARGET} of reading the Jacobian twice"
            found.append((asked, mine <= COMBINE_TARGET * reading, shown))
    return found


def check_lines(results: dict[str, Any]) -> list[list[str]]:
    found = [["model", "auto", "gramian", "jacobian", "naive loop against float64"]]
    for record in results.get("correctness", []):
        line = [record["name"]]
        for key, flag in (*((e, e) for e in ("auto", "gramian", "jacobian")), ("naive against float64", "naive")):
            skipped = "" if record[f"{flag}, step taken"] is not False else " (step skipped)"
            line.append("-" if record[key] is None else f"{record[key]:.0e}{skipped}")
        found.append(line)
    return found


def console(results: dict[str, Any]) -> str:
    lines = [results["machine"], f"load average {results['load'][0]:.1f} to {results['load'][1]:.1f}"]
    parts = list(tables(results))
    if results.get("correctness"):
        parts.insert(0, ("Correctness: direction against the naive loop's", check_lines(results)))
    for title, table in parts:
        widths = [max(len(row[i]) for row in table) for i in range(len(table[0]))]
        lines += ["", title]
        lines += [
            "  ".join(x.ljust(w) if i == 0 else x.rjust(w) for i, (x, w) in enumerate(zip(row, widths, strict=True)))
            for row in table
        ]
    lines += ["", "Targets"]
    lines += [f"  {'met  ' if met else 'short'}  {asked} ({shown})" for asked, met, shown in verdicts(results)]
    return "\n".join(lines)


def markdown(results: dict[str, Any]) -> str:
    """Return the section of the page for one device."""
    lines = [f"## {'GPU' if results['device'] == 'cuda' else 'CPU'}", "", f"Measured on: {results['machine']}."]
    lines += [f"{results['repeats']} repetitions. Load average {results['load'][0]:.1f} before and"]
    lines[-1] += f" {results['load'][1]:.1f} after the run."
    if results.get("correctness"):
        lines += ["", "### Correctness", "", "Relative difference of the direction from the naive loop's, in the same"]
        lines[-1] += " precision; the last column is the naive loop's own error."
        lines += ["", *markdown_table(*_headed(check_lines(results)))]
    for title, table in tables(results):
        lines += ["", f"### {title}", "", *markdown_table(*_headed(table))]
    for section in (*results["models"], *([results["combining"]] if results.get("combining") else [])):
        lines += [f"\n{r['method']} failed: `{r['failure']}`" for r in section["methods"] if r["failure"]]
    if found := verdicts(results):
        body = [[asked, "met" if met else "short", shown] for asked, met, shown in found]
        lines += ["", "### Targets", "", *markdown_table(["target", "", "numbers"], body, names=3)]
    return "\n".join(lines)


def _headed(table: list[list[str]]) -> tuple[list[str], list[list[str]]]:
    return table[0], table[1:]


def render() -> None:
    """Update the tables on the page from the saved results."""
    blocks = []
    for device in TARGETS:
        path = RESULTS / f"engine-{device}.json"
        if path.exists():
            blocks.append(markdown(json.loads(path.read_text())))
    fill(PAGE, "\n\n".join(blocks))
    print(f"wrote {PAGE.relative_to(ROOT)}", file=sys.stderr)
