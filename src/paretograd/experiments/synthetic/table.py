"""The table of a study on a test problem and its ``metrics.csv``: as data, and as people read them."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from paretograd.descent import Stop
from paretograd.descent.trajectory import Trajectory
from paretograd.experiments.folder import Folder, write_text
from paretograd.experiments.study import Claim
from paretograd.experiments.synthetic.study import Study, published_for, title_of

#: Number of losses in table.md; table.csv has all.
SHOWN_LOSSES = 3
#: Largest relative difference from the paper's iterations that counts as agreement.
_CLOSE = 0.005


def for_people(study: Study, found: Sequence[Mapping[str, Any]]) -> list[dict[str, str]]:
    """Rows as texts, under the headings of the table."""
    losses = [key for key in found[0] if key.startswith("final_f")][:SHOWN_LOSSES]
    shown = []
    for row in found:
        over_seeds = {"median": _count(row["iterations_median"]), "range": _range(row)} if row["seeds"] > 1 else {}
        conflicts, left = row["conflicting_steps"], row["seeds_left_box"]
        shown.append(
            {
                "method": str(row["method"]),
                "theorem": _short(row["theorem"]),
                f"seed {study.shown_seed}": _count(row["iterations_figure_seed"]),
                **over_seeds,
                **{key.removeprefix("final_"): f"{row[key]:.3f}" for key in losses},
                "conflicts": f"{conflicts:,}" if conflicts else "none",
                "left box": f"{left} of {row['seeds']}" if left else "no",
            }
        )
    return shown


def for_page(study: Study, found: Sequence[Mapping[str, Any]]) -> list[dict[str, object]]:
    """Rows for the page, under self-explanatory headings."""
    return [
        {
            "method": row["method"],
            "theorem": _short(row["theorem"]),
            f"iterations until gamma < {study.target:g}, seed {study.shown_seed}": row["iterations_figure_seed"],
            "median of all seeds": row["iterations_median"],
            "fewest": row["iterations_min"],
            "most": row["iterations_max"],
            **{f"final {key.removeprefix('final_')}": row[key] for key in row if key.startswith("final_f")},
            "steps with a conflict": row["conflicting_steps"],
            "runs that left the box": row["seeds_left_box"],
        }
        for row in found
    ]


def heading(study: Study) -> str:
    """Return one sentence that explains the numbers."""
    over_seeds = ", median, range" if len(study.seeds) > 1 else ""
    m = study.make_problem().m
    few = f" ({SHOWN_LOSSES} of {m})" if m > SHOWN_LOSSES else ""
    return (
        f"Iterations until gamma < {study.target:g} (seed {study.shown_seed}{over_seeds}), "
        f"final losses of seed {study.shown_seed}{few}."
    )


def ends(study: Study) -> str:
    """The stop rules."""
    limits = (("gamma", study.stop_gamma), ("|d|", study.stop_norm))
    return ", ".join([*(f"{what} < {limit:g}" for what, limit in limits if limit), f"{study.steps:,} steps"])


def legend(study: Study, found: Sequence[Mapping[str, Any]]) -> str:
    """Definitions of the terms in the table."""
    missed = any(row["iterations_max"] is None for row in found)
    return (
        "gamma: distance from Pareto stationarity. theorem: the paper's result that covers the rule. conflicts: steps, "
        "of all runs, along which some objective goes up. left box: runs that left the problem's box. "
        f"A run ends at the first of: {ends(study)}."
    ) + " A dash: not reached; 2 of 5: so many runs reached it." * missed


def notes(study: Study, trajectories: Mapping[str, Trajectory]) -> list[str]:
    """Runs that missed the target, and runs that left the box."""
    made = []
    for label, found in trajectories.items():
        for run, seed in enumerate(study.seeds):
            stop = found.reasons[run]
            expected = stop is Stop.GAMMA or (stop is Stop.STEPS and not study.stop_gamma)
            if not expected:
                gamma = found.gamma[found.lengths[run], run]
                made.append(f"{label}, seed {seed}: {stop.value} (at step {found.lengths[run]:,}, gamma {gamma:.2g}).")
            if found.left_box[run] >= 0:
                made.append(f"{label}, seed {seed}: outside of the box at step {found.left_box[run]:,}.")
    return made


def claims(study: Study, found: Sequence[Mapping[str, Any]]) -> list[Claim]:
    """Return the paper's claims about its studies; none for other studies."""
    published = published_for(study)
    if published is None:
        return []
    made = []
    counts = {row["method"]: row["iterations_figure_seed"] for row in found}
    if published:
        pairs = [(counts[label], count) for label, count in published.items()]
        listed = ", ".join(f"{label} {_count(counts[label])} ({count:,})" for label, count in published.items())
        close = all(ours is not None and abs(ours - count) <= _CLOSE * count for ours, count in pairs)
        made.append(Claim(f"Iterations within {_CLOSE:.1%} of the paper's, in brackets: {listed}.", close))
    made.append(Claim("No step of any method conflicts.", not any(row["conflicting_steps"] for row in found)))
    mixed = {row["method"]: row["iterations_median"] for row in found if row["method"].startswith("MAS-")}
    if mixed:
        slowest = max(_or_never(row["iterations_median"]) for row in found if row["method"] not in mixed)
        listed = ", ".join(f"{label} {_count(count)}" for label, count in mixed.items())
        holds = max(map(_or_never, mixed.values())) <= slowest
        against = f"slowest rule of their pool: {_count(None if math.isinf(slowest) else slowest)}"
        made.append(Claim(f"Schedules are as fast as single rules, by their medians: {listed}; {against}.", holds))
    return made


