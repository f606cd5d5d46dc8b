"""The kernels of a fused pass, in Triton's subset of Python: imported only where there is a Triton.

Channels come last everywhere: a map of N images is a matrix with one row for each pixel and one column for each of its
C channels, so that ``row = (image * height + i) * width + j``. The second axis of every grid counts the clients.
"""

# mypy: ignore-errors

import triton
import triton.language as tl


@triton.jit
def _rows(tile, TILES: tl.constexpr, B: tl.constexpr):
    # The rows of a tile of this program.
    return (tl.program_id(0).to(tl.int64) * TILES + tile) * B + tl.arange(0, B)


@triton.jit
def _store_sums(parts, client, first, second, C: tl.constexpr):
    # Two sums over this program's rows.
    out = parts + (client * tl.num_programs(0) + tl.program_id(0)) * 2 * C + tl.arange(0, C)
    tl.store(out, first)
    tl.store(out + C, second)


@triton.jit
def first_layer(cols, weight, h, parts, rows, TILES: tl.constexpr, B: tl.constexpr, C: tl.constexpr):
    # relu(cols @ weight) with 64 + 16 columns, and sums of it and of its squares. The bias is a row of the weight.
    client = tl.program_id(1).to(tl.int64)
    c, k, rest = tl.arange(0, C), tl.arange(0, 64), 64 + tl.arange(0, 16)
    w = tl.load(weight + k[:, None] * C + c[None, :])
    w_rest = tl.load(weight + rest[:, None] * C + c[None, :])
    total, squares = tl.zeros((C,), tl.float32), tl.zeros((C,), tl.float32)
    for tile in range(TILES):
        row = _rows(tile, TILES, B)
        inside = (row < rows)[:, None]
        start = (client * rows + row)[:, None]
        x = tl.load(cols + start * 80 + k[None, :], mask=inside, other=0.0)
        x_rest = tl.load(cols + start * 80 + rest[None, :], mask=inside, other=0.0)
        found = tl.dot(x_rest, w_rest, tl.dot(x, w))
        kept = tl.maximum(found, 0.0).to(h.dtype.element_ty)
        tl.store(h + start * C + c[None, :], kept, mask=inside)
        value = kept.to(tl.float32)
        total += tl.sum(value, axis=0)
        squares += tl.sum(value * value, axis=0)
    _store_sums(parts, client, total, squares, C)


@triton.jit
def rectify(h, bias, parts, rows, TILES: tl.constexpr, B: tl.constexpr, C: tl.constexpr):
    # h = relu(h + bias), and sums of it and of its squares.
    client = tl.program_id(1).to(tl.int64)
    c = tl.arange(0, C)
    b = tl.load(bias + c)[None, :]
    total, squares = tl.zeros((C,), tl.float32), tl.zeros((C,), tl.float32)
    for tile in range(TILES):
        row = _rows(tile, TILES, B)
        inside = (row < rows)[:, None]
        at = h + (client * rows + row)[:, None] * C + c[None, :]
        found = tl.load(at, mask=inside, other=0.0).to(tl.float32) + b
        kept = tl.maximum(found, 0.0).to(h.dtype.element_ty)
        tl.store(at, kept, mask=inside)
        value = tl.where(inside, kept.to(tl.float32), 0.0)
        total += tl.sum(value, axis=0)
        squares += tl.sum(value * value, axis=0)
    _store_sums(parts, client, total, squares, C)


