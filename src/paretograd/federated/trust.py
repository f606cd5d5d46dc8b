"""`TrustedMGDA`: MGDA whose caps follow how much the other updates support each one."""

from __future__ import annotations

import numpy as np

from paretograd.aggregators.base import Description, GramianAggregator
from paretograd.checks import as_number
from paretograd.errors import ParameterError
from paretograd.federated.baselines import geometric_median_weights
from paretograd.geometry.gramian import Array
from paretograd.geometry.unit_gramian import UnitGramian
from paretograd.guarantees import Guarantee
from paretograd.solution import Outcome, outcome_of
from paretograd.solvers.bounded import bounded_min_norm_point


class TrustedMGDA(GramianAggregator):
    r"""Capped MGDA for hostile clients: a cap of its own for each update, by the support of the others.

    $$ d = \sum_k w_k u_k, \qquad w = \arg\min_{w \in \Delta,\; w_k \le p_k/\epsilon} \Big\|\sum_k w_k u_k\Big\| $$

    $u_k$ are the updates with the median length. The trust p comes from them in two steps. Each update is replaced by
    the mean of the $m - f$ updates nearest to it (nearest-neighbour mixing, Allouah et al. 2023), and p are the weights
    of the updates in the geometric median of these means. An update that few others resemble has little trust, and so a
    low cap. The direction is that of the conditional value-at-risk under the probabilities p; if all are 1/m, this
    is the paper's capped MGDA with $C = 1/(\epsilon m)$.

    With at most f hostile updates, $\|d - \bar u\| \le \frac{2f}{\sqrt{m (m - 2f)}} D + 2 (1 - \epsilon) \tau$, where
    $\bar u$ is the mean of the honest $u_k$, D the largest distance between two of them, and $\tau$ the median length
    (docs/trusted.md has the proof).

    Updates of zero length have no direction. They are left out.

    Args:
        attackers: the number f of hostile clients, or their share, below 0.5.
        eps: the tail fraction of the value-at-risk, in (0, 1]. With 1, d is the geometric median.
    """

    name = "trusted-mgda"
    label = "Trusted MGDA"
    description = Description(
        formula="d = sum_k w_k u_k,  w = argmin of its length over the simplex with every w_k <= p_k / eps",
        reference="capped MGDA (the paper), with the mixing of Allouah et al. 2023, arXiv:2302.01772",
        paper="Section 'Convex risk measures': CVaR under other probabilities",
        when="Some clients may be hostile, in federated learning.",
    )

    def __init__(self, attackers: float = 0.3, eps: float = 0.8) -> None:
        self.attackers = as_attackers(attackers)
        self.eps = as_number(eps, "eps")
        if not 0.0 < self.eps <= 1.0:
            raise ParameterError(f"eps={eps!r}: the tail fraction must be above 0 and at most 1")

    @property
    def guarantee(self) -> Guarantee:
        """The cone; nothing else holds for all gradients, since hostile ones may be among them."""
        note = "Its promise is a distance from the mean of the honest updates. Ties go to the first objective."
        return Guarantee(None, in_cone=True, equivariant=False, note=note)

    def _solve(self, unit: UnitGramian) -> Outcome:
        count = len(unit.norms)
        if count == 0:
            return Outcome(np.full(unit.m, 1.0 / unit.m))
        hostile = hostile_among(self.attackers, unit.m)
        if 2 * hostile >= unit.m:
            raise ParameterError(
                f"attackers={hostile} of m={unit.m} updates are not a minority; at most {(unit.m - 1) // 2} can be "
                "withstood. A share such as attackers=0.3 follows the number of updates"
            )
        trusted = trust(unit.C, min(hostile, (count - 1) // 2))
        found = bounded_min_norm_point(unit.C, trusted / self.eps)
        middle = np.sort(unit.norms)[(count - 1) // 2]
        outcome = outcome_of(found)
        return outcome._replace(weights=unit.expand(found.weights * (middle / unit.norms)))


def trust(C: Array, hostile: int) -> Array:
    """Return how much the updates support each other, weights on the simplex, shape ``(m,)``.

    Args:
        C: cosines of the updates, shape ``(m, m)``.
        hostile: largest number of hostile ones, fewer than half.
    """
    m = len(C)
    # Unit vectors are the nearer, the larger their cosine. Rounding must not decide between copies.
    nearest = np.argsort(-np.round(C, 12), axis=1, kind="stable")[:, : m - hostile]
    mixing = np.zeros((m, m))
    np.put_along_axis(mixing, nearest, 1.0 / (m - hostile), axis=1)
    found: Array = geometric_median_weights(mixing @ C @ mixing.T) @ mixing
    return found


def as_attackers(attackers: float) -> float:
    """Validate a number of hostile clients, or a share of all clients below 0.5."""
    number = as_number(attackers, "attackers")
    whole = isinstance(attackers, int | np.integer)
    if number < 0.0 or not (whole or number < 0.5):
        raise ParameterError(
            f"attackers={attackers!r}: give a whole number of hostile clients, or their share, at least 0 and below 0.5"
        )
    return int(attackers) if whole else number


def hostile_among(attackers: float, clients: int) -> int:
    """Return the number of hostile clients among all, for a number or a share. A share is rounded down."""
    return attackers if isinstance(attackers, int) else int(attackers * clients + 1e-9)
