"""Every rule is complete. A failure says which step of "Recipe: add an aggregator" (CONTRIBUTING.md) is missing."""

from __future__ import annotations

import importlib
import pkgutil
import re

import pytest
from support import ROOT
from support.table import EXACT, ROWS

import paretograd as pg
from paretograd import aggregators
from paretograd.aggregators.registry import FURTHER, REGISTRY

#: Rules made from other rules, or from s and r. They have no name in the registry.
COMPOSED = {pg.Blend, pg.CRMOGM, pg.ClippedRows, pg.Mixed, pg.Normalized, pg.Subproblem, pg.UnitRows}
#: Rules that the shared table compares with no reference, and why.
WITHOUT_REFERENCE = {
    "clipped-mgda": "it clips the weights of MGDA, which are not unique if the gradients are dependent",
    "chi-square-mgda": "tests/solvers/test_robust_solvers.py does, relative to the longest gradient",
    "rgw": "its weights are random",
}


def documented(page: str) -> set[str]:
    return set(re.findall(r"(?m)^::: paretograd\.(\w+)$", (ROOT / "docs" / page).read_text(encoding="utf-8")))


DOCUMENTED = documented("aggregators.md")

classes = pytest.mark.parametrize("cls", REGISTRY.values(), ids=lambda cls: cls.__name__)


def defined() -> set[type[pg.Aggregator]]:
    """The named rules in the files of `paretograd.aggregators`."""
    modules = [
        importlib.import_module(f"{aggregators.__name__}.{found.name}")
        for found in pkgutil.iter_modules(aggregators.__path__)
    ]
    return {
        value
        for module in modules
        for value in vars(module).values()
        if isinstance(value, type) and issubclass(value, pg.Aggregator) and "name" in vars(value)
    }


def test_every_rule_is_in_the_registry() -> None:
    missing = defined() - set(REGISTRY.values()) - set(FURTHER.values()) - COMPOSED
    assert not missing, f"add {_listed(missing)} to _CLASSES of src/paretograd/aggregators/registry.py"


@classes
def test_every_rule_is_exported(cls: type[pg.Aggregator]) -> None:
    name = cls.__name__
    hint = f"import {name} in src/paretograd/__init__.py and add it to __all__"
    assert name in pg.__all__, hint
    assert getattr(pg, name, None) is cls, hint


@classes
def test_every_rule_has_a_row_with_a_reference(cls: type[pg.Aggregator]) -> None:
    assert any(type(row.make()) is cls for row in ROWS), f"add a row for {cls.__name__} to tests/support/table.py"
    compared = any(type(row.make()) is cls for row in EXACT)
    if cls.name in WITHOUT_REFERENCE:
        assert not compared, f"remove {cls.name} from WITHOUT_REFERENCE"
    else:
        assert compared, f"give a row for {cls.__name__} in tests/support/table.py a reference"


@classes
def test_every_rule_is_documented(cls: type[pg.Aggregator]) -> None:
    assert cls.__name__ in DOCUMENTED, f"add a section with `::: paretograd.{cls.__name__}` to docs/aggregators.md"


def test_every_documented_rule_exists() -> None:
    lost = DOCUMENTED - {cls.__name__ for cls in (*REGISTRY.values(), *COMPOSED)}
    assert not lost, f"docs/aggregators.md documents {', '.join(sorted(lost))}, which the registry does not have"


def test_every_further_rule_is_documented() -> None:
    missing = {cls.__name__ for cls in FURTHER.values()} - documented("beyond-the-gramian.md")
    assert not missing, f"add sections for {', '.join(sorted(missing))} to docs/beyond-the-gramian.md"


def _listed(found: set[type[pg.Aggregator]]) -> str:
    return ", ".join(sorted(cls.__name__ for cls in found))
