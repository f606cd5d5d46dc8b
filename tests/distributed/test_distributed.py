"""Several processes, compared with one: weights, gradients and parameters to 1e-10 in float64.

The processes are started once for each number of them and run all cases of `support.processes`; each case trains the
same model on the whole batch by itself and compares.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from support import ROOT
from torch import nn

import paretograd as pg
from paretograd.autograd.graph import Graph

WORKER = ROOT / "tests" / "support" / "processes" / "worker.py"

#: Where the models of the processes are.
DEVICES = ["cpu", "cuda"] if torch.cuda.is_available() else ["cpu"]

#: Seconds for all cases, on a machine that is busy with something else.
LIMIT = 300


def run_cases(size: int, device: str, folder: Path) -> dict[str, dict[str, object]]:
    """What each case found wrong, on any process."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src"), "OMP_NUM_THREADS": "1"}
    environment["PARETOGRAD_TEST_DEVICE"] = device
    if device == "cpu":
        environment["CUDA_VISIBLE_DEVICES"] = ""  # a barrier over several backends would take NCCL
    processes = []
    for rank in range(size):
        arguments = [str(rank), str(size), str(folder / "rendezvous"), str(folder / f"{rank}.json")]
        with (folder / f"{rank}.log").open("w") as log:
            command = [sys.executable, str(WORKER), *arguments]
            processes.append(subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT, env=environment))
    try:
        codes = [process.wait(timeout=LIMIT) for process in processes]
    finally:
        for process in processes:
            process.kill()
            process.wait()
    logs = "\n".join((folder / f"{rank}.log").read_text() for rank in range(size))
    assert codes == [0] * size, logs
    return {
        f"process {rank}": json.loads((folder / f"{rank}.json").read_text(encoding="utf-8")) for rank in range(size)
    }


@pytest.mark.slow
@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("size", [1, 2, 4])
def test_processes(size: int, device: str, tmp_path: Path) -> None:
    found = run_cases(size, device, tmp_path)
    wrong = [
        f"{process}, {name}: {line}"
        for process, cases in found.items()
        for name, case in cases.items()
        for line in case["wrong"]
    ]
    assert not wrong, "\n".join(wrong)
    assert all(len(cases) >= 2 for cases in found.values())


def losses_of(model: nn.Module) -> list[torch.Tensor]:
    y = model(torch.linspace(-1.0, 1.0, 12).reshape(4, 3))
    return [y.square().mean(), (y - 1.0).abs().mean()]


def test_one_process_takes_the_same_arguments() -> None:
    """So that one line serves a laptop and a cluster."""
    model = nn.Linear(3, 2)
    plain = pg.backward(losses_of(model), pg.UPGrad())
    for options in ({"parallel": "data"}, {"samples": 4}, {"samples": [4, 4]}, {"parallel": "none"}):
        step = pg.backward(losses_of(model), pg.UPGrad(), model, **options)
        assert torch.equal(step.weights, plain.weights)
        assert torch.equal(pg.gramian(losses_of(model), model, **options), plain.gramian)


def test_wrong_arguments_are_refused_in_one_process_too() -> None:
    model = nn.Linear(3, 2)
    for options, words in (
        ({"parallel": "model"}, "parallel='model': use one of auto, none, data, objectives"),
        ({"samples": -1}, "samples=-1"),
        ({"samples": [3, 1.5]}, "samples="),
    ):
        with pytest.raises(pg.ParameterError, match=words):
            pg.backward(losses_of(model), pg.UPGrad(), **options)
        with pytest.raises(pg.ParameterError, match=words):
            pg.gramian(losses_of(model), **options)


class HandOn(torch.autograd.Function):
    """As the node that DistributedDataParallel puts behind a module: every input, handed on."""

    @staticmethod
    def forward(ctx, *inputs: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return tuple(x.clone() for x in inputs)

    @staticmethod
    def backward(ctx, *grads: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return grads


@pytest.mark.parametrize("vector", [False, True])
@pytest.mark.parametrize("at_the_end", [False, True])
def test_nodes_that_hand_on_are_seen_through(vector: bool, at_the_end: bool) -> None:
    """Each head belongs to its own loss, whatever wrapper is around both."""
    trunk, heads = nn.Linear(3, 4), [nn.Linear(4, 1), nn.Linear(4, 1)]
    z = trunk(torch.ones(2, 3)).tanh()
    outputs = [head(z) for head in heads]
    if at_the_end:
        losses = list(HandOn.apply(*[y.square().mean() for y in outputs]))
    else:
        losses = [y.square().mean() for y in HandOn.apply(*outputs)]
    joined = torch.stack(losses) if vector else losses
    seen = frozenset({"HandOnBackward"})
    through, plain = Graph(joined, seen), Graph(joined)
    assert [through.reached_by[id(head.weight)] for head in heads] == [1, 2]
    assert [plain.reached_by[id(head.weight)] for head in heads] == [3, 3]
    assert through.reached_by[id(trunk.weight)] == 3


def test_importing_the_library_imports_no_more_of_torch() -> None:
    """The parts of torch that the processes need are imported when there are several."""
    code = (
        "import sys, torch; before = set(sys.modules); import paretograd; "
        "new = [name for name in set(sys.modules) - before if name.startswith('torch')]; "
        "print([n for n in new if 'distributed' in n], [n for n in sys.modules if 'paretograd.distributed.' in n])"
    )
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
    printed = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment, check=True)
    assert printed.stdout.split() == ["[]", "[]"]
