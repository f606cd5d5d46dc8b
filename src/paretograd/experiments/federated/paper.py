"""The paper's table adv_fl_accuracy and figures of capped MGDA, and the runs of ours that go beyond them."""

from __future__ import annotations

SEEDS = (0, 1, 2)
EPOCHS = 1000
LR = 0.01
#: Length of the noise relative to the gradient that is flipped; it reproduces the rows of the paper that collapse.
NOISE = 0.15
#: The paper's own scale of the noise, in every coordinate.
LITERAL = 0.01

#: Rows of the paper's table, and the mean.
TABLE = ("mgda", "nash-mtl*", "upgrad*", "dualproj*", "capped-mgda(cap=0.1)", "mean")
#: MGDA is capped MGDA with C = 1, so that it stands for that cap.
CAPS = {
    0.1: "capped-mgda(cap=0.1)",
    0.15: "capped-mgda(cap=0.15)",
    0.2: "capped-mgda(cap=0.2)",
    0.3: "capped-mgda(cap=0.3)",
    0.5: "capped-mgda(cap=0.5)",
    1.0: "mgda",
}
#: The paper does not say whether the clipped weights are divided by their sum: both.
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
#: Its "no adversary baseline", of a method that it does not name.
PUBLISHED_CLEAN = 0.541