@triton.jit
def pool(h, mean, spread, scale, shift, out, top, place, rows, WIDTH: tl.constexpr, B: tl.constexpr, C: tl.constexpr):
    # BatchNorm and the largest of each two by two pixels: its value, what was normalized to it, and which it was.
    client = tl.program_id(1).to(tl.int64)
    c = tl.arange(0, C)
    row = tl.program_id(0).to(tl.int64) * B + tl.arange(0, B)
    inside = (row < rows)[:, None]
    corner = client * 4 * rows + (row // WIDTH) * 4 * WIDTH + (row % WIDTH) * 2
    mu, inv = tl.load(mean + client * C + c)[None, :], tl.load(spread + client * C + c)[None, :]
    a, b = tl.load(scale + c)[None, :], tl.load(shift + c)[None, :]
    x = (tl.load(h + corner[:, None] * C + c[None, :], mask=inside, other=0.0).to(tl.float32) - mu) * inv
    best, which = x, tl.zeros((B, C), tl.int32)
    for at in tl.static_range(1, 4):
        pixel = corner + (at // 2) * 2 * WIDTH + at % 2
        x = (tl.load(h + pixel[:, None] * C + c[None, :], mask=inside, other=0.0).to(tl.float32) - mu) * inv
        more = a * x > a * best  # of equal ones the first, as torch has it
        best, which = tl.where(more, x, best), tl.where(more, at, which)
    to = (client * rows + row)[:, None] * C + c[None, :]
    tl.store(out + to, (a * best + b).to(out.dtype.element_ty), mask=inside)
    tl.store(top + to, best.to(top.dtype.element_ty), mask=inside)
    tl.store(place + to, which.to(tl.uint8), mask=inside)


@triton.jit
def pooled_sums(slope, top, parts, rows, TILES: tl.constexpr, B: tl.constexpr, C: tl.constexpr):
    # Sums of the gradients by BatchNorm's outputs, and of these times its normalized inputs.
    client = tl.program_id(1).to(tl.int64)
    c = tl.arange(0, C)
    total, products = tl.zeros((C,), tl.float32), tl.zeros((C,), tl.float32)
    for tile in range(TILES):
        row = _rows(tile, TILES, B)
        inside = (row < rows)[:, None]
        at = (client * rows + row)[:, None] * C + c[None, :]
        g = tl.load(slope + at, mask=inside, other=0.0).to(tl.float32)
        x = tl.load(top + at, mask=inside, other=0.0).to(tl.float32)
        total += tl.sum(g, axis=0)
        products += tl.sum(g * x, axis=0)
    _store_sums(parts, client, total, products, C)


@triton.jit
def _through(h, slope, place, mean, spread, scale, sums, client, row, rows, WIDTH: tl.constexpr, C: tl.constexpr):
    # The gradient by a convolution's outputs, from that by what was pooled: (rows, C).
    c = tl.arange(0, C)
    inside = (row < rows)[:, None]
    i, j = row // (2 * WIDTH), row % (2 * WIDTH)
    pooled = (client * (rows // 4) + (i // 2) * WIDTH + j // 2)[:, None] * C + c[None, :]
    g = tl.load(slope + pooled, mask=inside, other=0.0).to(tl.float32)
    which = tl.load(place + pooled, mask=inside, other=0).to(tl.int64)
    g = tl.where(which == ((i % 2) * 2 + j % 2)[:, None], g, 0.0)
    value = tl.load(h + (client * rows + row)[:, None] * C + c[None, :], mask=inside, other=0.0).to(tl.float32)
    mu, inv = tl.load(mean + client * C + c)[None, :], tl.load(spread + client * C + c)[None, :]
    of_ones = tl.load(sums + client * 2 * C + c)[None, :] / rows
    of_inputs = tl.load(sums + client * 2 * C + C + c)[None, :] / rows
    found = tl.load(scale + c)[None, :] * inv * (g - of_ones - (value - mu) * inv * of_inputs)
    return tl.where(value > 0.0, found, 0.0)


@triton.jit
def first_weights(
    cols, h, slope, place, mean, spread, scale, sums, parts, rows,
    WIDTH: tl.constexpr, TILES: tl.constexpr, B: tl.constexpr, C: tl.constexpr,
):  # fmt: skip
    # Weight gradients of the first layer, (80, C): the gradients by its outputs are never stored.
    client = tl.program_id(1).to(tl.int64)
    c, k, rest = tl.arange(0, C), tl.arange(0, 64), 64 + tl.arange(0, 16)
    total, total_rest = tl.zeros((64, C), tl.float32), tl.zeros((16, C), tl.float32)
    for tile in range(TILES):
        row = _rows(tile, TILES, B)
        inside = (row < rows)[:, None]
        start = (client * rows + row)[:, None] * 80
        found = _through(h, slope, place, mean, spread, scale, sums, client, row, rows, WIDTH, C)
        x = tl.load(cols + start + k[None, :], mask=inside, other=0.0).to(tl.float32)
        x_rest = tl.load(cols + start + rest[None, :], mask=inside, other=0.0).to(tl.float32)
        total = tl.dot(tl.trans(x), found, total, input_precision="tf32")
        total_rest = tl.dot(tl.trans(x_rest), found, total_rest, input_precision="tf32")
    out = parts + (client * tl.num_programs(0) + tl.program_id(0)) * 80 * C
    tl.store(out + k[:, None] * C + c[None, :], total)
    tl.store(out + rest[:, None] * C + c[None, :], total_rest)


@triton.jit
def second_slopes(
    h, slope, place, mean, spread, scale, sums, out, parts, rows,
    WIDTH: tl.constexpr, TILES: tl.constexpr, B: tl.constexpr, C: tl.constexpr,
):  # fmt: skip
    # Gradients by the outputs of the second layer, and their sums.
    client = tl.program_id(1).to(tl.int64)
    c = tl.arange(0, C)
    total = tl.zeros((C,), tl.float32)
    for tile in range(TILES):
        row = _rows(tile, TILES, B)
        found = _through(h, slope, place, mean, spread, scale, sums, client, row, rows, WIDTH, C)
        total += tl.sum(found, axis=0)
        at = (client * rows + row)[:, None] * C + c[None, :]
        tl.store(out + at, found.to(out.dtype.element_ty), mask=(row < rows)[:, None])
    tl.store(parts + (client * tl.num_programs(0) + tl.program_id(0)) * C + c, total)


@triton.jit
def second_weights(
    inputs, slopes, parts, rows,
    WIDTH: tl.constexpr, SIDE: tl.constexpr, TILES: tl.constexpr, B: tl.constexpr, C: tl.constexpr,
):  # fmt: skip
    # Weight gradients of a 5 x 5 convolution, one row of it by each program, (5, C, C): inputs that one row of the
    # kernel meets lie side by side, 4 C + C of them.
    client, down = tl.program_id(1).to(tl.int64), tl.program_id(2)
    c, k = tl.arange(0, C), tl.arange(0, 4 * C)
    total, last = tl.zeros((4 * C, C), tl.float32), tl.zeros((C, C), tl.float32)
    for tile in range(TILES):
        row = _rows(tile, TILES, B)
        inside = (row < rows)[:, None]
        image, i, j = row // (WIDTH * WIDTH), row // WIDTH % WIDTH, row % WIDTH
        images = rows // (WIDTH * WIDTH)
        start = (((client * images + image) * SIDE + i + down) * SIDE + j)[:, None] * C
        g = tl.load(slopes + (client * rows + row)[:, None] * C + c[None, :], mask=inside, other=0.0)
        x = tl.load(inputs + start + k[None, :], mask=inside, other=0.0)
        x_last = tl.load(inputs + start + 4 * C + c[None, :], mask=inside, other=0.0)
        total = tl.dot(tl.trans(x), g, total)
        last = tl.dot(tl.trans(x_last), g, last)
    out = parts + ((client * tl.num_programs(0) + tl.program_id(0)) * 5 + down) * 5 * C * C
    tl.store(out + k[:, None] * C + c[None, :], total)
    tl.store(out + (4 * C + c)[:, None] * C + c[None, :], last)
