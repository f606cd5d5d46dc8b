"""The rows of the table of rules: which rules, what each needs and keeps, and what it costs."""

from __future__ import annotations

from dataclasses import dataclass

from paretograd.aggregators.base import Aggregator
from paretograd.aggregators.registry import get, read_rule


@dataclass(frozen=True)
class RowSpec:
    """What the table states about a rule and no guarantee holds.

    Attributes:
        rule: the rule's text, as `paretograd.get` reads it.
        cost: the work of one step, beyond that of what it needs.
        needs: what a step reads: ``nothing``, ``Gramian``, ``rows``, ``losses`` or ``two batches``.
        state: what the rule keeps from step to step; empty if it keeps nothing.
        others: further texts of the same random rule, with other seeds, from which a counter-example may be put
            together: a property must hold for every draw.
    """

    rule: str
    cost: str
    needs: str = "Gramian"
    state: str = ""
    others: tuple[str, ...] = ()

    def make(self) -> Aggregator:
        """Return a new instance of the rule."""
        return get(self.rule)

    @property
    def label(self) -> str:
        """The rule's label, with the parameters of its text except the seed: ``CAGrad (c = 1)``."""
        written = read_rule(self.rule)
        label = self.make().label
        given = [str(value) for value in written.values]
        given += [f"{key} = {_shown(value)}" for key, value in written.keywords if key != "seed"]
        return f"{label} ({', '.join(given)})" if given and not label.startswith("MAS") else label


def _shown(value: object) -> str:
    return str(value).lower() if value is None or isinstance(value, bool) else str(value)


_NEWTON = "Newton's method, O(m^3) a step"
_ONE_QP, _M_QPS = "one QP in m weights", "m QPs in m weights"
_SWEEPS = "O(m^3)"

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
)
