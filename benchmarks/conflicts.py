"""Count the updates that raise some loss of their own batch: rules with optimizers, on two problems.

    python benchmarks/conflicts.py --data-dir data   # ten minutes; the folder holds the four files of MNIST
    python benchmarks/conflicts.py --render          # updates the tables in docs/guide/adam.md

Burgers: a physics-informed tanh network with three losses (residual, initial and boundary values),
2-32-32-32-1. Multi-MNIST: two digits in an image and a loss for each, as in the study of optimizers. All is in float32,
with fresh data in each of 600 steps. After each step, the change of the parameters is compared with the gradients of
all losses, by products in float64. It conflicts if a cosine is below -1e-6.
"""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
from common import ROOT, fill, markdown_table, processor, progress, replace
from torch import Tensor, nn

import paretograd as pg
from paretograd.experiments.optimizers.digits import load_digits

RESULTS = ROOT / "benchmarks" / "results" / "conflicts.json"
PAGE = ROOT / "docs" / "guide" / "adam.md"
BEGIN, END = "<!-- begin conflicts -->", "<!-- end conflicts -->"

STEPS = 600

#: A cosine below minus this is a conflict.
CONFLICT = 1e-6

Make = Callable[[Iterator[Tensor]], torch.optim.Optimizer]

CASES: dict[tuple[str, str], tuple[pg.Aggregator, Make]] = {
    ("UPGrad", "SGD"): (pg.UPGrad(), lambda p: torch.optim.SGD(p, lr=0.02)),
    ("UPGrad", "SGD with momentum"): (pg.UPGrad(), lambda p: torch.optim.SGD(p, lr=0.02, momentum=0.9)),
    ("UPGrad", "RMSprop"): (pg.UPGrad(), lambda p: torch.optim.RMSprop(p, lr=1e-3)),
    ("UPGrad", "Adagrad"): (pg.UPGrad(), lambda p: torch.optim.Adagrad(p)),
    ("UPGrad", "Adam without momentum"): (pg.UPGrad(), lambda p: torch.optim.Adam(p, betas=(0.0, 0.999))),
    ("UPGrad", "Adam"): (pg.UPGrad(), lambda p: torch.optim.Adam(p)),
    ("UPGrad", "AdamW"): (pg.UPGrad(), lambda p: torch.optim.AdamW(p)),
    ("ConFIG", "Adam"): (pg.ConFIG(), lambda p: torch.optim.Adam(p)),
    ("MGDA", "Adam"): (pg.MGDA(), lambda p: torch.optim.Adam(p)),
    ("mean", "Adam"): (pg.Mean(), lambda p: torch.optim.Adam(p)),
}

HEADINGS = ("problem", "rule", "optimizer")
MODES = ("plain", "in the metric", "Unconflicting")


#: Cases of Multi-MNIST.
DIGITS = [case for case in CASES if case[0] == "UPGrad"]

#: Computes the losses of a network on new data.
Losses = Callable[[nn.Sequential], list[Tensor]]


def burgers_network() -> nn.Sequential:
    """Return a tanh network, 2-32-32-32-1."""
    widths = (2, 32, 32, 32)
    hidden = [layer for pair in pairwise(widths) for layer in (nn.Linear(*pair), nn.Tanh())]
    return nn.Sequential(*hidden, nn.Linear(32, 1))


def burgers(net: nn.Sequential) -> list[Tensor]:
    """Return the losses of Burgers' equation, ``u_t + u u_x = 0.01 / pi u_xx``, at new points."""
    points = torch.rand(256, 2) * torch.tensor([2.0, 1.0]) - torch.tensor([1.0, 0.0])
    points.requires_grad_(True)
    u = net(points)
    slope = torch.autograd.grad(u.sum(), points, create_graph=True)[0]
    curve = torch.autograd.grad(slope[:, 0].sum(), points, create_graph=True)[0][:, 0]
    residual = slope[:, 1] + u[:, 0] * slope[:, 0] - 0.01 / math.pi * curve
    x = torch.rand(64, 1) * 2 - 1
    start = net(torch.cat([x, 0 * x], dim=1)) + torch.sin(math.pi * x)
    t = torch.rand(64, 1)
    ends = [net(torch.cat([torch.full_like(t, end), t], dim=1)) for end in (1.0, -1.0)]
    return [residual.square().mean(), start.square().mean(), sum(end.square() for end in ends).mean()]


