"""Synthetic images in the format of CIFAR-10, and a small federated study of them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from paretograd.descent import Stop
from paretograd.experiments.federated import FederatedResults, FederatedStudy, Run, RunResult, run_federated
from paretograd.experiments.federated import run as run_module
from paretograd.experiments.federated.study import BASELINES, CAPS, CENTRAL, CLEAN, CLIPS, attack_of
from paretograd.problems.cifar10 import Cifar10, Images


def made_cifar10(each: int = 8, tested: int = 8, seed: int = 0) -> Cifar10:
    """Noise whose colour tells the class: this many images of each class to train on, and to test."""
    rng = np.random.default_rng(seed)
    colours = rng.integers(40, 216, (10, 3))

    def images(count: int) -> Images:
        labels = rng.permutation(np.repeat(np.arange(10), count))
        noise = rng.normal(0.0, 40.0, (len(labels), 3, 32, 32))
        pixels = np.clip(colours[labels][:, :, None, None] + noise, 0, 255).astype(np.uint8)
        return Images(torch.from_numpy(pixels), torch.from_numpy(labels))

    return Cifar10(images(each), images(tested))


DATA = made_cifar10()
CAPPED = "capped-mgda(cap=0.1)"
SMALL = FederatedStudy(
    parts=("table", "clean"),
    methods=("mgda", CAPPED),
    seeds=(0,),
    epochs=3,
    lr=0.05,
    every=2,
    shards=2,
    size=2,
    test_size=2,
)
ATTACK = attack_of(0.15)
CPU = torch.device("cpu")


def run(folder: Path, study: FederatedStudy = SMALL, **options: object) -> FederatedResults:
    """Run the study on the synthetic images, unless the test names its data."""
    with pytest.MonkeyPatch.context() as patch:
        if "data" not in options:
            patch.setattr(run_module, "load_cifar10", lambda *_: DATA)
        return run_federated(study, folder, **({"device": "cpu"} | options))


def example(accuracy: float, label: str = "r", epochs: int = 1000) -> RunResult:
    """A run with made numbers, as long as a real one."""
    kept, looks = np.arange(0, epochs, 3, dtype=np.int32), np.arange(0, epochs + 1, 10, dtype=np.int32)
    values = np.linspace(1.0, 0.1, len(kept), dtype=np.float32)
    shape = np.linspace(0.1, accuracy, len(looks))[:, None] + np.linspace(-0.05, 0.05, 10)
    return RunResult(
        label=label,
        reason=Stop.STEPS,
        why="",
        length=epochs,
        epochs=kept,
        losses=values,
        norms=values,
        slopes=values - 0.5,
        gamma=values,
        looks=looks,
        accuracies=shape.astype(np.float32),
        weights=np.full((len(looks) - 1, 11), 1 / 11, np.float16),
        conflicts=250,
        overall=accuracy - 0.02,
    )


#: Accuracies of made runs: the paper's ordering.
MADE = {"mgda": 0.2, "nash-mtl*": 0.44, "upgrad*": 0.52, "dualproj*": 0.54, CAPPED: 0.55, "mean": 0.56}
MADE |= dict.fromkeys((*CLIPS, *BASELINES), 0.3) | {CAPS[cap]: 0.55 - 0.3 * cap for cap in (0.15, 0.2, 0.3, 0.5)}


def made_runs(study: FederatedStudy) -> dict[Run, RunResult]:
    """All runs of a study; seeds differ by 0.01."""
    free = {CLEAN: 0.57, CENTRAL: 0.6}
    return {
        one: example(free.get(one.setting, MADE.get(one.rule, 0.0)) + 0.01 * one.seed, one.label)
        for one in study.runs()
    }
