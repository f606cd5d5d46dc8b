"""The table of a study as people read it: in a terminal, in Markdown, on a page."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from paretograd.descent import Stop
from paretograd.descent.trajectory import Trajectory
from paretograd.experiments.study import Study

#: Losses that a table for people shows; the csv has all.
SHOWN_LOSSES = 3


def for_people(study: Study, found: Sequence[Mapping[str, Any]]) -> list[dict[str, str]]:
    """The same in words, by the headings that people read."""
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
    """Numbers by headings that stand alone, for a page that can align and format them."""
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
    """What the numbers are, in one sentence."""
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
    """What the words mean."""
    missed = any(row["iterations_max"] is None for row in found)
    return (
        "gamma: distance from Pareto stationarity. theorem: the paper's result that covers the rule. conflicts: steps, "
        "of all runs, along which some objective goes up. left box: runs that left the problem's box. "
        f"A run ends at the first of: {ends(study)}."
    ) + " A dash: not reached; 2 of 5: so many runs reached it." * missed


def notes(study: Study, trajectories: Mapping[str, Trajectory]) -> list[str]:
    """What ended otherwise than at the target, and who left the box."""
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


def _short(theorem: str | None) -> str:
    return (theorem or "none").partition(" (")[0]


def _count(count: float | None) -> str:
    return "-" if count is None else f"{count:,.0f}"


def _range(row: Mapping[str, Any]) -> str:
    if row["iterations_max"] is None:
        return f"{row['seeds_reached'] or 'none'} of {row['seeds']}"
    return f"{row['iterations_min']:,}-{row['iterations_max']:,}"
