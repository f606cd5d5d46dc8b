"""The tables of a federated study as people read them: in Markdown, in a terminal, on a page."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from paretograd.descent import Stop
from paretograd.experiments.federated.claims import claims
from paretograd.experiments.federated.paper import BASELINES, CAPS, CLIPS, EPOCHS, TABLE
from paretograd.experiments.federated.plan import Case, Run, Setting
from paretograd.experiments.federated.result import RunResult
from paretograd.experiments.federated.rules import label_of
from paretograd.experiments.federated.shown import accuracy, change
from paretograd.experiments.federated.study import FederatedStudy
from paretograd.experiments.files import in_markdown, markdown_table

TITLE = "Adversarial federated learning on CIFAR-10"
Rows = Sequence[Mapping[str, Any]]


def markdown(study: FederatedStudy, found: Rows, runs: Mapping[Run, RunResult]) -> Iterator[str]:
    """The lines of ``table.md``."""
    yield from (f"# {TITLE}", "", f"Made by `{study.command()}`. {heading(study)}")
    for title, shown in tables(study, found).items():
        yield from ("", f"## {title}", "", *markdown_table(shown, ("method",)))
    for sentence in (legend(study), *notes(study, found, runs)):
        yield from ("", in_markdown(sentence))


def tables(study: FederatedStudy, found: Rows) -> dict[str, list[dict[str, str]]]:
    """Texts by headings, for each table that has rows."""
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
    """The paper's table, and what there is without an attack."""
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
    """MGDA under the name that it has among the caps."""
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
    """Numbers and texts by headings that stand alone, for a page that can align them."""
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
    """What the numbers are, in one sentence."""
    count = len(study.seeds)
    over = f"mean and sample standard deviation over {count} seeds" if count > 1 else f"seed {study.seeds[0]}"
    return f"Mean accuracy of the {study.clients} clients after {study.epochs:,} epochs: {over}."


def legend(study: FederatedStudy) -> str:
    """What the words mean."""
    return (
        f"The attack ({noise_in_words(study.attack)}): in each epoch the gradient of a random client comes once "
        "more, with the opposite sign and some noise. A client is tested on images of its own classes; all test "
        "images: the same network on all of them. difference: with the attack less without, seed by seed. Conflict: "
        "the direction is against some honest client. A run that diverges counts as a guess."
    )


def notes(study: FederatedStudy, found: Rows, runs: Mapping[Run, RunResult]) -> list[str]:
    """What one should know before comparing with the paper, what holds, and what went wrong."""
    return [*remarks(study, runs), *judged(study, found)]


def judged(study: FederatedStudy, found: Rows) -> list[str]:
    """What the study is to show, and whether it does."""
    return [f"{'Holds' if claim.holds else 'Does not hold'}: {claim.text}" for claim in claims(study, found)]


def remarks(study: FederatedStudy, runs: Mapping[Run, RunResult]) -> list[str]:
    """What differs from the protocol, what is missing, and what went wrong."""
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
