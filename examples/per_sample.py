"""One objective per sample: a vector of 32 losses, some with wrong labels.

`pg.backward` accepts the vector of per-sample losses. MGDA gives most weight to the samples that conflict with the
others. If labels are wrong, these are the mislabelled samples, and training stalls. CappedMGDA limits the weight of
each sample: about five of 32 samples have a wrong label, and a cap of 0.04 limits them to a fifth of the weight. With
a cap of 0.1 they could have half of it; try it. The mean of the losses is the baseline.

Run: python examples/per_sample.py [--steps 500] [--seed 0] [--noise 0.15] [--cap 0.04]
"""

import argparse

import torch
from torch import Tensor, nn
from torch.nn import functional

import paretograd as pg

BATCH = 32


def make_data(count: int, noise: float) -> tuple[Tensor, Tensor]:
    """Return points in the plane (count, 2) and labels, 1 inside a ring; a fraction of the labels is flipped."""
    x = 2.0 * torch.randn(count, 2)
    radius = x.norm(dim=1)
    inside = (radius > 1.0) & (radius < 3.0)
    flipped = torch.rand(count) < noise
    return x, (inside ^ flipped).float()


def accuracy(model: nn.Module, x: Tensor, y: Tensor) -> float:
    with torch.no_grad():
        return ((model(x).squeeze(1) > 0) == (y > 0.5)).float().mean().item()


def train(rule: pg.Aggregator, steps: int, seed: int, noise: float) -> tuple[float, float]:
    """Return the accuracy on clean labels before and after training."""
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(2, 32), nn.Tanh(), nn.Linear(32, 32), nn.Tanh(), nn.Linear(32, 1))
    x, y = make_data(1024, noise)
    test = make_data(4096, 0.0)
    optimizer = torch.optim.Adam(model.parameters(), lr=5e-3)
    before = accuracy(model, *test)
    for _ in range(steps):
        optimizer.zero_grad()
        rows = torch.randint(len(x), (BATCH,))
        outputs = model(x[rows]).squeeze(1)
        losses = functional.binary_cross_entropy_with_logits(outputs, y[rows], reduction="none")  # shape (32,)
        pg.backward(losses, rule, per_sample=True)
        optimizer.step()
    return before, accuracy(model, *test)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=500)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--noise", type=float, default=0.15, help="fraction of wrong labels")
    parser.add_argument("--cap", type=float, default=0.04, help="largest weight of a sample, at least 1/32")
    args = parser.parse_args()

    rules = {"MGDA": pg.MGDA(), "CappedMGDA": pg.CappedMGDA(cap=args.cap), "mean": pg.Mean()}
    print(f"accuracy on clean labels, {args.noise:.0%} of the training labels wrong")
    for name, rule in rules.items():
        before, after = train(rule, args.steps, args.seed, args.noise)
        print(f"{name:<12}{before:>8.1%} -> {after:.1%}")


if __name__ == "__main__":
    main()
