"""Jacobian to Gramian, and a Gramian to the scale-free form that every solver works on."""

from __future__ import annotations

import math
from functools import lru_cache
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from paretograd.errors import DTypeError, InputError, NonFiniteGradientError, NotAGramianError, ShapeError
from paretograd.geometry import kernels

Array = NDArray[np.float64]

#: Columns converted to float64 at a time, so that a large Jacobian is never copied whole.
_CHUNK = 1 << 20

#: Jacobians with at most this many entries take longer to hand to torch's float64 kernels than to multiply.
_SMALL = 1 << 14

#: A sum of m cosines, each a product of two or three factors, is off by a few units of float64 for each.
_ROUNDING = 4e-16

#: Ten units of float32: unit gradients that differ by less may be equal but for the rounding of their rows. A float64
#: Gramian knows this angle to three digits or four.
_LEAST_ANGLE = 1e-6

#: Rounding of float32, and squared norms between which its products keep their digits.
_FLOAT32 = 1.2e-7
LEAST, MOST = 1e-20, 1e30

#: Squared norms below float64's smallest normal number have lost their digits: zero rows.
_ZERO = float(np.finfo(np.float64).tiny)

#: Where no squared norm is above this, a Jacobian in float64 is better scaled before it is squared.
_UNDERFLOWS = 1e-280


def check_jacobian(jacobian: Tensor) -> None:
    """Raise unless ``jacobian`` is a floating-point tensor of shape ``(..., m, n)`` with m, n >= 1."""
    check_floating(jacobian, "a Jacobian")
    if jacobian.ndim < 2 or 0 in jacobian.shape[-2:]:
        raise ShapeError(
            f"a Jacobian has shape (..., m, n), one row per objective, m >= 1 and n >= 1; "
            f"got {tuple(jacobian.shape)}. Stack the flattened gradients with torch.stack"
        )


def gramian(jacobian: Tensor) -> Tensor:
    """The Gramian ``G = J @ J.T``, shape ``(..., m, m)``, accumulated and returned in float64.

    Rows of float16 or float32 gradients are multiplied exactly in float64, so that neither gradients of
    norm 1e-15 underflow nor those of norm 1e15 overflow.

    Args:
        jacobian: shape ``(..., m, n)``, one row per objective, any floating dtype.
    """
    check_jacobian(jacobian)
    J = jacobian.detach()
    if _is_small(J):
        A = as_array(J)
        with np.errstate(over="ignore", invalid="ignore"):
            square = A @ A.T
            finite = math.isfinite(square.sum())
        G = torch.from_numpy(square)
    elif kernels.serves_exactly(J):
        G = kernels.gramian(J, exact=True)
        finite = bool(torch.isfinite(G).all())
    else:
        parts = (chunk.to(torch.float64) for chunk in torch.split(J, _CHUNK, dim=-1))
        G = sum((part @ part.mT for part in parts), start=torch.zeros((), dtype=torch.float64, device=J.device))
        finite = bool(torch.isfinite(G).all())
    if not finite:
        bad = ~torch.isfinite(J).all(dim=-1)
        rows = bad.reshape(-1, J.shape[-2]).any(dim=0).nonzero().flatten().tolist()
        if not rows:
            raise InputError(
                f"gradients of norm {float(J.double().abs().max()):.1e} and more overflow float64 when squared; "
                "norms up to 1e150 are allowed. Divide the losses by a constant"
            )
        raise NonFiniteGradientError(rows)
    return G


def quick_gramian(jacobian: Tensor) -> tuple[Array, float] | None:
    """For a few long float32 rows on a GPU, the Gramian in float32 products and their rounding; None for any others.

    A rule that is called on such a Jacobian takes it, and allows for the rounding. None also where squared norms leave
    the range in which float32 keeps its digits, or are not finite.
    """
    if not (getattr(jacobian, "is_cuda", False) and kernels.serves(jacobian)):
        return None  # whatever it is
    G = as_array(kernels.gramian(jacobian.detach(), exact=False))
    squares = G.diagonal()
    return (G, _FLOAT32) if bool(((squares > LEAST) & (squares < MOST)).all()) else None


