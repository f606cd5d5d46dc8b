"""The benchmark of whole steps: its methods agree, its parts are merged, and its verdicts follow from the numbers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from support import ROOT


@pytest.fixture(autouse=True)
def _benchmarks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))


def section(name: str, precision: str, **medians: float | None) -> dict[str, Any]:
    """Return the numbers of one model, whose methods have these medians; None stands for a failure."""
    labels = {
        "plain": "plain sum",
        "loop": "loop",
        "peer": "TorchJD backward",
        "slow": "TorchJD autogram",
        "auto": "paretograd, auto",
        "captured": "paretograd, captured",
        "floor": "floor, captured",
    }
    methods = [
        {
            "method": labels[key],
            "median_ms": value,
            "best_ms": value,
            "extra_mib": value,
            "error": None,
            "how": None,
            "failure": "MemoryError" if value is None else None,
        }
        for key, value in medians.items()
    ]
    described = {"name": name, "detail": "small", "precision": precision, "repeats": 9, "reference": "float64"}
    return described | {"losses": 2, "shared": 10, "methods": methods, "machine": "a machine", "load": [0.0, 1.0]}


def measured(**models: dict[str, Any]) -> dict[str, Any]:
    return {"device": "cuda", "parts": {f"{key}, {part['precision']}": part for key, part in models.items()}}


def test_methods_agree_with_the_loop_in_float64() -> None:
    from engine_measure import direction_of, relative
    from engine_methods import LOOP, methods, ours
    from engine_models import mlp

    problem = mlp(32, 8, "cpu")
    exact = direction_of(problem.converted(torch.float64))
    found = methods(problem, with_torchjd=False)
    for method in (found[LOOP], ours("auto", first_steps=2), ours("jacobian"), ours("gramian")):
        assert relative(direction_of(problem.copy(), method), exact) < 1e-5


def test_copies_share_frozen_parameters_alone() -> None:
    from engine_models import mlp

    problem = mlp(32, 8, "cpu")
    problem.model.trunk[0].requires_grad_(False)
    copy = problem.in_precision("bfloat16").copy()
    assert copy.model.trunk[0].weight is problem.model.trunk[0].weight
    assert copy.model.trunk[0].weight.dtype == torch.bfloat16
    assert copy.model.trunk[2].weight is not problem.model.trunk[2].weight
    assert copy.model.trunk[2].weight.dtype == torch.float32
    assert len(copy.shared) == 6


def test_parts_of_several_commands_fill_one_file(tmp_path: Path) -> None:
    from engine import merge
    from engine_report import console, markdown, read

    path = tmp_path / "engine-cuda.json"
    path.write_text(json.dumps({"device": "cuda", "models": []}))  # an earlier format
    assert read(path) is None
    numbers = {"plain": 1.0, "loop": 4.0, "peer": 3.0, "auto": 2.0}
    merge(path, "cuda", "vit, float32", section("ViT", "float32", **numbers))
    merge(path, "cuda", "bert, bfloat16", section("BERT", "bfloat16", **numbers))
    merge(path, "cuda", "vit, float32", section("ViT", "float32", **(numbers | {"loop": 5.0})))
    results = read(path)
    assert sorted(results["parts"]) == ["bert, bfloat16", "vit, float32"]
    page = markdown(results)
    assert page.index("### BERT in bfloat16") < page.index("### ViT in float32")
    assert "| loop | 5 | 5 | 5.00 | 5.0 | - |" in page
    assert "TorchJD backward" in console(results)


def test_a_page_keeps_the_tables_of_a_device_without_results(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    import engine_report
    from engine import merge

    page = tmp_path / "page.md"
    page.write_text(engine_report.PAGE.read_text("utf-8"), "utf-8")
    before = page.read_text("utf-8").partition("<!-- begin generated: cuda -->")
    for name, value in (("PAGE", page), ("ROOT", tmp_path), ("RESULTS", tmp_path)):
        monkeypatch.setattr(engine_report, name, value)
    merge(tmp_path / "engine-cuda.json", "cuda", "vit, float32", section("ViT", "float32", plain=1.0, loop=2.0))
    engine_report.render()
    after = page.read_text("utf-8").partition("<!-- begin generated: cuda -->")
    assert after[0] == before[0]
    assert "### ViT in float32" in after[2]
    assert "no results for cpu" in capsys.readouterr().err


def test_verdicts_follow_from_the_numbers() -> None:
    from engine_report import verdicts

    results = measured(
        bert=section("BERT", "bfloat16", loop=4.0, peer=5.0, slow=9.0, auto=4.1, captured=2.0, floor=1.9),
        vit=section("ViT", "bfloat16", loop=4.0, peer=2.0, slow=3.0, auto=2.5, captured=1.7, floor=1.6),
    )
    found = {asked: (met, numbers) for asked, met, numbers in verdicts(results)[1:]}
    each = "captured step in bfloat16, time over TorchJD's least: at most"
    assert found["captured step in bfloat16, time over the floor: at most 1.12"][0] == "met"
    assert found[f"{each} 0.8"] == ("short", "0.85 (ViT in bfloat16), the greatest of 2")
    assert found[f"{each} 0.6, in the geometric mean"] == ("met", "0.58, the mean of 2")  # sqrt(0.4 * 0.85)
    rivals = "`auto`, time over the least of the loop and TorchJD: at most 1.03"
    assert found[rivals] == ("short", "1.25 (ViT in bfloat16), the greatest of 2")
    assert not any("float32" in asked for asked in found)


def test_a_failed_method_misses_its_target_and_a_failed_rival_is_not_counted() -> None:
    from engine_report import summary, verdicts

    results = measured(
        bert=section("BERT", "bfloat16", loop=4.0, peer=5.0, auto=4.0, captured=None, floor=1.9),
        vit=section("ViT", "bfloat16", loop=4.0, peer=None, auto=4.0, captured=1.8, floor=None),
    )
    found = {asked: (met, numbers) for asked, met, numbers in verdicts(results)[1:]}
    floor = "captured step in bfloat16, time over the floor: at most 1.12"
    assert found[floor] == ("short", "failed on BERT in bfloat16")
    rivals = "`auto`, time over the least of the loop and TorchJD: at most 1.03"
    assert found[rivals] == ("met", "1.00 (BERT in bfloat16), the greatest of 2")
    assert summary(results)[1:] == [
        ["BERT", "bfloat16", "failed", "failed", "1.00", "0.80", "1.00", "0.80"],
        ["ViT", "bfloat16", "-", "-", "1.00", "-", "1.00", "-"],
    ]
