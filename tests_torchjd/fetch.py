"""Download the tests that TorchJD published, and unpack them outside of what git keeps: `make test-torchjd` calls it.

`sdist.txt` names the file by its hash. Nothing of it is copied into the repository.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tarfile
from pathlib import Path

HERE = Path(__file__).parent
#: Ignored by git.
CACHE = HERE.parent / ".torchjd-tests"


def fetch() -> None:
    """Fill the cache anew."""
    shutil.rmtree(CACHE, ignore_errors=True)
    CACHE.mkdir()
    options = ["--no-deps", "--no-binary=:all:", "--require-hashes", f"--requirement={HERE / 'sdist.txt'}"]
    command = [sys.executable, "-m", "pip", "download", "-qq", "--disable-pip-version-check", *options]
    subprocess.run([*command, f"--dest={CACHE}"], check=True)
    (archive,) = CACHE.glob("*.tar.gz")
    with tarfile.open(archive) as file:
        file.extractall(CACHE, filter="data")


def their_tests() -> Path:
    """Return the folder of their tests, in which `unit` is a package."""
    found = sorted(CACHE.glob("torchjd-*/tests"))
    if len(found) != 1:
        raise FileNotFoundError(f"{CACHE} holds no tests of TorchJD; run `make test-torchjd`, which downloads them")
    return found[0]


if __name__ == "__main__":
    fetch()
