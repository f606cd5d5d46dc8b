"""Shared set-up of the tests. The folders mirror those of the package; `support` holds what they share.

Runs are reproducible: hypothesis draws the same examples every time (a failure in CI is a failure here), and
the number of examples is raised from the command line with ``--hypothesis-profile=thorough``.
"""

import math

import pytest
from hypothesis import settings

from paretograd.autograd import engine as engine_module
from paretograd.autograd import rows as rows_module

settings.register_profile("default", max_examples=25, deadline=None, derandomize=True)
settings.register_profile("thorough", max_examples=1000, deadline=None, derandomize=False)
settings.load_profile("default")

#: The engine, and the share of the Jacobian that the outputs of layers may take before they are dropped on the way.
WAYS = {"rows": ("jacobian", 0.25), "outputs": ("gramian", math.inf), "stream": ("gramian", -1.0)}


@pytest.fixture(params=WAYS)
def engine_of_every_way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """The engine's name, with the threshold set so that models of any size go the way asked for."""
    engine, share = WAYS[request.param]
    monkeypatch.setattr(engine_module, "_KEPT_SHARE", share)
    monkeypatch.setattr(rows_module, "_UNBATCHABLE", set())  # nothing learned from other tests
    return engine
