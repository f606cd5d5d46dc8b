"""Aggregators by name, and the parser for rules written as text: ``mgda, upgrad*, mas-rr(100), capped-mgda(cap=0.2)``.

Values in a rule's parentheses are numbers, words, lists of numbers, ``none``, ``true``, ``false`` and ``inf``. They are
parsed, never executed. CONTRIBUTING.md lists the steps to add a rule.
"""

from __future__ import annotations

import ast
import difflib
import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from inspect import signature
from typing import Any

from paretograd.aggregators.aligned import AlignedMTL
from paretograd.aggregators.base import Aggregator
from paretograd.aggregators.baselines import RGW, ClippedMGDA
from paretograd.aggregators.batches import MoDo, SDMGrad
from paretograd.aggregators.coordinates import GradDrop, TrimmedMean
from paretograd.aggregators.dual_cone import GreedyDCP, UPGrad
from paretograd.aggregators.equal_angle import IMTLG, ConFIG
from paretograd.aggregators.gradnorm import GradNorm
from paretograd.aggregators.gradvac import GradVac
from paretograd.aggregators.krum import Krum
from paretograd.aggregators.mixed import mas_rand, mas_rr
from paretograd.aggregators.moments import DBMTL, ExcessMTL, MConFIG, MoCo
from paretograd.aggregators.momentum import CRMOGM
from paretograd.aggregators.named import (
    MGDA,
    CAGrad,
    CappedMGDA,
    ChiSquareMGDA,
    DualProj,
    EntropicMGDA,
    Mean,
    PowerMean,
    SpectralMGDA,
)
from paretograd.aggregators.pcgrad import PCGrad, PCGradPlus
from paretograd.aggregators.power import PIVRG, FairGrad, NashMTL
from paretograd.aggregators.priority import PCD
from paretograd.aggregators.wrappers import ClippedRows, UnitRows
from paretograd.errors import ParameterError, UnknownNameError

_CLASSES: tuple[type[Aggregator], ...] = (
    Mean,
    MGDA,
    CappedMGDA,
    ClippedMGDA,
    EntropicMGDA,
    SpectralMGDA,
    ChiSquareMGDA,
    PowerMean,
    NashMTL,
    FairGrad,
    PIVRG,
    UPGrad,
    DualProj,
    CAGrad,
    PCGrad,
    PCGradPlus,
    GradVac,
    PCD,
    IMTLG,
    ConFIG,
    AlignedMTL,
    RGW,
    Krum,
    GreedyDCP,
)

REGISTRY: dict[str, type[Aggregator]] = {cls.name: cls for cls in _CLASSES}

#: Rules that need more than a Gramian: the rows, the values of the losses, or several batches.
FURTHER: dict[str, type[Aggregator]] = {
    cls.name: cls for cls in (GradDrop, TrimmedMean, MoCo, ExcessMTL, DBMTL, MConFIG, GradNorm, MoDo, SDMGrad)
}

#: Rules around a rule, which is their first argument: ``unit-rows(upgrad)``.
WRAPPERS: dict[str, Callable[..., Aggregator]] = {cls.name: cls for cls in (UnitRows, ClippedRows, CRMOGM)}

#: The paper's schedules, which switch between rules.
SCHEDULES: dict[str, Callable[..., Aggregator]] = {"mas-rand": mas_rand, "mas-rr": mas_rr}


def _folded(name: str) -> str:
    """Return a name in lower case, without hyphens, underscores and spaces."""
    return re.sub(r"[-_\s]", "", name).lower()


#: Registered name by folded name, of the rule or of its class: ``nashmtl``, ``pcgradplus``.
_SPELLINGS = {_folded(cls.__name__): name for name, cls in (REGISTRY | FURTHER | WRAPPERS).items()}
_SPELLINGS |= {_folded(name): name for name in (*REGISTRY, *FURTHER, *WRAPPERS, *SCHEDULES)}

_KNOWN = [*REGISTRY, *FURTHER, *(f"{name}(RULE)" for name in WRAPPERS), "mas-rand", "mas-rr(N)"]

