"""The shared table: one row for each rule and choice of parameters worth testing.

The guarantee of a rule selects its property tests, and its reference the tests of exactness.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

import paretograd as pg
from paretograd import subproblem as sp

from . import references as ref

Array = NDArray[np.float64]


@dataclass(frozen=True)
class Row:
    """A rule under test.

    Args:
        id: shown by pytest.
        make: builds the rule anew, so that no test sees another's random state.
        fits: returns True if the parameters allow this number of objectives.
        reference: returns the exact direction of a Jacobian, by a second implementation that shares no code with the
            package. None: the row is not compared with one.
        ill_conditioned: next to a stationary point, at distance gamma from it, rounding changes the direction by up to
            ``1e-14 / gamma**2``: gamma enters as gamma^2, a difference of the Gramian's entries.
        selects: the rule selects gradients, and rounding decides near ties.
    """

    id: str
    make: Callable[[], pg.Aggregator]
    fits: Callable[[int], bool] = lambda m: True
    reference: Callable[[Array], Array] | None = None
    ill_conditioned: bool = False
    selects: bool = False

    @property
    def objectives(self) -> int:
        """A small number of objectives that suits the rule."""
        return 3 if self.fits(3) else 6


def later(rule: pg.Aggregator, steps: int) -> pg.Aggregator:
    """A rule of `Mixed` after so many steps, none of which was taken."""
    rule.load_state_dict(rule.state_dict() | {"position": steps})
    return rule


def _entropic(J: Array) -> Array:
    return ref.entropic(J, 0.1 * float((J**2).sum(axis=1).mean())).direction


def _vaccinated(target: float) -> Callable[[Array], Array]:
    """GradVac's first direction, with the same target for every pair."""
    return lambda J: ref.gradvac(J, np.full((len(J), len(J)), target))[0]


def _rescaled_upgrad(J: Array, *, clipped: bool) -> Array:
    """UPGrad of unit gradients, or of clipped ones: a projection does not depend on the lengths of the others."""
    norms = ref.float64.unit_rows(J)[1]
    factors = 1.0 / np.where(norms > 0.0, norms, 1.0)
    if clipped:
        factors = np.minimum(factors, 1.0)
    return np.asarray(factors @ ref.projected_gradients(J) / len(J))


