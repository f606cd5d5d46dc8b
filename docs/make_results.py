"""Copy the results of the studies in results/ to the documentation: `python docs/make_results.py`.

The tables go between the markers of each page, with device, versions and durations. The figures are redrawn in
results/ and copied to docs/assets. Nothing is trained.
"""

import json
import shutil
import statistics
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

from marks import between_marks

from paretograd.bench.figures import draw
from paretograd.bench.report import markdown, read_reports

DOCS = Path(__file__).parent
RESULTS = DOCS.parent / "results"


def main() -> None:
    """Update the page of every study that has results."""
    for folder in sorted(path.parent for path in RESULTS.glob("*/config.json")):
        subprocess.run([sys.executable, "-m", "paretograd", "report", str(folder)], check=True)
        (folder / "report.html").unlink(missing_ok=True)  # 5 MB, and easy to regenerate
        for figure in sorted((folder / "figures").glob("*.svg")):
            shutil.copy(figure, DOCS / "assets" / f"{folder.name}-{figure.name}")
        page = DOCS / f"{folder.name}.md"
        page.write_text(with_results(page.read_text(encoding="utf-8"), folder), encoding="utf-8")
    referee()


def referee() -> None:
    """Update the page with the results of the benchmark, and its figures."""
    with TemporaryDirectory() as drawn:
        for path in draw(Path(drawn), read_reports(RESULTS / "referee")):
            if path.suffix == ".svg":
                shutil.copy(path, DOCS / "assets" / f"referee-{path.name}")
    page = DOCS / "referee-results.md"
    page.write_text(with_referee(page.read_text(encoding="utf-8")), encoding="utf-8")


def with_referee(page: str) -> str:
    """Return the page with the tables and figures of the benchmark between its markers."""
    reports = read_reports(RESULTS / "referee")
    pictures = {"## All tasks": [("critical-difference", "Mean rank of each rule, and its rank on each task")]}
    for report in reports:
        title, name = report.task.title, report.task.name
        pictures[f"## {title}"] = [
            (f"{name}-time", f"{title}: quality of each rule against the time of a step"),
            (f"{name}-curves", f"{title}: conflicts and distance from Pareto stationarity during training"),
        ]
    lines = []
    for line in markdown(reports):
        lines.append(line)
        for name, text in pictures.get(line, []):
            if (DOCS / "assets" / f"referee-{name}.svg").exists():
                lines += ["", f"![{text}](assets/referee-{name}.svg)"]
    return between_marks(page, "\n".join(lines))


def with_results(page: str, folder: Path) -> str:
    """Return the page with the results of a study between its markers."""
    return between_marks(page, results(folder))


def results(folder: Path) -> str:
    """Return the tables of a study, with headings one level down, and a note on how they were made."""
    lines = (folder / "table.md").read_text(encoding="utf-8").strip().splitlines()[1:]
    text = "\n".join(f"#{line}" if line.startswith("#") else line for line in lines).strip()
    return f"{text}\n\n{how(folder)}"


def how(folder: Path) -> str:
    """Return a sentence with device, time and versions."""
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    durations = config["durations"].values()
    devices = ", ".join(dict.fromkeys(found["device"] for found in durations))
    seconds = sum(found["seconds"] for found in durations)
    step = statistics.median(found["ms_per_step"] / found.get("runs", 1) for found in durations)
    together = any("runs" in found for found in durations)
    unit = "epoch and run, with the seeds of a rule trained side by side" if together else "step"
    versions = {name: version for session in config["sessions"] for name, version in session["versions"].items()}
    listed = ", ".join(f"{name} {version}" for name, version in versions.items())
    return (
        f"Trained on one {devices} with {listed}, by `{config['command']}`, in {seconds / 60:.0f} minutes (median "
        f"{step:.1f} ms per {unit}). All results are in `results/{folder.name}/`; `python docs/make_results.py` "
        "regenerates the figures and these tables."
    )


if __name__ == "__main__":
    main()
