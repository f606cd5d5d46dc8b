"""A training loop whose step is one CUDA graph: forward pass, losses, backward passes, rule and optimizer.

Without a GPU, the same loop runs eagerly and says so once.

Run: python examples/captured.py [--steps 200] [--seed 0] [--device cuda|cpu]
"""

import argparse
import warnings
from collections.abc import Iterator

import torch
from torch import Tensor, nn
from torch.nn import functional

import paretograd as pg


class Tasks(nn.Module):
    """A trunk, and a head for each of three tasks."""

    def __init__(self) -> None:
        super().__init__()
        self.trunk = nn.Sequential(nn.Linear(16, 128), nn.GELU(), nn.Dropout(0.1), nn.Linear(128, 64), nn.GELU())
        self.heads = nn.ModuleDict({"sine": nn.Linear(64, 1), "product": nn.Linear(64, 1), "mean": nn.Linear(64, 1)})

    def losses(self, x: Tensor, y: Tensor) -> dict[str, Tensor]:
        """Return the mean squared error of each task."""
        z = self.trunk(x)
        return {name: functional.mse_loss(head(z)[:, 0], y[:, k]) for k, (name, head) in enumerate(self.heads.items())}


def batches(steps: int, device: str) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield random inputs and the targets of all tasks."""
    for _ in range(steps):
        x = torch.randn(256, 16, device=device)
        yield x, torch.stack([x[:, 0].sin(), x[:, 1] * x[:, 2], x[:, :4].mean(dim=1)], dim=1)


def fit(model: Tasks, steps: int, device: str) -> tuple[Tensor, Tensor]:
    """Train, and return the losses of the first and the last step."""
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3, fused=device == "cuda")
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
    step = pg.capture(
        model.losses,
        pg.UPGrad(),
        model,
        optimizer=optimizer,
        before_step=lambda: nn.utils.clip_grad_norm_(model.parameters(), 1.0),
    )
    history = []
    for number, (x, y) in enumerate(batches(steps, device)):
        result = step(x, y)  # does not wait for the GPU
        schedule.step()
        history.append(result.losses)
        if number % 50 == 0:
            shown = {key: round(value, 4) for key, value in result.metrics().items() if "weight" in key}  # waits here
            print(f"step {number:4d}  {shown}")
    print(f"the step is {'one CUDA graph' if step.reason is None else f'eager, because {step.reason}'}")
    return history[0], history[-1]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    args = parser.parse_args()
    if args.device == "cpu":
        warnings.filterwarnings("ignore", message="the step cannot be captured")
    torch.manual_seed(args.seed)
    model = Tasks().to(args.device)
    before, after = fit(model, args.steps, args.device)
    for k, (old, new) in enumerate(zip(before.tolist(), after.tolist(), strict=True)):
        print(f"task {k}: loss {old:.4f} -> {new:.4f}")


if __name__ == "__main__":
    main()