_PLAIN = [
    Row("mean", pg.Mean, reference=lambda J: J.mean(axis=0)),
    Row("mean(1,2,3)", lambda: pg.Mean([1.0, 2.0, 3.0]), lambda m: m == 3),
    Row("mean(.5,.3,.2)", lambda: pg.Mean([0.5, 0.3, 0.2]), lambda m: m == 3),
    Row("mgda", pg.MGDA, reference=lambda J: ref.min_norm_point(J).direction),
    Row("capped-mgda(1)", lambda: pg.CappedMGDA(cap=1.0)),
    Row("capped-mgda(.5)", lambda: pg.CappedMGDA(cap=0.5), lambda m: m >= 2),
    Row("capped-mgda(.2)", lambda: pg.CappedMGDA(cap=0.2), lambda m: m >= 5),
    Row(
        "capped-mgda(eps=.5)",
        lambda: pg.CappedMGDA(eps=0.5),
        reference=lambda J: ref.min_norm_point(J, 2 / len(J)).direction,
    ),
    Row("capped-mgda(eps=.9)", lambda: pg.CappedMGDA(eps=0.9)),
    Row("clipped-mgda", lambda: pg.ClippedMGDA(cap=0.3)),
    Row("clipped-mgda(raw)", lambda: pg.ClippedMGDA(cap=0.3, renormalize=False)),
    Row("entropic-mgda", pg.EntropicMGDA, reference=_entropic),
    Row("entropic-mgda(1e-4)", lambda: pg.EntropicMGDA(1e-4)),
    Row("entropic-mgda(10)", lambda: pg.EntropicMGDA(10.0)),
    Row(
        "spectral-mgda",
        pg.SpectralMGDA,
        reference=lambda J: ref.spectral_min_norm_point(J, np.arange(len(J), 0.0, -1.0)).direction,
    ),
    Row("spectral-mgda(.7,.3)", lambda: pg.SpectralMGDA([0.7, 0.3]), lambda m: m >= 2),
    Row("spectral-mgda(4,2,1)", lambda: pg.SpectralMGDA([4.0, 2.0, 1.0]), lambda m: m >= 3),
    Row("chi-square-mgda", pg.ChiSquareMGDA),
    Row("chi-square-mgda(.01)", lambda: pg.ChiSquareMGDA(0.01)),
    Row("chi-square-mgda(2)", lambda: pg.ChiSquareMGDA(2.0)),
    Row("power-mean(1)", lambda: pg.PowerMean(1.0)),
    Row("power-mean(.9)", lambda: pg.PowerMean(0.9)),
    Row("power-mean(.5)", lambda: pg.PowerMean(0.5), reference=lambda J: ref.power_mean(J, 0.5).direction),
    Row("power-mean(0)", lambda: pg.PowerMean(0.0), reference=lambda J: ref.power_mean(J, 0.0).direction),
    Row("power-mean(-1)", lambda: pg.PowerMean(-1.0), reference=lambda J: ref.power_mean(J, -1.0).direction),
    Row("power-mean(-20)", lambda: pg.PowerMean(-20.0), reference=lambda J: ref.power_mean(J, -20.0).direction),
    Row("power-mean(-inf)", lambda: pg.PowerMean(-math.inf)),
    Row("nash-mtl", pg.NashMTL),
    Row(
        "nash-mtl(raw)",
        lambda: pg.NashMTL(max_norm=None),
        reference=lambda J: ref.nash_mtl(J).direction,
        ill_conditioned=True,
    ),
    Row("fairgrad(0)", lambda: pg.FairGrad(0.0)),
    Row(
        "fairgrad(.5)",
        lambda: pg.FairGrad(0.5),
        reference=lambda J: ref.fairgrad(J, 0.5).direction,
        ill_conditioned=True,
    ),
    Row("fairgrad(2)", pg.FairGrad, reference=lambda J: ref.fairgrad(J, 2.0).direction, ill_conditioned=True),
    Row("fairgrad(10)", lambda: pg.FairGrad(10.0)),
    Row("pivrg", pg.PIVRG, reference=lambda J: ref.pivrg(J, np.ones(len(J))).direction, ill_conditioned=True),
    Row("pivrg(scores)", lambda: pg.PIVRG([0.0, 30.0, -5.0]), lambda m: m == 3),
    Row("upgrad", pg.UPGrad, reference=ref.upgrad),
    Row("upgrad(1,2,3)", lambda: pg.UPGrad([1.0, 2.0, 3.0]), lambda m: m == 3),
    Row("dualproj", pg.DualProj, reference=ref.dualproj),
    Row("dualproj(.5,.3,.2)", lambda: pg.DualProj([0.5, 0.3, 0.2]), lambda m: m == 3),
    Row("dualproj(1,2,3)", lambda: pg.DualProj([1.0, 2.0, 3.0]), lambda m: m == 3),
    Row("cagrad(0)", lambda: pg.CAGrad(0.0)),
    Row("cagrad(.5)", pg.CAGrad),
    Row("cagrad(1)", lambda: pg.CAGrad(1.0), reference=lambda J: ref.cagrad(J, 1.0), ill_conditioned=True),
    Row("cagrad(1.5)", lambda: pg.CAGrad(1.5)),
    Row("pcgrad", pg.PCGrad, reference=ref.pcgrad),
    Row("pcgrad(original)", lambda: pg.PCGrad(order="shuffled", reduction="sum", seed=0)),
    Row("pcgrad+", pg.PCGradPlus, reference=ref.pcgrad_plus),
    Row("gradvac", lambda: pg.GradVac(seed=0)),
    Row("gradvac(0)", lambda: pg.GradVac(order="given"), reference=_vaccinated(0.0)),
    Row(
        "gradvac(.6)",
        lambda: pg.GradVac(target=0.6, order="given"),
        reference=_vaccinated(0.6),
        ill_conditioned=True,
    ),
    Row(
        "gradvac(-.3, mean)",
        lambda: pg.GradVac(target=-0.3, order="given", reduction="mean"),
        reference=lambda J: _vaccinated(-0.3)(J) / len(J),
        ill_conditioned=True,
    ),
    Row("pcd", pg.PCD, reference=lambda J: ref.pcd(J, 0.02), ill_conditioned=True),
    Row("pcd(0)", lambda: pg.PCD(tau=0.0), reference=lambda J: ref.pcd(J, 0.0), ill_conditioned=True),
    Row("pcd(.5)", lambda: pg.PCD(tau=0.5), reference=lambda J: ref.pcd(J, 0.5), ill_conditioned=True),
    Row("imtl-g", pg.IMTLG, reference=lambda J: ref.imtl_g(J).direction),
    Row("config", pg.ConFIG, reference=ref.config, ill_conditioned=True),
    Row("aligned-mtl", pg.AlignedMTL, reference=ref.aligned_mtl, ill_conditioned=True),
    Row("aligned-mtl(.5,.3,.2)", lambda: pg.AlignedMTL(preference=[0.5, 0.3, 0.2]), lambda m: m == 3),
    Row(
        "aligned-mtl(median)",
        lambda: pg.AlignedMTL("median"),
        reference=lambda J: ref.aligned_mtl(J, "median"),
        ill_conditioned=True,
    ),
    Row("rgw", lambda: pg.RGW(seed=0)),
    Row("krum", pg.Krum, reference=ref.krum, selects=True),
    Row("krum(1)", lambda: pg.Krum(attackers=1), lambda m: m >= 5, selects=True),
    Row("krum(0,2)", lambda: pg.Krum(0, selected=2), reference=lambda J: ref.krum(J, 0, 2), selects=True),
    Row("krum(multi)", lambda: pg.Krum(selected=None), reference=lambda J: ref.krum(J, selected=None), selects=True),
    Row("greedy-dcp", pg.GreedyDCP, reference=ref.greedy_dcp, ill_conditioned=True),
    Row("blend(mgda,mean)", lambda: pg.Blend([pg.MGDA(), pg.Mean()])),
    Row("blend(mgda,upgrad,dualproj)", lambda: pg.Blend([pg.MGDA(), pg.UPGrad(), pg.DualProj()], [1.0, 2.0, 3.0])),
    Row("unit-rows(upgrad)", lambda: pg.UnitRows(pg.UPGrad()), reference=lambda J: _rescaled_upgrad(J, clipped=False)),
    Row("unit-rows(mgda)", lambda: pg.UnitRows(pg.MGDA())),
    Row(
        "unit-rows(mean)", lambda: pg.UnitRows(pg.Mean()), reference=lambda J: ref.float64.unit_rows(J)[0].mean(axis=0)
    ),
    Row("unit-rows(nash-mtl)", lambda: pg.UnitRows(pg.NashMTL())),
    Row(
        "clipped-rows(upgrad)",
        lambda: pg.ClippedRows(pg.UPGrad()),
        reference=lambda J: _rescaled_upgrad(J, clipped=True),
    ),
    Row("clipped-rows(dualproj)", lambda: pg.ClippedRows(pg.DualProj(), 0.3)),
    Row("clipped-rows(mgda)", lambda: pg.ClippedRows(pg.MGDA(), 2.0)),
    Row("cr-mogm(mgda)", lambda: pg.CRMOGM(pg.MGDA())),
    Row("cr-mogm(upgrad)", lambda: pg.CRMOGM(pg.UPGrad(), 0.5), reference=ref.upgrad),
    Row("cr-mogm(upgrad), 0", lambda: pg.CRMOGM(pg.UPGrad(), 0.0)),
    Row("mas-rand", lambda: pg.get("mas-rand", seed=0)),
    Row("mas-rr(1), second", lambda: later(pg.get("mas-rr(1)"), 1)),
    Row("mas-rr(1), third", lambda: later(pg.get("mas-rr(1)"), 2)),
    Row("mas-rr(1), last", lambda: later(pg.get("mas-rr(1)"), 3)),
    Row("mixed(upgrad,mean), second", lambda: later(pg.Mixed([pg.UPGrad(), pg.Mean()]), 1)),
    Row("subproblem(worst case)", lambda: pg.Subproblem(sp.WorstCase())),
    Row("subproblem(cvar)", lambda: pg.Subproblem(sp.CVaR(eps=0.5))),
    Row("subproblem(power, ball)", lambda: pg.Subproblem(sp.MinusPowerMean(-1.0), sp.Ball(0.5))),
    Row("subproblem(non-conflicting)", lambda: pg.Subproblem(sp.NonConflicting())),
    Row("subproblem(linear(1,2,3))", lambda: pg.Subproblem(sp.Linear([1.0, 2.0, 3.0])), lambda m: m == 3),
    Row(
        "subproblem(spectral, c = 2)",
        lambda: pg.Subproblem(sp.Spectral([0.6, 0.4]), sp.HalfSquare(2.0)),
        lambda m: m > 1,
    ),
]

