"""Build the wheel and use it as a stranger would: alone, with each extra, and through two type checkers.

    python tests_wheel/check.py ENVIRONMENT

ENVIRONMENT is a virtual environment with torch. The wheel is installed there with the core dependencies. Each extra
gets an environment of its own, which sees that one, so that no extra can rely on what another brings.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
HERE = Path(__file__).resolve().parent

#: What must work with an extra, and the file of pinned versions.
EXTRAS = {
    "cli": "from paretograd.cli import main; import sys; sys.argv = ['paretograd', 'list']; main()",
    "plot": "import paretograd as pg; t = pg.descend(pg.problem('vlmop2'), pg.UPGrad(), steps=5); t.plot()",
    "cvxpy": "import paretograd as pg; import torch\n"
    "def worst(x):\n import cvxpy\n return cvxpy.max(-x)\n"
    "print(pg.Subproblem(pg.subproblem.Cvxpy(worst))(torch.eye(2)))",
    "moo": "import torch; from paretograd.problems import hypervolume\n"
    "print(hypervolume(torch.tensor([[0.5, 0.5]]), torch.ones(2)))",
    "pandas": "import paretograd as pg; print(pg.descend(pg.problem('vlmop2'), pg.UPGrad(), steps=5).to_pandas())",
    "report": "from paretograd.reports.study.page import plotly_js; print(len(plotly_js()))",
    "control": "from paretograd.bench.tasks.control import FruitTree; t = FruitTree(small=True)\n"
    "print(t.scores(t.network().requires_grad_(False), t.load().test))",
    "torchjd": "import paretograd as pg; from paretograd.torchjd import to_torchjd; print(to_torchjd(pg.UPGrad()))",
    "transformers": "from paretograd.integrations.transformers import MultiObjectiveTrainer as T; print(T)",
    "lightning": "from paretograd.integrations.lightning import MultiObjectiveModule as M; print(M)",
    "deepxde": "import os; os.environ['DDE_BACKEND'] = 'pytorch'\n"
    "from paretograd.integrations.deepxde import MultiObjectiveModel as M; print(M)",
    "flower": "from paretograd.federated import FedPareto; print(FedPareto())",
}

#: Without extras, these say which one is missing.
WITHOUT = {"cli": "from paretograd.cli import main; main()"} | {
    extra: EXTRAS[extra] for extra in EXTRAS if extra not in ("cli", "cvxpy")
}


def call(*command: object, ok: bool = True) -> str:
    """Run a command outside of the repository, so that nothing is imported from it."""
    done = subprocess.run(
        list(map(str, command)), cwd=tempfile.gettempdir(), capture_output=True, text=True, check=False
    )
    if (done.returncode == 0) is not ok:
        sys.exit(f"{' '.join(map(str, command))}\nexited with {done.returncode}\n{done.stdout}{done.stderr}")
    return done.stdout + done.stderr


def build(folder: Path) -> Path:
    """Build both distributions, check what a package index would show of them, and return the wheel."""
    call(sys.executable, "-m", "build", "--outdir", folder, ROOT)
    call(sys.executable, "-m", "twine", "check", "--strict", *folder.iterdir())
    (wheel,) = folder.glob("*.whl")
    print(f"{wheel.name}: {wheel.stat().st_size / 1e6:.2f} MB")
    return wheel


def install(python: Path, what: str, constraints: str) -> None:
    pip = [sys.executable, "-m", "pip", "--python", python, "install", "-qq", "--disable-pip-version-check"]
    call(*pip, "-c", ROOT / constraints, what)


def check_core(python: Path, wheel: Path) -> None:
    call(sys.executable, "-m", "pip", "--python", python, "uninstall", "-qq", "-y", "paretograd")
    install(python, str(wheel), "constraints.txt")
    print("core:", call(python, "-W", "error", HERE / "program.py").strip())
    for extra, code in WITHOUT.items():
        assert f"paretograd[{extra}]" in call(python, "-c", code, ok=False), f"no hint at the extra {extra}"


def check_types(python: Path) -> None:
    program = HERE / "program.py"
    call(sys.executable, "-m", "mypy", "--strict", "--python-executable", python, program)
    call(sys.executable, "-m", "pyright", "--pythonpath", python, program)
    print("types: mypy --strict and pyright find nothing")


def check_extra(extra: str, core: Path, wheel: Path, folder: Path) -> None:
    call(core, "-m", "venv", "--without-pip", folder)
    python = folder / "bin" / "python"
    site = call(python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))").strip()
    seen = call(core, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))").strip()
    (Path(site) / "core.pth").write_text(f"{seen}\n")
    constraints = "constraints-flower.txt" if extra == "flower" else "constraints.txt"
    install(python, f"{wheel}[{extra}]", constraints)
    call(python, "-c", EXTRAS[extra])
    print(f"extra {extra}: works")


def main() -> None:
    core = Path(sys.argv[1]).absolute() / "bin" / "python"
    with tempfile.TemporaryDirectory() as scratch:
        wheel = build(Path(scratch) / "dist")
        check_core(core, wheel)
        check_types(core)
        for extra in EXTRAS:
            check_extra(extra, core, wheel, Path(scratch) / extra)


if __name__ == "__main__":
    main()
