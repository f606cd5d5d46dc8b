"""Kernels of other processors: those of CPUs that `make test-processors` asks for, and those of GPUs.

The Triton kernels for GPUs run on the CPU, by Triton's interpreter, against torch. The environment must ask for the
interpreter before Triton is imported, as `make test-kernels` does.
"""

from __future__ import annotations

import ctypes
import os
from importlib.util import find_spec
from pathlib import Path

import pytest
import scipy.linalg  # loads scipy's own OpenBLAS; numpy's is loaded by then
import torch
from torch.nn.functional import cross_entropy

from paretograd.experiments.fairness import ensemble
from paretograd.experiments.federated.clients import Clients, Layout
from paretograd.experiments.federated.fused import FusedPass
from paretograd.geometry import row_lists
from paretograd.problems.cifar10 import Images, cnn
from paretograd.problems.networks import normalized

WANTED = os.environ.get("OPENBLAS_CORETYPE", "")
#: OpenBLAS calls its kernels for Prescott by the first processor that they serve.
ALIASES = {"Katmai": "Prescott", "Zen": "Haswell"}
#: The function that names the kernels, by how a wheel was built: 64-bit integers, prefixed symbols, both, neither.
NAMES = [f"{prefix}openblas_get_corename{suffix}" for prefix in ("scipy_", "") for suffix in ("64_", "")]


def openblas() -> dict[str, str]:
    """The OpenBLAS libraries in this process, and the kernels that each uses."""
    assert scipy.linalg
    maps = Path("/proc/self/maps")
    lines = maps.read_text().splitlines() if maps.exists() else []
    found = {}
    for path in sorted({line.split()[-1] for line in lines if "openblas" in line}):
        library = ctypes.CDLL(path)
        function = next((getattr(library, name) for name in NAMES if hasattr(library, name)), None)
        if function is not None:
            function.restype = ctypes.c_char_p
            name = function().decode()
            found[Path(path).name] = ALIASES.get(name, name)
    return found


@pytest.mark.skipif(not WANTED, reason="OPENBLAS_CORETYPE is not set")
def test_numpy_and_scipy_use_the_kernels_that_were_asked_for() -> None:
    found = openblas()
    if not found:
        pytest.skip("numpy and scipy use another library than OpenBLAS")
    assert set(found.values()) == {ALIASES.get(WANTED, WANTED)}, found


@pytest.mark.skipif("ATEN_CPU_CAPABILITY" not in os.environ, reason="ATEN_CPU_CAPABILITY is not set")
def test_torch_uses_the_kernels_that_were_asked_for() -> None:
    assert torch.backends.cpu.get_cpu_capability() == os.environ["ATEN_CPU_CAPABILITY"].upper()


interpreted = pytest.mark.skipif(
    os.environ.get("TRITON_INTERPRET") != "1" or find_spec("triton") is None,
    reason="make test-kernels runs these tests",
)


@interpreted
def test_gramian_of_long_rows() -> None:
    """Both Gramian kernels, and the weighted sum; n is no multiple of any block."""
    from paretograd.geometry import triton_kernels  # imports Triton

    J = torch.randn(3, 1000, generator=torch.Generator().manual_seed(0))
    for exact, bound in ((True, 1e-12), (False, 1e-5)):
        parts = torch.empty(4, 3, 3, dtype=torch.float64)
        triton_kernels.pairs[(4,)](J, parts, 1000, 1000, 3, 128, exact)
        _close(parts.sum(dim=0), J.double() @ J.double().T, bound)
    parts = torch.empty(2, 4, 4, dtype=torch.float64)
    triton_kernels.product[(2,)](J, parts, 1000, 1000, 3, 4, 32, 4)
    _close(parts.sum(dim=0)[:3, :3], J.double() @ J.double().T, 1e-5)
    w, out = torch.tensor([1.0, -2.0, 0.5]), torch.empty(1000)
    triton_kernels.weighted[(1,)](J, w, out, 1000, 1000, 3, 1024)
    _close(out, w @ J, 1e-6)


