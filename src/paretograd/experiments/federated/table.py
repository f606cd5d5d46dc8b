"""The tables of a federated study and its claims: as data, as two files, and as people read them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any

import numpy as np

from paretograd.descent import Stop
from paretograd.experiments.federated.study import (
    BASELINES,
    CAPS,
    CLEAN,
    CLIPS,
    EPOCHS,
    PUBLISHED,
    PUBLISHED_CLEAN,
    TABLE,
    Case,
    FederatedStudy,
    Run,
    Setting,
    label_of,
)
from paretograd.experiments.federated.training import FederatedFolder, RunResult
from paretograd.experiments.study import Claim

#: MGDA has collapsed if its accuracy is below this.
COLLAPSED = 0.3
#: Largest accuracy loss at which a rule still counts as robust.
NEAR = 0.06
_ROBUST = ("capped-mgda(cap=0.1)", "dualproj*", "upgrad*")
_CLIPPED = {
    "clipped-mgda(cap=0.1, renormalize=false)": 0.1,
    "clipped-mgda(cap=0.2, renormalize=false)": 0.2,
    "clipped-mgda(cap=0.2)": 0.2,
}
TITLE = "Adversarial federated learning on CIFAR-10"
Rows = Sequence[Mapping[str, Any]]


def accuracy(row: Mapping[str, Any], what: str = "accuracy") -> str:
    """Format an accuracy: ``0.563 ± 0.004``; empty for a missing row."""
    return f"{row[f'{what}_mean']:.3f}" + _spread(row[f"{what}_std"]) if row else ""


def change(row: Mapping[str, Any]) -> str:
    """Format the change by the attack: ``-0.012 ± 0.009``; empty if unknown."""
    loss = row.get("difference_to_clean")
    return "" if loss is None else f"{loss:+.3f}" + _spread(row["difference_to_clean_std"])


def _spread(deviation: float | None) -> str:
    return "" if deviation is None else f" ± {deviation:.3f}"


def claims(study: FederatedStudy, found: Sequence[Mapping[str, Any]]) -> list[Claim]:
    """Return all claims that the present rows settle."""
    attack = study.attack
    under = {row["rule"]: row for row in found if (row["setting"], row["noise"]) == (attack.kind, attack.noise)}
    return [*_table(under), *_clipping(under), *_caps(under)]


def _table(under: Mapping[str, Mapping[str, Any]]) -> Iterator[Claim]:
    if "mgda" in under and _learned(under) > COLLAPSED:  # otherwise no rule learned anything, so nothing collapsed
        row = under["mgda"]
        yield Claim(f"MGDA collapses, below {COLLAPSED:g}: {accuracy(row)}.", row["accuracy_mean"] < COLLAPSED)
    for rule in _ROBUST:
        loss = under.get(rule, {}).get("difference_to_clean")
        if loss is not None:
            yield Claim(_near(label_of(rule), under[rule]), loss >= -NEAR)
    if {"mgda", "nash-mtl*", *_ROBUST} <= set(under):
        low, here = under["mgda"]["accuracy_mean"], under["nash-mtl*"]["accuracy_mean"]
        high = min(under[rule]["accuracy_mean"] for rule in _ROBUST)
        yield Claim(f"Nash-MTL* is between MGDA and these: {accuracy(under['nash-mtl*'])}.", low < here < high)


def _learned(under: Mapping[str, Mapping[str, Any]]) -> float:
    """Return the best accuracy of another rule under attack, or of MGDA without one."""
    others = [row["accuracy_mean"] for rule, row in under.items() if rule != "mgda"]
    row = under["mgda"]
    loss = row.get("difference_to_clean")
    return float(max([*others, 0.0 if loss is None else row["accuracy_mean"] - loss]))


def _near(label: str, row: Mapping[str, Any]) -> str:
    """Word the claim, which is about the mean: single seeds may differ."""
    several = row["difference_to_clean_std"] is not None
    over, worst = (" in the mean", f"; worst seed: {row['difference_to_clean_min']:+.3f}") if several else ("", "")
    return f"{label} stays{over} within {NEAR:g} of its accuracy without the attack: {change(row)}{worst}."


def _clipping(under: Mapping[str, Mapping[str, Any]]) -> Iterator[Claim]:
    for rule, cap in _CLIPPED.items():
        if {rule, CAPS[cap]} <= set(under):
            clipped, capped = under[rule], under[CAPS[cap]]
            text = f"{label_of(rule)} is below {label_of(CAPS[cap])}: {accuracy(clipped)} against {accuracy(capped)}."
            yield Claim(text, clipped["accuracy_mean"] < capped["accuracy_mean"])


def _caps(under: Mapping[str, Mapping[str, Any]]) -> Iterator[Claim]:
    """Claim that means rise by no more than the deviation of the seeds."""
    there = {cap: under[rule] for cap, rule in CAPS.items() if rule in under}
    if len(there) < 3:
        return
    series = ", ".join(f"{accuracy(row)} (C = {cap:g})" for cap, row in there.items())
    falls = all(
        after["accuracy_mean"] <= before["accuracy_mean"] + max(before["accuracy_std"] or 0, after["accuracy_std"] or 0)
        for before, after in pairwise(there.values())
    )
    yield Claim(f"Accuracy does not increase with C, beyond the deviation of the seeds: {series}.", falls)


def tables(study: FederatedStudy, found: Rows) -> dict[str, list[dict[str, str]]]:
    """All tables that have rows, as texts by heading."""
    attack, by_case = study.attack, {(row["rule"], row["setting"], row["noise"]): row for row in found}

    def of(rules: Sequence[str], setting: Setting) -> list[Mapping[str, Any]]:
        noise = setting.noise if setting.attacked else None
        return [by_case[rule, setting.kind, noise] for rule in rules if (rule, setting.kind, noise) in by_case]

    made = {"With and without the attack": _main(found, of(TABLE, attack), of(TABLE, Setting("clean")))}
    capped, clipped = of(tuple(CAPS.values()), attack), of(CLIPS, attack)
    if "caps" in study.parts or "clipping" in study.parts:
        made["Caps and clipping, under attack"] = [_one(_as_cap(row)) for row in (*capped, *clipped)]
    made["Baselines, under attack"] = [_one(row) for row in of(BASELINES, attack)]
    if "sweep" in study.parts:
        made["Noise of the attack"] = _sweep(found)
    return {title: shown for title, shown in made.items() if shown}


def _main(found: Rows, attacked: Rows, clean: Rows) -> list[dict[str, str]]:
    """Return the paper's table, with the accuracies without an attack."""
    without = {row["rule"]: row for row in clean}
    shown = []
    for row in attacked or clean:
        hit, free = row if row["setting"] != "clean" else {}, without.get(row["rule"], {})
        shown.append(
            {
                "method": str(row["method"]),
                "under attack": accuracy(hit),
                "without": accuracy(free),
                "difference": change(hit),
                "under attack, all test images": accuracy(hit, "overall"),
                "paper": _plain(hit.get("paper")),
                "ours less the paper's": _signed(hit.get("difference_to_paper")),
            }
        )
    baseline = without.get("mean", {})
    extra = [("No adversary (Mean)", baseline)] if baseline else []
    extra += [("Centralised", row) for row in found if row["setting"] == "central"]
    for name, row in extra:
        values = ("", accuracy(row), "", "", _plain(row["paper"]), _signed(row["difference_to_paper"]))
        headings = list(shown[0]) if shown else []
        shown.append(dict(zip(headings, (name, *values), strict=True)) if headings else {"method": name, **_one(row)})
    return shown


