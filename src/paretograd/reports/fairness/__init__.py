"""Figures and the interactive page of a fairness study. Needs the extra ``report``."""

from paretograd.reports.fairness.write import write_fairness

__all__ = ["write_fairness"]
