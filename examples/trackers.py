"""TensorBoard, Weights & Biases or MLflow: log the weights, conflicts and stationarity of each step.

`step.metrics()` returns a flat dictionary of floats. It solves a small quadratic program for gamma, so with many
objectives log every tenth step or so.
Run: pip install 'paretograd[examples]' wandb mlflow; python examples/trackers.py [--tracker tensorboard] [--steps 200]
then: tensorboard --logdir runs; wandb needs an account or WANDB_MODE=offline, mlflow takes MLFLOW_TRACKING_URI
"""

import argparse
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
from torch import nn

import paretograd as pg


@contextmanager
def tracker(name: str, folder: str) -> Iterator[Callable[[dict[str, float], int], None]]:
    """Yield a function that logs the metrics of a step."""
    if name == "tensorboard":
        from torch.utils.tensorboard import SummaryWriter

        with SummaryWriter(folder) as writer:
            yield lambda metrics, t: [writer.add_scalar(key, value, t) for key, value in metrics.items()]
    elif name == "wandb":
        import wandb

        with wandb.init(project="paretograd", dir=folder) as run:
            yield lambda metrics, t: run.log(metrics, step=t)
    else:
        import mlflow

        with mlflow.start_run():
            yield lambda metrics, t: mlflow.log_metrics(metrics, step=t)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tracker", choices=("tensorboard", "wandb", "mlflow"), default="tensorboard")
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--folder", default="runs")
    args = parser.parse_args()
    torch.manual_seed(args.seed)
    model = nn.Sequential(nn.Linear(4, 32), nn.Tanh(), nn.Linear(32, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    x, gammas = torch.randn(256, 4), []
    with tracker(args.tracker, args.folder) as log:
        for t in range(args.steps):
            output = model(x)[:, 0]
            targets = {"sine": x[:, 0].sin(), "tilted": x[:, 0].sin() - 0.5 * x[:, 1]}
            losses = {name: (output - target).square().mean() for name, target in targets.items()}
            optimizer.zero_grad()
            step = pg.backward(losses, pg.UPGrad())
            optimizer.step()
            log(step.metrics() | {f"mo/loss/{name}": loss.item() for name, loss in losses.items()}, t)
            gammas.append(step.gamma)
    print(f"gamma {gammas[0]:.4f} -> {gammas[-1]:.4f}")