def multi_mnist(data: Path | None) -> tuple[Callable[[], nn.Sequential], Losses]:
    """Return the network of Multi-MNIST, and its losses."""
    digits, generator = load_digits(data), torch.Generator()

    def network() -> nn.Sequential:
        generator.manual_seed(0)
        return digits.network(0)

    return network, lambda net: digits.losses(net, digits.batch(generator))


def count(
    network: Callable[[], nn.Sequential], losses_of: Losses, rule: pg.Aggregator, make: Make, mode: str
) -> dict[str, float]:
    """Train, and return the share of updates that conflict and the lowest cosine."""
    torch.manual_seed(0)
    net = network()
    params = list(net.parameters())
    optimizer = make(net.parameters())
    if mode == "Unconflicting":
        optimizer = pg.Unconflicting(optimizer, rule)
    lowest = []
    for _ in range(STEPS):
        losses = losses_of(net)
        J = torch.cat([block.flatten(1) for block in pg.jacobian(losses, params)], dim=1).double()
        before = torch.cat([param.detach().reshape(-1) for param in params]).double()
        optimizer.zero_grad()
        if isinstance(optimizer, pg.Unconflicting):
            optimizer.backward(losses, params)
        else:
            pg.backward(losses, rule, params, metric=optimizer if mode == "in the metric" else None)
        optimizer.step()
        u = before - torch.cat([param.detach().reshape(-1) for param in params]).double()
        lowest.append(float((J @ u / (J.norm(dim=1) * u.norm()).clamp(min=1e-300)).min()))
    return {"conflicts": sum(value < -CONFLICT for value in lowest) / STEPS, "lowest": min(lowest)}


def table(results: list[dict[str, Any]]) -> list[str]:
    def shown(found: dict[str, float]) -> str:
        lowest = f"{found['lowest']:.2f}" if found["lowest"] < -0.005 else f"{found['lowest']:.0e}"
        return f"{found['conflicts']:.1%} ({'0' if found['lowest'] >= 0.0 else lowest})"

    rows = [[*(row[key] for key in HEADINGS), *(shown(row[mode]) for mode in MODES)] for row in results]
    return markdown_table([*HEADINGS, "plain", "in the metric", "`Unconflicting`"], rows, names=len(HEADINGS))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data-dir", type=Path, help="folder with the files of MNIST; else they are downloaded")
    parser.add_argument("--render", action="store_true", help="only update the page")
    arguments = parser.parse_args()
    if not arguments.render:
        torch.set_num_threads(1)
        problems = {"Burgers": (burgers_network, burgers), "Multi-MNIST": multi_mnist(arguments.data_dir)}
        cases = [("Burgers", *case) for case in CASES] + [("Multi-MNIST", *case) for case in DIGITS]
        rows: list[dict[str, Any]] = []
        for case in cases:
            problem, rule, optimizer = case
            progress(len(rows), len(cases), f"{problem}: {rule} with {optimizer}", 0.0)
            parts = *problems[problem], *CASES[rule, optimizer]
            rows.append(dict(zip(HEADINGS, case, strict=True)) | {mode: count(*parts, mode) for mode in MODES})
        found = {"machine": f"{processor()}, torch {torch.__version__}", "rows": rows}
        replace(RESULTS, json.dumps(found, indent=1) + "\n")
    saved = json.loads(RESULTS.read_text(encoding="utf-8"))
    print("\n" + "\n".join(table(saved["rows"])))
    fill(PAGE, "\n".join(table(saved["rows"])), BEGIN, END)


if __name__ == "__main__":
    main()
