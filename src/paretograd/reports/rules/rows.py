"""The rows of the table of rules: which rules, what each needs and keeps, and what it costs."""

from __future__ import annotations

from dataclasses import dataclass

from paretograd.aggregators.registry import WRAPPERS, read_rule
from paretograd.reports.rules.steps import Rule, make_rule

#: What a step may read.
NEEDS = ("nothing", "Gramian", "rows", "losses", "Gramian, losses", "rows, losses", "row of one loss", "two batches")


@dataclass(frozen=True)
class RowSpec:
    """What the table states about a rule and no guarantee holds.

    Attributes:
        rule: the rule's text, as `paretograd.get` reads it, or `paretograd.scalarizer` if it sees the losses only.
        cost: the work of one step, beyond that of what it needs.
        needs: what a step reads, one of `NEEDS`.
        state: what the rule keeps from step to step; empty if it keeps nothing.
        others: further texts of the same random rule, with other seeds, from which a counter-example may be put
            together: a property must hold for every draw.
    """

    rule: str
    cost: str
    needs: str = "Gramian"
    state: str = ""
    others: tuple[str, ...] = ()

    def make(self) -> Rule:
        """Return a new instance of the rule."""
        return make_rule(self.rule, m=2)

    @property
    def label(self) -> str:
        """The rule's label, with the parameters of its text except the seed: ``CAGrad (c = 1)``."""
        written = read_rule(self.rule)
        label = self.make().label
        given = [str(value) for value in written.values[written.name in WRAPPERS :]]
        given += [f"{key} = {_shown(value)}" for key, value in written.keywords if key != "seed"]
        return f"{label} ({', '.join(given)})" if given and not label.startswith("MAS") else label


def _shown(value: object) -> str:
    return str(value).lower() if value is None or isinstance(value, bool) else str(value)


_NEWTON = "Newton's method, O(m^3) a step"
_ONE_QP, _M_QPS = "one QP in m weights", "m QPs in m weights"
_SWEEPS = "O(m^3)"
_INNER = "that of the rule inside"

