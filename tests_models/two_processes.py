"""Run by `test_trainer.py` under torchrun: `MultiObjectiveTrainer` under DDP against a plain loop on all batches."""

from __future__ import annotations

import tempfile
from pathlib import Path

import torch
from support.agreement import agree
from test_trainer import train_plainly, trainer

import paretograd as pg

with tempfile.TemporaryDirectory() as folder:
    used = trainer(pg.GradVac(), Path(folder), 56, gradient_accumulation_steps=3, max_grad_norm=0.2, ddp_backend="gloo")
    used.train()
world = torch.distributed.get_world_size()
everyone: list = [None] * world
torch.distributed.all_gather_object(everyone, used.seen)
torch.distributed.destroy_process_group()
assert not torch.equal(everyone[0][0], everyone[1][0])
assert type(used.model_wrapped).__name__ == "DistributedDataParallel"
whole = [torch.cat(parts) for parts in zip(*everyone, strict=True)]
agree(used.model, train_plainly(pg.GradVac(), whole, 3, 0.2))
print(f"{world} processes agree with one")
