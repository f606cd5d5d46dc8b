"""One network, three different tasks: UPGrad against the sum of the losses.

A shared trunk feeds three heads: a regression, a classification into four classes, and a binary classification. The
regression's target has a large scale, as raw targets often do, so its gradient dominates the sum. UPGrad's step
conflicts with none of the three: the small losses decrease faster, the large one a little more slowly.

`pg.backward` detects from the graph that each head belongs to one loss, and gives it that loss's gradient. The trunk
gets the aggregated direction.

Run: python examples/multitask.py [--steps 300] [--seed 0] [--device cpu]
"""

import argparse

import torch
from torch import Tensor, nn
from torch.nn import functional

import paretograd as pg

TASKS = ("regression", "four classes", "yes or no")


class MultiTask(nn.Module):
    """A shared trunk and one head per task."""

    def __init__(self) -> None:
        super().__init__()
        self.trunk = nn.Sequential(nn.Linear(8, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU())
        self.heads = nn.ModuleList([nn.Linear(64, 1), nn.Linear(64, 4), nn.Linear(64, 1)])

    def forward(self, x: Tensor) -> list[Tensor]:
        features = self.trunk(x)
        return [head(features) for head in self.heads]


def make_data(count: int, device: str) -> tuple[Tensor, tuple[Tensor, Tensor, Tensor]]:
    """Return inputs (count, 8) and, for each, a real number, one of four classes, and a binary label."""
    x = torch.randn(count, 8)
    number = 10.0 * (x[:, 0] + x[:, 1] * x[:, 2])
    kind = 2 * (x[:, 3] > 0) + (x[:, 4] * x[:, 0] > 0)
    answer = (x[:, 5] + x[:, 6].square() > 1.0).float()
    return x.to(device), (number.to(device), kind.to(device), answer.to(device))


def task_losses(model: nn.Module, x: Tensor, targets: tuple[Tensor, Tensor, Tensor]) -> list[Tensor]:
    number, kind, answer = model(x)
    return [
        functional.mse_loss(number.squeeze(1), targets[0]),
        functional.cross_entropy(kind, targets[1]),
        functional.binary_cross_entropy_with_logits(answer.squeeze(1), targets[2]),
    ]


def train(rule: pg.Aggregator | None, steps: int, seed: int, device: str) -> tuple[list[float], list[float]]:
    """Return the test losses before and after training; without a rule, train on the sum."""
    torch.manual_seed(seed)
    model = MultiTask().to(device)
    x, targets = make_data(1024, device)
    test = make_data(2048, device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    with torch.no_grad():
        before = [loss.item() for loss in task_losses(model, *test)]
    for _ in range(steps):
        optimizer.zero_grad()
        rows = torch.randint(len(x), (128,)).to(device)
        losses = task_losses(model, x[rows], tuple(target[rows] for target in targets))
        if rule is None:
            sum(losses).backward()
        else:
            pg.backward(losses, rule)
        optimizer.step()
    with torch.no_grad():
        return before, [loss.item() for loss in task_losses(model, *test)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--device", default="cpu")
    args = parser.parse_args()

    before, plain = train(None, args.steps, args.seed, args.device)
    _, upgrad = train(pg.UPGrad(), args.steps, args.seed, args.device)
    print(f"test loss {'before':>12} {'sum':>10} {'UPGrad':>10}")
    for name, *values in zip(TASKS, before, plain, upgrad, strict=True):
        print(f"{name:<12}" + "".join(f"{value:>10.3f} " for value in values))


if __name__ == "__main__":
    main()
