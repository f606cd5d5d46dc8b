"""Search small counter-examples for every property that a rule of the table lacks.

    python benchmarks/counterexamples.py                 # only what is missing
    python benchmarks/counterexamples.py --only upgrad   # one row
    python benchmarks/counterexamples.py --all           # all anew, five minutes on one core

Draws Jacobians of small integers, the smallest shapes and entries first, until one violates the property. Then it
removes rows and columns and moves entries towards zero as long as the violation remains, and writes the result to
src/paretograd/data/counterexamples.json. Each cell has a seed of its own, so that a new row changes no other one. If
nothing is found, the property may hold: prove it, and claim it in the rule's guarantee.
"""

from __future__ import annotations

import argparse
import itertools
import json
import zlib
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from functools import partial

import numpy as np
from scipy.optimize import linprog

from paretograd.errors import InputError
from paretograd.reports.rules.counterexamples import (
    LEAST_MARGIN,
    PATH,
    Case,
    Counterexample,
    Moment,
    counterexamples,
)
from paretograd.reports.rules.properties import PROPERTIES
from paretograd.reports.rules.rows import ROWS, RowSpec

Matrix = list[list[int]]
#: Returns a counter-example for a Jacobian, or None.
Attempt = Callable[[Matrix], Counterexample | None]

#: Shapes (m, n), and the largest entry, in the order of the search.
SHAPES = ((2, 1), (2, 2), (3, 2), (3, 3), (4, 3))
ENTRIES = (1, 2, 3, 5, 9)
#: Jacobians drawn for each shape and largest entry, and steps E tried with each.
DRAWS, STEPS = 400, 8
#: Factor for Jacobians of four rows at which a direction may jump, which are rarer.
MORE = 10
#: A violation counts as found from this margin on, and a smaller counter-example must keep it.
WANTED = 2.5 * LEAST_MARGIN
#: Largest multiplier.
LARGEST = 20
#: Entries of separating vectors.
REACH = 4
#: Random histories and losses tried with each Jacobian, for a rule that sees them, and the most earlier steps.
VARIANTS, EARLIER = 6, 3


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--only", metavar="RULE", help="a row's rule, as in rows.py")
    parser.add_argument("--all", action="store_true", help="search everything anew")
    options = parser.parse_args()
    stored = dict(counterexamples())
    found: dict[tuple[str, str], Counterexample] = {}
    for spec in ROWS:
        guarantee = spec.make().guarantee
        for key, listed in PROPERTIES.items():
            if listed.claim(guarantee) is not None:
                continue
            old = stored.get((spec.rule, key))
            chosen = options.all or old is None or old.margin < LEAST_MARGIN
            if chosen and options.only in (None, spec.rule):
                old = search(spec, key)
                print(
                    f"{spec.rule:40}{key:20}" + ("NOTHING FOUND" if old is None else f"margin {old.margin:.3f}"),
                    flush=True,
                )
            if old is not None:
                found[spec.rule, key] = old
        write(stored | found)
    write(found)


def write(found: dict[tuple[str, str], Counterexample]) -> None:
    """Write the file, one property to a line."""
    rules = dict.fromkeys(rule for rule, _ in found)
    blocks = [
        f" {json.dumps(rule)}: {{\n"
        + ",\n".join(
            f"  {json.dumps(key)}: {json.dumps(example.to_json())}"
            for (owner, key), example in found.items()
            if owner == rule
        )
        + "\n }"
        for rule in rules
    ]
    PATH.write_text("{\n" + ",\n".join(blocks) + "\n}\n", encoding="utf-8")


def search(spec: RowSpec, key: str) -> Counterexample | None:
    """Return a small counter-example, or None."""
    rng = np.random.default_rng(zlib.crc32(f"{spec.rule} {key}".encode()))
    if key == "aligned":
        return search_alignment(spec, rng)
    attempt = ATTEMPTS[key](spec)
    for J in jacobians(rng, dependent=key in JUMPS):
        with suppress(InputError):  # the rule does not take this number of rows
            example = attempt(J)
            if example is not None:
                return upright(smallest(example))
    return None


