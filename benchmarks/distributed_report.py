"""Tables of the benchmark on several processes, and a projection to 64 GPUs."""

from __future__ import annotations

from typing import Any

from common import ROOT, fill, markdown_table

PAGE = ROOT / "docs" / "distributed-benchmark.md"

#: Bytes per second that a GPU sends: NVLink within a machine, one 400 Gb/s card per GPU between machines.
LINKS = {"NVLink, 450 GB/s": 450e9, "InfiniBand, 50 GB/s": 50e9}
GPUS, PARAMETERS, BYTES = 64, 1_000_000_000, 4


def amount(value: float) -> str:
    """Format a number of bytes."""
    for unit, size in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if value >= size:
            return f"{value / size:.3g} {unit}"
    return f"{value:.0f} B"


def measured(rows: list[dict[str, Any]]) -> list[str]:
    lines = []
    for size in sorted({round(row["n"] / 1e6, 1) // 1 for row in rows}):
        part = [row for row in rows if round(row["n"] / 1e6, 1) // 1 == size]
        lines += ["", f"### {size:g} million parameters", ""]
        table = []
        for m in sorted({row["m"] for row in part}):
            for row in (row for row in part if row["m"] == m):
                reference = next(
                    r for r in part if r["m"] == m and r["method"] == f"{row['method'].split(',')[0]}, plain sum"
                )
                table.append(
                    [
                        str(m),
                        row["method"],
                        f"{row['median_ms']:,.0f}",
                        f"{row['processor_ms']:,.0f}",
                        amount(row["sent"]),
                        f"{row['sent'] / reference['sent']:.2f}",
                        amount(row["loopback"]),
                        "-" if row["extra_mib"] is None else f"{row['extra_mib']:,.0f}",
                    ]
                )
        headings = ["m", "method", "median, ms", "processor, ms", "sent", "times plain", "on the wire"]
        headings.append("extra memory, MiB")
        lines += markdown_table(headings, table, names=2)
    return lines


def beyond(rows: list[dict[str, Any]]) -> list[str]:
    """Return the table of what FSDP2 sends beyond its own passes."""
    table = []
    for row in (row for row in rows if row["method"] == "FSDP2, paretograd"):
        same = [r for r in rows if (r["m"], r["n"]) == (row["m"], row["n"])]
        passes = next(r for r in same if r["method"] == "FSDP2, one plain pass per objective")
        extra, allowed = row["payload"] - passes["payload"], 8 * row["m"] ** 2
        table.append([str(row["m"]), f"{row['n']:,}", f"{passes['payload']:,}", f"{extra:,}", f"{allowed:,}"])
    headings = ["m", "n", "payload of m plain passes, bytes", "beyond it (below 0: saved), bytes", "m * m * 8"]
    return ["", "### FSDP2, beyond its own passes", "", *markdown_table(headings, table, names=0)]


def projected() -> list[str]:
    """Return the table of communication times, from the formulas."""
    share, table = (GPUS - 1) / GPUS, []
    for m in (2, 10, 50):
        for name, times in (
            ("DDP, plain", 2.0),
            ("DDP, paretograd", m + 1.0),
            ("DDP, all-reduce of J", 2.0 * m),
            ("FSDP2, plain", 3.0),
            ("FSDP2, paretograd", 1.0 + 2.0 * m),
            ("FSDP2 that keeps parameters, paretograd", 1.0 + m),
        ):
            sent = times * share * PARAMETERS * BYTES
            row = [str(m), name, amount(sent), *(f"{1e3 * sent / speed:,.0f}" for speed in LINKS.values())]
            held = m / GPUS if name.endswith("paretograd") else m if name.endswith("J") else None
            table.append([*row, "-" if held is None else amount(held * PARAMETERS * BYTES)])
    headings = ["m", "method", "sent by each GPU", *(f"{link}, ms" for link in LINKS), "rows held by each GPU"]
    return markdown_table(headings, table, names=2)


def render(results: dict[str, Any], write: bool) -> str:
    """Return all tables, and update the page if asked."""
    lines = [
        "## Measured",
        "",
        f"Measured on: {results['machine']}. {results['processes']} processes with one thread each, float32, "
        f"{results['batch']} samples per process. Load average {results['load'][0]:.1f} before and "
        f"{results['load'][1]:.1f} after the run.",
        *measured(results["rows"]),
        *beyond(results["rows"]),
        "",
        f"## Projected to {GPUS} GPUs",
        "",
        f"{PARAMETERS / 1e9:g} billion parameters in float32, by the formulas above: pure communication, no overlap.",
        "",
        *projected(),
    ]
    text = "\n".join(lines)
    if write:
        fill(PAGE, text)
    return text
