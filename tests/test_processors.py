"""The variables of ``make test-processors`` have an effect: numpy, scipy and torch use the kernels that they name."""

from __future__ import annotations

import ctypes
import os
from pathlib import Path

import pytest
import scipy.linalg  # loads scipy's own OpenBLAS; numpy's is loaded by then
import torch

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
