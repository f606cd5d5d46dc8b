"""The kernels in Triton's subset of Python, imported only if Triton is installed."""

# mypy: ignore-errors
# ruff: noqa: RUF005

import triton
import triton.language as tl


@triton.jit
def pairs(J, parts, n, stride, M: tl.constexpr, BLOCK: tl.constexpr, EXACT: tl.constexpr):
    # Each thread keeps the sums of all M (M + 1) / 2 products of its own columns.
    kind: tl.constexpr = tl.float64 if EXACT else tl.float32
    program = tl.program_id(0).to(tl.int64)
    step = tl.num_programs(0).to(tl.int64) * BLOCK
    column = tl.arange(0, BLOCK).to(tl.int64)
    sums = ()
    for _pair in tl.static_range(M * (M + 1) // 2):
        sums = sums + (tl.zeros((BLOCK,), dtype=kind),)
    for start in range(program * BLOCK, n, step):
        at = start + column
        rows = ()
        for k in tl.static_range(M):
            rows = rows + (tl.load(J + k * stride + at, mask=at < n, other=0.0).to(kind),)
        more = ()
        for k in tl.static_range(M):
            for i in tl.static_range(k + 1):
                more = more + (sums[k * (k + 1) // 2 + i] + rows[k] * rows[i],)
        sums = more
    for k in tl.static_range(M):
        for i in tl.static_range(k + 1):
            total = tl.sum(sums[k * (k + 1) // 2 + i].to(tl.float64))
            tl.store(parts + (program * M + k) * M + i, total)
            tl.store(parts + (program * M + i) * M + k, total)


@triton.jit
def product(J, parts, n, stride, m, ROWS: tl.constexpr, BLOCK: tl.constexpr, INNER: tl.constexpr):
    program = tl.program_id(0).to(tl.int64)
    step = tl.num_programs(0).to(tl.int64) * BLOCK * INNER
    row = tl.arange(0, ROWS).to(tl.int64)
    column = tl.arange(0, BLOCK).to(tl.int64)
    total = tl.zeros((ROWS, ROWS), dtype=tl.float64)
    for start in range(program * BLOCK * INNER, n, step):
        block = tl.zeros((ROWS, ROWS), dtype=tl.float32)
        for i in range(INNER):
            at = start + i * BLOCK + column
            mask = (row[:, None] < m) & (at[None, :] < n)
            x = tl.load(J + row[:, None] * stride + at[None, :], mask=mask, other=0.0)
            block = tl.dot(x, tl.trans(x), block, input_precision="tf32x3")
        total += block.to(tl.float64)
    place = program * ROWS * ROWS + row[:, None] * ROWS + row[None, :]
    tl.store(parts + place, total)


@triton.jit
def weighted(J, w, out, n, stride, m, BLOCK: tl.constexpr):
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK).to(tl.int64)
    mask = at < n
    total = tl.zeros((BLOCK,), dtype=tl.float32)
    for k in range(m):
        total += tl.load(w + k) * tl.load(J + k * stride + at, mask=mask, other=0.0)
    tl.store(out + at, total, mask=mask)
