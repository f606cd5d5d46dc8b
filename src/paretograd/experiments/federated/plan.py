"""Which runs a study has: rules, settings and seeds, in groups that share what they have in common."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

from paretograd.experiments.federated.paper import BASELINES, CAPS, CLIPS, LITERAL, RHOS, TABLE
from paretograd.experiments.federated.rules import CENTRALISED, label_of

Kind = Literal["clean", "central", "relative", "literal"]


@dataclass(frozen=True)
class Setting:
    """What a rule is trained in.

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
        """Whether there is an attacker."""
        return self.kind in ("relative", "literal")

    @property
    def label(self) -> str:
        """In tables and in the names of files."""
        words = {"clean": "no attack", "central": "centralised", "relative": "rho", "literal": "literal noise"}
        return words[self.kind] + f" {self.noise:g}" * self.attacked


CLEAN, CENTRAL = Setting("clean"), Setting("central")


class Case(NamedTuple):
    """A rule in a setting: one run for each seed."""

    rule: str
    setting: Setting

    @property
    def label(self) -> str:
        """``MGDA, rho 0.15``; that of all images at one client needs no other word."""
        return label_of(self.rule) + (f", {self.setting.label}" if self.setting != CENTRAL else "")


class Run(NamedTuple):
    """A rule in a setting with a seed: what is trained on its own."""

    rule: str
    setting: Setting
    seed: int

    @property
    def case(self) -> Case:
        """The same without the seed."""
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
