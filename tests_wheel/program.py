"""A program of a user, whose types mypy and pyright check against the installed wheel."""

import torch
from torch import Tensor, nn

import paretograd as pg

torch.manual_seed(0)
inputs, targets = torch.randn(64, 4), torch.randn(64, 2)
trunk, heads = nn.Sequential(nn.Linear(4, 16), nn.Tanh()), nn.ModuleList([nn.Linear(16, 1), nn.Linear(16, 1)])
optimizer = torch.optim.SGD([*trunk.parameters(), *heads.parameters()], lr=0.1)
rule: pg.Aggregator = pg.UPGrad()


def losses() -> dict[str, Tensor]:
    features: Tensor = trunk(inputs)
    return {f"task {k}": (head(features)[:, 0] - targets[:, k]).square().mean() for k, head in enumerate(heads)}


before = [loss.item() for loss in losses().values()]
metrics: dict[str, float] = {}
for _ in range(20):
    optimizer.zero_grad()
    step: pg.Step = pg.backward(losses(), rule)
    optimizer.step()
    metrics = step.metrics()
after = [loss.item() for loss in losses().values()]
assert all(new < old for new, old in zip(after, before, strict=True)), (before, after)

G: Tensor = pg.gramian(torch.randn(3, 5, dtype=torch.float64))
certificate: pg.StepCertificate = pg.certify(G, rule.weights(G))
assert not certificate.conflicts
assert isinstance(pg.get("cagrad", c=0.3), pg.CAGrad)
print(f"{len(pg.names())} rules; losses {before} -> {after}; {len(metrics)} metrics")
