"""``paretograd explore``: a page on this machine where gradients are dragged and the rules follow."""

from paretograd.reports.explore.server import serving

__all__ = ["serving"]
