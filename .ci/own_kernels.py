"""Print the processor whose kernels the OpenBLAS of numpy takes here, such as SkylakeX; nothing if it is not known."""

import ctypes
from pathlib import Path

import numpy

for path in (Path(numpy.__file__).parent.parent / "numpy.libs").glob("*openblas*"):
    name = getattr(ctypes.CDLL(str(path)), "scipy_openblas_get_corename64_", None)
    if name is not None:
        name.restype = ctypes.c_char_p
        print(name().decode())
