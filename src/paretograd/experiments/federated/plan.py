"""Which runs a study has: the paper's tables, rules as a person writes them, settings and seeds."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

from paretograd.aggregators.mean import Mean
from paretograd.aggregators.mgda import CappedMGDA, ClippedMGDA
from paretograd.errors import ParetogradError
from paretograd.experiments.study import Method
from paretograd.federated.aggregation import Rule
from paretograd.federated.baselines import CoordinateMedian, GeometricMedian, Krum, MultiKrum, TrimmedMean

SEEDS = (0, 1, 2)
EPOCHS = 1000
LR = 0.01
#: Length of the noise relative to the gradient that is flipped; it reproduces the rows of the paper that collapse.
NOISE = 0.15
#: The paper's own scale of the noise, in every coordinate.
LITERAL = 0.01

#: Rows of the paper's table, and the mean.
TABLE = ("mgda", "nash-mtl*", "upgrad*", "dualproj*", "capped-mgda(cap=0.1)", "mean")
#: By cap; MGDA is capped MGDA with C = 1.
CAPS = {
    0.1: "capped-mgda(cap=0.1)",
    0.15: "capped-mgda(cap=0.15)",
    0.2: "capped-mgda(cap=0.2)",
    0.3: "capped-mgda(cap=0.3)",
    0.5: "capped-mgda(cap=0.5)",
    1.0: "mgda",
}
#: The paper does not say whether the clipped weights are divided by their sum: both.
CLIPS = (
    "clipped-mgda(cap=0.1, renormalize=false)",
    "clipped-mgda(cap=0.2, renormalize=false)",
    "clipped-mgda(cap=0.2)",
)
#: Rules of Byzantine-robust learning.
BASELINES = ("krum", "multi-krum", "median", "trimmed-mean", "geometric-median")
RHOS = (0.01, 0.05, 0.15, 0.4, 1.0)

#: Mean accuracy of ten clients after 1,000 epochs under attack, by rule.
PUBLISHED = {
    "mgda": 0.211,
    "upgrad*": 0.511,
    "dualproj*": 0.515,
    "nash-mtl*": 0.433,
    "capped-mgda(cap=0.1)": 0.515,
}
#: Its "no adversary baseline", of a method that it does not name.
PUBLISHED_CLEAN = 0.541


#: No rule: one client has all images.
CENTRALISED = "centralised"
#: One client of eleven is hostile.
_BASELINES: dict[str, Krum | MultiKrum | CoordinateMedian | TrimmedMean | GeometricMedian] = {
    "krum": Krum(attackers=1),
    "multi-krum": MultiKrum(attackers=1),
    "median": CoordinateMedian(),
    "trimmed-mean": TrimmedMean(attackers=1),
    "geometric-median": GeometricMedian(),
}
Kind = Literal["clean", "central", "relative", "literal"]


def rule_of(written: str) -> Rule:
    """A new instance of the rule."""
    if written == CENTRALISED:  # of one update, any rule makes that update
        return Mean()
    return _BASELINES[written] if written in _BASELINES else Method(written).aggregator()


def known_as(written: str, rules: Collection[str]) -> str:
    """Find the rule that is meant, however it is written; text that names none of them is returned unchanged.

    Args:
        written: such as ``Capped-MGDA(0.1)``.
        rules: as the study writes them.
    """
    if written in rules or written.lower() in rules:
        return written if written in rules else written.lower()
    try:
        meant = repr(rule_of(written))
    except ParetogradError:
        return written
    return next((rule for rule in rules if rule != CENTRALISED and repr(rule_of(rule)) == meant), written)


def label_of(written: str) -> str:
    """Label of a rule in tables and figures; caps are part of it."""
    if written == CENTRALISED:
        return "Centralised"
    if written in _BASELINES:
        return _BASELINES[written].label
    found = Method(written).aggregator()
    if isinstance(found, CappedMGDA) and found.cap is not None:
        return f"{found.label} (C = {found.cap:g})"
    if isinstance(found, ClippedMGDA):
        return f"{found.label} (C = {found.cap:g}{', renormalised' * found.renormalize})"
    return found.label


@dataclass(frozen=True)
class Setting:
    """Setting in which a rule is trained.

    Attributes:
        kind: ``clean``: ten honest clients; ``relative`` and ``literal``: an attacker joins them, with noise of a
            length relative to the gradient that it flips, or of the paper's scale; ``central``: one client has all
            images, and nobody attacks.
        noise: of the attacker.
    """

    kind: Kind
    noise: float = 0.0

    @property
    def attacked(self) -> bool:
        """Return True if there is an attacker."""
        return self.kind in ("relative", "literal")

    @property
    def label(self) -> str:
        """Label in tables and file names."""
        words = {"clean": "no attack", "central": "centralised", "relative": "rho", "literal": "literal noise"}
        return words[self.kind] + f" {self.noise:g}" * self.attacked


CLEAN, CENTRAL = Setting("clean"), Setting("central")


class Case(NamedTuple):
    """A rule in a setting: one run for each seed."""

    rule: str
    setting: Setting

    @property
    def label(self) -> str:
        """``MGDA, rho 0.15``; the centralised case has no second part."""
        return label_of(self.rule) + (f", {self.setting.label}" if self.setting != CENTRAL else "")


class Run(NamedTuple):
    """A rule in a setting with a seed: one training."""

    rule: str
    setting: Setting
    seed: int

    @property
    def case(self) -> Case:
        """The rule and its setting, without the seed."""
        return Case(self.rule, self.setting)

    @property
    def label(self) -> str:
        """``MGDA, rho 0.15, seed 0``."""
        return f"{self.case.label}, seed {self.seed}"


def attack_of(noise: float | str) -> Setting:
    """The attack with this noise: a number is relative, the word ``literal`` is the paper's scale."""
    return Setting("literal", LITERAL) if isinstance(noise, str) else Setting("relative", float(noise))


def _sweep(usual: Setting) -> list[Case]:
    attacks = [*(attack_of(rho) for rho in RHOS), attack_of("literal")]
    return [Case(rule, attack) for attack in attacks for rule in TABLE]


#: The cases of each part, by the attack that the study has.
PARTS: dict[str, Callable[[Setting], list[Case]]] = {
    "table": lambda attack: [Case(rule, attack) for rule in TABLE],
    "clean": lambda attack: [*(Case(rule, CLEAN) for rule in TABLE), Case(CENTRALISED, CENTRAL)],
    "caps": lambda attack: [Case(rule, attack) for rule in CAPS.values()],
    "clipping": lambda attack: [Case(rule, attack) for rule in (*CLIPS, CAPS[0.1], CAPS[0.2])],
    "baselines": lambda attack: [Case(rule, attack) for rule in BASELINES],
    "sweep": _sweep,
}


def cases_of(parts: Sequence[str], attack: Setting, methods: Sequence[str]) -> list[Case]:
    """The cases of some parts, each once; of ``methods`` only, if there are any."""
    every = dict.fromkeys(case for part in parts for case in PARTS[part](attack))
    return [case for case in every if not methods or case.rule in methods]
