"""Fixtures that the tests of the fairness study share."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.fairness import make_small, run


@pytest.fixture
def small(monkeypatch):
    """Replace the study's data by few rows."""
    make_small(monkeypatch)


@pytest.fixture(scope="session")
def done(tmp_path_factory) -> Path:
    """Folder of the small study, finished. Tests only read it."""
    with pytest.MonkeyPatch.context() as patch:
        make_small(patch)
        return run(tmp_path_factory.mktemp("done") / "study").folder
