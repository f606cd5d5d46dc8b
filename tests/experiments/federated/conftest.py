"""Fixtures that the tests of the federated study share. Tests only read them."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.federated import CPU, DATA, SMALL, run

from paretograd.experiments.federated.clients import Federation


@pytest.fixture(scope="session")
def done(tmp_path_factory) -> Path:
    """Folder of the small study, finished."""
    return run(tmp_path_factory.mktemp("done") / "study").folder


@pytest.fixture(scope="session")
def federation() -> Federation:
    return Federation(DATA, SMALL, 0, False, CPU)
