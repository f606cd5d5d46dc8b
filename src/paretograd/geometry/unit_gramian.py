"""The scale-free form of a Gramian that every solver works on, cosines and norms, and the validation of Gramians."""

from __future__ import annotations

import math
from functools import lru_cache
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from paretograd.errors import NonFiniteGradientError, NotAGramianError, ShapeError
from paretograd.geometry.cones import FLOAT32_ROWS
from paretograd.geometry.gramian import Array, check_floating

#: Rounding error per row of C in the symmetry check: each cosine is a product of two or three factors.
_ROUNDING = 4e-16

#: Squared norms below float64's smallest normal number have lost their digits: such rows count as zero.
_ZERO = float(np.finfo(np.float64).tiny)


class UnitGramian(NamedTuple):
    """A Gramian split into cosines and norms: ``G = diag(norms) C diag(norms)``.

    Solvers work on C, whose diagonal is one. Their tolerances then mean the same at every scale, and rows of very
    different norms lose no digits.

    Attributes:
        C: cosines between the non-zero gradients, shape ``(k, k)``.
        norms: norms of the non-zero gradients, shape ``(k,)``.
        live: row numbers of the non-zero gradients; None if all m are non-zero.
        m: number of objectives.
        eps: relative rounding error of the entries, that of the Gramian's original dtype.
    """

    C: Array
    norms: Array
    live: NDArray[np.intp] | None
    m: int
    eps: float

    @property
    def resolution(self) -> float:
        """Distance from a span of other gradients below which a unit gradient counts as lying in it.

        A distance enters the cosines as its square. Rounding of the cosines therefore hides distances below the root of
        eps and blurs larger ones: an angle t is known to 1e-16 / t^2 of itself, which is three or four digits of the
        angle that the rounding of float32 rows hides.
        """
        return max(FLOAT32_ROWS, 2.0 * math.sqrt(self.eps))

    @property
    def has_zero_row(self) -> bool:
        """Return True if some gradient is zero, which makes the point Pareto stationary."""
        return self.live is not None

    def expand(self, values: Array, fill: float = 0.0) -> Array:
        """Insert values of the non-zero rows (last axis) among all m rows."""
        if self.live is None:
            return values
        full = np.full((*values.shape[:-1], self.m), fill)
        full[..., self.live] = values
        return full

    def restrict(self, values: Array) -> Array:
        """Select the entries (last axis) of the non-zero rows."""
        return values if self.live is None else values[..., self.live]

    def gramian(self) -> Array:
        """The Gramian itself, shape ``(m, m)``."""
        G = self.C * self.norms
        G *= self.norms[:, None]
        if self.live is None:
            return G
        full = np.zeros((self.m, self.m))
        full[np.ix_(self.live, self.live)] = G
        return full

    def nearest_semidefinite(self) -> UnitGramian | None:
        """Remove negative eigenvalues of the cosines; None if there are none beyond float64 rounding.

        Rounding to float32 or bfloat16 can make a singular Gramian slightly indefinite. A larger negative eigenvalue
        is an error.
        """
        values, vectors = np.linalg.eigh(self.C)
        if values[0] >= -1e-15 * len(values):
            return None
        if values[0] < -len(values) * (1e-9 + 8.0 * self.eps):
            raise NotAGramianError(
                f"not positive semidefinite: for rows of norm 1 the smallest eigenvalue is {values[0]:.2g}. "
                "Compute the Gramian as J @ J.T in one dtype"
            )
        C = (vectors * np.maximum(values, 0.0)) @ vectors.T
        lengths = np.sqrt(C.diagonal())
        C /= lengths * lengths[:, None]
        return self._replace(C=0.5 * (C + C.T))


def unit_gramian(G: Array, eps: float) -> UnitGramian:
    """Validate a Gramian of shape ``(m, m)`` and split it into cosines and norms.

    Args:
        G: the Gramian in float64.
        eps: machine epsilon of its original dtype. It bounds how far a Gramian may be from symmetric and positive
            semidefinite.
    """
    check_finite(G)
    m = len(G)
    squares = G.diagonal()
    smallest = squares[squares.argmin()]
    if smallest < 0.0:
        k = int(squares.argmin())
        raise NotAGramianError(
            f"the diagonal of a Gramian holds squared norms and cannot be negative; G[{k}, {k}] = {squares[k]:g}"
        )
    norms = np.sqrt(squares)
    live = None
    if smallest < _ZERO:
        zero = squares < _ZERO
        live = np.flatnonzero(~zero)
        if np.abs(G[zero]).max() > 2.0 * _ZERO**0.5 * norms.max():
            raise NotAGramianError("a row whose diagonal entry is zero must be zero; this matrix has another")
        G, norms = G[np.ix_(live, live)], norms[live]
        if not len(norms):
            return UnitGramian(G, norms, live, m, eps)
    return UnitGramian(_cosines(G, norms, eps), norms, live, m, eps)


