"""Make an input smaller for as long as the violation stays: fewer rows, fewer columns, simpler numbers."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace

from support.families.cancelling import SAFE_ANGLE

from .campaign import Violation, checks_of
from .checks import RULES, Check, Scene
from .inputs import Input


def reproduce(given: Input, rule: str, wanted: str, seed: int) -> Check | None:
    """The failed check of a property, if it fails on this input."""
    if (rule in RULES and not RULES[rule].fits(given.m)) or not any(map(any, given.rows)):
        return None
    for check in checks_of(Scene(given), rule, 2, seed):
        if check.name == wanted and check.is_violation:
            return check
    return None


def shrink(violation: Violation, attempts: int = 400) -> Violation:
    """The same kind of violation on the smallest input that a greedy search finds."""
    given, check = violation.given, violation.check
    changed = True
    while changed and attempts > 0:
        changed = False
        for smaller in _smaller(given):
            attempts -= 1
            found = reproduce(smaller, violation.rule, check.name, violation.seed)
            if found is not None:
                given, check, changed = smaller, found, True
                break
            if attempts <= 0:
                break
    return violation._replace(given=given, check=check)


def _smaller(given: Input) -> Iterator[Input]:
    """Inputs that are simpler by one step, the largest steps first."""
    for k in range(given.m):
        if given.m > 1:
            yield given.take([i for i in range(given.m) if i != k])
    for j in range(given.n):
        if given.n > 1:
            yield given.take(list(range(given.m)), [i for i in range(given.n) if i != j])
    if given.ideals is not None:
        return  # the numbers of the rows and of their ideals belong together
    for k, row in enumerate(given.rows):
        if (exponent := math.frexp(max(map(abs, row)))[1]) not in (0, 1):
            scaled = tuple(math.ldexp(x, 1 - exponent) for x in row)
            yield replace(given, rows=(*given.rows[:k], scaled, *given.rows[k + 1 :]))
    for k, row in enumerate(given.rows):
        for j, x in enumerate(row):
            for simpler in _simpler(x):
                entries = [list(r) for r in given.rows]
                entries[k][j] = simpler
                changed = replace(given, rows=tuple(map(tuple, entries)))
                # Rows at a tiny angle have no truth to compare with; do not drift there.
                if changed.angle >= min(given.angle, SAFE_ANGLE):
                    yield changed


def _simpler(x: float) -> Iterator[float]:
    """0 and x with fewer digits, those that are shorter than x itself.

    An entry keeps its size, so that no entry becomes tiny next to the others: rows would nearly depend on each other.
    """
    if x == 0.0:
        return
    candidates = [0.0, float(f"{math.copysign(1, x):.0f}e{math.floor(math.log10(abs(x)))}")]
    candidates += [float(f"{x:.{digits}e}") for digits in (0, 1, 3, 7)]
    for simpler in candidates:
        if simpler != x and _digits(simpler) < _digits(x):
            yield simpler


def _digits(x: float) -> int:
    return 0 if x == 0.0 else len(repr(x).replace("-", "").removesuffix(".0"))
