"""A run of the fuzzer: seeds in, a tally out, on several processes, and the smallest input of each kind of violation.

A kind of violation is a rule and a property. The seed alone decides the input, the rules that meet it, and how deep
each looks, so that any part of a run can be repeated.
"""

from __future__ import annotations

import signal
import time
import warnings
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, ProcessPoolExecutor, wait
from dataclasses import dataclass, field, replace
from itertools import islice
from multiprocessing import get_context
from typing import NamedTuple

import numpy as np
import torch

from .certificates import NAME as CERTIFY
from .certificates import examine_certificates
from .checks import RULES, Check, Scene, examine
from .inputs import Input, draw

Kind = tuple[str, str]
#: Inputs of a kind that are kept for shrinking, the smallest ones.
_KEPT = 3
#: All that can be tried: the rows of the shared table, and the certificates.
SUBJECTS = [*RULES, CERTIFY]
#: Seeds that a process takes at a time.
_CHUNK = 40


class Violation(NamedTuple):
    """A check that failed, and the input on which it did."""

    rule: str
    check: Check
    given: Input
    seed: int

    @property
    def kind(self) -> Kind:
        return self.rule, self.check.name

    @property
    def size(self) -> tuple[int, int]:
        """What makes an input smaller than another: fewer entries, then fewer digits."""
        return self.given.m * self.given.n, sum(len(repr(x)) for row in self.given.rows for x in row)


@dataclass
class Tally:
    """Checks made and failed by kind, and the smallest violations."""

    jacobians: int = 0
    checks: dict[Kind, int] = field(default_factory=dict)
    violations: dict[Kind, int] = field(default_factory=dict)
    smallest: dict[Kind, list[Violation]] = field(default_factory=dict)

    def add(self, rule: str, check: Check, given: Input, seed: int) -> None:
        kind = rule, check.name
        self.checks[kind] = self.checks.get(kind, 0) + 1
        if check.is_violation:
            self.violations[kind] = self.violations.get(kind, 0) + 1
            self._keep([Violation(rule, check, replace(given), seed)])  # without what was cached

    def merge(self, other: Tally) -> None:
        self.jacobians += other.jacobians
        for mine, theirs in ((self.checks, other.checks), (self.violations, other.violations)):
            for kind, count in theirs.items():
                mine[kind] = mine.get(kind, 0) + count
        for kept in other.smallest.values():
            self._keep(kept)

    def _keep(self, found: Iterable[Violation]) -> None:
        for violation in found:
            kept = self.smallest.setdefault(violation.kind, [])
            kept.append(violation)
            kept.sort(key=lambda v: v.size)
            del kept[_KEPT:]


def prepare() -> None:
    """Set up a process: one thread, and warnings as errors but for the one that says that weights are not exact."""
    torch.set_num_threads(1)
    warnings.simplefilter("error")
    warnings.filterwarnings("ignore", "inexact weights")
    warnings.filterwarnings("ignore", ".*inaccurate", UserWarning)


def _prepare_worker() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the parent, which reports what was found
    prepare()


#: Rules that are looked at with the truth at hand on every input: their answers jump where gradients cancel.
CORE = ("upgrad", "dualproj", "greedy-dcp", "pcgrad+", "cagrad(.5)", "cagrad(1)")


def plan(seed: int, m: int, names: list[str]) -> Iterator[tuple[str, int]]:
    """The rules that an input meets, and the depth of the checks.

    Every rule looks at every input, but for those that solve what another solves (starred ones and pools), which look
    at one in six. One look in eight goes to depth 1, all those of `CORE`, and one in 32 to depth 2. Certificates are
    asked for on one input in four.
    """
    chances = np.random.default_rng([seed, 1]).random((len(names), 2))
    for name, (first, second) in zip(names, chances.tolist(), strict=True):
        if name == CERTIFY:
            if first < 1 / 4:
                yield name, 2
            continue
        again = name.endswith("*") or name.startswith(("mas-", "mixed", "blend"))
        if RULES[name].fits(m) and (first < 1 / 6 or not again):
            yield name, 2 if second < 1 / 32 else 1 if second < 1 / 8 or name in CORE else 0


def checks_of(scene: Scene, name: str, depth: int, seed: int) -> Iterator[Check]:
    """The checks of a rule, or of the certificates."""
    return examine_certificates(scene, seed) if name == CERTIFY else examine(scene, name, depth=depth, seed=seed)


def look(seed: int, names: list[str], families: list[str] | None, tally: Tally) -> None:
    """Try the rules on the input of one seed."""
    given = draw(seed, families)
    scene = Scene(given)
    for name, depth in plan(seed, given.m, names):
        for check in checks_of(scene, name, depth, seed):
            tally.add(name, check, given, seed)
    tally.jacobians += 1


def look_at(seeds: range, names: list[str], families: list[str] | None) -> Tally:
    """The tally of several seeds: what one process is asked for."""
    tally = Tally()
    for seed in seeds:
        look(seed, names, families, tally)
    return tally


def run(
    count: int,
    *,
    first: int = 0,
    seconds: float | None = None,
    names: list[str] | None = None,
    families: list[str] | None = None,
    workers: int = 1,
    progress: Callable[[Tally, float], None] = lambda tally, elapsed: None,
) -> Tally:
    """Try the rules on ``count`` inputs, or on those that ``seconds`` allow; Ctrl-C ends it with what was found so far.

    Args:
        count: number of inputs.
        first: the first seed.
        seconds: time limit; None for no limit.
        names: of `SUBJECTS`; None for all.
        families: names of families; None for all.
        workers: processes; 1 for this one alone.
        progress: called with the tally and the seconds so far.
    """
    chosen = SUBJECTS if names is None else names
    chunks = iter([range(i, min(i + _CHUNK, first + count)) for i in range(first, first + count, _CHUNK)])
    total, started = Tally(), time.perf_counter()

    def late() -> bool:
        return seconds is not None and time.perf_counter() - started > seconds

    def done(tally: Tally) -> None:
        total.merge(tally)
        progress(total, time.perf_counter() - started)

    try:
        if workers == 1:
            with warnings.catch_warnings():
                prepare()
                for chunk in chunks:
                    if late():
                        break
                    done(look_at(chunk, chosen, families))
            return total
        with ProcessPoolExecutor(workers, get_context("spawn"), _prepare_worker) as pool:
            running = {pool.submit(look_at, chunk, chosen, families) for chunk in islice(chunks, 2 * workers)}
            try:
                while running:
                    ready, running = wait(running, return_when=FIRST_COMPLETED)
                    for future in ready:
                        done(future.result())
                        chunk = None if late() else next(chunks, None)
                        if chunk is not None:
                            running.add(pool.submit(look_at, chunk, chosen, families))
            finally:
                pool.shutdown(wait=False, cancel_futures=True)
    except KeyboardInterrupt:
        pass
    return total