_RULE = re.compile(r"(?P<name>[^()*\s](?:[^()*]*[^()*\s])?)\s*(?:\((?P<inside>.*)\))?\s*(?P<star>\*?)", re.DOTALL)
_KEY = re.compile(r"\s*(?P<key>[A-Za-z_]\w*)\s*=(?P<value>.*)", re.DOTALL)
_WORD = re.compile(r"[A-Za-z][\w+-]*")
_THOUSANDS = re.compile(r"(\d+(?:\.\d+)?)[kK]")
_CONSTANTS = {"none": None, "true": True, "false": False, "inf": math.inf, "-inf": -math.inf}
_EXAMPLE = "such as mgda, upgrad*, mas-rr(100) or capped-mgda(cap=0.2)"


def names(further: bool = False) -> list[str]:
    """Return the names of all single rules. A trailing ``*`` selects the normalized variant.

    `get` also accepts the paper's schedules, ``mas-rand`` and ``mas-rr(N)``, which switch between rules, and rules
    around a rule: ``unit-rows(RULE)``, ``clipped-rows(RULE)`` and ``cr-mogm(RULE)``.

    Args:
        further: also name rules that need more than a Gramian: the rows, the values of the losses, or several batches.
    """
    return [*REGISTRY, *FURTHER] if further else list(REGISTRY)


def get(name: str, **parameters: Any) -> Aggregator:
    """Return an aggregator by name: ``get("capped-mgda", cap=0.2)``, ``get("upgrad*")`` or ``get("mas-rr(1000)")``.

    Args:
        name: one of `names`, ``mas-rand`` or ``mas-rr``, with a trailing ``*`` for the normalized variant. Parameters
            may follow in parentheses: ``capped-mgda(cap=0.2)*``. A rule around a rule takes that one first:
            ``clipped-rows(upgrad, max_norm=2)``. Case, hyphens, underscores and spaces are ignored: ``NashMTL`` and
            ``nash_mtl`` mean ``nash-mtl``.
        **parameters: passed to the class.
    """
    return _made(str(name), None, parameters)


def _made(text: str, seed: int | None, parameters: Mapping[str, Any]) -> Aggregator:
    """Return the rule of a text. Random rules without a seed of their own get ``seed``, unless it is None."""
    written = read_rule(text)
    maker, given = maker_of(written.name), written_parameters(written)
    twice = sorted(set(given) & set(parameters))
    if twice:
        raise ParameterError(f"{text!r} already gives {', '.join(twice)}; give it once")
    if seed is not None and "seed" in signature(maker).parameters:
        given = {"seed": seed} | given
    if spelled(written.name) in WRAPPERS and isinstance(inner := given.get("aggregator"), str):
        given["aggregator"] = _made(inner, seed, {})
    try:
        aggregator = maker(**given, **parameters)
    except TypeError as error:
        raise _misfit(written.name, error) from None
    return aggregator.normalized() if written.starred else aggregator


def parse_aggregators(text: str, seed: int | None = None) -> list[Aggregator]:
    """Return the aggregators of a list such as ``mgda,upgrad*,mas-rr(100),capped-mgda(cap=0.2)``, in order.

    Args:
        text: names as `get` accepts them, separated by commas.
        seed: seed of random rules without a seed of their own; None draws seeds from torch's global generator.
    """
    rules = [_made(part, seed, {}) for part in split_list(text)]
    if not rules:
        raise ParameterError("the list of aggregators is empty; name at least one, such as mgda,upgrad*")
    return rules


def spelled(plain: str) -> str:
    """Return the registered form of a name without star or parameters; unknown names are returned unchanged."""
    return _SPELLINGS.get(_folded(plain), plain)


def maker_of(plain: str) -> Callable[..., Aggregator]:
    """Return the class or function for a name without star or parameters."""
    known = spelled(plain)
    maker = (REGISTRY | FURTHER | WRAPPERS | SCHEDULES).get(known)
    if maker is None:
        near = difflib.get_close_matches(plain, [*REGISTRY, *FURTHER, *WRAPPERS, *SCHEDULES], n=1)
        hint = f" Did you mean {near[0]!r}?" if near else ""
        raise UnknownNameError(
            f"no aggregator is called {plain!r}.{hint} Known names: {', '.join(_KNOWN)}. Rules that see only the "
            "losses are in paretograd.scalarizer_names()"
        )
    return maker