@interpreted
def test_chain_through_a_rectifier() -> None:
    """The fairness study's kernel, with a slope that is the same for all rows."""
    draw = torch.Generator().manual_seed(1)
    slope = torch.randn(2, 1, 32, generator=draw).expand(-1, 256, -1)
    hidden = torch.randn(2, 256, 32, generator=draw).relu()
    factors = torch.randn(2, 2, 256, generator=draw)
    plain = ensemble.through_rectifier(slope, hidden, factors)
    for wanted, found in zip(plain, ensemble._fused(slope, hidden, factors), strict=True):
        _close(found, wanted, 1e-6)


@interpreted
def test_fused_pass_of_the_federated_study() -> None:
    """Gradients of each client by torch.autograd; scales of either sign and zero decide what the pooling takes."""
    draw = torch.Generator().manual_seed(2)
    images = [
        Images(
            torch.randint(0, 256, (3, 3, 32, 32), dtype=torch.uint8, generator=draw),
            torch.randint(0, 10, (3,), generator=draw),
        )
        for _ in range(2)
    ]
    network = cnn(seed=0)
    with torch.no_grad():
        network[2].weight.copy_(torch.randn(32, generator=draw))
        network[6].weight[:3] = torch.tensor([-0.5, 0.0, 2.0])
    flat = torch.cat([parameter.detach().reshape(-1) for parameter in network.parameters()])
    fused = FusedPass(images, Layout(network), torch.device("cpu"), kept=torch.float32)
    fused.parameters.copy_(flat)
    losses, moments = fused()
    plain = Clients(images, torch.device("cpu")).gradients(flat)
    for k, own in enumerate(images):
        loss = cross_entropy(network(normalized(own.pixels)), own.labels)
        row = torch.cat([part.reshape(-1) for part in torch.autograd.grad(loss, list(network.parameters()))])
        _close(losses[k], loss.detach(), 1e-6)
        _close(fused.gradients[k], row, 1e-5)  # of float32 sums over thousands of pixels
    for found, wanted in zip(moments, plain.moments, strict=True):
        for mine, theirs in zip(found, wanted, strict=True):
            _close(mine, theirs, 1e-5)


def _close(found: torch.Tensor, wanted: torch.Tensor, bound: float) -> None:
    error = float((found.double() - wanted.double()).norm() / wanted.double().norm())
    assert error <= bound, (error, bound)


@interpreted
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("rows", [3, 13])
def test_rows_that_lie_in_many_tensors(dtype: torch.dtype, rows: int) -> None:
    """Gramian and weighted sum through a table of addresses; lengths that are no multiple of any block."""
    from paretograd.geometry import triton_kernels  # imports Triton

    draw = torch.Generator().manual_seed(3)
    lists = [[torch.randn(n, dtype=dtype, generator=draw) for _ in range(rows)] for n in (5, 300, 4100)]
    J = torch.cat([torch.stack(each) for each in lists], dim=1).double()
    items = row_lists._items((5, 300, 4100), torch.device("cpu"))
    table, kind, double = row_lists._addresses(lists), row_lists._kind(lists[0][0]), dtype is torch.float64
    if rows <= triton_kernels.MOST_PAIRED:
        parts = torch.empty(2, rows, rows, dtype=torch.float64)
        triton_kernels.pairs_of_lists[(2,)](table, items, len(items), parts, kind, rows, 128, double, False)
    else:
        parts = torch.empty(2, 16, 16, dtype=torch.float64)
        triton_kernels.product_of_lists[(2,)](table, items, len(items), parts, kind, rows, 16, 32, 32, double)
    # Rules allow for entries that are off by the rounding of float32.
    _close(parts.sum(dim=0)[:rows, :rows], J @ J.T, 1e-12 if double else torch.finfo(torch.float32).eps)
    w, outputs = torch.randn(rows, dtype=dtype, generator=draw), [torch.empty_like(each[0]) for each in lists]
    table = row_lists._addresses([[output, *each] for output, each in zip(outputs, lists, strict=True)])
    triton_kernels.weighted_lists[(2,)](table, items, len(items), w, kind, kind, rows, 1024, double, False)
    _close(torch.cat(outputs), (w.double() @ J).to(dtype), 1e-12 if double else 1e-6)
