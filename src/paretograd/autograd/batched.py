"""`BatchedRows`: all rows in one backward pass, under `torch.vmap`.

A batched pass saves launches and small products, but not every operation of torch is right in it: the backward of
`torch.cdist`, for one, returns the first row for all. So a pass is batched only through operations on a list that tests
derive anew, and its rows are compared with plain passes when a kind of graph is first seen (`choice.py`).

The heads of m tasks form m small graphs. A batched pass would push m rows through each of them, all zero but one. So
one plain pass through all heads gives the gradient of each loss at the top of the shared part, and the gradients of the
heads' own parameters.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import groupby
from typing import NamedTuple

import torch
from torch import Tensor
from torch.autograd.graph import GradientEdge, Node

from paretograd.autograd.call import Plan, is_private
from paretograd.autograd.graph import LEAF, Graph, Losses
from paretograd.autograd.rows import Rows
from paretograd.autograd.segments import Segment, chunks, joined, segments, whole
from paretograd.autograd.ways import Pairs, RowsWay, present
from paretograd.geometry.row_lists import accumulator, factor_dtype

Inputs = Sequence[Tensor | GradientEdge]

#: Operations whose backward passes are right under `torch.vmap` on all samples of torch's own test suite, by the names
#: of their nodes without the number. `benchmarks/vmap_sweep.py` derives them.
SWEPT = frozenset(
    (
        *("Addmm", "Mm", "Bmm", "Baddbmm", "Addbmm", "Mv", "Dot", "Vdot", "Addmv", "Addr", "Trilinear", "Convolution"),
        *("Add", "Sub", "Rsub", "Mul", "Div", "Neg", "Addcmul", "Addcdiv", "Lerp", "Where", "MaskedFill", "NanToNum"),
        *("Pow", "Sqrt", "Rsqrt", "Reciprocal", "Exp", "Exp2", "Expm1", "Log", "Log1P", "Log2", "Log10", "Xlogy"),
        *("Sin", "Cos", "Tan", "Atan", "Atan2", "Sinh", "Cosh", "Tanh", "Sigmoid", "Erf", "Hypot", "Sgn"),
        *("LogSigmoid", "Softplus", "Relu", "LeakyRelu", "PreluKernel", "Elu", "Celu", "Gelu", "Silu", "Mish", "Glu"),
        *("Hardtanh", "Hardswish", "Hardsigmoid", "Threshold", "Abs", "Clamp", "ClampMin", "ClampMax"),
        *("Maximum", "Minimum", "Max", "Min", "Amax", "Amin", "Topk", "Sort", "Median"),
        *("Sum", "Mean", "Var", "VarMean", "Std", "StdMean", "Prod", "Norm", "LinalgVectorNorm", "Cumsum", "Cumprod"),
        *("Logsumexp", "Logaddexp", "Softmax", "SafeSoftmax", "SoftmaxBackwardData", "LogSoftmax"),
        *("View", "UnsafeView", "ReshapeAlias", "T", "Transpose", "Permute", "Expand", "Repeat", "Flip", "Unfold"),
        *("Select", "Slice", "Unbind", "Split", "SplitWithSizes", "UnsafeSplit", "Diagonal", "DiagonalBackward0_copy"),
        *("Stack", "Cat", "Clone", "Alias", "ToCopy", "CopySlices", "AsStrided", "ConstantPadNd", "Tril", "Triu"),
        *("Index", "IndexAdd", "IndexCopy", "IndexPut", "IndexSelect", "Gather", "Scatter", "ScatterAdd", "Embedding"),
        *("NllLoss", "NllLoss2D", "MseLoss", "SmoothL1Loss", "HuberLoss", "BinaryCrossEntropy"),
        *("BinaryCrossEntropyWithLogits", "NativeLayerNorm", "NativeBatchNorm", "NativeGroupNorm"),
        *("MaxPool2DWithIndices", "AvgPool2D", "AdaptiveAvgPool2D", "GridSampler2D", "PixelShuffle"),
        *("UpsampleNearest2D", "UpsampleBilinear2D", "UpsampleBicubic2D", "ReflectionPad2D", "ReplicationPad2D"),
        *("ScaledDotProductFlashAttentionForCpu", "Complex", "ViewAsReal", "ViewAsComplex", "Conj"),
    )
)

#: Operations without samples of their own there, which only the check at the first sight of a graph verifies.
_COMMON = frozenset(
    (
        *("Squeeze", "Unsqueeze", "Linear", "NativeDropout", "CudnnBatchNorm", "FusedRmsNorm", "IndexPutImpl"),
        *("TanhBackward", "SoftplusBackward", "WeightNormInterface", "ScaledDotProductAttentionMath"),
        *("ScaledDotProductFlashAttention", "ScaledDotProductEfficientAttention", "ScaledDotProductCudnnAttention"),
    )
)

VERIFIED = SWEPT | _COMMON


def obstacle(graph: Graph) -> str | None:
    """Return why a pass through a graph is not batched; None if it may be."""
    for name in sorted(graph.operations):
        kind = name.rstrip("0123456789").removesuffix("Backward")
        if name != LEAF and kind not in VERIFIED:
            return f"{kind} has no verified batching rule"
    return None


class BatchedRows(RowsWay):
    """All rows in one pass, or some rows in each."""

    name = "batched"

    def __init__(self, plan: Plan, *, retain: bool = False, chunks: Sequence[int] | None = None) -> None:
        """Differentiate.

        Args:
            plan: the work.
            retain: retain the graph until `release`, whatever the call says.
            chunks: number of rows at a time for each of the graph's `segments`; None for all of them.
        """
        self._chunks = chunks
        super().__init__(plan, retain=retain)

    def _differentiate(self) -> None:
        plan = self.plan
        source, own = start(plan, free=not self._retain)
        for k, pairs in own.items():
            self._give_own(k, pairs)
        # Below the heads, rows do not mix, so that no further pass is needed to find one that is not finite.
        self._freed = not self._retain and source.below
        copies = plan.copies
        for part, chunk in self._parts():
            params = [param for param in plan.common if id(param) in part.leaves]
            inputs = [*(copies.get(id(param), param) for param in params), *part.ends]
            seeds: list[Tensor] = []
            for first in range(0, plan.m, chunk):
                last = first + chunk >= plan.m
                found = batched_rows(source.rows(first, first + chunk), inputs, free=self._freed and last)
                for param, rows in zip(params, found, strict=False):
                    if rows is not None:
                        self.rows.give_all(param, rows, first)
                if part.ends:
                    if found[-1] is None:
                        raise RuntimeError("no gradient reaches the end of a segment")
                    seeds.append(found[-1])
            if part.ends:
                source = Source(list(part.starts), [torch.cat(seeds)] * len(part.starts), below=True)

    def _parts(self) -> list[tuple[Segment, int]]:
        """Return the segments of the graph, those that take the same number of rows joined, with this number."""
        plan = self.plan
        if self._chunks is None or plan.call.chunk is not None:
            return [(whole(plan.graph), plan.call.chunk or plan.m)]
        parts = segments(plan.graph, plan.m)
        if len(parts) != len(self._chunks):
            return [(whole(plan.graph), plan.m)]
        runs = groupby(zip(parts, self._chunks, strict=True), key=lambda each: each[1])
        return [(joined([part for part, _ in run]), chunk) for chunk, run in runs]


def chunks_of(plan: Plan) -> list[int] | None:
    """Return how many rows may go through each segment of the graph at once; None if all may everywhere."""
    found = chunks(segments(plan.graph, plan.m), plan)
    return None if min(found) == plan.m else found


class Source(NamedTuple):
    """Start of a batched pass.

    Attributes:
        outputs: where it starts.
        seeds: for each of them the gradients of the m losses with respect to it, shape ``(m, *output)``.
        below: True if the losses' own parts lie above it.
        apart: True if the outputs are the losses.
    """

    outputs: list[Tensor | GradientEdge]
    seeds: list[Tensor]
    below: bool
    apart: bool = False

    def rows(self, first: int, end: int) -> Source:
        """Return the source for some of the losses. Those that start at themselves do not visit the others."""
        starts = slice(first, end) if self.apart else slice(None)
        return self._replace(outputs=self.outputs[starts], seeds=[seed[first:end] for seed in self.seeds[starts]])

    def scaled(self, scales: Tensor) -> Source:
        """Return the source for losses times factors, shape ``(m,)``."""
        seeds = [seed * scales.to(seed).reshape(-1, *(1,) * (seed.ndim - 1)) for seed in self.seeds]
        return self._replace(seeds=seeds)


def start(plan: Plan, *, free: bool = False) -> tuple[Source, dict[int, Pairs]]:
    """Return the start of batched passes, and the gradients of parameters that are not aggregated, by loss.

    Gradients of several losses are added and listed under the first one.

    Args:
        plan: the work.
        free: free the graphs of the losses' own parts if no other pass needs them.
    """
    private = [param for param in plan.own if is_private(param, plan.reached)]
    # If a head's parameter is aggregated, the batched pass cannot start below the heads.
    above = any(is_private(param, plan.reached) for param in plan.common)
    free = free and len(private) == len(plan.own)
    heads = None if above else _below_heads(plan.losses, plan.graph, private, free)
    own: dict[int, Pairs] = {}
    if heads is None:
        source, rest = _at_losses(plan.losses), plan.own
    else:
        source, rest = heads[0], [param for param in plan.own if not is_private(param, plan.reached)]
        for param, grad in present(private, heads[1]):
            own.setdefault(plan.reached[id(param)].bit_length() - 1, []).append((param, grad))
    if rest:
        ones = torch.ones(plan.m, dtype=torch.float64, device="cpu")
        for param, grad in present(rest, weighted_gradients(plan.losses, rest, ones)):
            bits = plan.reached[id(param)]
            own.setdefault((bits & -bits).bit_length() - 1, []).append((param, grad))
    return source, own


def _at_losses(losses: Losses) -> Source:
    """Return a source that starts at the losses themselves."""
    m = len(losses)
    if isinstance(losses, Tensor):
        return Source([losses], [torch.eye(m, dtype=losses.dtype, device=losses.device)], below=False)
    eye = torch.eye(m, device=losses[0].device)
    seeds = [eye[:, k].to(loss).reshape(m, *loss.shape) for k, loss in enumerate(losses)]
    return Source(list(losses), seeds, below=False, apart=True)


def _below_heads(
    losses: Losses, graph: Graph, own: Sequence[Tensor], free: bool
) -> tuple[Source, list[Tensor | None]] | None:
    """Return a source that starts where the losses' own parts end.

    Args:
        losses: m scalars, or a vector of them.
        graph: their graph.
        own: parameters that only one loss reaches.
        free: free the graphs of these parts.

    Returns:
        the source, and the gradients of ``own``; None if the losses have no parts of their own.
    """
    borders = graph.borders() if len(losses) > 1 else None
    if borders is None:
        return None
    rows: dict[tuple[Node, int], dict[int, Tensor]] = {}
    edges: dict[tuple[Node, int], GradientEdge] = {}
    handles = []
    for node, (loss, below) in borders.items():
        for _, edge in below:
            edges[edge.node, edge.output_nr] = edge
        handles.append(node.register_hook(_collect(rows, loss, below)))
    outputs = [losses] if isinstance(losses, Tensor) else list(losses)
    kinds = {(output.dtype, output.device) for output in outputs}
    ones = {(dtype, device): torch.ones((), dtype=dtype, device=device) for dtype, device in kinds}
    try:
        grads = torch.autograd.grad(
            outputs,
            [*own, *edges.values()],  # type: ignore[arg-type]  # torch accepts a mix of both
            [ones[output.dtype, output.device].expand_as(output) for output in outputs],
            # The way to one border may lead through another, whose operation must not be freed.
            retain_graph=not free or len({edge.node for edge in edges.values()}) > 1,
            allow_unused=True,
        )
    finally:
        for handle in handles:
            handle.remove()
    starts = {key: found for key, found in rows.items() if found}
    seeds = [_stacked(found, len(losses)) for found in starts.values()]
    return Source([edges[key] for key in starts], seeds, below=True), list(grads[: len(own)])


def _collect(
    rows: dict[tuple[Node, int], dict[int, Tensor]], loss: int, below: Sequence[tuple[int, GradientEdge]]
) -> Callable[[tuple[Tensor | None, ...], tuple[Tensor | None, ...]], None]:
    def hook(grad_inputs: tuple[Tensor | None, ...], _: tuple[Tensor | None, ...]) -> None:
        for position, edge in below:
            grad = grad_inputs[position]
            if grad is not None:
                found = rows.setdefault((edge.node, edge.output_nr), {})
                found[loss] = grad if loss not in found else found[loss] + grad

    return hook


def _stacked(found: dict[int, Tensor], m: int) -> Tensor:
    if len(found) == m:
        return torch.stack([found[loss] for loss in range(m)])
    first = next(iter(found.values()))
    rows = first.new_zeros((m, *first.shape))
    for loss, row in found.items():
        rows[loss] = row
    return rows


def batched_rows(source: Source, inputs: Inputs, *, free: bool = False) -> list[Tensor | None]:
    """Return the gradients of all losses with respect to each input: a tensor ``(m, *input)``, or None if unreached.

    Args:
        source: the start of the pass.
        inputs: parameters, or outputs of operations.
        free: let the pass free the graph.
    """
    if not inputs or not source.outputs:
        return [None] * len(inputs)
    reached: list[bool] = []

    def pull(seeds: list[Tensor]) -> list[Tensor]:
        grads: Sequence[Tensor | None] = torch.autograd.grad(
            either(source.outputs), either(inputs), seeds, retain_graph=not free, allow_unused=True
        )
        reached[:] = [grad is not None for grad in grads]
        return [grad for grad in grads if grad is not None]

    if len(source.seeds[0]) == 1:  # a plain pass is quicker
        rows = iter([grad[None] for grad in pull([seed[0] for seed in source.seeds])])
    else:
        with _quiet_loops():
            rows = iter(torch.vmap(pull, randomness="same")(source.seeds))
    return [next(rows) if found else None for found in reached]


@contextmanager
def _quiet_loops() -> Iterator[None]:
    """Silence torch's warning that it loops over the batch in operations without a batching rule."""
    # A filter in Python would make all other warnings appear again at each step.
    enable: Callable[[bool], None] = torch._C._functorch._set_vmap_fallback_warning_enabled  # type: ignore[attr-defined]
    enable(False)
    try:
        yield
    finally:
        enable(True)


