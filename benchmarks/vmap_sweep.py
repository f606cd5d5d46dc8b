"""Compare batched backward passes with plain ones on every differentiable operator of torch's own test suite.

    python benchmarks/vmap_sweep.py                            # all operators: three minutes
    python benchmarks/vmap_sweep.py --operators cdist,roll     # prints only
    python benchmarks/vmap_sweep.py --device cuda

The engine "batched" differentiates all losses in one pass under `torch.vmap`. If an operator's backward pass cannot be
batched, the pass fails, and the engine notices. If its batching rule is wrong, so are the rows. This sweep finds both
kinds of operators in the installed torch.

For each operator and each sample input in float64, it pulls back three random cotangents: one at a time, together under
`torch.vmap`, and together by ``torch.autograd.grad(is_grads_batched=True)``. The operators run in another process. If
that crashes or takes too long, the sweep reports it and continues with the next operator. Findings are saved in
`benchmarks/results/vmap-<device>.json`. torch's test suite needs expecttest, which is in the extra `bench`.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import platform
import sys
import warnings
from collections.abc import Callable, Sequence
from multiprocessing.connection import Connection
from time import perf_counter
from typing import Any

import torch
from common import ROOT, markdown_table, processor, progress, replace
from torch import Tensor
from torch.testing._internal.common_methods_invocations import op_db
from torch.utils._pytree import tree_leaves

COTANGENTS = 3
#: Both sum the same float64 numbers, perhaps in another order; a wrong rule is wrong in the leading digits.
TOLERANCE = 1e-8
#: Cotangents are of order one: smaller differences are rounding in rows that are zero, such as the norm of one number.
ROUNDING = 1e-12
Result = dict[str, Any]


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


def plainly(op: Any, sample: Any) -> tuple[list[Tensor], list[Tensor], list[Tensor], list[Tensor]] | None:
    """Return outputs, inputs with a gradient, cotangents and rows; None if the sample has no dense derivatives."""
    given = tree_leaves([sample.input, sample.args, sample.kwargs])
    inputs = [leaf for leaf in given if isinstance(leaf, Tensor) and leaf.requires_grad]
    try:
        made = tree_leaves(sample.output_process_fn_grad(op(sample.input, *sample.args, **sample.kwargs)))
        outputs = [leaf for leaf in made if isinstance(leaf, Tensor) and leaf.requires_grad]
        if not outputs or not inputs or any(leaf.layout is not torch.strided for leaf in outputs + inputs):
            return None
        seeds = [torch.randn(COTANGENTS, *leaf.shape, dtype=leaf.dtype, device=leaf.device) for leaf in outputs]
        rows = plain_rows(outputs, inputs, seeds)
    except (RuntimeError, ValueError, TypeError):
        return None
    found = [(leaf, row) for leaf, row in zip(inputs, rows, strict=True) if row is not None]
    if not found or any(row.layout is not torch.strided for _, row in found):
        return None
    return outputs, [leaf for leaf, _ in found], seeds, [row for _, row in found]


def compare(op: Any, sample: Any, result: Result) -> None:
    """Compare both ways with plain passes, and add what was found to the operator's result."""
    plain = plainly(op, sample)
    if plain is None:
        result["skipped"] += 1
        return
    *given, expected = plain
    result["samples"] += 1
    for name, way in WAYS.items():
        try:
            error = difference(way(*given), expected)
        except Exception as caught:  # noqa: BLE001 (any failure is a finding)
            result[name]["failed"] += 1
            result[name].setdefault("failure", {"sample": described(sample), "error": words(caught)})
            continue
        if error > TOLERANCE:
            result[name]["wrong"] += 1
            result[name].setdefault("example", {"sample": described(sample), "error": error})


# ---- all operators, in a process that may die ------------------------------------------------------------------------


def differentiable(device: str) -> list[Any]:
    """Return the operators of torch's database that have derivatives in float64."""
    return [op for op in op_db if op.supports_autograd and torch.float64 in op.supported_dtypes(device)]


def blank(name: str) -> Result:
    return {"operator": name, "samples": 0, "skipped": 0, **{way: {"wrong": 0, "failed": 0} for way in WAYS}}


