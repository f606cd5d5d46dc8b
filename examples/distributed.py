"""Several processes: the same call takes the same step as one process with the whole batch.

Under torchrun each process has a part of every batch. The model is under DistributedDataParallel, or with --fsdp under
`fully_shard`. `pg.backward` detects which, averages the gradients of each loss over the processes, and aggregates the
averages. Without torchrun the program runs in one process on the same batches, and prints the same numbers.

The data is divided unevenly on purpose: the last process has the smallest part of each batch. `samples=` gives the
number of samples of a process, so that all samples count equally.

Run: torchrun --nproc_per_node 2 examples/distributed.py [--steps 100] [--seed 0] [--fsdp]
or:  python examples/distributed.py
"""

import argparse
import os

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel

import paretograd as pg


class TwoTasks(nn.Module):
    """A shared trunk with two regression heads."""

    def __init__(self) -> None:
        super().__init__()
        self.trunk = nn.Sequential(nn.Linear(8, 64), nn.Tanh())
        self.heads = nn.ModuleList([nn.Linear(64, 1), nn.Linear(64, 1)])

    def forward(self, x: Tensor) -> list[Tensor]:
        features = self.trunk(x)
        return [head(features) for head in self.heads]


def make_batch(step: int, seed: int) -> tuple[Tensor, Tensor]:
    """Return inputs (61, 8) and two targets for each, the same on every process."""
    x = torch.randn(61, 8, generator=torch.Generator().manual_seed(1000 * seed + step), dtype=torch.float64)
    return x, torch.stack([x[:, 0].sin() + x[:, 1], x[:, 1] - x[:, 2].square()], dim=1)


def task_losses(model: nn.Module, x: Tensor, y: Tensor) -> list[Tensor]:
    return [functional.mse_loss(output, y[:, k : k + 1]) for k, output in enumerate(model(x))]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--fsdp", action="store_true", help="shard the parameters over the processes")
    args = parser.parse_args()

    rank, size = 0, 1
    if "RANK" in os.environ:  # started by torchrun
        dist.init_process_group("gloo")  # "nccl" on GPUs
        rank, size = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(args.seed)  # same initial parameters everywhere
    model: nn.Module = TwoTasks().double()
    if size > 1 and args.fsdp:
        mesh = init_device_mesh("cpu", (size,))  # "cuda" on GPUs; the default mesh would use any GPU
        fully_shard(model.trunk, mesh=mesh)
        fully_shard(model, mesh=mesh)
    elif size > 1:
        model = DistributedDataParallel(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    for number in range(args.steps):
        x, y = (part.tensor_split(size)[rank] for part in make_batch(number, args.seed))
        optimizer.zero_grad()
        losses = task_losses(model, x, y)
        step = pg.backward(losses, pg.UPGrad(), samples=len(x))  # the same call for any wrapper
        optimizer.step()
    test = task_losses(model, *make_batch(-1, args.seed))  # the same on every process
    if rank == 0:
        weights = ", ".join(f"{w:.8f}" for w in step.weights)
        print(f"{size} process(es), weights of the last step: {weights}, gamma {step.gamma:.8f}")
        for k, loss in enumerate(test):
            print(f"task {k}: loss {loss.item():.10f}")
    if size > 1:
        dist.barrier()
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