def underflows(jacobian: Tensor, G: Tensor) -> bool:
    """Whether a Gramian is so small that rows which are not zero may have been squared to zero, as in float64 alone."""
    if jacobian.dtype is not torch.float64:
        return False
    if G.ndim == 2 and G.is_cpu:  # numpy takes a microsecond
        return bool(G.numpy().diagonal().max() < _UNDERFLOWS)
    return bool((_largest(G.diagonal(dim1=-2, dim2=-1)) < _UNDERFLOWS).any())


def enlarge(jacobian: Tensor) -> tuple[Tensor, Tensor]:
    """``2^-e J`` with the largest entry near one, and e, one for each Jacobian of a batch; the scaling is exact."""
    J = jacobian.detach()
    exponent = torch.frexp(_largest(J.abs().flatten(-2))).exponent.to(torch.float64)
    return scale_by_power(J, -exponent[..., None, None]), exponent


def scale_by_power(values: Tensor, exponent: Tensor) -> Tensor:
    """``2^e`` times the values, in two steps, as the power may leave float64's range where the product does not."""
    half = torch.floor(0.5 * exponent)
    return values * torch.exp2(half) * torch.exp2(exponent - half)


def _largest(values: Tensor) -> Tensor:
    return values.amax(dim=-1) if values.numel() else values.new_zeros(values.shape[:-1])


def _is_small(J: Tensor) -> bool:
    """Whether J is one small matrix on the CPU, which numpy multiplies before torch has begun."""
    return J.is_cpu and J.ndim == 2 and J.numel() <= _SMALL


def combine(weights: Tensor, jacobian: Tensor) -> Tensor:
    """The direction ``d = J.T @ w``, shape ``(..., n)``, summed in float64, in the Jacobian's dtype."""
    J = jacobian.detach()
    if _is_small(J):
        return torch.from_numpy(as_array(weights) @ as_array(J)).to(J.dtype)
    if kernels.serves(J):
        return kernels.combine(weights, J)
    w = weights.to(dtype=torch.float64, device=J.device).unsqueeze(-2)
    parts = [(w @ chunk.to(torch.float64)).squeeze(-2).to(J.dtype) for chunk in torch.split(J, _CHUNK, dim=-1)]
    return parts[0] if len(parts) == 1 else torch.cat(parts, dim=-1)


def check_gramian(G: Tensor) -> None:
    """Raise unless ``G`` is a floating-point tensor of shape ``(..., m, m)`` with m >= 1."""
    check_floating(G, "a Gramian")
    shape = G.shape
    if len(shape) < 2 or shape[-1] != shape[-2] or shape[-1] == 0:
        raise ShapeError(
            f"a Gramian has shape (..., m, m) with m >= 1; got {tuple(shape)}. "
            "From a Jacobian J of shape (m, n), pass paretograd.gramian(J)"
        )


def plain_size(G: Tensor) -> int:
    """m of a finite float32 Gramian on the CPU, and 0 for anything else, right or wrong.

    A rule that looks at nothing but m takes microseconds, so that its checks must not take more: the common case
    is checked here in one go, every other one by `check_gramian` and `check_finite`.
    """
    if type(G) is Tensor and G.dtype is torch.float32 and G.is_cpu and not G.requires_grad:
        array = G.numpy()
        if array.ndim == 2 and len(array) == array.shape[1]:
            squares = array.diagonal()  # not finite exactly where the gradient is not
            if math.isfinite(squares.dot(squares)):
                return len(array)
    return 0


def as_array(tensor: Tensor) -> Array:
    """The values as a float64 numpy array on the CPU (shared with a float64 CPU tensor: never write to it)."""
    if not tensor.is_cpu or tensor.requires_grad:
        tensor = tensor.detach().cpu()
    if tensor.dtype is torch.bfloat16:  # numpy has no such type
        tensor = tensor.to(torch.float64)
    return np.asarray(tensor.numpy(), dtype=np.float64)


