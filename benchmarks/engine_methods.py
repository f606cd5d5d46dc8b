"""The methods that are compared: plain torch, a loop, TorchJD's variants, ours, and the floor of captured steps."""

from __future__ import annotations

from collections.abc import Callable

import torch
from engine_models import Problem

import paretograd as pg

try:
    from torchjd.aggregation import UPGrad as TorchJDUPGrad
    from torchjd.aggregation import UPGradWeighting
    from torchjd.autogram import Engine
    from torchjd.autojac import backward, jac_to_grad, mtl_backward

    MISSING = None
except ImportError as error:
    MISSING = str(error)
    TorchJDUPGrad = None

PLAIN, LOOP, PEER = "plain sum", "loop", "TorchJD"
AUTO, CAPTURED, FLOOR = "paretograd, auto", "paretograd, captured", "floor, captured"

#: Untimed steps at the start of a run, in which `auto` tries the ways, and after which a step is captured.
FIRST_STEPS = 8

Step = Callable[[], object]
Method = Callable[[Problem], Step]


def plain(problem: Problem) -> Step:
    return lambda: torch.stack(problem.losses()).sum().backward()


def loop(problem: Problem) -> Step:
    """Run one backward pass per loss, and store the Jacobian as one matrix."""

    def step() -> None:
        losses, shared, rows = problem.losses(), problem.shared, []
        for k, (loss, own) in enumerate(zip(losses, problem.own or [[]] * len(losses), strict=True)):
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


def ours(engine: str, first_steps: int = 0) -> Method:
    def make(problem: Problem) -> Step:
        def step() -> object:
            return pg.backward(problem.losses(), pg.UPGrad(), engine=engine)

        for _ in range(first_steps):
            step()
            problem.clear()
        return step

    return make


def captured(problem: Problem) -> Step:
    """Capture a step in a CUDA graph. Raise an error if it would run eagerly instead."""
    replay = pg.capture(lambda *inputs: problem.forward(*inputs)[0], pg.UPGrad(), params=problem.model)
    for _ in range(FIRST_STEPS):
        replay(*problem.inputs)
    if replay.reason is not None:
        raise RuntimeError(f"not captured: {replay.reason}")
    return lambda: replay(*problem.inputs)


def floor(problem: Problem) -> Step:
    """Capture the forward pass and one backward pass per loss in a CUDA graph; the gradients are discarded."""

    def passes() -> None:
        losses = problem.losses()
        for k, (loss, own) in enumerate(zip(losses, problem.own or [[]] * len(losses), strict=True)):
            torch.autograd.grad(loss, problem.shared + own, retain_graph=k < len(losses) - 1)

    beside = torch.cuda.Stream()
    beside.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(beside):
        for _ in range(3):
            passes()
    torch.cuda.current_stream().wait_stream(beside)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        passes()
    return graph.replay


def autojac(chunk: int | None, by_blocks: bool) -> Method:
    """Use TorchJD's `mtl_backward` if the losses share features, and its `backward` otherwise."""

    def make(problem: Problem) -> Step:
        rule = TorchJDUPGrad()

        def step() -> None:
            losses, features = problem.forward(*problem.inputs)
            if features is None:
                backward(losses, inputs=problem.shared, parallel_chunk_size=chunk)
            else:
                mtl_backward(losses, features=features, parallel_chunk_size=chunk)
            jac_to_grad(problem.shared, rule, optimize_gramian_computation=by_blocks)

        return step

    return make


def autogram(problem: Problem) -> Step:
    """Use TorchJD's Gramian engine, without a batch dimension because the losses are means over the batch."""
    engine, rule = Engine(problem.model.trunk, batch_dim=None), UPGradWeighting()
    own = [param for params in problem.own for param in params]

    def step() -> None:
        losses = torch.stack(problem.losses())
        if own:
            losses.sum().backward(inputs=own, retain_graph=True)
        losses.backward(rule(engine.compute_gramian(losses)), inputs=problem.shared)

    return step


def methods(problem: Problem, with_torchjd: bool) -> dict[str, Method]:
    """Return the methods for this problem, by label."""
    found: dict[str, Method] = {PLAIN: plain, LOOP: loop}
    if with_torchjd:
        name = f"{PEER} mtl_backward" if problem.own else f"{PEER} backward"
        found |= {
            name: autojac(None, by_blocks=False),
            f"{name}, Gramian by blocks": autojac(None, by_blocks=True),
            f"{name}, sequential": autojac(1, by_blocks=False),
            f"{name}, sequential, by blocks": autojac(1, by_blocks=True),
            f"{PEER} autogram": autogram,
        }
    found |= {AUTO: ours("auto", FIRST_STEPS)}
    found |= {f"paretograd, {engine}": ours(engine) for engine in ("jacobian", "batched", "gramian")}
    return found | ({CAPTURED: captured, FLOOR: floor} if problem.device.type == "cuda" else {})
