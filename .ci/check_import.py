"""Check that `import paretograd` needs only the core dependencies, is lazy, and adds little to `import torch`."""

import subprocess
import sys

LIMIT = 0.3  # seconds
REPEATS = 5

# None in sys.modules makes an import fail as if the extra were not installed.
WITHOUT_EXTRAS = """
import sys
for extra in (
    "typer", "rich", "matplotlib", "plotly", "pandas", "moocore", "cvxpy", "hypothesis", "selenium", "torchjd",
    "flwr", "ray",
):
    sys.modules[extra] = None
import paretograd
import paretograd.federated
"""

LAZY = """
import sys
import torch
before = set(sys.modules)
import paretograd
eager = {"scipy", "typer", "rich", "matplotlib"} & (set(sys.modules) - before)
sys.exit(f"`import paretograd` already imports {', '.join(sorted(eager))}" if eager else 0)
"""

TIMED = """
import time
import torch
start = time.perf_counter()
import paretograd
print(time.perf_counter() - start)
"""


def run(code: str) -> str:
    """Run `code` in a fresh interpreter and return its output; errors go to our stderr."""
    done = subprocess.run([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    if done.returncode:
        sys.exit(done.returncode)
    return done.stdout


def main() -> None:
    run(WITHOUT_EXTRAS)
    print("imports without any extra")
    run(LAZY)
    print("imports no scipy, typer, rich or matplotlib before they are needed")
    added = min(float(run(TIMED)) for _ in range(REPEATS))
    print(f"adds {added:.3f} s to `import torch` (best of {REPEATS}; limit {LIMIT} s)")
    if added > LIMIT:
        sys.exit("too slow: `python -X importtime -c 'import paretograd'` shows which module costs what")


if __name__ == "__main__":
    main()