@lru_cache(maxsize=64)
def _probe(m: int) -> Array:
    """A fixed random vector of mean square one."""
    probe = np.random.default_rng(20260224).standard_normal(m)
    return np.asarray(probe * math.sqrt(m / probe.dot(probe)))


def _cosines(G: Array, norms: Array, eps: float) -> Array:
    # Entries of a computed Gramian are off by a few rounding errors of |g_i||g_j|. A larger error is a wrong matrix.
    slack = 1e-6 + 64.0 * eps
    inverse = 1.0 / norms
    C = G * inverse
    C *= inverse[:, None]
    # Freivalds' check: a matrix is symmetric if it and its transpose agree on a random vector.
    probe = _probe(len(C))
    twist = C.dot(probe)
    twist -= probe.dot(C)
    skew = math.sqrt(twist.dot(twist))
    if skew > _ROUNDING * len(C):
        if skew > 2.0 * slack * float(np.linalg.norm(C)):
            raise NotAGramianError(
                f"a Gramian is symmetric; for rows of norm 1, G - G.T has norm {np.linalg.norm(C - C.T):.2g}. "
                "From a Jacobian J of shape (m, n), pass paretograd.gramian(J)"
            )
        C = 0.5 * (C + C.T)
    flat = C.ravel(order="K")  # a view, whatever the order of the entries
    flat[:: len(C) + 1] = 1.0  # first, since rounding of the diagonal alone often exceeds 1
    largest = max(float(flat[flat.argmax()]), -float(flat[flat.argmin()]))
    if largest > 1.0 + slack:
        i, j = np.unravel_index(int(np.abs(C).argmax()), C.shape)
        raise NotAGramianError(
            f"not positive semidefinite: |G[{i}, {j}]| exceeds sqrt(G[{i}, {i}] * G[{j}, {j}]) by the factor "
            f"{largest:.3g}. Compute the Gramian as J @ J.T in one dtype"
        )
    if largest > 1.0:
        np.clip(C, -1.0, 1.0, out=C)
    return C


def check_gramian(G: Tensor) -> None:
    """Raise unless ``G`` is a floating-point tensor of shape ``(..., m, m)`` with m >= 1."""
    check_floating(G, "a Gramian")
    shape = G.shape
    if len(shape) < 2 or shape[-1] != shape[-2] or shape[-1] == 0:
        raise ShapeError(
            f"a Gramian has shape (..., m, m) with m >= 1; got {tuple(shape)}. "
            "From a Jacobian J of shape (m, n), pass paretograd.gramian(J)"
        )


def check_finite(G: Array) -> None:
    """Raise if a Gramian holds NaN or infinity, and name the objectives at fault."""
    flat = G.ravel()
    with np.errstate(over="ignore"):
        square = flat.dot(flat)
    if math.isfinite(square):
        return
    finite = np.isfinite(G)
    if finite.all():
        return  # only the sum of squares overflowed
    bad = np.flatnonzero(~finite.diagonal())
    if not len(bad):
        bad = np.flatnonzero(~finite.all(axis=1))
    raise NonFiniteGradientError(bad.tolist())


def plain_size(G: Tensor) -> int:
    """Return m for a finite float32 Gramian on the CPU, and 0 for any other input, valid or not.

    Some rules need only m and take microseconds. This validates the common case quickly; use `check_gramian` and
    `check_finite` if it returns 0.
    """
    if type(G) is Tensor and G.dtype is torch.float32 and G.is_cpu and not G.requires_grad:
        array = G.numpy()
        if array.ndim == 2 and len(array) == array.shape[1]:
            squares = array.diagonal()  # finite if and only if the gradients are
            if math.isfinite(squares.dot(squares)):
                return len(array)
    return 0