def in_short(study: Study, found: Sequence[Mapping[str, Any]]) -> str:
    """Say what the table means, for newcomers."""
    runs, reached = sum(row["seeds"] for row in found), sum(row["seeds_reached"] for row in found)
    conflicting = sum(row["conflicting_steps"] for row in found)
    raised = f"{conflicting:,} steps" if conflicting else "no step"
    sentence = (
        f"In short: {reached} of {runs} runs came close to a point at which no direction improves every objective "
        f"(gamma < {study.target:g}), and {raised} raised an objective, to first order."
    )
    compared = (
        " Rules end at different compromises between the objectives, so their losses are no ranking, and fewer "
        "iterations may only mean longer steps."
    )
    return sentence + compared * (len(found) > 1)


def _or_never(count: float | None) -> float:
    return math.inf if count is None else count


def _short(theorem: str | None) -> str:
    return (theorem or "none").partition(" (")[0]


def _count(count: float | None) -> str:
    return "-" if count is None else f"{count:,.0f}"


def _range(row: Mapping[str, Any]) -> str:
    if row["iterations_max"] is None:
        return f"{row['seeds_reached'] or 'none'} of {row['seeds']}"
    return f"{row['iterations_min']:,}-{row['iterations_max']:,}"


def write_metrics(path: Path, study: Study, trajectories: Mapping[str, Trajectory], every: int) -> Path:
    """Write the table: steps 0, k, 2k, ... and the last point of each run; all digits of every number.

    What belongs to a step (|d|, its size) stands in the row of the point that it leaves, and is empty in the last row
    of a run. ``conflicts`` counts the steps up to that point along which some objective goes up.
    """
    return write_text(path, _lines(study, trajectories, every))


def _lines(study: Study, trajectories: Mapping[str, Trajectory], every: int) -> Iterator[str]:
    losses = [f"f{k + 1}" for k in range(study.make_problem().m)]
    yield ",".join(["method", "seed", "step", *losses, "gamma", "direction_norm", "step_size", "conflicts"])
    for label, trajectory in trajectories.items():
        conflicts = np.asarray(trajectory.conflicts.any(axis=2))
        for run, seed in enumerate(study.seeds):
            last = int(trajectory.lengths[run])
            shown = np.unique(np.append(np.arange(0, last + 1, every), last))
            so_far = np.concatenate([[0], conflicts[:last, run].cumsum()])
            for t in shown.tolist():
                step = (trajectory.norms[t, run], trajectory.step_sizes[t, run]) if t < last else (None, None)
                numbers = (*trajectory.losses[t, run], trajectory.gamma[t, run], *step)
                cells = ("" if number is None else repr(float(number)) for number in numbers)
                yield f"{_quoted(label)},{seed},{t},{','.join(cells)},{so_far[t]}"


def _quoted(label: str) -> str:
    return f'"{label}"' if "," in label else label


def rows(study: Study, trajectories: Mapping[str, Trajectory]) -> list[dict[str, Any]]:
    """The table as plain values; None if gamma stayed above the target."""
    shown = study.seeds.index(study.shown_seed)
    made = []
    for (label, found), method in zip(trajectories.items(), study.methods, strict=True):
        reached = [int(count) if count >= 0 else None for count in found.iterations_to(study.target)]
        counts = [math.inf if count is None else count for count in reached]
        result = found.guarantee.result
        finals = {f"final_f{k + 1}": float(loss) for k, loss in enumerate(found.finals[shown])}
        made.append(
            {
                "method": label,
                "lr": method.lr,
                "theorem": result.name if result is not None else None,
                "iterations_figure_seed": reached[shown],
                "iterations_median": _median(counts),
                "iterations_min": min((count for count in reached if count is not None), default=None),
                "iterations_max": max(int(count) for count in counts) if None not in reached else None,
                "seeds_reached": sum(count is not None for count in reached),
                "seeds": len(reached),
                **finals,
                "final_gamma": float(found.gamma[found.lengths[shown], shown]),
                "conflicting_steps": int(found.conflicts.any(axis=2).sum()),
                "steps": int(found.lengths.sum()),
                "seeds_left_box": int((found.left_box >= 0).sum()),
            }
        )
    return made


def write(place: Folder[Trajectory], study: Study, trajectories: Mapping[str, Trajectory]) -> None:
    """Write ``table.md`` for people and ``table.csv`` with all digits."""
    found = rows(study, trajectories)
    settled = [claim.sentence for claim in claims(study, found)]
    sentences = [legend(study, found), *notes(study, trajectories), *settled]
    place.write_tables(study, found, title_of(study), heading(study), {"": for_people(study, found)}, sentences)


def _median(counts: Sequence[float]) -> float | None:
    middle = float(np.median(counts))
    return None if math.isinf(middle) else int(middle) if middle.is_integer() else middle
