"""Shared set-up of the tests: `support` is importable because pytest puts this folder on the path.

Runs are reproducible: hypothesis draws the same examples every time (a failure in CI is a failure here), and
the number of examples is raised from the command line with ``--hypothesis-profile=thorough``.
"""

from hypothesis import settings

settings.register_profile("default", max_examples=50, deadline=None, derandomize=True)
settings.register_profile("thorough", max_examples=1000, deadline=None, derandomize=False)
settings.load_profile("default")
