"""The table of breakdown points: its short version, its attacks, its arithmetic, and its saved results."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from support import ROOT

FOLDER = ROOT / "benchmarks"


@pytest.fixture(autouse=True)
def _benchmarks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(FOLDER))


def test_a_short_run_prints_a_table_and_can_be_continued(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """One round with one rule, on handwritten digits from a file; then the same again with one job missing."""
    import breakdown

    for pool in ("OMP", "OPENBLAS", "MKL"):  # main sets these
        monkeypatch.setenv(f"{pool}_NUM_THREADS", "1")
    digits, kept = tmp_path / "digits.npz", tmp_path / "kept"
    assert breakdown.main(["--save-digits", str(digits)]) == 0
    command = ["--only", "trimmed", "--rounds", "1", "--seeds", "1", "--jobs", "1", "--digits", str(digits)]
    assert breakdown.main([*command, "--keep", str(kept)]) == 0
    first = capsys.readouterr()
    (row,) = (line for line in first.out.splitlines() if line.startswith("Trimmed mean"))
    assert len(row.split()) == 2 + 2 + 2 * 5
    lines = kept.read_text().splitlines()
    assert len(lines) == 2 * (14 * 4 + 1)
    kept.write_text("\n".join(lines)[:-5])  # the last line is incomplete, as if the run had been killed
    assert breakdown.main([*command, "--keep", str(kept)]) == 0
    again = capsys.readouterr()
    assert again.out == first.out
    assert "1/1" in again.err
    assert sorted(kept.read_text().splitlines()) == sorted(lines)
    assert "wrote" not in again.err


@pytest.mark.parametrize("task", ["drawn", "handwritten"])
def test_every_attack_runs_on_every_task(task: str) -> None:
    """One round: no server crashes, no reply is dropped, and only the named attacks leave the model alone."""
    from breakdown_cases import ATTACKS, CASES, TASKS
    from hostile_clients import BATCH
    from hostile_run import compete

    data = TASKS[task](0, None)
    data = data._replace(images=data.images[:, :BATCH], labels=data.labels[:, :BATCH])
    cases = [case for case in CASES if case.rule in ("Trusted MGDA", "Mean", "Trimmed mean", "RGW")]
    assert len(cases) == 4
    for name, make in ATTACKS.items():
        for count in (1, 4):
            for found in compete(data, name, make(count), cases, 0, 1):
                assert found.error is None
                assert found.finite
                assert found.hostile_dropped == found.honest_dropped == found.still == 0


def test_the_table_has_every_rule() -> None:
    import breakdown_report as report
    from breakdown_cases import CASES, LEFT_OUT
    from hostile_cases import RULES

    assert [case.rule for case in CASES] == [rule for rule in RULES if rule not in LEFT_OUT]
    assert set(LEFT_OUT) < set(RULES)
    assert {*report.CHOSEN, *report.BASELINES} < {case.rule for case in CASES}
    assert all(case.bound == "clip" for case in CASES)


def test_handwritten_digits_are_shared_evenly() -> None:
    from hostile_clients import CLIENTS, SHARE, TESTED, handwritten_digits

    first, second = handwritten_digits(0), handwritten_digits(1)
    assert first.images.shape == (CLIENTS, SHARE, 64)
    assert first.test_images.shape == (TESTED, 64)
    assert float(first.images.min()) == 0.0
    assert float(first.images.max()) == 1.0
    assert not torch.equal(first.images, second.images)
    rows = torch.cat([first.images.flatten(0, 1), first.test_images])
    assert len(rows.unique(dim=0)) == len(rows) == 1790
    assert first.test_labels.bincount(minlength=10).min() > 20


def test_forged_statistics_are_as_long_as_honest_changes() -> None:
    """So the server does not shorten them."""
    from breakdown_cases import ATTACKS
    from hostile_cases import BUFFERS, Seen
    from hostile_clients import initial

    from paretograd.federated import Server

    model = initial(0)
    rng = np.random.default_rng(0)
    honest = [
        {n: np.asarray(a + rng.uniform(size=a.shape)).astype(a.dtype) for n, a in model.items()} for _ in range(7)
    ]
    seen = Seen(model, honest, honest[:2], torch.Generator(), Server(averaged=BUFFERS))
    for own, sent in zip(honest[:2], ATTACKS["statistics"](2).act(seen), strict=True):
        for name in model:
            changed = name in BUFFERS and model[name].dtype.kind == "f"
            assert np.array_equal(sent[name], own[name]) != changed
            if changed:
                lengths = [float(np.linalg.norm(reply[name] - model[name])) for reply in honest]
                assert float(np.linalg.norm(sent[name] - model[name])) == pytest.approx(np.median(lengths), rel=1e-5)


def test_breakdown_points() -> None:
    """The smallest number of attackers at which the mean over seeds falls below nine tenths for some attack."""
    import breakdown_report as report

    def results(**worst: list[float]) -> report.Results:
        cells: dict[tuple[str, str, str, int], list[float]] = {}
        for task in report.TITLES:
            cells[report.DEFAULT, task, "none", 0] = [1.0, 0.9]  # the mean is 0.95, and nine tenths of it 0.855
            for attack in ("zero", "silent"):
                for count, value in zip(report.COUNTS, worst.get(attack, [0.95] * 4), strict=True):
                    cells[report.DEFAULT, task, attack, count] = [value + 0.02, value - 0.02]
        return report.Results(cells)

    def breakdown(**worst: list[float]) -> str:
        return results(**worst).breakdown(report.DEFAULT, "drawn")

    assert breakdown() == "> 4"
    assert breakdown(zero=[0.86, 0.86, 0.86, 0.86]) == "> 4"
    assert breakdown(zero=[0.95, 0.95, 0.95, 0.84]) == "4"
    assert breakdown(zero=[0.95, 0.95, 0.5, 0.9], silent=[0.95, 0.8, 0.9, 0.9]) == "2"
    found = results(zero=[0.9, 0.9, 0.87, 0.1])
    assert report.worst_for_default(found)[2] == ["3", "zero", "87", "zero", "87"]
    assert report.worst_for_default(found)[3] == ["4", "zero", "**10**", "zero", "**10**"]
    assert [met for _, met, _ in report.verdicts(found)] == [True, True]
    assert [met for _, met, _ in report.verdicts(results(zero=[0.9, 0.9, 0.8, 0.9]))] == [True, False]
    found.faults.append("Mean: KeyError")
    assert [met for _, met, _ in report.verdicts(found)] == [False, True]


def test_the_page_shows_the_saved_results() -> None:
    import breakdown_report as report
    from common import BEGIN, END

    results, facts = report.load()
    shown = report.PAGE.read_text(encoding="utf-8").partition(BEGIN)[2].partition(END)[0]
    assert shown.strip() == report.markdown(results, facts)


def test_the_page_describes_every_attack() -> None:
    import breakdown_report as report
    from breakdown_cases import ATTACKS, TASKS

    text = report.PAGE.read_text(encoding="utf-8").partition("## Results")[0]
    for name in (*ATTACKS, *TASKS):
        assert f"\n| {name} |" in text


def test_backdoors_are_measured(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """A short run, in which the mark has no time to succeed; and the page shows the saved results."""
    import backdoor

    for pool in ("OMP", "OPENBLAS", "MKL"):  # main sets these
        monkeypatch.setenv(f"{pool}_NUM_THREADS", "1")
    assert backdoor.main(["--dry", "--rounds", "1", "--seeds", "1", "--jobs", "1"]) == 0
    rows = [line for line in capsys.readouterr().out.splitlines() if line.startswith("|")]
    assert len(rows) == 2 + len(backdoor.RULES)
    assert backdoor.text(*backdoor.load()) in backdoor.PAGE.read_text(encoding="utf-8")


def test_a_mark_changes_three_pixels() -> None:
    import backdoor

    images = torch.rand(5, 64, generator=torch.Generator().manual_seed(0))
    changed = backdoor.marked(images) != images
    assert changed.sum(dim=1).tolist() == [3] * 5
