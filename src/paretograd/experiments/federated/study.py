"""The federated study as data: the paper's tables, rules, settings and cases, and the dataclass of the study."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, NamedTuple

import torch

from paretograd.aggregators.named import Mean
from paretograd.aggregators.registry import REGISTRY, read_rule, written_parameters
from paretograd.checks import as_number, whole_number
from paretograd.errors import InputError, ParameterError, ParetogradError
from paretograd.experiments.study import (
    METHODS_OPTION,
    SEEDS_OPTION,
    TF32_OPTION,
    BaseStudy,
    Job,
    Method,
    Option,
    checked_seeds,
    file_names,
    options_of,
    read_list,
    read_options,
    settle,
    written,
)
from paretograd.federated.aggregation import combine_updates
from paretograd.federated.baselines import CoordinateMedian, GeometricMedian, Krum, MultiKrum, TrimmedMean
from paretograd.federated.rules import Rule

SEEDS = (0, 1, 2)
EPOCHS = 1000
LR = 0.01
#: Length of the noise relative to the gradient that is flipped; it reproduces the rows of the paper that collapse.
NOISE = 0.15
#: The paper's own scale of the noise, in every coordinate.
LITERAL = 0.01

#: Rows of the paper's table, and the mean.
TABLE = ("mgda", "nash-mtl*", "upgrad*", "dualproj*", "capped-mgda(cap=0.1)", "mean")
#: Rules by cap; MGDA is capped MGDA with C = 1.
CAPS = {
    0.1: "capped-mgda(cap=0.1)",
    0.15: "capped-mgda(cap=0.15)",
    0.2: "capped-mgda(cap=0.2)",
    0.3: "capped-mgda(cap=0.3)",
    0.5: "capped-mgda(cap=0.5)",
    1.0: "mgda",
}
#: Both variants: the paper does not say whether clipped weights are divided by their sum.
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
#: The paper's "no adversary baseline"; it does not name the method.
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
_SIZES = ("epochs", "every", "clients", "shards", "size", "test_size")


def rule_of(written: str) -> Rule:
    """Return a new instance of the rule."""
    if written == CENTRALISED:  # any rule returns a single update unchanged
        return Mean()
    return _BASELINES[written] if written in _BASELINES else Method(written).aggregator()


def known_as(written: str, rules: Collection[str]) -> str:
    """Return the study's spelling of a rule; text that names no rule of the study is returned unchanged.

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
    """Return the label of a rule in tables and figures, with its cap."""
    if written == CENTRALISED:
        return "Centralised"
    if written in _BASELINES:
        return _BASELINES[written].label
    rule = read_rule(written)
    label, given = REGISTRY[rule.name].label + "*" * rule.starred, written_parameters(rule)
    if "cap" not in given:
        return label
    renormalised = rule.name == "clipped-mgda" and given.get("renormalize", True)
    return f"{label} (C = {given['cap']:g}{', renormalised' * renormalised})"


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
    """Return the attack with this noise: a number is relative, the word ``literal`` is the paper's scale."""
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
    """Return the cases of some parts, each once; only those of ``methods``, if given."""
    every = dict.fromkeys(case for part in parts for case in PARTS[part](attack))
    return [case for case in every if not methods or case.rule in methods]


def read_noise(written: str) -> float | str:
    """Parse a number, or the word ``literal``."""
    if written.strip().lower() == "literal":
        return "literal"
    try:
        return float(written)
    except ValueError:
        raise InputError(f"--noise {written!r}: write a number such as 0.15, or the word literal") from None


