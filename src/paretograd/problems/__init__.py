"""Test problems as declared data, and what compares sets of losses: dominance and hypervolume."""

from paretograd.problems.base import Problem
from paretograd.problems.dominance import dominates, hypervolume, non_dominated
from paretograd.problems.registry import problem, problems

__all__ = ["Problem", "dominates", "hypervolume", "non_dominated", "problem", "problems"]
