"""The GPU's kernels compute what they should: run by Triton's interpreter, where no GPU is needed."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
from support import ROOT

pytest.importorskip("triton", reason="there is no Triton; make test-kernels installs it")


def test_all_kernels():
    path = os.pathsep.join([str(ROOT / "src"), *filter(None, [os.environ.get("PYTHONPATH")])])
    done = subprocess.run(
        [sys.executable, str(ROOT / "tests" / "support" / "interpreted.py")],
        env=os.environ | {"TRITON_INTERPRET": "1", "PYTHONPATH": path},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert len(done.stdout.split()) == 3
