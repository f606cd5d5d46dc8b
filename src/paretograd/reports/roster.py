"""Which rules a report shows, and with which parameters."""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from paretograd.aggregators.base import Aggregator
from paretograd.aggregators.registry import (
    FURTHER,
    REGISTRY,
    SCHEDULES,
    WRAPPERS,
    get,
    names,
    read_rule,
    spelled,
    written_parameters,
)
from paretograd.errors import ParameterError
from paretograd.scalarizations.base import Weighting
from paretograd.scalarizations.registry import SCALARIZERS, scalarizer

#: Values for the rules that cannot do without.
EXAMPLE_PARAMETERS: dict[str, dict[str, Any]] = {
    "capped-mgda": {"eps": 0.5},
    "mas-rr": {"n": 1000},
    "uncertainty": {"m": 2},
    "imtl-l": {"m": 2},
}


@dataclass(frozen=True)
class Parameter:
    """A parameter as a person writes it: ``c=0.4`` for every rule that takes c, ``cagrad.c=0.4`` for one."""

    rule: str | None
    key: str
    text: str

    @classmethod
    def parse(cls, written: str) -> Parameter:
        """Split ``[rule.]key=value``."""
        left, equals, text = (part.strip() for part in written.partition("="))
        rule, _, key = left.rpartition(".")
        if not equals or not key or not text:
            raise ParameterError(
                f"{written!r} is no parameter; write key=value or rule.key=value, such as c=0.4 or cagrad.c=0.4"
            )
        if rule:
            build_any(rule)  # raises, with a suggestion, on an unknown name
        return cls(_plain(rule) or None, key, text)


def build(name: str, parameters: Sequence[Parameter] = ()) -> Aggregator:
    """One rule by name; every parameter must be its own."""
    _check_used(parameters, [name])
    return get(name, **_arguments(name, parameters, EXAMPLE_PARAMETERS.get(_plain(name), {})))


def build_any(name: str, parameters: Sequence[Parameter] = ()) -> Aggregator | Weighting:
    """Return one rule by name, which may see the losses only; every parameter must be its own."""
    plain = _plain(name)
    if plain not in SCALARIZERS:
        return build(name, parameters)
    _check_used(parameters, [name])
    taken, written = parameter_names(plain), dict(read_rule(name).keywords)
    given = {p.key: _convert(plain, p, str(taken[p.key].annotation)) for p in parameters}
    return scalarizer(plain, **EXAMPLE_PARAMETERS.get(plain, {}) | written | given)


def roster(
    m: int, only: Iterable[str] | None = None, parameters: Sequence[Parameter] = (), stars: bool = False
) -> list[Aggregator]:
    """The rules to compare on m objectives, in the registry's order or in the order asked for.

    Args:
        m: number of objectives. MGDA + clipping is given the cap of capped MGDA, so that the two compare.
        only: names, a trailing ``*`` for the normalized variant; None for all.
        parameters: each goes to every rule that takes it.
        stars: add the normalized variant of every rule that it may change.
    """
    chosen = list(dict.fromkeys(name.strip().lower() for name in only)) if only is not None else names()
    _check_used(parameters, chosen)
    defaults: dict[str, Mapping[str, Any]] = dict(EXAMPLE_PARAMETERS)
    capped = _arguments("capped-mgda", parameters, EXAMPLE_PARAMETERS["capped-mgda"])
    if isinstance(capped.get("eps"), float) and capped["eps"] > 0.0:
        defaults["clipped-mgda"] = {"cap": 1.0 / (capped["eps"] * m)}
    rules = []
    for name in chosen:
        rule = get(name, **_arguments(name, parameters, defaults.get(_plain(name), {})))
        rules.append(rule)
        # Weights that sum to one stay as they are: their starred variant is the rule itself.
        if stars and not rule.guarantee.in_hull and f"{name}*" not in chosen:
            rules.append(rule.normalized())
    return rules


def parameter_names(name: str) -> dict[str, inspect.Parameter]:
    """What a rule takes from the command line, by key."""
    maker = (REGISTRY | FURTHER | WRAPPERS | SCHEDULES | SCALARIZERS).get(_plain(name))
    if maker is None:
        return {}
    taken = inspect.signature(maker).parameters
    return {key: parameter for key, parameter in taken.items() if key != "generator"}


def _plain(name: str) -> str:
    return spelled(read_rule(name).name) if name else ""


def _arguments(name: str, parameters: Sequence[Parameter], defaults: Mapping[str, Any]) -> dict[str, Any]:
    taken, plain = parameter_names(name), _plain(name)
    mine = [p for p in parameters if p.key in taken and p.rule in (None, plain)]
    given = {p.key: _convert(plain, p, str(taken[p.key].annotation)) for p in mine}
    written = written_parameters(read_rule(name)) if taken else {}
    arguments = given or ({} if written else dict(defaults))
    if "seed" in taken and "seed" not in written:
        arguments.setdefault("seed", 0)  # a report reads the same twice
    return arguments


def _convert(name: str, parameter: Parameter, annotation: str) -> Any:
    """The value that the annotation of the constructor's parameter asks for."""
    text = parameter.text
    if "None" in annotation and text.lower() == "none":
        return None
    try:
        if "Literal" in annotation:
            return text
        if "Sequence" in annotation:
            return [float(part) for part in text.replace(",", " ").split()]
        if "bool" in annotation:
            return {"true": True, "yes": True, "1": True, "false": False, "no": False, "0": False}[text.lower()]
        return int(text) if "int" in annotation else float(text)
    except (ValueError, KeyError):
        kinds = {"Sequence": "numbers separated by commas", "bool": "true or false", "int": "a whole number"}
        kind = next((words for mark, words in kinds.items() if mark in annotation), "a number")
        raise ParameterError(f"{name} takes {parameter.key} as {kind}; got {text!r}") from None


def _check_used(parameters: Sequence[Parameter], chosen: Sequence[str]) -> None:
    for parameter in parameters:
        rules = [name for name in chosen if parameter.rule in (None, _plain(name))]
        if not any(parameter.key in parameter_names(name) for name in rules):
            lists = {_plain(name): ", ".join(parameter_names(name)) or "none" for name in rules or chosen}
            known = "; ".join(f"{name}: {keys}" for name, keys in lists.items() if keys != "none" or len(lists) == 1)
            raise ParameterError(
                f"none of the chosen rules takes {parameter.key!r}. Their parameters are {known or 'none'}"
            )