def jacobians(rng: np.random.Generator, dependent: bool) -> Iterator[Matrix]:
    """Yield Jacobians without repetition, the smallest first.

    Directions jump at dependent gradients. So in two of three Jacobians, set the last column to zero for all rows but
    at most one, and replace one of these rows by a combination of the others. A step in that column makes them
    independent.
    """
    for high, (m, n) in itertools.product(ENTRIES, SHAPES):
        seen = set()
        for _ in range(MORE * DRAWS if dependent and m > 3 else DRAWS):
            J = rng.integers(-high, high + 1, (m, n))
            if dependent and n > 1 and rng.random() < 0.67:
                order = rng.permutation(m)
                flat = order[rng.integers(2) :]
                J[flat, -1] = 0
                if len(flat) > 1:
                    J[flat[0]] = rng.integers(0, 3, len(flat) - 1) @ J[flat[1:]]
            if J.tobytes() not in seen:
                seen.add(J.tobytes())
                yield J.tolist()


def violates(example: Counterexample) -> bool:
    try:
        margin = example.margin
    except InputError:  # the rule does not take this number of rows
        return False
    return np.isfinite(margin) and margin >= WANTED


def vectors(n: int) -> np.ndarray:
    """All integer vectors with entries up to `REACH`, the smallest first, shape ``(count, n)``."""
    grid = np.array(list(itertools.product(range(-REACH, REACH + 1), repeat=n)))
    return grid[np.argsort(np.abs(grid).sum(axis=1), kind="stable")][1:]


def separated(key: str) -> Callable[[RowSpec], Attempt]:
    """The search for a vector z that separates the direction."""

    def of(spec: RowSpec) -> Attempt:
        def attempt(J: Matrix) -> Counterexample | None:
            A = np.array(J, dtype=np.float64)
            for case in cases(spec, J):
                d = case.direction(spec.rule).numpy()
                Z = vectors(A.shape[1])
                lengths, slopes, inner = np.linalg.norm(Z, axis=1), Z @ A.T, Z @ d
                if key == "in_cone":
                    margins = np.where(slopes.min(axis=1) >= 0.0, -inner / lengths / max(np.linalg.norm(d), 1e-9), -1.0)
                elif key == "in_hull":
                    top = max(np.linalg.norm(A, axis=1).max(), 1e-9)
                    margins = (slopes.min(axis=1) - inner) / lengths / top
                else:
                    gap = slopes.min(axis=1)
                    margins = np.where(gap > 0.0, 1.0 - np.linalg.norm(d) * lengths / np.maximum(gap, 1e-9), -1.0)
                for k in np.flatnonzero(margins >= WANTED):
                    example = Counterexample(spec.rule, key, (case,), z=tuple(Z[k].tolist()))
                    if violates(example):
                        return example
            return None

        return attempt

    return of


def cases(spec: RowSpec, J: Matrix, step: Matrix | None = None) -> list[Case]:
    """The directions of the row for J: one, or several for a schedule and for a rule that sees more than J."""
    if spec.rule.startswith("mas"):
        return [Case(J, step=step, after=after) for after in range(5)]
    rng = np.random.default_rng(zlib.crc32(np.array(J).tobytes()))
    plain = Case(J, step=step)
    draws = [replace(plain, rule=rule) for rule in spec.others]
    return [plain, *draws, *(varied(spec, plain, rng) for _ in range(VARIANTS if sees_more(spec) else 0))]


def sees_more(spec: RowSpec) -> bool:
    """Return True if the direction depends on losses, other batches, or steps before."""
    return recalls(spec) or "losses" in spec.needs or "batches" in spec.needs


def recalls(spec: RowSpec) -> bool:
    return spec.state not in ("", "random numbers", "m scores") and not spec.rule.startswith("mas")


def varied(spec: RowSpec, case: Case, rng: np.random.Generator, losses: tuple[int, ...] | None = None) -> Case:
    """Return the case with a random history and random losses, or with given ones."""
    m, n = np.array(case.jacobian).shape
    high = max(int(np.abs(case.jacobian).max(initial=1)), 1)

    def matrix() -> Matrix:
        return rng.integers(-high, high + 1, (m, n)).tolist()

    def extra(losses: tuple[int, ...] | None) -> dict[str, tuple]:
        drawn = tuple(rng.integers(1, rng.choice([3, 10]), m).tolist()) if losses is None else losses
        learned = tuple(rng.integers(-2, 3, m).tolist()) if "learned" in spec.state else ()
        batches = (matrix(), matrix()) if "batches" in spec.needs else ()
        return {"losses": drawn if "losses" in spec.needs else (), "batches": batches, "learned": learned}

    count = int(rng.integers(EARLIER + 1)) if recalls(spec) else 0
    earlier = tuple(Moment(matrix(), **extra(None)) for _ in range(count))
    moved = case.step is not None and "losses" in spec.needs
    change = tuple(rng.integers(-1, 2, m).tolist()) if moved else ()
    return replace(case, earlier=earlier, losses_step=change, **extra(losses))


