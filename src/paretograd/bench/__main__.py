"""``python -m paretograd.bench``: the benchmark on machines without any extra."""

import sys

from paretograd.bench.program import run_program

sys.exit(run_program())
