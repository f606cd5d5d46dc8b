"""Options of ``paretograd run`` as a person writes them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from paretograd.aggregators.notation import read_rule, split_list
from paretograd.errors import InputError
from paretograd.experiments.study import Method
from paretograd.problems.registry import problem

#: A larger count is taken for a seed.
_MOST_SEEDS = 1000


def read_parameters(name: str, written: Sequence[str]) -> tuple[str, dict[str, Any]]:
    """The problem's name and all its parameters, from ``vlmop2`` and ``n=6``."""
    for part in written:
        if "=" not in part:
            raise InputError(f"--param {part!r}: write key=value, such as --param n=6")
    parameters: dict[str, Any] = {}
    for part in written:
        for key, value in read_rule(f"problem({part})").keywords:
            if key in parameters:
                raise InputError(f"--param gives {key} twice")
            parameters[key] = value
    made = problem(name, **parameters)
    return made.name, dict(made.parameters)


def read_seeds(written: str) -> tuple[int, ...]:
    """``5`` is 0 to 4; ``24,42`` and ``100,`` are what they say."""
    parts = split_list(written)
    try:
        numbers = tuple(int(part) for part in parts)
    except ValueError:
        numbers = ()
    if not numbers:
        raise InputError(f"--seeds {written!r}: a count such as 5, or seeds separated by commas such as 24,42,48")
    if "," in written:
        return numbers
    count = numbers[0]
    if not 1 <= count <= _MOST_SEEDS:
        raise InputError(
            f"--seeds {count} asks for that many runs; it can be 1 to {_MOST_SEEDS}. For the seed {count} alone write "
            f"--seeds {count},"
        )
    return tuple(range(count))


def read_methods(aggregators: str, lr: str, lr_for: Sequence[str]) -> tuple[Method, ...]:
    """The rules of a list, each with its step size."""
    rules = split_list(aggregators)
    if not rules:
        raise InputError("--aggregators is empty; name at least one rule, such as --aggregators mgda,upgrad")
    own: dict[str, str] = {}
    for part in lr_for:
        rule, _, value = part.rpartition("=")
        if rule.strip() not in rules or not value.strip():
            raise InputError(
                f"--lr-for {part!r}: write RULE=LR with a rule of --aggregators ({', '.join(rules)}), such as "
                f"{rules[0]}=0.005"
            )
        own[rule.strip()] = value.strip()
    return tuple(Method(rule, own.get(rule, lr)) for rule in rules)