def with_options(key: str, field: str, options: Callable[[int], list]) -> Callable[[RowSpec], Attempt]:
    """The search over one field: orders or factors of the rows."""

    def of(spec: RowSpec) -> Attempt:
        def attempt(J: Matrix) -> Counterexample | None:
            tried = (
                Counterexample(spec.rule, key, (case,), **{field: option})
                for case in cases(spec, J)
                for option in options(len(J))
            )
            return next((example for example in tried if violates(example)), None)

        return attempt

    return of


def plain(key: str) -> Callable[[RowSpec], Attempt]:
    return with_options(key, "order", lambda m: [()])


def orders(m: int) -> list[tuple[int, ...]]:
    return list(itertools.permutations(range(m)))[1:]


def factors(m: int) -> list[tuple[int, ...]]:
    return [tuple(factor if k == i else 1 for k in range(m)) for i in range(m) for factor in (2, 10)]


def jumping(key: str) -> Callable[[RowSpec], Attempt]:
    """The search for a step E along which the direction jumps."""

    def of(spec: RowSpec) -> Attempt:
        def attempt(J: Matrix) -> Counterexample | None:
            A = np.array(J)
            inside: tuple[int, ...] = ()
            if key == "continuous_inside":
                Z = vectors(A.shape[1])
                good = Z[(Z @ A.T).min(axis=1) > 0]
                if not len(good):
                    return None
                inside = tuple(good[0].tolist())
            rng = np.random.default_rng(zlib.crc32(A.tobytes()))
            for _ in range(STEPS):
                E = np.zeros(A.shape, dtype=int)
                column = -1 if rng.random() < 0.5 else rng.integers(A.shape[1])
                E[rng.integers(len(A)), column] = rng.choice([-1, 1])
                for case, between in itertools.product(cases(spec, J, E.tolist()), jumps_anywhere(spec)):
                    example = Counterexample(spec.rule, key, (case,), z=inside, between=between)
                    if violates(example):
                        return example
            return None

        return attempt

    return of


def jumps_anywhere(spec: RowSpec) -> tuple[bool, ...]:
    """Return the kinds of jumps to look for: a random threshold is hit between two Jacobians of integers."""
    return (True,) if spec.others else (False,)


def search_alignment(spec: RowSpec, rng: np.random.Generator) -> Counterexample | None:
    """Return Jacobians and multipliers, or a Jacobian J(t) whose constants vanish."""
    safe = spec.make().guarantee.non_conflicting  # no slope is negative, and so no sum of them
    return vanishing(spec, rng) if safe else opposed(spec, rng) or vanishing(spec, rng)


def vanishing(spec: RowSpec, rng: np.random.Generator) -> Counterexample | None:
    for high, (m, n) in itertools.product(ENTRIES[:3], SHAPES[1:4]):
        for _ in range(2 * DRAWS):
            A = rng.integers(-high, high + 1, (m, n)) * rng.integers(0, 2, (m, 1))
            E = rng.integers(-1, 2, (m, n))
            case = Case(A.tolist(), step=E.tolist())
            if sees_more(spec):
                case = replace(varied(spec, case, rng), losses_step=())
            example = Counterexample(spec.rule, "aligned", (case,))
            if violates(example):
                return upright(smallest(example))
    return None


def opposed(spec: RowSpec, rng: np.random.Generator) -> Counterexample | None:
    """Solve a linear program for multipliers on a pool of Jacobians with the same m, and all their cyclic shifts."""
    for (m, n), high in itertools.product(SHAPES[1:], (3, 9, 20)):
        pool = []
        losses = tuple(rng.integers(1, 4, m).tolist())
        for _ in range(DRAWS):
            J = rng.integers(-high, high + 1, (m, n)) * (1 if high < 20 else rng.choice([1, 10], (m, 1)))
            for shift in range(m):
                case = Case(np.roll(J, shift, axis=0).tolist())
                if sees_more(spec):
                    case = varied(spec, case, rng, losses)
                pool += [replace(case, rule=rule) for rule in (None, *spec.others)]
        example = multiplied(spec, pool)
        if example is not None:
            while True:  # leave out cases
                fewer = next(
                    (
                        one
                        for k in range(len(example.cases))
                        if (one := multiplied(spec, list(example.cases[:k] + example.cases[k + 1 :])))
                    ),
                    None,
                )
                if fewer is None:
                    return upright(smallest(example))
                example = fewer
    return None


