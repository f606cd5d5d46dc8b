"""`paretograd.torchjd` without TorchJD; `make test-torchjd` tests it with TorchJD."""

import importlib
import sys

import pytest

import paretograd as pg


def test_the_error_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torchjd", None)
    monkeypatch.delitem(sys.modules, "paretograd.torchjd", raising=False)
    with pytest.raises(pg.MissingExtraError, match=r"0\.18 or later: pip install 'paretograd\[torchjd\]'"):
        importlib.import_module("paretograd.torchjd")
