"""Figures and the interactive page of a federated study. Needs the extra ``report``."""

from paretograd.reports.federated.write import write_federated

__all__ = ["write_federated"]
