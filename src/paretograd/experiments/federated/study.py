"""What is trained: parts, seeds, epochs and the attack, as plain data that a file can hold."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from paretograd.aggregators.notation import split_list
from paretograd.checks import as_number, whole_number
from paretograd.errors import InputError, ParameterError, ParetogradError
from paretograd.experiments.federated.plan import (
    CLIPS,
    EPOCHS,
    LR,
    NOISE,
    PARTS,
    SEEDS,
    Case,
    Run,
    Setting,
    attack_of,
    cases_of,
    known_as,
    rule_of,
)
from paretograd.experiments.files import file_names
from paretograd.experiments.study import (
    call,
    checked_seeds,
    command_line,
    from_plain,
    others,
    read_seeds,
    settle,
    to_plain,
    written,
)
from paretograd.federated.aggregation import combine_updates

#: What the command has an option for.
_OPTIONS = ("parts", "methods", "seeds", "epochs", "lr", "noise", "tf32")
_SIZES = ("epochs", "every", "clients", "shards", "size", "test_size")


@dataclass(frozen=True, kw_only=True)
class FederatedStudy:
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

    parts: tuple[str, ...] = tuple(PARTS)
    methods: tuple[str, ...] = ()
    seeds: tuple[int, ...] = SEEDS
    epochs: int = EPOCHS
    lr: float = LR
    noise: float | str = NOISE
    every: int = 10
    clients: int = 10
    shards: int = 10
    size: int = 200
    test_size: int = 40
    tf32: bool = True
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
        """Rules with their settings, each once."""
        return cases_of(self.parts, self.attack, self.methods)

    def runs(self) -> tuple[Run, ...]:
        """What is trained, in this order."""
        return tuple(Run(*case, seed) for case in self.cases() for seed in self.seeds)

    def labels(self) -> tuple[str, ...]:
        """What progress calls the cases, whose seeds are trained together."""
        return tuple(case.label for case in self.cases())

    def files(self) -> tuple[str, ...]:
        """What the files of the runs are called, without a suffix."""
        return file_names([run.label for run in self.runs()])

    def rehearse(self) -> None:
        """Let every rule combine as many updates as it will get, so that what cannot work fails at once."""
        rows = torch.eye(self.clients + 1, dtype=torch.float64, device="cpu")
        rows[-1] = -rows[0] + 0.1
        for case in self.cases():
            count = 1 if case.setting.kind == "central" else self.clients + case.setting.attacked
            try:
                combine_updates(rows[-count:], rule_of(case.rule), bound="none")
            except ParetogradError as error:
                raise ParameterError(f"{case.label} cannot combine {count} updates: {error}") from None

    def plain(self) -> dict[str, Any]:
        """The study as JSON has it."""
        return to_plain(self, "federated")

    @classmethod
    def from_plain(cls, found: Mapping[str, Any]) -> FederatedStudy:
        """What `plain` returned."""
        return from_plain(cls, found, "federated", {"parts": str, "methods": str, "seeds": lambda seed: seed})

    def changes(self) -> dict[str, str]:
        """What differs from the paper's protocol, but for the choice of runs and the noise: name to value."""
        chosen = ("parts", "methods", "noise", "every", "tf32", "own_data")
        other = {name: written(getattr(self, name)) for name in others(self, FederatedStudy()) if name not in chosen}
        return other | ({"images": "of one's own"} if self.own_data else {})

    def command(self) -> str:
        """What makes this study: a command, or a call where it has no option for something."""
        for base, flag in ((FederatedStudy(), []), (small_study(), ["--small"])):
            other = set(others(self, base))
            if not other - set(_OPTIONS):
                if flag and other & {"parts", "methods"}:  # one of them alone would change the other
                    other |= {"parts", "methods"} if self.methods else {"parts"}
                names = [name for name in _OPTIONS if name in other and (name != "methods" or self.methods)]
                return command_line(self, "federated", names, flag)
        return call(self, "federated.run_federated")


def small_study() -> FederatedStudy:
    """The same on a laptop: fewer images, epochs and rules, one seed, and longer steps."""
    return FederatedStudy(
        parts=("table", "clean", "clipping"),
        methods=("mgda", "nash-mtl*", "upgrad*", "dualproj*", "capped-mgda(cap=0.1)", CLIPS[0]),
        seeds=(0,),
        epochs=40,
        lr=0.05,
        size=10,
    )


def read_study(
    small: bool = False,
    parts: str | None = None,
    methods: str | None = None,
    seeds: str | None = None,
    noise: str | None = None,
    **more: Any,
) -> FederatedStudy:
    """A study from what a person writes on a command line; None is the paper's protocol.

    Args:
        small: start from the laptop's variant instead.
        parts: names separated by commas; if they are given and ``methods`` is not, all rules of these parts.
        methods: rules separated by commas; if they are given and ``parts`` is not, more parts if they are in no other.
        seeds: numbers separated by commas.
        noise: a number, or ``literal``.
        **more: other attributes of `FederatedStudy`.
    """
    given: dict[str, Any] = {name: value for name, value in more.items() if value is not None}
    start = small_study() if small else FederatedStudy()
    if parts is not None:
        given |= {"parts": tuple(split_list(parts)), "methods": ()}
    if methods is not None:
        given["methods"] = tuple(split_list(methods))
        if parts is None:
            given["parts"] = _parts_with(given["methods"], start)
    if seeds is not None:
        given["seeds"] = read_seeds(seeds, "0,1")
    if noise is not None:
        given["noise"] = _read_noise(noise)
    return replace(start, **given)


def _parts_with(methods: Collection[str], start: FederatedStudy) -> tuple[str, ...]:
    """The parts of a study, and those with rules that are not in them; all parts for a rule that is in none."""
    rules = {part: {case.rule for case in cases_of([part], start.attack, ())} for part in PARTS}
    every = set[str]().union(*rules.values())
    missing = {known_as(rule, every) for rule in methods}.difference(*(rules[part] for part in start.parts))
    if missing.difference(*rules.values()):
        return tuple(PARTS)
    return tuple(part for part in PARTS if part in start.parts or rules[part] & missing)


def _read_noise(written: str) -> float | str:
    if written.strip().lower() == "literal":
        return "literal"
    try:
        return float(written)
    except ValueError:
        raise InputError(f"--noise {written!r}: write a number such as 0.15, or the word literal") from None
