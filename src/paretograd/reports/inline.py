"""Parts of self-contained HTML pages: their files, and a policy for the scripts inside."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Sequence
from importlib.resources import files


def asset(package: str, name: str) -> str:
    """Return the text of a file beside a module. Browsers normalise line ends before they compute a checksum."""
    return files(package).joinpath(name).read_text(encoding="utf-8").replace("\r\n", "\n")


def only(scripts: Sequence[str]) -> str:
    """Return the sources of a content security policy that allows these scripts and no others."""
    digests = [base64.b64encode(hashlib.sha256(script.encode()).digest()).decode() for script in scripts]
    return " ".join(f"'sha256-{digest}'" for digest in digests)


def policy(scripts: Sequence[str]) -> str:
    """Return a policy for a page in a file: these scripts only, and no loading."""
    return f"default-src 'none'; script-src {only(scripts)}; style-src 'unsafe-inline'; img-src data: blob:"
