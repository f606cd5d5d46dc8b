"""A Triton kernel for the backward pass of an ensemble: imported only where there is a Triton."""

# mypy: ignore-errors

import triton
import triton.language as tl


@triton.jit
def rectifier_backward(
    slope, hidden, factors, masked, chain, parts, rows, by_seed, by_row,
    TILES: tl.constexpr, B: tl.constexpr, WIDTH: tl.constexpr,
):  # fmt: skip
    # masked = slope where hidden > 0; chain = factors * masked for both objectives; and the sums of chain over rows.
    seed, seeds = tl.program_id(1).to(tl.int64), tl.num_programs(1).to(tl.int64)
    column = tl.arange(0, WIDTH)
    first_sum, second_sum = tl.zeros((WIDTH,), tl.float32), tl.zeros((WIDTH,), tl.float32)
    for tile in range(TILES):
        row = (tl.program_id(0).to(tl.int64) * TILES + tile) * B + tl.arange(0, B)
        at = (seed * rows + row)[:, None] * WIDTH + column[None, :]
        g = tl.load(slope + seed * by_seed + row[:, None] * by_row + column[None, :])
        g = tl.where(tl.load(hidden + at) > 0.0, g, 0.0)
        tl.store(masked + at, g)
        first = tl.load(factors + seed * rows + row)[:, None] * g
        second = tl.load(factors + (seeds + seed) * rows + row)[:, None] * g
        tl.store(chain + at, first)
        tl.store(chain + seeds * rows * WIDTH + at, second)
        first_sum += tl.sum(first, axis=0)
        second_sum += tl.sum(second, axis=0)
    out = parts + (seed * tl.num_programs(0) + tl.program_id(0)) * 2 * WIDTH + column
    tl.store(out, first_sum)
    tl.store(out + WIDTH, second_sum)
