"""Schedules that choose the rule of a pool for each step."""
