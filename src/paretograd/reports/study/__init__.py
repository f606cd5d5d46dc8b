"""Figures and the interactive page of a study. Needs the extra ``report``."""

from paretograd.reports.study.page import write_study

__all__ = ["write_study"]
