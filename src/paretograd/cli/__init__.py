"""The ``paretograd`` command. Nothing here is imported by the library, and typer and rich only when it runs."""

from __future__ import annotations

import sys

from paretograd.errors import MissingExtraError

_EXTRA = {"typer", "click", "rich"}


def main() -> None:
    """Run the command line; without its dependencies, say in one line how to get them and exit with 2."""
    try:
        from paretograd.cli.app import app
    except ModuleNotFoundError as error:
        missing = (error.name or "").split(".")[0]
        if missing not in _EXTRA:
            raise
        sys.stderr.write(f"error: {_missing(missing)}\n")
        sys.exit(2)
    app(prog_name="paretograd")


def _missing(package: str) -> MissingExtraError:
    return MissingExtraError(
        f"the paretograd command needs {package}, which is not installed; "
        "install it with: pip install 'paretograd[cli]'"
    )
