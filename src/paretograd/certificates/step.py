"""What the theory says about one step, checked from the Gramian and the weights alone.

No solver is imported: gamma is bracketed from a witness that anyone may supply, so that the checker does not
trust what it checks.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from paretograd.geometry import cones
from paretograd.geometry.gramian import Array
from paretograd.guarantees import RESULTS


@dataclass(frozen=True)
class StepCertificate:
    """Properties of the direction ``d = J.T w``, each checked to rounding.

    Attributes:
        gamma: distance from Pareto stationarity (the upper end of its bracket).
        gamma_bracket: lower and upper bound on gamma.
        norm: ``|d|``.
        slopes: ``<d, g_k>`` for every objective.
        conflicts: numbers of the objectives that go up along ``-d``.
        in_cone: ``w >= 0``.
        in_hull: ``w`` lies in the simplex (or d = 0 at a stationary point, which lies in the hull, too).
        alignment: the c of condition (A), ``<d, grad F> / |d|^2``; infinite where d = 0.
        F: the surrogate function that the alignment is for.
        results: labels of the paper's results whose hypotheses on d hold at this step.
    """

    gamma: float
    gamma_bracket: tuple[float, float]
    norm: float
    slopes: tuple[float, ...]
    conflicts: tuple[int, ...]
    in_cone: bool
    in_hull: bool
    alignment: float
    F: str
    results: tuple[str, ...]

    @property
    def non_conflicting(self) -> bool:
        """Whether no objective goes up along ``-d``."""
        return not self.conflicts

    def __str__(self) -> str:
        shown = [f"{value:.4g}" for value in self.slopes[:6]] + (["..."] if len(self.slopes) > 6 else [])
        listed = ", ".join(map(str, self.conflicts)) or "none"
        rows = [
            ("gamma (stationarity)", f"{self.gamma:.6g}   [{self.gamma_bracket[0]:.6g}, {self.gamma_bracket[1]:.6g}]"),
            ("|d|", f"{self.norm:.6g}"),
            ("slopes <d, g_k>", ", ".join(shown)),
            ("conflicts", listed),
            ("in the cone", "yes" if self.in_cone else "no"),
            ("in the convex hull", "yes" if self.in_hull else "no"),
            ("(A): <d, grad F> / |d|^2", f"{self.alignment:.6g}   for F = {self.F}"),
        ]
        lines = [f"{name:<26}{value}" for name, value in rows]
        names = [RESULTS[label].name for label in self.results] or ["none"]
        lines += [f"{'applies' if i == 0 else '':<26}{name}" for i, name in enumerate(names)]
        return "\n".join(lines)


def check_step(G: Array, weights: Array, witness: Array, phi: Array, F: str, tol: float) -> StepCertificate:
    """Certify one step.

    Args:
        G: Gramian, shape ``(m, m)``.
        weights: of the direction, shape ``(m,)``.
        witness: weights on the simplex, the closer to the least-norm point the tighter gamma's bracket.
        phi: the surrogate is ``F = sum_k phi_k f_k``, so that ``<d, grad F> = phi'Gw``.
        F: its name.
        tol: rounding allowed, relative.
    """
    length = cones.norm(G, weights)
    bracket = cones.gamma_bracket(G, witness)
    slopes = cones.slopes(G, weights)
    conflicts = tuple(cones.conflicts(G, weights, tol).tolist())
    conic = cones.in_cone(weights, tol)
    rounding = 1e-7 * float(np.sqrt(G.diagonal()).max())
    in_hull = cones.in_simplex(weights, tol) or (length == 0.0 and bracket[1] <= rounding)
    scale = float((np.abs(weights) * np.sqrt(G.diagonal())).max(initial=0.0))
    negligible = length <= 1e-7 * scale  # a Gramian resolves lengths to the square root of rounding
    along = float(phi @ slopes)
    alignment = np.inf if negligible else along / length / length
    results = []
    if negligible or along > 0.0:
        results.append("thm:PS-fd")
    # The corollary needs the hull only for |d| >= gamma, which holds for any weights beyond it, too.
    if alignment > 0.0 and (in_hull or (conic and weights.sum() >= 1.0 - tol)):
        results.append("thm:PS-cvx")
    if in_hull and not conflicts:
        results.append("thm:cvg_nonconflict")
    if in_hull and not negligible and slopes.min() > 0.0:
        results.append("thm:PScvx-fun")
    return StepCertificate(
        gamma=bracket[1],
        gamma_bracket=bracket,
        norm=length,
        slopes=tuple(slopes.tolist()),
        conflicts=conflicts,
        in_cone=conic,
        in_hull=in_hull,
        alignment=alignment,
        F=F,
        results=tuple(results),
    )
