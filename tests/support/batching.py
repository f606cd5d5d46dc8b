"""Compare batched backward passes with plain ones on the operators of torch's own test suite.

For each operator and each sample input in float64, three random cotangents are pulled back: one at a time, together
under `torch.vmap`, and together by ``torch.autograd.grad(is_grads_batched=True)``. A test verifies the operations that
the engine may batch (`tests/autograd/test_verified_operations.py`); `benchmarks/vmap_sweep.py` reports on all of them.

The operators run in a process of their own (`Worker`): some may crash, and torch's test suite, which needs expecttest,
changes settings of torch when it is imported.
"""

from __future__ import annotations

import multiprocessing
import warnings
from collections.abc import Callable, Sequence, Set
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves

COTANGENTS = 3
#: Both sum the same float64 numbers, perhaps in another order; a wrong rule is wrong in the leading digits.
TOLERANCE = 1e-8
#: Cotangents are of order one: smaller differences are rounding in rows that are zero, such as the norm of one number.
ROUNDING = 1e-12


# ---- one operator ----------------------------------------------------------------------------------------------------


def plain_rows(outputs: Sequence[Tensor], inputs: Sequence[Tensor], seeds: Sequence[Tensor]) -> list[Tensor | None]:
    """Return the rows of all cotangents for each input, or None for an input that gets no gradient."""
    rows = [
        torch.autograd.grad(outputs, inputs, [seed[k] for seed in seeds], retain_graph=True, allow_unused=True)
        for k in range(COTANGENTS)
    ]
    return [None if any(row is None for row in column) else torch.stack(column) for column in zip(*rows, strict=True)]


def with_vmap(outputs: Sequence[Tensor], inputs: Sequence[Tensor], seeds: Sequence[Tensor]) -> Sequence[Tensor]:
    """Return the rows of one pass under `torch.vmap`, as the engine computes them."""

    def pull(*cotangents: Tensor) -> tuple[Tensor, ...]:
        return torch.autograd.grad(outputs, inputs, cotangents, retain_graph=True)

    rows: Sequence[Tensor] = torch.vmap(pull, randomness="same")(*seeds)
    return rows


def with_flag(outputs: Sequence[Tensor], inputs: Sequence[Tensor], seeds: Sequence[Tensor]) -> Sequence[Tensor]:
    """Return the rows of one pass with ``is_grads_batched``."""
    rows: Sequence[Tensor] = torch.autograd.grad(outputs, inputs, seeds, retain_graph=True, is_grads_batched=True)
    return rows


WAYS: dict[str, Callable[..., Sequence[Tensor]]] = {"torch.vmap": with_vmap, "is_grads_batched": with_flag}


def difference(rows: Sequence[Tensor], expected: Sequence[Tensor]) -> float:
    """Return the largest difference over the largest entry, from 0 to 1; 1 if shapes or non-finite entries differ."""
    error = scale = 0.0
    for row, want in zip(rows, expected, strict=True):
        finite = want.isfinite()
        if row.shape != want.shape or not torch.equal(row.isfinite(), finite):
            return 1.0
        if finite.any():
            error = max(error, float((row - want)[finite].abs().max()))
            scale = max(scale, float(want[finite].abs().max()))
    return error / max(scale, error) if error > ROUNDING else 0.0


def words(error: Exception) -> str:
    """Return the type of an error and the first line of its message."""
    return f"{type(error).__name__}: {str(error).strip().partition(chr(10))[0][:150]}"


def described(sample: Any) -> str:
    """Return shapes and arguments of a sample, on one line."""

    def short(value: object) -> str:
        if isinstance(value, torch.Tensor):
            return f"{str(value.dtype).removeprefix('torch.')}{list(value.shape)}"
        if isinstance(value, list | tuple):
            return f"({', '.join(map(short, value))})"
        return repr(value)

    named = [f"{name}={short(value)}" for name, value in sample.kwargs.items()]
    return ", ".join([short(sample.input), *map(short, sample.args), *named])[:200]


def applied(op: Any, sample: Any) -> tuple[list[Tensor], list[Tensor]] | None:
    """Return the outputs of an operator, and inputs that require a gradient; None if there are no dense ones."""
    given = tree_leaves([sample.input, sample.args, sample.kwargs])
    inputs = [leaf for leaf in given if isinstance(leaf, Tensor) and leaf.requires_grad]
    try:
        made = tree_leaves(sample.output_process_fn_grad(op(sample.input, *sample.args, **sample.kwargs)))
    except (RuntimeError, ValueError, TypeError):
        return None
    outputs = [leaf for leaf in made if isinstance(leaf, Tensor) and leaf.requires_grad]
    if not outputs or not inputs or any(leaf.layout is not torch.strided for leaf in outputs + inputs):
        return None
    return outputs, inputs


def plainly(
    outputs: Sequence[Tensor], inputs: Sequence[Tensor]
) -> tuple[list[Tensor], list[Tensor], list[Tensor]] | None:
    """Return the inputs with a gradient, cotangents and rows; None if there are no dense derivatives."""
    try:
        seeds = [torch.randn(COTANGENTS, *leaf.shape, dtype=leaf.dtype, device=leaf.device) for leaf in outputs]
        rows = plain_rows(outputs, inputs, seeds)
    except (RuntimeError, ValueError, TypeError):
        return None
    found = [(leaf, row) for leaf, row in zip(inputs, rows, strict=True) if row is not None]
    if not found or any(row.layout is not torch.strided for _, row in found):
        return None
    return [leaf for leaf, _ in found], seeds, [row for _, row in found]


