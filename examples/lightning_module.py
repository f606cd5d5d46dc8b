"""Lightning: several losses with automatic optimization. All else is the Trainer's, as with one loss.

Run: pip install 'paretograd[examples]'; python examples/lightning_module.py [--steps 200] [--seed 0] [--devices 1]
"""

import argparse
import warnings

import lightning
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset

import paretograd as pg
from paretograd.integrations.lightning import MultiObjectiveModule


class TwoTasks(MultiObjectiveModule):
    def __init__(self) -> None:
        super().__init__(rule=pg.UPGrad())
        self.trunk = nn.Sequential(nn.Linear(8, 64), nn.Tanh())
        self.heads = nn.ModuleDict({"sum": nn.Linear(64, 1), "difference": nn.Linear(64, 1)})

    def task_losses(self, batch: list[Tensor]) -> dict[str, Tensor]:
        features = self.trunk(batch[0])
        return {
            name: functional.mse_loss(self.heads[name](features), batch[k + 1]) for k, name in enumerate(self.heads)
        }

    def training_step(self, batch: list[Tensor], _: int) -> Tensor:
        return self.losses(self.task_losses(batch))

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.05)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--devices", type=int, default=1, help="number of processes")
    args = parser.parse_args()

    warnings.filterwarnings("ignore", message=".*(many workers|LeafSpec|logger).*")  # noise from Lightning
    lightning.seed_everything(args.seed, verbose=False)
    x = torch.randn(2048, 8)
    data = TensorDataset(x, x[:, :1].sin() + x[:, 1:2], x[:, 1:2] - x[:, 2:3].square())
    model = TwoTasks()
    before = model.task_losses(data[:])
    quiet = dict.fromkeys(["logger", "enable_checkpointing", "enable_progress_bar", "enable_model_summary"], False)
    trainer = lightning.Trainer(max_steps=args.steps, accelerator="cpu", devices=args.devices, **quiet)
    trainer.fit(model, DataLoader(data, batch_size=64 // args.devices, shuffle=True))
    for name, after in model.task_losses(data[:]).items() if trainer.is_global_zero else ():
        print(f"{name}: loss {before[name]:.4f} -> {after:.4f}")
    print("logged: " + ", ".join(f"{key}={value:.3g}" for key, value in trainer.callback_metrics.items()))


if __name__ == "__main__":
    main()