#: Further parameters, compared with the reference only.
_ONLY_EXACT = [
    Row(
        "capped-mgda(eps=.8)",
        lambda: pg.CappedMGDA(eps=0.8),
        reference=lambda J: ref.min_norm_point(J, 1.25 / len(J)).direction,
    ),
    Row(
        "aligned-mtl(rmse)",
        lambda: pg.AlignedMTL("rmse"),
        reference=lambda J: ref.aligned_mtl(J, "rmse"),
        ill_conditioned=True,
    ),
    Row("cagrad(.4)", lambda: pg.CAGrad(0.4), reference=lambda J: ref.cagrad(J, 0.4)),
    Row("cagrad(2)", lambda: pg.CAGrad(2.0), reference=lambda J: ref.cagrad(J, 2.0), ill_conditioned=True),
    Row("pcgrad(sum)", lambda: pg.PCGrad(reduction="sum"), reference=lambda J: ref.pcgrad(J, reduction="sum")),
]


def _starred(row: Row) -> Row:
    return Row(f"{row.id}*", lambda: row.make().normalized(), row.fits, selects=row.selects)


ROWS: list[Row] = _PLAIN + [_starred(row) for row in _PLAIN]
#: Rows with a reference.
EXACT: list[Row] = [row for row in _PLAIN + _ONLY_EXACT if row.reference]