def nodes(outputs: Sequence[Tensor]) -> set[str]:
    """Return the names of the nodes of a graph without their numbers, such as ``Addmm``."""
    waiting = [leaf.grad_fn for leaf in outputs if leaf.grad_fn is not None]
    seen = set(waiting)
    while waiting:
        new = {child for child, _ in waiting.pop().next_functions if child is not None} - seen
        seen |= new
        waiting += new
    names = {node.name().rpartition("::")[2].rstrip("0123456789").removesuffix("Backward") for node in seen}
    return names - {"AccumulateGrad"}


@dataclass
class Tally:
    """The samples on which a way gives wrong rows or fails, and the first of them in words."""

    wrong: int = 0
    failed: int = 0
    first: str = ""


@dataclass
class Result:
    """Findings about one operator.

    Attributes:
        samples: number of samples that were compared.
        skipped: number of samples without dense derivatives.
        stopped: why the operator has no result, if it crashed or took too long.
        ways: the tally of each way.
        right: nodes of the graphs on which `torch.vmap` agrees with plain passes.
        suspects: nodes of the graphs on which it does not; one of each graph is at fault.
    """

    operator: str
    samples: int = 0
    skipped: int = 0
    stopped: str = ""
    ways: dict[str, Tally] = field(default_factory=lambda: {way: Tally() for way in WAYS})
    right: set[str] = field(default_factory=set)
    suspects: set[str] = field(default_factory=set)

    def add(self, op: Any, sample: Any, among: Set[str] | None = None) -> None:
        """Compare both ways with plain passes on a sample, if its graph has one of some nodes."""
        graph = applied(op, sample)
        if graph is not None and among is not None and among.isdisjoint(nodes(graph[0])):
            return
        plain = None if graph is None else plainly(*graph)
        if graph is None or plain is None:
            self.skipped += 1
            return
        given, expected = (graph[0], *plain[:2]), plain[2]
        self.samples += 1
        for name, way in WAYS.items():
            tally = self.ways[name]
            try:
                error = difference(way(*given), expected)
            except Exception as caught:  # noqa: BLE001 (any failure is a finding)
                tally.failed += 1
                tally.first = tally.first or f"{words(caught)} ({described(sample)})"
                agrees = False
            else:
                agrees = error <= TOLERANCE
                if not agrees:
                    tally.wrong += 1
                    tally.first = tally.first or f"error {error:.1g} ({described(sample)})"
            if name == "torch.vmap":
                (self.right if agrees else self.suspects).update(nodes(graph[0]))

    def as_dict(self) -> dict[str, Any]:
        """Return the counts of an operator with findings, for JSON."""
        found = {name: vars(tally) for name, tally in self.ways.items() if tally.first}
        stopped = {"stopped": self.stopped} if self.stopped else {}
        return {"operator": self.operator, "samples": self.samples, **stopped, **found}


# ---- all operators, in a process that may die ------------------------------------------------------------------------


def differentiable(device: str) -> list[Any]:
    """Return the operators of torch's database that have derivatives in float64."""
    from torch.testing._internal.common_methods_invocations import op_db

    return [op for op in op_db if op.supports_autograd and torch.float64 in op.supported_dtypes(device)]


def serve(connection: Connection, device: str, among: Set[str] | None) -> None:
    """Answer each number of an operator with its result, until None comes."""
    from torch.testing._internal.common_utils import set_rng_seed

    torch.set_num_threads(1)
    warnings.simplefilter("ignore")  # slow fallbacks, deprecated operators
    operators = differentiable(device)
    connection.send([op.full_name for op in operators])
    while (number := connection.recv()) is not None:
        op = operators[number]
        result = Result(op.full_name)
        set_rng_seed(0)
        # op.sample_inputs would seed for every sample and look for a running test, which takes half of the time.
        for sample in op.sample_inputs_func(op, device, torch.float64, True):
            result.add(op, sample, among)
        connection.send(result)


class Worker:
    """A process that runs operators; a new one takes the place of one that died.

    Args:
        device: ``cpu`` or ``cuda``.
        seconds: time limit of an operator.
        among: compare only samples whose graph has one of these nodes; None for all.
    """

    def __init__(self, device: str = "cpu", seconds: float = 120.0, among: Set[str] | None = None) -> None:
        self.device, self.seconds, self.among = device, seconds, among
        self.start()

    def start(self) -> None:
        context = multiprocessing.get_context("spawn")
        self.connection, other = context.Pipe()
        self.process = context.Process(target=serve, args=(other, self.device, self.among), daemon=True)
        self.process.start()
        other.close()
        self.names: list[str] = self.connection.recv()

    def result(self, number: int) -> Result:
        """Return the result of an operator; start a new process if it crashes or takes too long."""
        try:
            self.connection.send(number)
            if self.connection.poll(self.seconds):
                found: Result = self.connection.recv()
                return found
            reason = f"took more than {self.seconds:g} s"
            self.process.kill()
        except (EOFError, ConnectionError):
            self.process.join()
            reason = f"crashed with exit code {self.process.exitcode}"
        self.start()
        return Result(self.names[number], stopped=reason)

    def stop(self) -> None:
        self.connection.send(None)
        self.process.join()