def _as_cap(row: Mapping[str, Any]) -> Mapping[str, Any]:
    """Rename MGDA, which is one of the caps."""
    return {**row, "method": "MGDA = Capped MGDA (C = 1)"} if row["rule"] == CAPS[1.0] else row


def _one(row: Mapping[str, Any]) -> dict[str, str]:
    return {
        "method": str(row["method"]),
        "accuracy": accuracy(row),
        "worst client": _plain(row["worst_client_mean"]),
        "all test images": accuracy(row, "overall"),
        "epochs with a conflict": f"{row['conflicting_epochs'] / max(row['epochs'], 1):.0%}",
    }


def _sweep(found: Rows) -> list[dict[str, str]]:
    """A row for each rule, a column for each noise."""
    settings = {(row["setting"], row["noise"]) for row in found if row["noise"] is not None}
    columns = sorted(settings, key=lambda setting: (setting[0] == "literal", setting[1]))
    shown = []
    for rule in TABLE:
        own = {(row["setting"], row["noise"]): row for row in found if row["rule"] == rule}
        if any(column in own for column in columns):
            cells = {
                f"{'rho' if kind == 'relative' else kind} {noise:g}": own.get((kind, noise), {})
                for kind, noise in columns
            }
            shown.append({"method": label_of(rule)} | {name: accuracy(row) for name, row in cells.items()})
    return shown


def for_page(found: Rows) -> list[dict[str, object]]:
    """Rows for the page, under self-explanatory headings."""
    return [
        {
            "method": Case(row["rule"], Setting(row["setting"], row["noise"] or 0.0)).label,
            "mean accuracy": accuracy(row),
            "worst client": _plain(row["worst_client_mean"]),
            "all test images": accuracy(row, "overall"),
            "change by the attack": change(row),
            "paper": _plain(row["paper"]),
            "ours less the paper's": _signed(row["difference_to_paper"]),
            "epochs with a conflict": row["conflicting_epochs"],
            "ended by": row["ended_by"],
        }
        for row in found
    ]


def heading(study: FederatedStudy) -> str:
    """Return one sentence that explains the numbers."""
    count = len(study.seeds)
    over = f"mean and sample standard deviation over {count} seeds" if count > 1 else f"seed {study.seeds[0]}"
    return f"Mean accuracy of the {study.clients} clients after {study.epochs:,} epochs: {over}."


