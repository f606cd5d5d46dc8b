"""The methods that both libraries have, with the same parameters on both sides."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
import reference
import torch
import torchjd.aggregation as peer
from reference import Array
from torch import Tensor

import paretograd as pg

Call = Callable[[Tensor, Tensor], Tensor]  # (Jacobian, Gramian) to weights or direction


@dataclass(frozen=True)
class Method:
    """One comparison.

    Attributes:
        ours, theirs: create a callable for m objectives that returns weights.
        exact: the reference direction; None if the result is random.
        direct: whether the callable returns the direction instead of weights.
        judged: replaces ``ours`` for the measurement of accuracy.
        exact_theirs: the reference for ``theirs``, if it differs.
        reset: resets the state of ``theirs``.
        least: the smallest number of objectives that both take.
    """

    name: str
    ours: Callable[[int], Call]
    theirs: Callable[[int], Call]
    exact: Callable[[Array], Array] | None
    direct: bool = False
    judged: Callable[[int], Call] | None = None
    exact_theirs: Callable[[Array], Array] | None = None
    reset: Callable[[Call], None] = field(default=lambda call: None)
    least: int = 2


def _weights(rule: pg.Aggregator) -> Callable[[int], Call]:
    def build(m: int) -> Call:
        own = copy.deepcopy(rule)  # a rule with a memory is for one m
        return lambda J, G: own.weights(G)

    return build


def _weighting(make: Callable[[], Callable[[Tensor], Tensor]]) -> Callable[[int], Call]:
    def build(m: int) -> Call:
        weighting = make()
        return lambda J, G: weighting(G)

    return build


def _from_jacobian(make: Callable[[], Callable[[Tensor], Tensor]]) -> Callable[[int], Call]:
    def build(m: int) -> Call:
        aggregator = make()
        return lambda J, G: aggregator(J)

    return build


class _Nash:
    """TorchJD's NashMTL, which takes the Jacobian instead of the Gramian and warm-starts from its last solution."""

    def __init__(self, m: int) -> None:
        self.weighting = peer.NashMTL(n_tasks=m).weighting

    def __call__(self, J: Tensor, G: Tensor) -> Tensor:
        return self.weighting(J)

    def reset(self) -> None:
        self.weighting.reset()


class _Stateful:
    """A weighting of TorchJD that keeps something from step to step."""

    def __init__(self, weighting: Callable[[Tensor], Tensor]) -> None:
        self.weighting = weighting

    def __call__(self, J: Tensor, G: Tensor) -> Tensor:
        return self.weighting(G)

    def reset(self) -> None:
        self.weighting.reset()  # type: ignore[attr-defined]


def _anew(make: Callable[[], pg.Aggregator]) -> Callable[[int], Call]:
    """Return weights of the first step, from a new rule for each call."""
    return lambda m: lambda J, G: make().weights(G)


#: TorchJD draws PCGrad's orders from torch's global generator. Seeding it before the call lets the reference
#: draw the same orders.
SEED = 2025


def _gradvac_theirs(J: Array) -> Array:
    """GradVac's first step is PCGrad's, in the orders that TorchJD draws."""
    torch.manual_seed(SEED)
    m = len(J)
    drawn = (torch.randperm(m - 1).numpy() for _ in range(m))
    return reference.pcgrad(J, np.stack([np.delete(np.arange(m), k)[order] for k, order in enumerate(drawn)]))


def _pcgrad_theirs(J: Array) -> Array:
    torch.manual_seed(SEED)
    return reference.pcgrad(J, np.stack([torch.randperm(len(J)).numpy() for _ in J]))


def _pcgrad_given(J: Array) -> Array:
    return reference.pcgrad(J, np.tile(np.arange(len(J)), (len(J), 1)))


def _reset(call: Call) -> None:
    call.reset()  # type: ignore[attr-defined]


METHODS: tuple[Method, ...] = (
    Method("MGDA", _weights(pg.MGDA()), _weighting(peer.MGDAWeighting), reference.mgda),
    Method("UPGrad", _weights(pg.UPGrad()), _weighting(peer.UPGradWeighting), reference.upgrad),
    Method("DualProj", _weights(pg.DualProj()), _weighting(peer.DualProjWeighting), reference.dualproj),
    Method("CAGrad", _weights(pg.CAGrad(0.5)), _weighting(lambda: peer.CAGradWeighting(0.5)), reference.cagrad),
    Method("Nash-MTL", _weights(pg.NashMTL()), _Nash, reference.nash_mtl, reset=_reset),
    Method(
        "FairGrad",
        _weights(pg.FairGrad(2.0)),
        _weighting(lambda: peer.FairGradWeighting(2.0)),
        reference.fairgrad,
    ),
    Method(
        "PCGrad",
        _weights(pg.PCGrad("shuffled", "sum", seed=0)),
        _weighting(peer.PCGradWeighting),
        _pcgrad_given,
        judged=_weights(pg.PCGrad("given", "sum")),
        exact_theirs=_pcgrad_theirs,
    ),
    Method("IMTL-G", _weights(pg.IMTLG()), _weighting(peer.IMTLGWeighting), reference.imtlg),
    Method(
        "ConFIG",
        _from_jacobian(pg.ConFIG),
        _from_jacobian(peer.ConFIG),
        reference.config,
        direct=True,
    ),
    Method("Aligned-MTL", _weights(pg.AlignedMTL()), _weighting(peer.AlignedMTLWeighting), reference.aligned_mtl),
    Method(
        "GradVac",
        _weights(pg.GradVac(beta=0.5, seed=0)),
        lambda m: _Stateful(peer.GradVacWeighting(beta=0.5)),
        _pcgrad_given,
        judged=_anew(lambda: pg.GradVac(beta=0.5, order="given")),
        exact_theirs=_gradvac_theirs,
        reset=_reset,
    ),
    Method(
        "PCD",
        _weights(pg.PCD()),
        lambda m: _Stateful(peer.PCDWeighting()),
        reference.pcd,
        judged=_anew(pg.PCD),
        reset=_reset,
    ),
    Method(
        "Krum",
        _weights(pg.Krum(attackers=0)),
        _weighting(lambda: peer.KrumWeighting(0)),
        reference.krum,
        exact_theirs=lambda J: reference.krum(J, power=1.0),
        least=3,
    ),
    Method(
        "CR-MOGM(UPGrad)",
        _weights(pg.CRMOGM(pg.UPGrad())),
        lambda m: _Stateful(peer.CRMOGMWeighting(peer.UPGradWeighting())),
        reference.upgrad,
        judged=_anew(lambda: pg.CRMOGM(pg.UPGrad())),
        reset=_reset,
    ),
    Method("Mean", _weights(pg.Mean()), _weighting(peer.MeanWeighting), reference.mean),
    Method("RGW", _weights(pg.RGW(seed=0)), _weighting(peer.RandomWeighting), None),
)
