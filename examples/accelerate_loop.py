"""Accelerate: replace `accelerator.backward` with `pg.backward`, in one process or several.

Each process computes the losses of its own part of the batch. `pg.backward` detects that the model is under
DistributedDataParallel and averages the gradients of each loss over the processes before it aggregates them, so
several processes take the same step as one process with the whole batch. `samples=` weights each process by its
number of samples, which may differ in the last batch of an epoch.

mixed_precision="bf16" needs no changes; for "fp16" use the scaler in `accelerator.scaler`, see amp.py.

Run: pip install 'paretograd[examples]'; python examples/accelerate_loop.py [--steps 200] [--seed 0]
or:  torchrun --nproc_per_node 2 examples/accelerate_loop.py
"""

import argparse

import torch
from accelerate import Accelerator
from accelerate.utils import set_seed
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset

import paretograd as pg


def make_data(count: int) -> tuple[Tensor, Tensor]:
    """Return inputs (count, 8) and two targets for each."""
    x = torch.randn(count, 8)
    return x, torch.stack([x[:, 0].sin() + x[:, 1], x[:, 1] - x[:, 2].square()], dim=1)


def task_losses(model: nn.Module, x: Tensor, y: Tensor) -> list[Tensor]:
    return list(functional.mse_loss(model(x), y, reduction="none").mean(dim=0).unbind())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()

    accelerator = Accelerator(cpu=True)  # omit cpu=True to use the available devices
    set_seed(args.seed)
    x, y = make_data(2048)
    model = nn.Sequential(nn.Linear(8, 64), nn.Tanh(), nn.Linear(64, 2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    loader = DataLoader(TensorDataset(x, y), batch_size=64, shuffle=True)
    before = [loss.item() for loss in task_losses(model, x, y)]
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    rule, done, gammas = pg.UPGrad(), 0, []
    while done < args.steps:
        for batch in loader:
            optimizer.zero_grad()
            step = pg.backward(task_losses(model, *batch), rule, samples=len(batch[0]))
            optimizer.step()
            gammas.append(step.gamma)
            done += 1
            if done == args.steps:
                break
    after = [loss.item() for loss in task_losses(accelerator.unwrap_model(model), x, y)]
    accelerator.print(f"{accelerator.num_processes} process(es), gamma {gammas[0]:.3g} -> {gammas[-1]:.3g}")
    for k, (old, new) in enumerate(zip(before, after, strict=True)):
        accelerator.print(f"task {k}: loss {old:.4f} -> {new:.4f}")
    flat = torch.cat([param.detach().reshape(-1) for param in model.parameters()])
    everyone = accelerator.gather(flat.reshape(1, -1))
    accelerator.print(f"parameters agree in all processes: {bool((everyone == everyone[0]).all())}")
    accelerator.end_training()


if __name__ == "__main__":
    main()
