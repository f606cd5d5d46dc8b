"""Accelerate: add up the gradients of micro-batches and apply the rule once, in one process or several.

Each process adds its own micro-batches; `samples=` weights them by their sizes. Without accumulation, call
`pg.backward(losses, rule, samples=...)`. `accelerator.save_state` saves the state of the rule, too.

Run: pip install 'paretograd[examples]'; python examples/accelerate_loop.py [--steps 200] [--seed 0]
or:  torchrun --nproc_per_node 2 examples/accelerate_loop.py
"""

import argparse
from itertools import count

import torch
from accelerate import Accelerator
from accelerate.utils import set_seed
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import paretograd as pg


def task_losses(model: nn.Module, x: Tensor, y: Tensor) -> dict[str, Tensor]:
    return dict(zip(("sum", "difference"), (model(x) - y).square().mean(dim=0).unbind(), strict=True))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()

    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=2)  # omit cpu=True to use the available devices
    set_seed(args.seed)
    x = torch.randn(2048, 8)
    y = torch.stack([x[:, 0].sin() + x[:, 1], x[:, 1] - x[:, 2].square()], dim=1)
    model = nn.Sequential(nn.Linear(8, 64), nn.Tanh(), nn.Linear(64, 2))
    before = task_losses(model, x, y)
    optimizer, data = torch.optim.SGD(model.parameters(), lr=0.05), TensorDataset(x, y)
    model, optimizer, loader = accelerator.prepare(model, optimizer, DataLoader(data, batch_size=32, shuffle=True))
    rule, rows, gammas = pg.UPGrad().as_module(), pg.accumulate(), []
    accelerator.register_for_checkpointing(rule)
    for batch in (batch for _ in count() for batch in loader):
        with accelerator.accumulate(model):
            rows.add(task_losses(model, *batch), samples=len(batch[0]))
            if accelerator.sync_gradients:
                gammas.append(rows.step(rule).gamma)
            optimizer.step()  # does nothing between two steps
            optimizer.zero_grad()
        if len(gammas) == args.steps:
            break
    accelerator.print(f"{accelerator.num_processes} process(es), gamma {gammas[0]:.3g} -> {gammas[-1]:.3g}")
    for name, after in task_losses(accelerator.unwrap_model(model), x, y).items():
        accelerator.print(f"{name}: loss {before[name]:.4f} -> {after:.4f}")
    everyone = accelerator.gather(nn.utils.parameters_to_vector(model.parameters()).detach()[None])
    accelerator.print(f"parameters agree in all processes: {bool((everyone == everyone[0]).all())}")
    accelerator.end_training()


if __name__ == "__main__":
    main()