def multiplied(spec: RowSpec, pool: list[Case]) -> Counterexample | None:
    """Return the cases with integer multipliers y for which every ``sum_i y_i <d_i, g_ik>`` is negative, or None."""
    if not pool:
        return None
    slopes, kept = [], []
    for case in pool:
        J = case.at()
        try:
            d = case.direction(spec.rule)
        except InputError:
            continue  # the rule does not take this number of rows
        size = float(J.norm(dim=1).max() * d.norm())
        if size > 1e-6:
            slopes.append((J @ d / size).numpy())
            kept.append((case, size))
    if not kept:
        return None
    S = np.array(slopes).T  # m x cases
    m, count = S.shape
    # minimise v subject to S y <= v, y >= 0, sum y = 1
    program = linprog(
        np.r_[np.zeros(count), 1.0],
        np.c_[S, -np.ones(m)],
        np.zeros(m),
        np.r_[np.ones(count), 0.0][None],
        [1.0],
        bounds=[(0.0, None)] * count + [(None, None)],
    )
    if program.fun > -1.5 * WANTED:
        return None
    chosen = [(kept[i][0], y / kept[i][1]) for i, y in enumerate(program.x[:-1]) if y > 1e-6]
    for scale in (1, 2, 3, 5, 10, 30, 100, 1000):
        least = min(y for _, y in chosen)
        whole = tuple(replace(case, multiplier=max(1, round(scale * y / least))) for case, y in chosen)
        if max(case.multiplier for case in whole) > LARGEST:
            continue
        example = Counterexample(spec.rule, "aligned", whole)
        if violates(example):
            return example
    return None


def smallest(example: Counterexample) -> Counterexample:
    """Return a local minimum: without rows and columns that do not matter, and with entries near zero."""
    found = True
    while found:
        found = False
        for smaller in simpler(example):
            try:
                better = violates(smaller)
            except (ValueError, RuntimeError, IndexError):
                better = False  # the rule does not take this number of rows
            if better:
                example, found = smaller, True
                break
    return example


def edited(example: Counterexample, edit: Callable[[np.ndarray], np.ndarray], row: int = -1) -> tuple[Case, ...]:
    """Return the cases with the same change in every matrix, and without a row's numbers if it is dropped."""

    def of(moment: Moment) -> Moment:
        changed = {
            field: value[:row] + value[row + 1 :]
            for field in ("losses", "learned", "losses_step")
            if row >= 0 and (value := getattr(moment, field, ()))
        }
        if moment.batches:
            changed["batches"] = tuple(edit(np.array(J)).tolist() for J in moment.batches)
        if isinstance(moment, Case):
            changed["earlier"] = tuple(map(of, moment.earlier))
            changed["step"] = None if moment.step is None else edit(np.array(moment.step)).tolist()
        return replace(moment, jacobian=edit(np.array(moment.jacobian)).tolist(), **changed)

    return tuple(map(of, example.cases))


def upright(example: Counterexample) -> Counterexample:
    """Return the example reflected so that few entries are negative."""
    for j in range(len(example.cases[0].jacobian[0])):
        entries = [line[j] for case in example.cases for line in (*case.jacobian, *(case.step or ()))]
        if sum(np.sign(entries)) < 0:
            signs = np.ones(len(example.cases[0].jacobian[0]), dtype=int)
            signs[j] = -1
            z = tuple((np.array(example.z) * signs).tolist()) if example.z else ()
            turned = replace(example, cases=edited(example, partial(np.multiply, signs)), z=z)
            example = turned if violates(turned) else example
    return example