def legend(study: FederatedStudy) -> str:
    """Definitions of the terms in the table."""
    return (
        f"The attack ({noise_in_words(study.attack)}): in each epoch the gradient of a random client comes once "
        "more, with the opposite sign and some noise. A client is tested on images of its own classes; all test "
        "images: the same network on all of them. difference: with the attack less without, seed by seed. Conflict: "
        "the direction is against some honest client. A run that diverges counts as a guess."
    )


def remarks(study: FederatedStudy, runs: Mapping[Run, RunResult]) -> list[str]:
    """Differences from the protocol, missing runs, and failed runs."""
    made, changed = [], study.changes()
    if changed:
        settings = ", ".join(f"{name.replace('_', ' ')} {value}" for name, value in changed.items())
        made.append(f"This is not the paper's protocol ({settings}): its values stand here for orientation only.")
    left = len(study.runs()) - len(runs)
    if left:
        made.append(f"Not trained yet: {left} of {len(study.runs())} runs.")
    for run, result in runs.items():
        if result.reason is not Stop.STEPS:
            made.append(f"{run.label}: {result.reason.value} (epoch {result.length:,}): {result.why}")
    return made


def noise_in_words(setting: Setting) -> str:
    """``noise of 0.15 times the length of the gradient``."""
    if setting.kind == "literal":
        return f"noise of {setting.noise:g} N(0, I), as the paper has it"
    return f"noise of {setting.noise:g} times the gradient's length"


def setting_in_words(study: FederatedStudy) -> str:
    """The protocol in one line."""
    few = f" of {EPOCHS:,}" if study.epochs < EPOCHS else ""
    images = study.shards * study.size
    return (
        f"{study.clients} clients with {images:,} images each; seeds {', '.join(map(str, study.seeds))}; "
        f"lr {study.lr:g}; {study.epochs:,}{few} full-batch epochs; {noise_in_words(study.attack)}"
    )


def _plain(value: float | None) -> str:
    return "" if value is None else f"{value:.3f}"


def _signed(value: float | None) -> str:
    return "" if value is None else f"{value:+.3f}"


def rows(study: FederatedStudy, runs: Mapping[Run, RunResult]) -> list[dict[str, Any]]:
    """The table as plain values, accuracies from 0 to 1. None: no value in the paper, or no deviation (one seed)."""
    done = {case: found for case in study.cases() if (found := _of(study, case, runs))}
    return [_row(study, case, found, done.get(Case(case.rule, CLEAN), {})) for case, found in done.items()]


def _row(
    study: FederatedStudy, case: Case, by_seed: Mapping[int, RunResult], free: Mapping[int, RunResult]
) -> dict[str, Any]:
    """One case, with the same rule's runs without an attack."""
    found, paper = list(by_seed.values()), _published(study, case)
    values, overall = ([getattr(one, name) for one in found] for name in ("accuracy", "overall"))
    mean, clean = float(np.mean(values)), [one.accuracy for one in free.values()]
    changes = [one.accuracy - free[seed].accuracy for seed, one in by_seed.items() if seed in free]
    changes = changes if case.setting.attacked else []
    ends = Counter(one.reason.code for one in found)
    return {
        "method": label_of(case.rule),
        "rule": case.rule,
        "setting": case.setting.kind,
        "noise": case.setting.noise if case.setting.attacked else None,
        "seeds": len(found),
        "accuracy_mean": mean,
        "accuracy_std": _deviation(values),
        "accuracy_min": min(values),
        "accuracy_max": max(values),
        "worst_client_mean": float(np.mean([one.accuracies[-1].min() for one in found])),
        "overall_mean": float(np.mean(overall)),
        "overall_std": _deviation(overall),
        "clean_mean": float(np.mean(clean)) if clean else None,
        "difference_to_clean": float(np.mean(changes)) if changes else None,
        "difference_to_clean_std": _deviation(changes),
        "difference_to_clean_min": min(changes, default=None),
        "paper": paper,
        "difference_to_paper": mean - paper if paper is not None else None,
        "conflicting_epochs": sum(one.conflicts for one in found),
        "epochs": sum(one.length for one in found),
        "ended_by": ", ".join(code if len(ends) == 1 else f"{code} {count}" for code, count in ends.items()),
    }


def write(place: FederatedFolder, study: FederatedStudy, runs: Mapping[Run, RunResult]) -> None:
    """Write ``table.md`` for people and ``table.csv`` with all digits."""
    found = rows(study, runs)
    sentences = [legend(study), *remarks(study, runs), *(claim.sentence for claim in claims(study, found))]
    place.write_tables(study, found, TITLE, heading(study), tables(study, found), sentences)


def _of(study: FederatedStudy, case: Case, runs: Mapping[Run, RunResult]) -> dict[int, RunResult]:
    return {seed: runs[run] for seed in study.seeds if (run := Run(*case, seed)) in runs}


def _published(study: FederatedStudy, case: Case) -> float | None:
    """Return the paper's value, if any. Its attack-free value, of an unnamed rule, is compared with the mean."""
    if case == Case("mean", CLEAN):
        return PUBLISHED_CLEAN
    return PUBLISHED.get(case.rule) if case.setting == study.attack else None


def _deviation(values: list[float]) -> float | None:
    return float(np.std(values, ddof=1)) if len(values) > 1 else None
