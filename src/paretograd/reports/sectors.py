"""Cone and dual cone of gradients in the plane, as sectors of angles."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from paretograd.geometry.gramian import Array

_TURN = 2.0 * np.pi


@dataclass(frozen=True)
class Sector:
    """Angles from ``start`` to ``start + width``; width 0 is a ray and 2 pi the whole plane."""

    start: float
    width: float


def cone_sectors(gradients: Array) -> list[Sector]:
    """The cone that the gradients (rows in the plane) span: one sector, or two rays for opposite gradients."""
    angles = _angles(gradients)
    if not len(angles):
        return []
    gaps = np.diff(np.append(angles, angles[0] + _TURN))
    last = int(gaps.argmax())
    start, width = float(angles[(last + 1) % len(angles)]), _TURN - float(gaps[last])
    if width <= np.pi + 1e-9:
        opposite = len(angles) == 2 and abs(width - np.pi) < 1e-9
        return [Sector(start, 0.0), Sector(start + np.pi, 0.0)] if opposite else [Sector(start, width)]
    return [Sector(0.0, _TURN)]


def dual_sectors(gradients: Array) -> list[Sector]:
    """The directions that no gradient (row in the plane) conflicts with; empty if there is none but zero."""
    cone = cone_sectors(gradients)
    if not cone:
        return [Sector(0.0, _TURN)]
    if len(cone) == 2:  # opposite gradients: what is orthogonal to both
        return [Sector(sector.start + np.pi / 2.0, 0.0) for sector in cone]
    start, width = cone[0].start, cone[0].width
    if width > np.pi + 1e-9:
        return []
    return [Sector(start + width - np.pi / 2.0, max(np.pi - width, 0.0))]


def _angles(vectors: Array) -> Array:
    """Distinct angles of the non-zero vectors, ascending, in [0, 2 pi)."""
    live = vectors[np.linalg.norm(vectors, axis=1) > 0.0]
    angles = np.sort(np.arctan2(live[:, 1], live[:, 0]) % _TURN)
    keep = np.diff(angles, prepend=-1.0) > 1e-9
    kept = angles[keep]
    if len(kept) > 1 and kept[0] + _TURN - kept[-1] <= 1e-9:
        kept = kept[:-1]
    return kept
