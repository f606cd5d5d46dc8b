"""The rules of the benchmark: their names, and the parameter of each that is tuned together with the learning rate."""

from __future__ import annotations

import importlib
import math
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from paretograd.aggregators.base import Aggregator
from paretograd.aggregators.registry import (
    FURTHER,
    REGISTRY,
    SCHEDULES,
    WRAPPERS,
    parse_aggregators,
    read_rule,
    spelled,
)
from paretograd.bench.task import Task
from paretograd.errors import InputError, ParameterError, ParetogradError, UnknownNameError
from paretograd.scalarizations.base import Weighting
from paretograd.scalarizations.history import RLW
from paretograd.scalarizations.learned import IMTLL, UncertaintyWeighting
from paretograd.scalarizations.registry import SCALARIZERS, scalarizer
from paretograd.scalarizations.sums import WeightedSum

Rule = Aggregator | Weighting

#: The baselines: all losses with equal weights, and with weights that are tuned as other rules' parameters are.
MEAN, TUNED = "mean", "tuned-mean"
#: Largest standard deviation of the logarithms of tuned weights.
_DECADES = 1.5
#: The rule that sees one loss alone: ``single(0)``.
_SINGLE = re.compile(r"single\((\d+)\)")
_LEARNED: dict[str, type[Weighting]] = {cls.name: cls for cls in (UncertaintyWeighting, IMTLL)}


class Dial(NamedTuple):
    """A parameter that is tuned.

    Attributes:
        name: of the parameter.
        value: maps a number in [0, 1] and the number of objectives to the value, as `paretograd.get` reads it.
        words: the range, for the protocol.
    """

    name: str
    value: Callable[[float, int], Any]
    words: str


def _uniform(name: str, low: float, high: float) -> Dial:
    return Dial(name, lambda u, m: _short(low + (high - low) * u), f"{low:g} to {high:g}")


def _log(name: str, low: float, high: float) -> Dial:
    return Dial(name, lambda u, m: _short(low * (high / low) ** u), f"{low:g} to {high:g}, logarithmic")


def _cap(name: str) -> Dial:
    return Dial(name, lambda u, m: _short(float(m) ** (u - 1.0), up=True), "1/m to 1, logarithmic")


def _choice(name: str, *values: str) -> Dial:
    return Dial(name, lambda u, m: values[min(int(u * len(values)), len(values) - 1)], ", ".join(values))


def _short(value: float, up: bool = False) -> float:
    """Return a number with four digits, so that names of rules stay short."""
    size = 10.0 ** (3 - math.floor(math.log10(abs(value)))) if value else 1.0
    return (math.ceil(value * size) if up else round(value * size)) / size


#: The dials. Rules that are not listed have none.
DIALS: dict[str, Dial] = {
    "capped-mgda": _cap("cap"),
    "clipped-mgda": _cap("cap"),
    "entropic-mgda": _log("temperature", 0.01, 1.0),
    "chi-square-mgda": _log("radius", 0.05, 1.0),
    "power-mean": _uniform("p", -4.0, 0.9),
    "fairgrad": _log("alpha", 0.3, 10.0),
    "cagrad": _uniform("c", 0.1, 0.9),
    "gradvac": _log("beta", 1e-3, 0.5),
    "pcd": _log("tau", 1e-3, 0.3),
    "aligned-mtl": _choice("scale", "min", "median", "rmse"),
    "graddrop": _uniform("leak", 0.0, 1.0),
    "moco": _log("gamma", 1e-3, 1.0),
    "excess-mtl": _log("lr", 0.01, 10.0),
    "db-mtl": _uniform("beta", 0.0, 0.99),
    "gradnorm": _uniform("alpha", 0.1, 3.0),
    "modo": _log("gamma", 1e-3, 1.0),
    "sdmgrad": _log("lam", 0.03, 10.0),
    "clipped-rows(mean)": _log("max_norm", 0.01, 10.0),
    "cr-mogm(mgda)": _uniform("momentum", 0.5, 0.99),
    "p-norm": _log("p", 1.2, 10.0),
    "stch": _log("mu", 0.01, 10.0),
    "pbi": _log("theta", 0.1, 10.0),
    "cosmos": _log("penalty", 0.1, 10.0),
    "dwa": _log("temperature", 0.5, 5.0),
    "famo": _log("lr", 1e-3, 0.3),
}

#: Variants that are in the list beside the rules of the registries.
_VARIANTS = ("upgrad*", "dualproj*", "nash-mtl*", "mas-rand", "mas-rr(100)")
_WRAPPED = ("unit-rows(mean)", "clipped-rows(mean)", "cr-mogm(mgda)")
#: PIVRG without scores is FairGrad; the weighted sum is the tuned mean.
_LEFT_OUT = {"pivrg", "weighted-sum"}