def written_parameters(written: Written) -> dict[str, Any]:
    """Return the arguments in a rule's parentheses, by parameter name."""
    try:
        bound = signature(maker_of(written.name)).bind_partial(*written.values, **dict(written.keywords))
    except TypeError as error:
        raise _misfit(written.name, error) from None
    return dict(bound.arguments)


def _misfit(plain: str, error: TypeError) -> ParameterError:
    maker = maker_of(plain)
    if spelled(plain) in SCHEDULES:
        taken = ", ".join(signature(maker).parameters)
        return ParameterError(f"{plain}: {error}. It takes {taken}: write mas-rand, mas-rand(seed=3) or mas-rr(1000)")
    if spelled(plain) in WRAPPERS:
        taken = ", ".join(["RULE", *list(signature(maker).parameters)[1:]])
        return ParameterError(f"{plain}: {error}. It takes {taken}, such as {spelled(plain)}(upgrad)")
    return ParameterError(f"{plain}: {error}. See help(paretograd.{maker.__name__})")


@dataclass(frozen=True)
class Written:
    """A parsed rule: its name in lower case, the arguments in its parentheses, and whether a star follows."""

    name: str
    values: tuple[Any, ...] = ()
    keywords: tuple[tuple[str, Any], ...] = ()
    starred: bool = False


def read_rule(text: str) -> Written:
    """Parse one rule, such as ``capped-mgda(cap=0.2)*``."""
    found = _RULE.fullmatch(text.strip())
    if found is None:
        error = ParameterError if "(" in text else UnknownNameError
        raise error(f"{text!r} is not a rule; write a name, {_EXAMPLE}. A star goes at the end")
    parts = split_list(found["inside"] or "")
    values: list[Any] = []
    if parts and spelled(found["name"]) in WRAPPERS and not _KEY.fullmatch(parts[0]):
        values.append(parts.pop(0))  # a rule, which is read when it is made
    keywords: dict[str, Any] = {}
    for part in parts:
        named = _KEY.fullmatch(part)
        if named is None:
            if keywords:
                raise ParameterError(f"{text!r}: {part!r} follows a named parameter; name it as well, as in cap=0.2")
            values.append(_value(part, text))
        elif named["key"] in keywords:
            raise ParameterError(f"{text!r} gives {named['key']} twice")
        else:
            keywords[named["key"]] = _value(named["value"].strip(), text)
    return Written(found["name"].lower(), tuple(values), tuple(keywords.items()), bool(found["star"]))


def split_list(text: str) -> list[str]:
    """Split the text at commas, except inside parentheses, brackets and quotes."""
    parts, depth, quote = [""], 0, ""
    for sign in text:
        if quote:
            quote = "" if sign == quote else quote
        elif sign in "'\"":
            quote = sign
        elif sign in "([":
            depth += 1
        elif sign in ")]":
            depth -= 1
        if depth < 0:
            break
        if sign == "," and not depth and not quote:
            parts.append("")
        else:
            parts[-1] += sign
    if depth or quote:
        raise ParameterError(f"{text!r}: a parenthesis, bracket or quote is not closed; write rules {_EXAMPLE}")
    return [part.strip() for part in parts if part.strip()]


def _value(text: str, rule: str) -> Any:
    """Parse a number, a word or a list of numbers."""
    if text.lower() in _CONSTANTS:
        return _CONSTANTS[text.lower()]
    thousands = _THOUSANDS.fullmatch(text)
    if thousands:  # the paper writes 2500 as 2.5k
        number = 1000.0 * float(thousands[1])
        return int(number) if number.is_integer() else number
    if _WORD.fullmatch(text):
        return text
    try:
        value = ast.literal_eval(text)
    except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
        value = None
    listed = value if isinstance(value, (list, tuple)) else [value]
    if not isinstance(value, str) and not all(type(entry) in (int, float) for entry in listed):
        raise ParameterError(f"{rule!r}: {text!r} is not a number, word, or list of numbers such as [1, 2, 3]")
    return list(value) if isinstance(value, tuple) else value
