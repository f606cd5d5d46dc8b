"""Data that the project does not ship: found in a folder, or downloaded once, and verified either way."""

from __future__ import annotations

import hashlib
import os
import urllib.error
import urllib.request
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from gzip import GzipFile
from lzma import LZMAError, LZMAFile
from pathlib import Path
from typing import IO

from paretograd.disk import replacing
from paretograd.errors import DataError, InputError

#: Where local copies lie; a folder, with one folder for each data set in it, or the files themselves.
VARIABLE = "PARETOGRAD_DATA"

#: Seconds to wait for a server.
_PATIENCE = 30

#: How to open a file, by the suffix that packing added to its name.
_OPENERS: dict[str, Callable[[Path], IO[bytes] | GzipFile | LZMAFile]] = {
    "": lambda path: path.open("rb"),
    ".gz": GzipFile,
    ".xz": LZMAFile,
}


@dataclass(frozen=True)
class DataFile:
    """One file of a data set.

    Attributes:
        name: of the file, unpacked.
        size: number of bytes; no more than these are ever read.
        sha256: of its content.
        url: where it can be downloaded from.
    """

    name: str
    size: int
    sha256: str
    url: str


def read(file: DataFile, dataset: str, data_dir: str | Path | None = None) -> bytes:
    """The content of a file, from the first of: ``data_dir``, $PARETOGRAD_DATA, the cache, the network.

    A local copy may be plain, or packed as .gz or .xz. What has another checksum is refused.

    Args:
        file: which one.
        dataset: name of the folder that it may lie in.
        data_dir: a folder that holds it, or the data set's folder; if it is given, nowhere else is looked.
    """
    given = data_dir if data_dir is not None else os.environ.get(VARIABLE) or None
    if given is not None:
        path = find(file.name, dataset, Path(given))
        if path is None:
            raise DataError(f"{given} holds no {file.name}, plain, .gz or .xz. {_remedy(file.url, dataset)}")
        return verified(file, path)
    cached = cache() / dataset / file.name
    if cached.is_file():
        return verified(file, cached)
    content = download(file.url, file.size + 1, dataset)
    check(file, content, file.url)
    store(cached, content)
    return content


def find(name: str, dataset: str, folder: Path) -> Path | None:
    """Where a file lies in a folder or in the data set's folder in it, as it is or packed; None if nowhere."""
    places = (place / f"{name}{suffix}" for place in (folder, folder / dataset) for suffix in _OPENERS)
    return next((place for place in places if place.is_file()), None)


def verified(file: DataFile, path: Path) -> bytes:
    """The content of a local file, if it is what it should be."""
    content = unpacked(path, file.size + 1, file.url)  # one byte more tells a longer file, however long it unpacks to
    check(file, content, str(path))
    return content


def unpacked(path: Path, most: int, url: str) -> bytes:
    """At most so many bytes of a file's content."""
    suffix = path.suffix if path.suffix in _OPENERS else ""
    try:
        with _OPENERS[suffix](path) as stream:
            return stream.read(most)
    except (OSError, EOFError, LZMAError) as error:
        raise DataError(f"{path} cannot be read ({error}). Fetch {url} again") from error


def check(file: DataFile, content: bytes, origin: str) -> None:
    """Raise unless the content has the checksum of the file."""
    found = hashlib.sha256(content).hexdigest()
    if found != file.sha256:
        raise DataError(
            f"{origin} is not the {file.name} that is expected: its sha256 begins with {found[:16]}, not with "
            f"{file.sha256[:16]}. Fetch {file.url} again"
        )


def download(url: str, most: int, dataset: str) -> bytes:
    """At most so many bytes of what a server sends."""
    try:
        with urllib.request.urlopen(url, timeout=_PATIENCE) as answer:
            return bytes(answer.read(most))
    except (urllib.error.URLError, OSError, ValueError) as error:
        raise DataError(f"{url} could not be downloaded ({error}). {_remedy(url, dataset)}") from error


def _remedy(url: str, dataset: str) -> str:
    place = f"data/{dataset}/"
    return f"Fetch {url}, put it in a folder, for instance {place}, and pass --data-dir data or set {VARIABLE}=data"


def cache() -> Path:
    """The folder in which downloads are kept."""
    home = os.environ.get("XDG_CACHE_HOME")
    return (Path(home) if home else Path.home() / ".cache") / "paretograd"


def store(path: Path, content: bytes) -> None:
    """Write a file whole or not at all; a folder that cannot be written to is no reason to fail."""
    with suppress(InputError), replacing(path) as file:
        file.write(content)
