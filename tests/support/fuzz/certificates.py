"""What is checked of `pg.certify`: it claims nothing that is false of the rows as stored.

The weights that it is asked about are those of rules, weights with a small negative one, and weights to which a
multiple of a null vector of the Gramian was added: large, and cancelling up to rounding.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np
import torch

import paretograd as pg
from support.promises import NEGLIGIBLE

from .checks import FAILURES, Check, Scene
from .sums import Array, Sum

#: The name under which these checks are counted, beside the rules.
NAME = "certify"
#: Cosines that count as no conflict.
_NO_CONFLICT = 1e-8
#: Relative rounding of what is compared.
_ROUNDING = 1e-9


def _asked(scene: Scene, seed: int) -> Iterator[Array]:
    rng = np.random.default_rng([seed, 2])
    G, m = scene.gramian(), scene.given.m
    yield pg.MGDA().solve(G).weights.numpy()
    projected = pg.UPGrad().solve(G).weights.numpy()
    yield projected
    share = rng.dirichlet(np.ones(m))
    share[rng.integers(m)] -= 10.0 ** rng.uniform(-16, 0)
    yield share
    # Large weights that cancel: the last singular vector of the unit rows, in their units.
    lengths = scene.rows.lengths(max(scene.rows.exponents))
    if lengths.min() > 1e-100:
        null = np.linalg.svd(scene.units)[0][:, -1] / lengths
        yield projected + 10.0 ** rng.uniform(0, 10) * null


def examine_certificates(scene: Scene, seed: int) -> Iterator[Check]:
    """Check the certificates of a few weights on one input."""
    try:
        for w in _asked(scene, seed):
            if np.isfinite(w).all() and np.abs(w).max() < 1e150:
                certificate = pg.certify(scene.gramian(), torch.from_numpy(w))
                yield from _claims(scene, certificate, w, scene.rows.sum(w))
    except FAILURES as error:
        yield Check("raises", math.inf, f"{type(error).__name__}: {error}"[:200])
    else:
        yield Check("raises", 0.0)


def _claims(scene: Scene, certificate: pg.StepCertificate, w: Array, found: Sum) -> Iterator[Check]:
    weights, live = f"weights {w.tolist()}", scene.given.live.all()
    if not live:
        return  # rows that count as zero: there is nothing to compare with
    if certificate.non_conflicting and found.length:
        worst = float(found.slopes.min())
        yield Check(
            "no conflict", -worst / (_NO_CONFLICT * found.length), f"cosine {worst / found.length:.1e}; {weights}"
        )
    for k in certificate.conflicts:
        yield Check("conflict", 0.0 if found.slopes[k] < 0.0 else math.inf, f"objective {k}; {weights}")
    if found.length > NEGLIGIBLE * found.terms:  # what is shorter may count as zero, which lies in every cone
        negative = scene.rows.sum(np.minimum(w, 0.0))
        below = math.ldexp(negative.terms, negative.exponent - found.exponent)
        if certificate.in_cone or certificate.in_hull:
            yield Check("cone", below / (_ROUNDING * found.length), weights)
        if certificate.in_hull:
            yield Check("hull", abs(math.fsum(w) - 1.0) / _ROUNDING, weights)
    yield from _brackets(certificate, found, scene)
    problem, (low, high) = scene.stored, certificate.gamma_bracket
    gamma = math.ldexp(problem.gamma, problem.exponent + scene.given.enlargement)
    yield Check(
        "gamma", low / gamma / (1.0 + _ROUNDING) if gamma else float(low > 0.0) * 2.0, f"{gamma:.3e} < {low:.3e}"
    )
    yield Check(
        "gamma", gamma / high / (1.0 + _ROUNDING) if high else float(gamma > 0.0) * 2.0, f"{gamma:.3e} > {high:.3e}"
    )


def _brackets(certificate: pg.StepCertificate, found: Sum, scene: Scene) -> Iterator[Check]:
    """The length and the slopes lie where the certificate says that they do."""
    low, high = (math.ldexp(x, -found.exponent) for x in certificate.norm_bracket)
    yield Check("norm", low / found.length / (1.0 + _ROUNDING) if found.length else float(low > 0.0) * 2.0)
    yield Check("norm", found.length / high / (1.0 + _ROUNDING) if high else float(found.length > 0.0) * 2.0)
    lengths = scene.rows.lengths(0)
    for k, (claimed, error) in enumerate(zip(certificate.slopes, certificate.slope_errors, strict=True)):
        exact = math.ldexp(float(found.slopes[k]), found.exponent) * float(lengths[k])
        off = abs(claimed - exact)
        yield Check("slopes", off / (error + _ROUNDING * abs(exact)) if off else 0.0, f"objective {k}")
