"""Lightning: use manual optimization and log the metrics of every step.

Automatic optimization has one loss and calls `backward` itself. With `automatic_optimization = False` the training
step calls `pg.backward`, steps the optimizer, and logs the metrics of the step: the weights, the norms of the
gradients, conflicts, and the distance from Pareto stationarity.

`pg.backward` replaces `self.manual_backward`, so you must handle what that adds:

- precision="bf16-mixed" needs no changes. For precision="16-mixed", `manual_backward` would use a scaler; see amp.py
  for the loop with a scaler.
- Several processes need no changes. Lightning puts the module under DistributedDataParallel, which `pg.backward`
  detects; it averages the gradients of each loss over the processes before it aggregates them.

Run: pip install 'paretograd[examples]'; python examples/lightning_module.py [--steps 200] [--seed 0] [--devices 1]
"""

import argparse
import logging
import warnings

import lightning
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset

import paretograd as pg


class TwoTasks(lightning.LightningModule):
    """A shared trunk with two regression heads."""

    def __init__(self) -> None:
        super().__init__()
        self.automatic_optimization = False
        self.trunk = nn.Sequential(nn.Linear(8, 64), nn.Tanh())
        self.heads = nn.ModuleList([nn.Linear(64, 1), nn.Linear(64, 1)])
        self.rule = pg.UPGrad()

    def task_losses(self, batch: list[Tensor]) -> list[Tensor]:
        x, y = batch
        features = self.trunk(x)
        return [functional.mse_loss(head(features)[:, 0], y[:, k]) for k, head in enumerate(self.heads)]

    def training_step(self, batch: list[Tensor], _: int) -> None:
        optimizer = self.optimizers()
        optimizer.zero_grad()
        losses = self.task_losses(batch)
        step = pg.backward(losses, self.rule, samples=len(batch[0]))
        optimizer.step()
        self.log_dict({f"loss/{k}": loss.detach() for k, loss in enumerate(losses)})
        self.log_dict(step.metrics())

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.05)


def make_data(count: int) -> TensorDataset:
    """Return inputs (count, 8) and two targets for each."""
    x = torch.randn(count, 8)
    return TensorDataset(x, torch.stack([x[:, 0].sin() + x[:, 1], x[:, 1] - x[:, 2].square()], dim=1))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--devices", type=int, default=1, help="number of processes")
    args = parser.parse_args()

    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)  # hide the banner
    warnings.filterwarnings("ignore", message=".*(many workers|LeafSpec).*")  # noise from Lightning
    lightning.seed_everything(args.seed, verbose=False)
    data, model = make_data(2048), TwoTasks()
    everything = data[:]
    before = [loss.item() for loss in model.task_losses(everything)]
    trainer = lightning.Trainer(
        max_steps=args.steps,
        max_epochs=-1,  # the number of steps is the limit
        accelerator="cpu",
        devices=args.devices,
        strategy="ddp" if args.devices > 1 else "auto",
        logger=False,  # any logger will receive the metrics
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(model, DataLoader(data, batch_size=64, shuffle=True))
    after = [loss.item() for loss in model.task_losses(everything)]
    if not trainer.is_global_zero:
        return
    for k, (old, new) in enumerate(zip(before, after, strict=True)):
        print(f"task {k}: loss {old:.4f} -> {new:.4f}")
    logged = {key: value.item() for key, value in trainer.callback_metrics.items()}
    print("logged: " + ", ".join(f"{key}={value:.3g}" for key, value in logged.items()))


if __name__ == "__main__":
    main()
