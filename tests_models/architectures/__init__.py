"""Architectures as their libraries build them: small, from a configuration, with random weights in float64.

Each entry of `ARCHITECTURES` builds a `Problem` with at least three losses. Every forward pass has the same seed, and
thus the same losses, with dropout too. Nothing is downloaded.
"""

from . import generation, language, science, vision  # noqa: F401 (each adds its models to `ARCHITECTURES`)
from .table import ARCHITECTURES

__all__ = ["ARCHITECTURES"]