def unwrapped(grad: Tensor, m: int) -> Tensor:
    """Return the gradients of all m losses, shape ``(m, *grad)``, behind a gradient under `torch.vmap`."""
    level = torch._C._functorch.current_level()
    values, dim = torch._C._functorch._unwrap_batched(grad, level)
    return values.expand(m, *values.shape) if dim is None else values.movedim(dim, 0)


def weighted_gradients(
    losses: Losses, params: Sequence[Tensor], weights: Tensor, *, free: bool = False
) -> list[Tensor | None]:
    """Return the gradient of ``sum_k w_k f_k`` with respect to each parameter, by one plain pass; None if unreached.

    With ``free``, the pass frees the graph, as torch's own does. If a weight exceeds the range of float32, there is a
    pass for each loss.
    """
    if factor_dtype(weights, losses[0].dtype) is not accumulator(losses[0].dtype):
        rows = Rows(len(weights), losses[0].device)
        for k, unit in enumerate(torch.eye(len(weights), dtype=torch.float64, device="cpu")):
            last = k == len(weights) - 1
            for param, grad in zip(params, weighted_gradients(losses, params, unit, free=free and last), strict=True):
                if grad is not None:
                    rows.give(param, k, grad)
        found = {id(param): grad for param, grad in rows.combine(params, weights)}
        return [found.get(id(param)) for param in params]
    if isinstance(losses, Tensor):
        outputs, seeds = [losses], [weights.to(losses)]
    else:
        outputs = list(losses)
        seeds = [weights[k].to(loss).reshape(loss.shape) for k, loss in enumerate(losses)]
    return list(torch.autograd.grad(outputs, list(params), seeds, retain_graph=not free, allow_unused=True))


def either(inputs: Inputs) -> Sequence[Tensor]:
    """Cast for the type checker: torch accepts a mix of parameters and edges, but its annotations do not."""
    return inputs  # type: ignore[return-value]