ROWS: tuple[RowSpec, ...] = (
    RowSpec("mean", "O(m)", needs="nothing"),
    RowSpec("mgda", _ONE_QP),
    RowSpec("capped-mgda(eps=0.5)", _ONE_QP),
    RowSpec("clipped-mgda(cap=0.3)", _ONE_QP),
    RowSpec("clipped-mgda(cap=0.3, renormalize=false)", _ONE_QP),
    RowSpec("entropic-mgda", _NEWTON),
    RowSpec("spectral-mgda", "one QP over a permutahedron"),
    RowSpec("chi-square-mgda", "one problem in m weights with a ball"),
    RowSpec("power-mean", _NEWTON),
    RowSpec("power-mean(p=-1)", _NEWTON),
    RowSpec("power-mean(p=0.5)", _NEWTON),
    RowSpec("power-mean*", _NEWTON),
    RowSpec("nash-mtl", _NEWTON),
    RowSpec("nash-mtl(max_norm=none)", _NEWTON),
    RowSpec("nash-mtl*", _NEWTON),
    RowSpec("fairgrad", _NEWTON),
    RowSpec("fairgrad*", _NEWTON),
    RowSpec("pivrg", _NEWTON, state="m scores"),
    RowSpec("pivrg*", _NEWTON, state="m scores"),
    RowSpec("upgrad", _M_QPS),
    RowSpec("upgrad*", _M_QPS),
    RowSpec("dualproj", _ONE_QP),
    RowSpec("dualproj*", _ONE_QP),
    RowSpec("cagrad", "one cone program in m weights"),
    RowSpec("cagrad(c=1)", "one cone program in m weights"),
    RowSpec("cagrad(c=1.5)", "one cone program in m weights"),
    RowSpec("pcgrad", _SWEEPS),
    RowSpec(
        "pcgrad(order=shuffled, reduction=sum, seed=0)",
        _SWEEPS,
        state="random numbers",
        others=tuple(f"pcgrad(order=shuffled, reduction=sum, seed={seed})" for seed in (1, 2, 3)),
    ),
    RowSpec("pcgrad+", "sweeps of O(m^3), then m QPs"),
    RowSpec("pcgrad+*", "sweeps of O(m^3), then m QPs"),
    RowSpec("gradvac(order=given)", _SWEEPS, state="m x m target cosines"),
    RowSpec(
        "gradvac(seed=0)",
        _SWEEPS,
        state="m x m target cosines, random numbers",
        others=tuple(f"gradvac(seed={seed})" for seed in (1, 2, 3)),
    ),
    RowSpec("pcd(tau=0.0)", _ONE_QP, state="m squared norms"),
    RowSpec("pcd", _ONE_QP, state="m squared norms"),
    RowSpec("aligned-mtl", "one singular value decomposition, O(m^3)"),
    RowSpec("aligned-mtl(scale=median)", "one singular value decomposition, O(m^3)"),
    RowSpec("krum", "O(m^2 log m)"),
    RowSpec("imtl-g", "one m x m system, O(m^3)"),
    RowSpec("config", "one m x m system, O(m^3)"),
    RowSpec(
        "rgw(seed=0)",
        "O(m)",
        needs="nothing",
        state="random numbers",
        others=tuple(f"rgw(seed={seed})" for seed in (1, 2, 3, 4, 5)),
    ),
    RowSpec("greedy-dcp", _M_QPS),
    RowSpec("greedy-dcp*", _M_QPS),
    RowSpec("mas-rand(seed=0)", "that of the acting rule", state="step, random numbers"),
    RowSpec("mas-rr(1)", "that of the acting rule", state="step"),
    RowSpec("unit-rows(mgda)", _INNER),
    RowSpec("unit-rows(upgrad)", _INNER),
    RowSpec("clipped-rows(mgda, max_norm=2)", _INNER),
    RowSpec("clipped-rows(upgrad, max_norm=2)", _INNER),
    RowSpec("cr-mogm(mgda)", _INNER, state="m weights"),
    RowSpec("cr-mogm(upgrad)", _INNER, state="m weights"),
    RowSpec(
        "graddrop(seed=0)",
        "O(m n)",
        needs="rows",
        state="random numbers",
        others=tuple(f"graddrop(seed={seed})" for seed in (1, 2, 3)),
    ),
    RowSpec("trimmed-mean", "O(m n log m)", needs="rows"),
    RowSpec("moco", "O(m^2 n)", needs="rows", state="m x n averages, m weights"),
    RowSpec("excess-mtl", "O(m n)", needs="rows", state="m x n sums of squares, m weights, m first risks"),
    RowSpec("db-mtl(eps=0)", "O(m n)", needs="rows, losses", state="m x n averages"),
    RowSpec("m-config(eps=0)", "O(m^2 n), and O(m^3)", needs="row of one loss", state="(m + 2) x n averages, m counts"),
    RowSpec("gradnorm", "O(m)", needs="Gramian, losses", state="m weights, m first losses"),
    RowSpec("modo", "O(m^2)", needs="two batches", state="m weights"),
    RowSpec("sdmgrad", "20 steps of O(m^2)", needs="two batches", state="m weights"),
    RowSpec("weighted-sum", "O(m)", needs="nothing"),
    RowSpec("gls", "O(m)", needs="losses"),
    RowSpec("log-sum", "O(m)", needs="losses"),
    RowSpec("p-norm", "O(m)", needs="losses"),
    RowSpec("tchebycheff", "O(m)", needs="losses"),
    RowSpec("stch", "O(m)", needs="losses"),
    RowSpec("pbi", "O(m)", needs="losses"),
    RowSpec("cosmos", "O(m)", needs="losses"),
    RowSpec("uncertainty", "O(m)", needs="losses", state="m learned numbers"),
    RowSpec("imtl-l", "O(m)", needs="losses", state="m learned numbers"),
    RowSpec("dwa", "O(m)", needs="losses", state="m means of two epochs"),
    RowSpec(
        "rlw(seed=0)",
        "O(m)",
        needs="nothing",
        state="random numbers",
        others=tuple(f"rlw(seed={seed})" for seed in (1, 2, 3, 4, 5)),
    ),
    RowSpec("famo", "O(m), and a forward pass", needs="losses", state="m logits, m averages of two kinds"),
)