#: All rules of the benchmark.
RULES: tuple[str, ...] = (
    MEAN,
    TUNED,
    *(name for name in (*REGISTRY, *_VARIANTS, *FURTHER, *_WRAPPED, *SCALARIZERS) if name not in {MEAN, *_LEFT_OUT}),
)


def dial_of(name: str) -> Dial | None:
    """Return the dial of a rule; None if it has none, or if it is written with parameters of its own."""
    return DIALS.get(_canonical(name))


def _canonical(name: str) -> str:
    text = name.strip().lower()
    return text if text in RULES or "(" in text else spelled(text)


def check_suits(rule: Rule, task: Task) -> None:
    """Raise if a rule reads the values of losses that mean nothing."""
    reads = not isinstance(rule, WeightedSum | RLW) if isinstance(rule, Weighting) else "losses" in rule.needs
    if reads and not task.positive:
        raise ParameterError(
            f"{type(rule).__name__} reads the values of the losses, which mean nothing on {task.name}: only their "
            "gradients do"
        )


def single(k: int) -> str:
    """Return the name of the rule that sees one loss alone."""
    return f"single({k})"


def objective_of(name: str) -> int | None:
    """Return the loss that a rule sees alone; None for rules that see all."""
    alone = _SINGLE.fullmatch(name.strip())
    return None if alone is None else int(alone[1])


def draw(name: str, u: float, m: int, rng: np.random.Generator) -> str:
    """Return a rule of a trial as text, such as ``cagrad(c=0.34)``.

    Args:
        name: of the rule.
        u: place of its dial in [0, 1]. For the tuned mean, it is the spread of the weights: none for 0.
        m: number of objectives.
        rng: draws the weights of the tuned mean.
    """
    if _canonical(name) == TUNED:
        weights = 10.0 ** (_DECADES * u * rng.standard_normal(m))
        return f"weighted-sum(weights={[_short(float(w)) for w in weights / weights.sum()]})"
    dial = dial_of(name)
    if dial is None:
        return name
    value = dial.value(u, m)
    written = read_rule(name)
    inside = ", ".join([*written.values, f"{dial.name}={value}"])
    return f"{written.name}({inside})"


def make(text: str, m: int, seed: int) -> Rule:
    """Return a new rule.

    Args:
        text: a rule as `paretograd.get` or `paretograd.scalarizer` read it, ``single(k)``, or ``module:Class`` with or
            without parameters.
        m: number of objectives.
        seed: of random rules.
    """
    text = text.strip()
    k = objective_of(text)
    if k is not None:
        if k >= m:
            raise ParameterError(f"{text}: there are {m} losses, numbered from 0")
        return WeightedSum([float(j == k) for j in range(m)])
    if ":" in text.partition("(")[0]:
        return _own(text)
    plain = spelled(text.partition("(")[0].rstrip("*"))
    if plain in _LEARNED:
        return _LEARNED[plain](m)
    if plain == RLW.name:
        return RLW(seed)
    if any(plain in known for known in (REGISTRY, FURTHER, WRAPPERS, SCHEDULES)):
        return parse_aggregators(text, seed)[0]
    try:
        return scalarizer(text)
    except UnknownNameError:
        known = ", ".join(RULES)
        raise UnknownNameError(f"no rule is called {text!r}. Known names: {known}; or module:Class") from None


def _own(text: str) -> Rule:
    """Return a rule of the user, written ``module:Class`` or ``module:Class(c=0.4)``."""
    path, opened, inside = text.partition("(")
    written = read_rule(f"own({inside}" if opened else "own")
    made = imported(path, "rule")
    try:
        rule = made(*written.values, **dict(written.keywords))
    except ParetogradError:
        raise
    except Exception as error:  # the user's own code
        raise InputError(f"{text} cannot be made: {error!r}") from error
    if not isinstance(rule, Aggregator | Weighting):
        raise InputError(f"{path} makes a {type(rule).__name__}; a rule is a paretograd.Aggregator or a scalarization")
    return rule


def imported(path: str, what: str) -> Any:
    """Return what ``module:Name`` names. The present folder is searched, too.

    Args:
        path: the module and the name.
        what: it is for, in messages.
    """
    module, _, name = path.partition(":")
    here = str(Path.cwd())
    sys.path.insert(0, here)
    try:
        found = importlib.import_module(module)
    except ImportError as error:
        raise InputError(f"{path} is no {what}: {error}. Write module:Class, with the module on the path") from error
    finally:
        sys.path.remove(here)
    try:
        return getattr(found, name)
    except AttributeError:
        raise InputError(f"{path} is no {what}: {module} has no {name!r}") from None


def label_of(name: str, m: int) -> str:
    """Return the paper's name of a rule, for tables and legends."""
    if name in (MEAN, TUNED):
        return "Mean" if name == MEAN else "Mean, tuned weights"
    if objective_of(name) is not None:
        return "Single task"
    rule = make(draw(name, 0.5, m, np.random.default_rng(0)), m, 0)
    return str(getattr(rule, "label", type(rule).__name__))
