"""The paper's table fairness_table, and the methods of ours."""

from __future__ import annotations

from typing import NamedTuple

#: Rows of the paper's table, in its order.
TABLE = (
    *("mgda", "nash-mtl*", "dualproj", "dualproj*", "upgrad", "upgrad*"),
    *("mas-rand", "mas-rr(1000)", "mas-rr(2500)"),
)
#: Not in the table, since its steps do not shrink; in the figure that shows it.
UNSTABLE = ("nash-mtl",)
#: Rules that the paper does not train here.
BEYOND = ("mean", "cagrad", "fairgrad", "power-mean", "capped-mgda(cap=0.5)", "greedy-dcp", "pcgrad+")

SEEDS = (24, 42, 64, 100)
STEPS = 40_000
LR = 0.005
STOP = 1e-3
#: The seed of the paper's figure of mixed schedules.
FIGURE_SEED = 100


class Published(NamedTuple):
    """Means and sample standard deviations over four seeds, in percent."""

    accuracy: tuple[float, float]
    deo1: tuple[float, float]
    deo2: tuple[float, float]


#: By the labels of the methods.
PUBLISHED = {
    "MGDA": Published((75.70, 0.06), (61.04, 0.59), (7.56, 0.28)),
    "Nash-MTL*": Published((76.19, 0.11), (58.96, 0.96), (7.08, 0.41)),
    "DualProj": Published((79.02, 0.11), (53.97, 0.37), (6.20, 0.06)),
    "DualProj*": Published((78.55, 0.05), (53.69, 0.30), (6.63, 0.08)),
    "UPGrad": Published((77.66, 0.11), (62.36, 0.58), (6.97, 0.06)),
    "UPGrad*": Published((76.75, 0.08), (60.18, 0.70), (7.37, 0.06)),
    "MAS-Rand": Published((76.42, 0.07), (60.90, 0.48), (7.45, 0.10)),
    "MAS-RR(1k)": Published((76.41, 0.09), (60.94, 0.57), (7.48, 0.12)),
    "MAS-RR(2.5k)": Published((76.25, 0.07), (60.56, 0.63), (7.69, 0.12)),
}

#: Methods of the paper's figures, by label: the non-conflicting rules, and the schedules with their pool; ``{seed}`` is
#: the one that is shown.
FIGURES = {
    # Nash-MTL, whose losses jump, lies behind the others.
    "fairness_two_1": ("Nash-MTL", "Nash-MTL*", "MGDA", "UPGrad", "UPGrad*", "DualProj", "DualProj*"),
    "fairness_mixed_seed{seed}": (
        *("MGDA", "Nash-MTL*", "UPGrad*", "DualProj*"),
        *("MAS-Rand", "MAS-RR(1k)", "MAS-RR(2.5k)"),
    ),
}