@dataclass(frozen=True, kw_only=True)
class FederatedStudy(BaseStudy):
    """Several rules that train one network on the images of ten clients; the defaults are the paper's protocol.

    Attributes:
        parts: groups of runs, of `PARTS`; a run that is in two of them is trained once.
        methods: only these rules of the parts; all if there are none.
        seeds: of the split, the initialisation and the attack, one run for each.
        epochs: of one full-batch step each.
        lr: its size.
        noise: of the attack: relative to the flipped gradient, or ``literal`` for the paper's scale.
        every: epochs between two looks at the accuracies.
        clients: how many honest ones.
        shards: of each client.
        size: images in a shard.
        test_size: test images for each shard.
        tf32: whether products on a GPU may round to TF32; of no meaning on a CPU.
        own_data: the checksum of images that are not CIFAR-10; `run_federated` sets it.
    """

    experiment = "federated"
    function = "federated.run_federated"

    parts: tuple[str, ...] = field(
        default=tuple(PARTS),
        metadata=Option(f"Groups of runs, separated by commas: {','.join(PARTS)}.", "PARTS", read=read_list).metadata,
    )
    methods: tuple[str, ...] = field(default=(), metadata=METHODS_OPTION.metadata)
    seeds: tuple[int, ...] = field(default=SEEDS, metadata=SEEDS_OPTION.metadata)
    epochs: int = field(default=EPOCHS, metadata=Option(f"{EPOCHS} if not given.", type=int, least=1).metadata)
    lr: float = field(default=LR, metadata=Option(f"Step size: {LR:g} if not given.", "LR", type=float).metadata)
    noise: float | str = field(
        default=NOISE,
        metadata=Option(
            f"Noise of the attack, relative to the flipped gradient: {NOISE:g} if not given. "
            "literal: the paper's scale.",
            "RHO|literal",
            read=read_noise,
        ).metadata,
    )
    every: int = 10
    clients: int = 10
    shards: int = 10
    size: int = 200
    test_size: int = 40
    tf32: bool = field(default=True, metadata=TF32_OPTION.metadata)
    own_data: str = field(default="", repr=False)

    def __post_init__(self) -> None:
        wrong = [part for part in self.parts if part not in PARTS]
        if wrong or not self.parts:
            raise ParameterError(f"parts={','.join(self.parts)!r}: use some of {', '.join(PARTS)}")
        settle(self, {name: whole_number("study", name, getattr(self, name)) for name in _SIZES})
        settle(self, {"seeds": tuple(checked_seeds(self.seeds)), "lr": float(as_number(self.lr, "lr"))})
        if not 0.0 < self.lr < math.inf:
            raise ParameterError(f"lr={self.lr:g}: a finite number, above 0")
        if self.noise != "literal" and not (
            isinstance(self.noise, (int, float)) and 0.0 <= as_number(self.noise, "noise") < math.inf
        ):
            raise ParameterError(f"noise={self.noise!r}: a number of at least 0, or the word literal")
        known = {case.rule for case in cases_of(self.parts, self.attack, ())}
        settle(self, {"methods": tuple(known_as(rule, known) for rule in self.methods)})
        for rule in self.methods:
            if rule not in known:
                raise ParameterError(
                    f"{rule!r} is no method of the parts {', '.join(self.parts)}; there are {', '.join(sorted(known))}"
                )

    @property
    def attack(self) -> Setting:
        """The attack of all parts but the sweep."""
        return attack_of(self.noise)

    def cases(self) -> list[Case]:
        """Return the rules with their settings, each once."""
        return cases_of(self.parts, self.attack, self.methods)

    def runs(self) -> tuple[Run, ...]:
        """Return the runs, in the order of training."""
        return tuple(Run(*case, seed) for case in self.cases() for seed in self.seeds)

    def labels(self) -> tuple[str, ...]:
        """Return the labels of the cases; the seeds of a case are trained together."""
        return tuple(case.label for case in self.cases())

    def files(self) -> tuple[str, ...]:
        """Return the file names of the runs, without suffix."""
        return file_names([run.label for run in self.runs()])

    def jobs(self) -> tuple[Job, ...]:
        """Return one job for each case, with one result for each seed."""
        labels, files, count = self.labels(), self.files(), len(self.seeds)
        results = [files[start : start + count] for start in range(0, len(files), count)]
        return tuple(Job(*job) for job in zip(labels, file_names(labels), results, strict=True))

    def rehearse(self) -> None:
        """Let every rule combine as many updates as in the study; called before anything is written."""
        rows = torch.eye(self.clients + 1, dtype=torch.float64, device="cpu")
        rows[-1] = -rows[0] + 0.1
        for case in self.cases():
            count = 1 if case.setting.kind == "central" else self.clients + case.setting.attacked
            try:
                combine_updates(rows[-count:], rule_of(case.rule), bound="none")
            except ParetogradError as error:
                raise ParameterError(f"{case.label} cannot combine {count} updates: {error}") from None

    def changes(self) -> dict[str, str]:
        """Return the settings that differ from the paper's protocol, except runs and noise: name to value."""
        chosen = ("parts", "methods", "noise", "every", "tf32", "own_data")
        other = {name: written(getattr(self, name)) for name in self.differing() if name not in chosen}
        return other | ({"images": "of one's own"} if self.own_data else {})

    def command(self) -> str:
        """Return the command that runs this study, or a Python call if some setting has no option."""
        known = options_of(FederatedStudy)
        for base, flag in ((FederatedStudy(), []), (small_study(), ["--small"])):
            other = set(self.differing(base))
            if not other - set(known):
                if flag and other & {"parts", "methods"}:  # either option alone changes the other
                    other |= {"parts", "methods"} if self.methods else {"parts"}
                names = [name for name in known if name in other and (name != "methods" or self.methods)]
                return self.command_line(names, flag)
        return self.call()


def small_study() -> FederatedStudy:
    """Return a study for a laptop: fewer images, epochs and rules, one seed, and longer steps."""
    return FederatedStudy(
        parts=("table", "clean", "clipping"),
        methods=("mgda", "nash-mtl*", "upgrad*", "dualproj*", "capped-mgda(cap=0.1)", CLIPS[0]),
        seeds=(0,),
        epochs=40,
        lr=0.05,
        size=10,
    )


def read_study(small: bool | None = None, **given: Any) -> FederatedStudy:
    """Make a study from the options of a command line; options that are None or missing keep the paper's protocol.

    ``parts`` without ``methods`` means all rules of these parts. ``methods`` without ``parts`` adds the parts that
    these rules are in.

    Args:
        small: start from the laptop's variant instead.
        **given: options of `FederatedStudy`.
    """
    values, start = read_options(FederatedStudy, given), small_study() if small else FederatedStudy()
    if "parts" in values:
        values.setdefault("methods", ())
    elif "methods" in values:
        values["parts"] = _parts_with(values["methods"], start)
    return replace(start, **values)


def _parts_with(methods: Collection[str], start: FederatedStudy) -> tuple[str, ...]:
    """Return the parts of a study and those of its additional rules; all parts if a rule is in none."""
    rules = {part: {case.rule for case in cases_of([part], start.attack, ())} for part in PARTS}
    every = set[str]().union(*rules.values())
    missing = {known_as(rule, every) for rule in methods}.difference(*(rules[part] for part in start.parts))
    if missing.difference(*rules.values()):
        return tuple(PARTS)
    return tuple(part for part in PARTS if part in start.parts or rules[part] & missing)
