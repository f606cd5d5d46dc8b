"""Test problems as declared data, with dominance and hypervolume to compare sets of losses."""

from paretograd.problems.base import Problem
from paretograd.problems.dominance import dominates, hypervolume, non_dominated
from paretograd.problems.registry import problem, problems

__all__ = ["Problem", "dominates", "hypervolume", "non_dominated", "problem", "problems"]
