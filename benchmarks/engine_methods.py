"""The methods that are compared: plain torch, a naive loop, TorchJD's variants, and ours."""

from __future__ import annotations

from collections.abc import Callable

import torch
from engine_models import Problem

import paretograd as pg

try:
    from torchjd.aggregation import UPGrad as TorchJDUPGrad
    from torchjd.aggregation import UPGradWeighting
    from torchjd.autogram import Engine
    from torchjd.autojac import jac_to_grad, mtl_backward

    MISSING = None
except ImportError as error:
    MISSING = str(error)
    TorchJDUPGrad = None

PLAIN, NAIVE, OURS, PEER = "plain sum", "naive loop", "paretograd, gramian", "TorchJD"

Step = Callable[[], object]


def plain(problem: Problem) -> Step:
    return lambda: torch.stack(problem.losses()[0]).sum().backward()


def naive(problem: Problem) -> Step:
    """Run one backward pass per loss, and store the Jacobian as one matrix."""

    def step() -> None:
        losses, _ = problem.losses()
        shared, rows = problem.shared, []
        for k, (loss, head) in enumerate(zip(losses, problem.heads, strict=True)):
            own = list(head.parameters())
            grads = torch.autograd.grad(loss, shared + own, retain_graph=k < len(losses) - 1)
            rows.append(torch.cat([grad.reshape(-1).to(loss.device) for grad in grads[: len(shared)]]))
            for param, grad in zip(own, grads[len(shared) :], strict=True):
                param.grad = grad
        J = torch.stack(rows)
        del rows, grads
        direction = pg.UPGrad().weights(J @ J.T) @ J
        for param, grad in zip(shared, direction.split([param.numel() for param in shared]), strict=True):
            param.grad = grad.reshape(param.shape).to(param.device)

    return step


def ours(engine: str) -> Callable[[Problem], Step]:
    return lambda problem: lambda: pg.backward(problem.losses()[0], pg.UPGrad(), engine=engine)


def autojac(chunk: int | None, by_blocks: bool) -> Callable[[Problem], Step]:
    def make(problem: Problem) -> Step:
        rule = TorchJDUPGrad()

        def step() -> None:
            losses, features = problem.losses()
            mtl_backward(losses, features=features, parallel_chunk_size=chunk)
            jac_to_grad(problem.shared, rule, optimize_gramian_computation=by_blocks)

        return step

    return make


def autogram(problem: Problem) -> Step:
    """Use TorchJD's Gramian engine, without a batch dimension because the losses are means over the batch."""
    engine, rule = Engine(problem.trunk, batch_dim=None), UPGradWeighting()

    def step() -> None:
        losses = torch.stack(problem.losses()[0])
        losses.sum().backward(inputs=list(problem.heads.parameters()), retain_graph=True)
        losses.backward(rule(engine.compute_gramian(losses)), inputs=problem.shared)

    return step


def methods(with_torchjd: bool) -> dict[str, Callable[[Problem], Step]]:
    found = {PLAIN: plain, NAIVE: naive}
    if with_torchjd:
        found |= {
            f"{PEER} mtl_backward": autojac(None, by_blocks=False),
            f"{PEER} mtl_backward, Gramian by blocks": autojac(None, by_blocks=True),
            f"{PEER} mtl_backward, sequential": autojac(1, by_blocks=False),
            f"{PEER} mtl_backward, sequential, by blocks": autojac(1, by_blocks=True),
            f"{PEER} autogram": autogram,
        }
    return found | {OURS: ours("gramian"), "paretograd, jacobian": ours("jacobian")}
