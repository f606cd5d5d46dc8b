"""The trainers: the loop of Accelerate, and Lightning's manual optimization, each with a batch for every process."""

from __future__ import annotations

import logging
import os
import socket
import warnings
from importlib.util import find_spec
from typing import Any

import torch
from torch import nn

import paretograd as pg
from support.processes.common import DEVICE, Alone, Comparison, Tasks, batch, case, flat, flat_grad, task_losses
from support.processes.data_parallel import part

STEPS = 5


def as_launched(rank: int, size: int) -> None:
    """What torchrun puts into the environment. The process group is there already, so nothing listens at the port."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    told = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": size, "LOCAL_WORLD_SIZE": size, "MASTER_PORT": port}
    os.environ.update({key: str(value) for key, value in told.items()})
    os.environ.update({"MASTER_ADDR": "127.0.0.1", "TORCHELASTIC_RUN_ID": "test", "GROUP_RANK": "0"})


def alone(size: int) -> Alone:
    other = Alone(Tasks(), pg.UPGrad())
    for t in range(STEPS):
        other.step(lambda net, t=t: task_losses(net(batch(t, 4 * size))))
    return other


def compared(model: nn.Module, size: int) -> list[Comparison]:
    other = alone(size)
    return [
        Comparison("gradients", flat_grad(model), flat_grad(other.model)),
        Comparison("parameters", flat(model), flat(other.model)),
    ]


@case(2)
def accelerate_recipe(rank: int, size: int) -> list[Comparison]:
    if find_spec("accelerate") is None or DEVICE != "cpu":
        return []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        as_launched(rank, size)
        from accelerate import Accelerator

        accelerator = Accelerator(cpu=True)
        model = Tasks()
        wrapped, optimizer = accelerator.prepare(model, torch.optim.SGD(model.parameters(), lr=0.1))
        assert accelerator.num_processes == size
        for t in range(STEPS):
            optimizer.zero_grad()
            x = part(batch(t, 4 * size), rank, size)
            pg.backward(task_losses(wrapped(x)), pg.UPGrad(), samples=len(x))
            optimizer.step()
    return compared(model, size)


@case(2)
def lightning_recipe(rank: int, size: int) -> list[Comparison]:
    if find_spec("lightning") is None or DEVICE != "cpu":
        return []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        as_launched(rank, size)
        logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
        import lightning

        class Module(lightning.LightningModule):
            def __init__(self) -> None:
                super().__init__()
                self.automatic_optimization = False
                self.tasks = Tasks()

            def training_step(self, number: torch.Tensor, _: int) -> None:
                optimizer: Any = self.optimizers()
                optimizer.zero_grad()
                x = part(batch(int(number), 4 * size), rank, size)
                pg.backward(task_losses(self.tasks(x)), pg.UPGrad(), samples=len(x))
                optimizer.step()

            def configure_optimizers(self) -> torch.optim.Optimizer:
                return torch.optim.SGD(self.parameters(), lr=0.1)

        module = Module()
        trainer = lightning.Trainer(
            max_epochs=1,
            accelerator="cpu",
            devices=size,
            strategy="ddp",
            logger=False,
            enable_checkpointing=False,
            enable_progress_bar=False,
            enable_model_summary=False,
            use_distributed_sampler=False,
        )
        trainer.fit(module, torch.utils.data.DataLoader(range(STEPS), batch_size=1))
        assert trainer.world_size == size
    return compared(module.tasks, size)
