"""Products of layers: in every precision, by either way, on the CPU and on a GPU if there is one."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from paretograd.autograd.layers.products import in_bfloat16, outer_gramian, product, sample_outer_gramian

DEVICES = ["cpu", "cuda"] if torch.cuda.is_available() else ["cpu"]

#: Rounding of sums: hundreds of terms in float32, or in float64.
ERRORS = {torch.float16: 1e-5, torch.bfloat16: 1e-5, torch.float32: 1e-5, torch.float64: 1e-13}

precisions = pytest.mark.parametrize("dtype", ERRORS, ids=str)
devices = pytest.mark.parametrize("device", DEVICES)


def randn(*shape: int, dtype: torch.dtype, device: str) -> Tensor:
    generator = torch.Generator().manual_seed(sum(shape))
    return torch.randn(shape, generator=generator).to(device, dtype)


def error(found: Tensor, expected: Tensor) -> float:
    return float((found.double() - expected).abs().max() / expected.abs().max())


@precisions
@devices
@pytest.mark.parametrize("batch", [(), (3,)])
def test_products_are_summed_in_single_precision_at_least(dtype: torch.dtype, device: str, batch: tuple[int]) -> None:
    A, B = randn(*batch, 17, 300, dtype=dtype, device=device), randn(*batch, 300, 19, dtype=dtype, device=device)
    assert product(A, B).dtype is (torch.float64 if dtype is torch.float64 else torch.float32)
    assert error(product(A, B), A.double() @ B.double()) <= ERRORS[dtype]


@devices
def test_a_long_and_a_short_factor(device: str) -> None:
    """The long one keeps its precision."""
    A = randn(3, 17, 300, dtype=torch.float32, device=device)
    for dtype in (torch.bfloat16, torch.float16):
        B = randn(3, 300, 19, dtype=dtype, device=device)
        assert error(product(A, B), A.double() @ B.double()) <= 1e-6


def test_three_short_numbers_are_a_long_one() -> None:
    values = randn(1000, dtype=torch.float32, device="cpu") * torch.logspace(-30, 30, 1000)
    parts = in_bfloat16(values)
    assert all(part.dtype is torch.bfloat16 for part in parts)
    assert torch.equal(torch.stack(parts).double().sum(dim=0), values.double())


@precisions
@devices
@pytest.mark.parametrize(("rows", "width"), [(4, 60), (60, 4)])
@pytest.mark.parametrize("bias", [False, True])
def test_gramians_of_objectives(dtype: torch.dtype, device: str, rows: int, width: int, bias: bool) -> None:
    """Few rows and many inputs, or the reverse."""
    D, X = randn(5, rows, 12, dtype=dtype, device=device), randn(rows, width, dtype=dtype, device=device)
    found, short = outer_gramian(D, X, bias)
    total = torch.stack([*([] if found is None else [found]), *(row.double() @ row.double().T for row in short)]).sum(0)
    J = (D.double().mT @ X.double()).flatten(1)
    b = D.double().sum(dim=1)
    assert error(total, J @ J.T + (b @ b.T if bias else 0.0)) <= ERRORS[dtype]


@precisions
@devices
@pytest.mark.parametrize(("rows", "width"), [(1, 60), (4, 60), (60, 4)])
@pytest.mark.parametrize("groups", [1, 3])
@pytest.mark.parametrize("bias", [False, True])
def test_gramians_of_samples(dtype: torch.dtype, device: str, rows: int, width: int, groups: int, bias: bool) -> None:
    D = randn(5, rows, 30, dtype=dtype, device=device)
    X = randn(5, rows, groups, width, dtype=dtype, device=device)
    J = torch.einsum("mngo,mngi->mgoi", D.double().unflatten(2, (groups, -1)), X.double()).flatten(1)
    b = D.double().sum(dim=1)
    expected = J @ J.T + (b @ b.T if bias else 0.0)
    assert error(sample_outer_gramian(D, X, bias), expected) <= ERRORS[dtype]
