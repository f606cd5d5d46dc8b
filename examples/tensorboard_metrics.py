"""TensorBoard: log weights, conflicts and the distance from Pareto stationarity at each step.

`step.metrics()` returns a flat dict of floats for any tracker, here torch's SummaryWriter. It solves an additional
small quadratic program for gamma, so with many objectives log only every tenth step or so. The prefix groups the
curves of a rule; here two rules write to the same folder.

Run: pip install 'paretograd[examples]'; python examples/tensorboard_metrics.py [--steps 200] [--seed 0] [--folder runs]
then: tensorboard --logdir runs
"""

import argparse
import tempfile
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.utils.tensorboard import SummaryWriter

import paretograd as pg


def task_losses(model: nn.Module, x: Tensor) -> list[Tensor]:
    """Return the losses for two different targets of one output, which remain in conflict at the end."""
    output = model(x)[:, 0]
    return [(output - x[:, 0].sin()).square().mean(), (output - x[:, 0].sin() - 0.5 * x[:, 1]).square().mean()]


def train(rule: pg.Aggregator, name: str, writer: SummaryWriter, steps: int, seed: int) -> tuple[float, float]:
    """Return gamma at the first and the last step."""
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(4, 32), nn.Tanh(), nn.Linear(32, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    x = torch.randn(256, 4)
    gammas = []
    for number in range(steps):
        optimizer.zero_grad()
        losses = task_losses(model, x)
        step = pg.backward(losses, rule)
        optimizer.step()
        gammas.append(step.gamma)
        for key, value in step.metrics(prefix=f"{name}/").items():
            writer.add_scalar(key, value, number)
        for k, loss in enumerate(losses):
            writer.add_scalar(f"{name}/loss/{k}", loss.item(), number)
    return gammas[0], gammas[-1]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--folder", type=Path, help="output folder; a new temporary folder by default")
    args = parser.parse_args()

    folder = args.folder or Path(tempfile.mkdtemp(prefix="paretograd-"))
    with SummaryWriter(str(folder)) as writer:
        for name, rule in {"upgrad": pg.UPGrad(), "mean": pg.Mean()}.items():
            first, last = train(rule, name, writer, args.steps, args.seed)
            print(f"{name:<8}gamma {first:.4f} -> {last:.4f}")
    print(f"written: tensorboard --logdir {folder}")


if __name__ == "__main__":
    main()