def simpler(example: Counterexample) -> Iterator[Counterexample]:
    """Yield simpler variants, the simplest first."""
    m, n = np.array(example.cases[0].jacobian).shape
    for j in range(n if n > 1 else 0):
        z = tuple(np.delete(example.z, j).tolist()) if example.z else ()
        if not example.z or any(z):
            yield replace(example, cases=edited(example, partial(np.delete, obj=j, axis=1)), z=z)
    for k in range(m if m > 2 and not example.order else 0):
        kept = tuple(np.delete(example.factors, k).tolist()) if example.factors else ()
        yield replace(example, cases=edited(example, partial(np.delete, obj=k, axis=0), k), factors=kept)
    yield from simpler_losses(example)
    for i, case in enumerate(example.cases):
        for one in simpler_cases(case):
            yield replace(example, cases=(*example.cases[:i], one, *example.cases[i + 1 :]))
    for j, value in enumerate(example.z):
        if value and (abs(value) > 1 or sum(map(bool, example.z)) > 1):
            z = list(example.z)
            z[j] = int(value - np.sign(value))
            yield replace(example, z=tuple(z))
    for k, value in enumerate(example.factors):
        if value > 2:
            yield replace(example, factors=(*example.factors[:k], value // 2, *example.factors[k + 1 :]))


def simpler_losses(example: Counterexample) -> Iterator[Counterexample]:
    """Yield variants with smaller losses, the same in all cases."""
    losses = example.cases[0].losses
    for smaller in ((), *lowered(losses, 1)) if losses else ():
        yield replace(example, cases=tuple(replace(case, losses=smaller) for case in example.cases))


def simpler_cases(case: Case) -> Iterator[Case]:
    """Yield simpler variants of a case: without a step before, and with smaller numbers."""
    for k, moment in enumerate(case.earlier):
        yield replace(case, earlier=case.earlier[:k] + case.earlier[k + 1 :])
        for smaller in simpler_moments(moment):
            yield replace(case, earlier=(*case.earlier[:k], smaller, *case.earlier[k + 1 :]))
    if case.losses_step:
        for smaller in ((), *lowered(case.losses_step, 0)):
            yield replace(case, losses_step=smaller)
    if case.step is not None:
        for matrix in nearer_zero(case.step):
            yield replace(case, step=matrix)
    yield from simpler_moments(case, losses=False)


def simpler_moments(moment: Moment, losses: bool = True) -> Iterator:
    """Yield a step with smaller numbers."""
    if losses and moment.losses:
        for smaller in ((), *lowered(moment.losses, 1)):
            yield replace(moment, losses=smaller)
    if moment.learned:
        for smaller in ((), *lowered(moment.learned, 0)):
            yield replace(moment, learned=smaller)
    if moment.batches:
        yield replace(moment, batches=())
        yield replace(moment, batches=moment.batches[1:])
        for k, J in enumerate(moment.batches):
            for matrix in nearer_zero(J):
                yield replace(moment, batches=(*moment.batches[:k], matrix, *moment.batches[k + 1 :]))
    for matrix in nearer_zero(moment.jacobian):
        yield replace(moment, jacobian=matrix)


def lowered(values: tuple[int, ...], least: int) -> Iterator[tuple[int, ...]]:
    """Yield numbers of which one is nearer to the least."""
    for k, value in enumerate(values):
        for entry in dict.fromkeys((least, int(value - np.sign(value - least)))):
            if entry != value:
                yield (*values[:k], entry, *values[k + 1 :])


def nearer_zero(rows: Matrix) -> Iterator[Matrix]:
    """Yield matrices of which one entry is nearer to zero."""
    values = np.array(rows)
    for k, j in np.argwhere(values):
        for entry in dict.fromkeys((0, int(values[k, j] / 2), int(values[k, j] - np.sign(values[k, j])))):
            changed = values.copy()
            changed[k, j] = entry
            yield changed.tolist()


JUMPS = ("continuous", "continuous_inside")
ATTEMPTS: dict[str, Callable[[RowSpec], Attempt]] = {
    "in_cone": separated("in_cone"),
    "in_hull": separated("in_hull"),
    "long": separated("long"),
    "non_conflicting": plain("non_conflicting"),
    "degree": with_options("degree", "exponent", lambda m: [1, -15]),
    "equivariant": with_options("equivariant", "order", orders),
    "scale_invariant": with_options("scale_invariant", "factors", factors),
    "continuous": jumping("continuous"),
    "continuous_inside": jumping("continuous_inside"),
}

if __name__ == "__main__":
    main()
