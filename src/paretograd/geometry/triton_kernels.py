"""The kernels in Triton's subset of Python, imported only if Triton is installed."""

# mypy: ignore-errors
# ruff: noqa: RUF005

import triton
import triton.language as tl


@triton.jit
def pairs(J, parts, n, stride, M: tl.constexpr, BLOCK: tl.constexpr, EXACT: tl.constexpr):
    # Each thread keeps the sums of all M (M + 1) / 2 products of its own columns.
    kind: tl.constexpr = tl.float64 if EXACT else tl.float32
    long = tl.cast(stride, tl.int64)  # rows may lie more than 2**31 entries apart
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
            rows = rows + (tl.load(J + (k * long + at), mask=at < n, other=0.0).to(kind),)
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
    long = tl.cast(stride, tl.int64)
    total = tl.zeros((BLOCK,), dtype=tl.float32)
    for k in range(m):
        total += tl.load(w + k) * tl.load(J + (k * long + at), mask=mask, other=0.0)
    tl.store(out + at, total, mask=mask)


#: Most rows for which `pairs` and `pairs_of_lists` keep all products in registers.
MOST_PAIRED = 12


@triton.jit
def _pointer(table, at, KIND: tl.constexpr, ALIGNED: tl.constexpr):
    # Addresses are numbers in a table. Rows of one table have one dtype, which KIND numbers.
    address = tl.load(table + at)
    if ALIGNED:
        address = tl.multiple_of(address, 16)
    if KIND == 0:
        pointer = address.to(tl.pointer_type(tl.float32))
    elif KIND == 1:
        pointer = address.to(tl.pointer_type(tl.bfloat16))
    elif KIND == 2:
        pointer = address.to(tl.pointer_type(tl.float16))
    else:
        pointer = address.to(tl.pointer_type(tl.float64))
    return pointer


@triton.jit
def pairs_of_lists(
    table,
    items,
    count,
    parts,
    KIND: tl.constexpr,
    M: tl.constexpr,
    BLOCK: tl.constexpr,
    DOUBLE: tl.constexpr,
    ALIGNED: tl.constexpr,
):
    # As `pairs`, over the items (parameter, first column, end column) of rows that lie anywhere.
    kind: tl.constexpr = tl.float64 if DOUBLE else tl.float32
    program = tl.program_id(0).to(tl.int64)
    column = tl.arange(0, BLOCK).to(tl.int64)
    sums = ()
    for _pair in tl.static_range(M * (M + 1) // 2):
        sums = sums + (tl.zeros((BLOCK,), dtype=kind),)
    for item in range(program, count, tl.num_programs(0)):
        param = tl.load(items + 3 * item)
        first = tl.load(items + 3 * item + 1)
        end = tl.load(items + 3 * item + 2)
        for start in range(first, end, BLOCK):
            at = start + column
            rows = ()
            for k in tl.static_range(M):
                pointer = _pointer(table, param * M + k, KIND, ALIGNED)
                rows = rows + (tl.load(pointer + at, mask=at < end, other=0.0).to(kind),)
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
def product_of_lists(
    table,
    items,
    count,
    parts,
    KIND: tl.constexpr,
    m,
    ROWS: tl.constexpr,
    BLOCK: tl.constexpr,
    INNER: tl.constexpr,
    DOUBLE: tl.constexpr,
):
    # As `product`, over items.
    program = tl.program_id(0).to(tl.int64)
    row = tl.arange(0, ROWS).to(tl.int64)
    column = tl.arange(0, BLOCK).to(tl.int64)
    total = tl.zeros((ROWS, ROWS), dtype=tl.float64)
    for item in range(program, count, tl.num_programs(0)):
        param = tl.load(items + 3 * item)
        first = tl.load(items + 3 * item + 1)
        end = tl.load(items + 3 * item + 2)
        # Rows beyond the last read the last one's address and are masked.
        pointer = _pointer(table, param * m + tl.minimum(row, m - 1), KIND, False)
        if DOUBLE:
            for start in range(first, end, BLOCK):
                at = start + column
                mask = (row[:, None] < m) & (at[None, :] < end)
                x = tl.load(pointer[:, None] + at[None, :], mask=mask, other=0.0).to(tl.float64)
                total += tl.sum(x[:, None, :] * x[None, :, :], axis=2)
        else:
            for chunk in range(first, end, BLOCK * INNER):
                block = tl.zeros((ROWS, ROWS), dtype=tl.float32)
                for start in range(chunk, tl.minimum(chunk + BLOCK * INNER, end), BLOCK):
                    at = start + column
                    mask = (row[:, None] < m) & (at[None, :] < end)
                    x = tl.load(pointer[:, None] + at[None, :], mask=mask, other=0.0).to(tl.float32)
                    block = tl.dot(x, tl.trans(x), block, input_precision="tf32x3")
                total += block.to(tl.float64)
    place = program * ROWS * ROWS + row[:, None] * ROWS + row[None, :]
    tl.store(parts + place, total)


@triton.jit
def weighted_lists(
    table,
    items,
    count,
    w,
    KIND: tl.constexpr,
    OUT: tl.constexpr,
    M: tl.constexpr,
    BLOCK: tl.constexpr,
    DOUBLE: tl.constexpr,
    ALIGNED: tl.constexpr,
):
    # Each row of the table holds the address of the output, whose dtype OUT numbers, then those of the rows.
    kind: tl.constexpr = tl.float64 if DOUBLE else tl.float32
    column = tl.arange(0, BLOCK).to(tl.int64)
    for item in range(tl.program_id(0), count, tl.num_programs(0)):
        param = tl.load(items + 3 * item)
        first = tl.load(items + 3 * item + 1)
        end = tl.load(items + 3 * item + 2)
        output = _pointer(table, param * (M + 1), OUT, ALIGNED)
        for start in range(first, end, BLOCK):
            at = start + column
            total = tl.zeros((BLOCK,), dtype=kind)
            for k in tl.static_range(M):
                pointer = _pointer(table, param * (M + 1) + k + 1, KIND, ALIGNED)
                total += tl.load(w + k) * tl.load(pointer + at, mask=at < end, other=0.0).to(kind)
            tl.store(output + at, total, mask=at < end)
