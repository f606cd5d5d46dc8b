"""Shared set-up of the tests. The folders mirror those of the package; `support` holds what they share.

Runs are reproducible: hypothesis draws the same examples every time (a failure in CI is a failure here), and
the number of examples is raised from the command line with ``--hypothesis-profile=thorough``.
"""

import math
from typing import Any

import pytest
from hypothesis import settings

from paretograd.autograd import by_layers, choice

settings.register_profile("default", max_examples=25, deadline=None, derandomize=True)
settings.register_profile("thorough", max_examples=1000, deadline=None, derandomize=False)
settings.load_profile("default")

#: The engine, and the share of the Jacobian that the outputs of layers may take before they are dropped on the way.
WAYS = {
    "rows": ("jacobian", 0.25),
    "batched": ("batched", 0.25),
    "outputs": ("gramian", math.inf),
    "stream": ("gramian", -1.0),
}


@pytest.fixture(params=WAYS)
def engine_of_every_way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """The engine's name, with the threshold set so that models of any size go the way asked for, without a check."""
    engine, share = WAYS[request.param]
    monkeypatch.setattr(by_layers, "_KEPT_SHARE", share)
    monkeypatch.setattr(choice, "_KNOWN", _Trusting())
    return engine


class _Trusting(dict[tuple[object, ...], Any]):
    """Kinds of graphs of which every way counts as checked, so that a single step takes it."""

    def __setitem__(self, key: tuple[object, ...], kind: Any) -> None:
        kind.checked |= {"batched", "gramian"}
        super().__setitem__(key, kind)