def serve(connection: Connection, device: str) -> None:
    """Answer each number of an operator with its result, until None comes."""
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")  # slow fallbacks, deprecated operators
    operators = differentiable(device)
    connection.send([op.full_name for op in operators])
    while (number := connection.recv()) is not None:
        op = operators[number]
        result = blank(op.full_name)
        torch.manual_seed(0)
        for sample in op.sample_inputs(device, torch.float64, requires_grad=True):
            compare(op, sample, result)
        connection.send(result)


class Worker:
    """A process that answers `serve`; a new one takes the place of one that died."""

    def __init__(self, device: str, seconds: float) -> None:
        self.device, self.seconds = device, seconds
        self.start()

    def start(self) -> None:
        context = multiprocessing.get_context("spawn")
        self.connection, other = context.Pipe()
        self.process = context.Process(target=serve, args=(other, self.device), daemon=True)
        self.process.start()
        other.close()
        self.names: list[str] = self.connection.recv()

    def result(self, number: int) -> Result:
        """Return the result of an operator, with a reason under ``stopped`` if its process crashed or took too long."""
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
        return {**blank(self.names[number]), "stopped": reason}

    def stop(self) -> None:
        self.connection.send(None)
        self.process.join()


# ---- what is reported ------------------------------------------------------------------------------------------------


def table(results: Sequence[Result]) -> str:
    """Return the operators with wrong rows or failures as a table, the wrong ones first."""
    rows = []
    for result in sorted(results, key=lambda r: (-max(r[way]["wrong"] for way in WAYS), r["operator"])):
        ways = [result[way] for way in WAYS]
        first = next((way[kind] for kind in ("example", "failure") for way in ways if kind in way), None)
        if first is None and "stopped" not in result:
            continue
        counts = [str(way[kind]) for kind in ("wrong", "failed") for way in ways]
        reason = result.get("stopped") or (
            first["error"] if isinstance(first["error"], str) else f"error {first['error']:.1g}: {first['sample']}"
        )
        rows.append([result["operator"], reason.replace("|", "/")[:110], str(result["samples"]), *counts])
    headings = ["operator", "first finding", "samples"]
    headings += [f"{kind}, {way}" for kind in ("wrong", "failed") for way in WAYS]
    return "\n".join(markdown_table(headings, rows, names=2))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--operators", help="operators, separated by commas; all by default; writes no file")
    parser.add_argument("--device", default="cpu", choices=["cpu", "cuda"], help="device (default cpu)")
    parser.add_argument("--seconds", type=float, default=120.0, help="time limit of an operator (default 120)")
    arguments = parser.parse_args()
    start = perf_counter()
    worker = Worker(arguments.device, arguments.seconds)
    chosen = arguments.operators.split(",") if arguments.operators else worker.names
    unknown = sorted(set(chosen) - set(worker.names))
    if unknown:
        parser.error(f"unknown operators: {', '.join(unknown)}")
    numbers = [number for number, name in enumerate(worker.names) if name in chosen]
    results = []
    for done, number in enumerate(numbers):
        progress(done, len(numbers), worker.names[number], perf_counter() - start)
        results.append(worker.result(number))
    worker.stop()
    print(file=sys.stderr)

    totals = {way: {kind: sum(result[way][kind] for result in results) for kind in ("wrong", "failed")} for way in WAYS}
    summary = {
        "torch": torch.__version__,
        "python": platform.python_version(),
        "device": torch.cuda.get_device_name() if arguments.device == "cuda" else processor(),
        "operators": sum(result["samples"] > 0 for result in results),
        "samples": sum(result["samples"] for result in results),
        "skipped": sum(result["skipped"] for result in results),
        "totals": totals,
        "findings": [r for r in results if "stopped" in r or any(sum((r[w]["wrong"], r[w]["failed"])) for w in WAYS)],
    }
    if arguments.operators is None:
        results_file = ROOT / "benchmarks" / "results" / f"vmap-{arguments.device}.json"
        replace(results_file, json.dumps(summary, indent=1) + "\n")
    print(table(results))
    print("\n{operators} operators, {samples} samples, {skipped} skipped; torch {torch}".format(**summary))
    for way, counts in totals.items():
        print(f"{way}: {counts['wrong']} samples with wrong rows, {counts['failed']} failures")


if __name__ == "__main__":
    main()
