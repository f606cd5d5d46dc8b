"""Check the change that an optimizer made against the gradients of all losses."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from paretograd.geometry.gramian import Array

#: A loss increases if the cosine of its gradient with the update is below minus this. Parameters in float32 round an
#: update to about as much.
CONFLICT = 1e-6


@dataclass(frozen=True)
class UpdateCertificate:
    """The slopes of all losses along the change of the parameters, ``u = before - after``.

    Attributes:
        slopes: ``<g_k, u>`` for every objective: to first order, the loss decreases by that much. NaN if the gradient
            is not known.
        cosines: of the gradients with u; zero if one of them is zero, NaN if the gradient is not known.
        conflicts: numbers of the objectives that increase: their cosine is below -1e-6.
        norm: ``|u|``.
        cosine: of the direction with u; NaN if the direction is not known.
        names: the names of the objectives; None for numbers.
    """

    slopes: tuple[float, ...]
    cosines: tuple[float, ...]
    conflicts: tuple[int, ...]
    norm: float
    cosine: float
    names: tuple[str, ...] | None = None

    @classmethod
    def of_products(cls, products: Array, names: tuple[str, ...] | None = None) -> UpdateCertificate:
        """Read the certificate from inner products.

        Args:
            products: of all gradients, the update and the direction, shape ``(m + 2, m + 2)``; NaN for a gradient or a
                direction that is not known.
            names: the names of the objectives.
        """
        lengths = np.sqrt(np.maximum(products.diagonal(), 0.0))
        slopes = products[:-2, -2]
        scale = lengths[:-2] * lengths[-2]
        cosines = np.divide(slopes, scale, out=np.where(np.isnan(scale), np.nan, 0.0), where=scale > 0.0)
        both = lengths[-1] * lengths[-2]
        return cls(
            slopes=tuple(slopes.tolist()),
            cosines=tuple(cosines.tolist()),
            conflicts=tuple(np.flatnonzero(cosines < -CONFLICT).tolist()),
            norm=float(lengths[-2]),
            cosine=float("nan") if np.isnan(both) else float(products[-1, -2] / both) if both > 0.0 else 0.0,
            names=names,
        )

    @property
    def non_conflicting(self) -> bool:
        """Return True if all slopes are known, and no objective increases."""
        return not self.conflicts and not self.unknown

    @property
    def unknown(self) -> tuple[int, ...]:
        """Numbers of the objectives whose gradients are not known."""
        return tuple(k for k, slope in enumerate(self.slopes) if math.isnan(slope))

    def metrics(self) -> dict[str, float]:
        """Return a flat dict of floats."""
        found = {
            "update_conflicts": float(len(self.conflicts)),
            "update_norm": self.norm,
            "update_cosine": self.cosine,
        }
        names = self.names or range(len(self.slopes))
        return found | {f"update_slope/{name}": slope for name, slope in zip(names, self.slopes, strict=True)}

    def __str__(self) -> str:
        names = self.names or tuple(map(str, range(len(self.slopes))))
        rows = [("|u|", f"{self.norm:.6g}"), ("cosine with the direction", f"{self.cosine:.4g}")]
        rows += [
            (f"loss {name}", "not differentiated" if k in self.unknown else
             f"{'increases' if k in self.conflicts else 'decreases' if slope > 0.0 else 'stays'}, "
             f"slope {slope:.4g}, cosine {cosine:.3g}")
            for k, (name, slope, cosine) in enumerate(zip(names, self.slopes, self.cosines, strict=True))
        ]  # fmt: skip
        return "\n".join(f"{name:<26}{value}" for name, value in rows)