def check_finite(G: Array) -> None:
    """Raise with the objectives at fault if a Gramian holds NaN or infinity."""
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


class UnitGramian(NamedTuple):
    """A Gramian split into directions and lengths: ``G = diag(norms) C diag(norms)``.

    Solvers work on C, whose diagonal is one, so that their tolerances mean the same for gradients of
    every scale, and rows of very different norms lose no digits.

    Attributes:
        C: cosines between the non-zero gradients, shape ``(k, k)``.
        norms: norms of the non-zero gradients, shape ``(k,)``.
        live: row numbers of the non-zero gradients, or None where all m are.
        m: number of objectives.
        eps: relative rounding error of the entries, from the dtype that the Gramian came in.
    """

    C: Array
    norms: Array
    live: NDArray[np.intp] | None
    m: int
    eps: float

    @property
    def resolution(self) -> float:
        """Distance from a span of others below which a unit gradient counts as lying in it.

        A distance enters the cosines as its square, so that their rounding hides distances below its root, and blurs
        larger ones: an angle t is known to 1e-16 / t^2 of itself. Rows of float32 are themselves known to 1e-7 only.
        """
        return max(_LEAST_ANGLE, 2.0 * math.sqrt(self.eps))

    @property
    def has_zero_row(self) -> bool:
        """Whether some gradient is zero, which makes the point Pareto stationary at once."""
        return self.live is not None

    def expand(self, values: Array, fill: float = 0.0) -> Array:
        """Put values of the non-zero rows (last axis) back among all m rows."""
        if self.live is None:
            return values
        full = np.full((*values.shape[:-1], self.m), fill)
        full[..., self.live] = values
        return full

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
        """The cosines without their negative eigenvalues, or None where all are non-negative to float64.

        Rounding to float32 or bfloat16 can make a singular Gramian slightly indefinite; more is an error.
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

    def restrict(self, values: Array) -> Array:
        """The entries (last axis) that belong to the non-zero rows."""
        return values if self.live is None else values[..., self.live]


def unit_gramian(G: Array, eps: float) -> UnitGramian:
    """Check a Gramian of shape ``(m, m)`` and split it into cosines and norms.

    Args:
        G: the Gramian in float64.
        eps: machine epsilon of the dtype that it came in: what a Gramian may deviate from symmetry and
            positive semidefiniteness by.
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
    # Entries of a computed Gramian are off by a few rounding errors of |g_i||g_j|; more is a wrong matrix.
    slack = 1e-6 + 64.0 * eps
    inverse = 1.0 / norms
    C = G * inverse
    C *= inverse[:, None]
    # Freivalds' check: a matrix is symmetric where it and its transpose agree on a random vector.
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
    flat = C.ravel()
    largest = max(float(flat[flat.argmax()]), -float(flat[flat.argmin()]))
    if largest > 1.0 + slack:
        i, j = np.unravel_index(int(np.abs(C).argmax()), C.shape)
        raise NotAGramianError(
            f"not positive semidefinite: |G[{i}, {j}]| exceeds sqrt(G[{i}, {i}] * G[{j}, {j}]) by the factor "
            f"{largest:.3g}. Compute the Gramian as J @ J.T in one dtype"
        )
    if largest > 1.0:
        np.clip(C, -1.0, 1.0, out=C)
    flat[:: len(C) + 1] = 1.0
    return C


def check_floating(tensor: object, what: str) -> None:
    """Raise unless ``tensor`` is a floating-point tensor."""
    if not isinstance(tensor, Tensor):
        raise DTypeError(f"{what} is a torch.Tensor; got {type(tensor).__name__}. Convert it with torch.as_tensor")
    if not tensor.is_floating_point():
        raise DTypeError(f"{what} has a floating-point dtype; got {tensor.dtype}. Convert it with .float()")
