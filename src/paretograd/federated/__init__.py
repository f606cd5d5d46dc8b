"""Federated learning with any rule of the library, on a server that trusts no client."""

from typing import TYPE_CHECKING, Any

from paretograd.federated.aggregation import Bound, Combined, combine_updates
from paretograd.federated.baselines import CoordinateMedian, GeometricMedian, Krum, MultiKrum, TrimmedMean
from paretograd.federated.replies import Checked, Dropped, check_replies
from paretograd.federated.rules import CoordinateRule, GramianRule
from paretograd.federated.server import Round, Server, buffer_names
from paretograd.federated.trust import TrustedMGDA

if TYPE_CHECKING:
    from paretograd.federated.strategy import FedPareto as FedPareto

__all__ = [
    "Bound",
    "Checked",
    "Combined",
    "CoordinateMedian",
    "CoordinateRule",
    "Dropped",
    "GeometricMedian",
    "GramianRule",
    "Krum",
    "MultiKrum",
    "Round",
    "Server",
    "TrimmedMean",
    "TrustedMGDA",
    "buffer_names",
    "check_replies",
    "combine_updates",
]


def __getattr__(name: str) -> Any:
    """Import `FedPareto` on first access, since it needs Flower (extra ``flower``)."""
    if name == "FedPareto":
        from paretograd.federated.strategy import FedPareto

        return FedPareto
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
