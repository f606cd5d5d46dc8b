"""Data files that are not shipped: read from a folder or downloaded once, and always verified."""

from __future__ import annotations

import hashlib
import http.client
import os
import urllib.error
import urllib.request
import zlib
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from gzip import GzipFile
from io import BytesIO
from lzma import LZMAError, LZMAFile
from pathlib import Path
from typing import IO

from paretograd.disk import replacing
from paretograd.errors import DataError, InputError

#: Environment variable of the folder with local copies, which holds the files or one folder for each data set.
VARIABLE = "PARETOGRAD_DATA"

#: Seconds to wait for a server.
_PATIENCE = 30

#: Function that opens a file, by the suffix of its compression.
_OPENERS: dict[str, Callable[[Path], IO[bytes] | GzipFile | LZMAFile]] = {
    "": lambda path: path.open("rb"),
    ".gz": GzipFile,
    ".xz": LZMAFile,
}


@dataclass(frozen=True)
class DataFile:
    """One file of a data set.

    Attributes:
        name: name of the uncompressed file.
        size: its number of bytes; an upper bound on what is read.
        sha256: checksum of its content.
        url: address of the download, which may be compressed as .gz.
    """

    name: str
    size: int
    sha256: str
    url: str


def read(files: Sequence[DataFile], dataset: str, data_dir: str | Path | None = None) -> list[bytes]:
    """Return the contents of files from the first of: ``data_dir``, $PARETOGRAD_DATA, the cache, the network.

    A local copy may be plain, or compressed as .gz or .xz. A file with another checksum is rejected.

    Args:
        files: the files to read.
        dataset: name of the folder that may contain them.
        data_dir: a folder that holds the files or the data set's folder. If given, no other place is searched.
    """
    given = data_dir if data_dir is not None else os.environ.get(VARIABLE) or None
    if given is not None:
        found = [(file, find(file.name, dataset, Path(given), file.url)) for file in files]
        missing = [file for file, path in found if path is None]
        if missing:
            names = " and no ".join(file.name for file in missing)
            remedy = _remedy([file.url for file in missing], dataset)
            raise DataError(f"{given} holds no {names}, plain, .gz or .xz. {remedy}")
        return [verified(file, path) for file, path in found if path is not None]
    places = {file: cache() / dataset / file.name for file in files}
    urls = [file.url for file, path in places.items() if not is_there(path, [file.url], dataset)]
    return [_fetched(file, path, dataset, urls) for file, path in places.items()]


def _fetched(file: DataFile, cached: Path, dataset: str, urls: Sequence[str]) -> bytes:
    """Return the content of a file from the cache, or download it if its address is among the missing ``urls``."""
    if file.url not in urls:
        return verified(file, cached)
    content = download(file.url, file.size + 1, dataset, urls)
    if file.url.endswith(".gz"):
        content = _unzipped(content, file)
    check(file, content, file.url)
    store(cached, content)
    return content


def _unzipped(content: bytes, file: DataFile) -> bytes:
    """Uncompress a download; one byte more than the file has reveals a longer one."""
    try:
        return GzipFile(fileobj=BytesIO(content)).read(file.size + 1)
    except (OSError, EOFError, zlib.error) as error:
        raise DataError(f"the download from {file.url} is not a valid .gz file ({error}); try again") from error


def find(name: str, dataset: str, folder: Path, url: str) -> Path | None:
    """Return the path of a file, plain or compressed, in a folder or its subfolder ``dataset``; None if not found."""
    places = (place / f"{name}{suffix}" for place in (folder, folder / dataset) for suffix in _OPENERS)
    return next((place for place in places if is_there(place, [url], dataset)), None)


def is_there(path: Path, urls: Sequence[str], dataset: str) -> bool:
    """Return True if a file exists. If that cannot be determined, raise a `DataError` that says where to get it."""
    try:
        return path.is_file()
    except OSError as error:
        reason = error.strerror or error
        raise DataError(f"{path} cannot be accessed ({reason}). {_remedy(urls, dataset)}") from error


def verified(file: DataFile, path: Path) -> bytes:
    """Return the content of a local file after verifying its checksum."""
    content = unpacked(path, file.size + 1, file.url)  # one extra byte reveals a longer file, however long it is
    check(file, content, str(path))
    return content


def unpacked(path: Path, most: int, url: str) -> bytes:
    """Return at most ``most`` bytes of a file's uncompressed content."""
    suffix = path.suffix if path.suffix in _OPENERS else ""
    try:
        with _OPENERS[suffix](path) as stream:
            return stream.read(most)
    except (OSError, EOFError, LZMAError, zlib.error) as error:
        raise DataError(f"{path} cannot be read ({error}). Fetch {url} again") from error


def check(file: DataFile, content: bytes, origin: str) -> None:
    """Raise if the content does not have the checksum of the file."""
    found = hashlib.sha256(content).hexdigest()
    if found != file.sha256:
        raise DataError(
            f"{origin} is not the expected {file.name}: its sha256 begins with {found[:16]}, not with "
            f"{file.sha256[:16]}. Fetch {file.url} again"
        )


def download(url: str, most: int, dataset: str, needed: Sequence[str] = ()) -> bytes:
    """Download at most ``most`` bytes. An error lists all ``needed`` addresses."""
    try:
        with urllib.request.urlopen(url, timeout=_PATIENCE) as answer:
            return bytes(answer.read(most))
    except (urllib.error.URLError, http.client.HTTPException, OSError, ValueError) as error:
        raise DataError(f"{url} could not be downloaded ({error}). {_remedy(needed or [url], dataset)}") from error


def _remedy(urls: Sequence[str], dataset: str) -> str:
    put = f"put {'it' if len(urls) == 1 else 'them'} in a folder, for instance data/{dataset}/"
    return f"Fetch {' and '.join(urls)}, {put}, and pass --data-dir data or set {VARIABLE}=data"


def cache() -> Path:
    """Return the folder in which downloads are kept."""
    home = os.environ.get("XDG_CACHE_HOME")
    return (Path(home) if home else Path.home() / ".cache") / "paretograd"


def store(path: Path, content: bytes) -> None:
    """Write a file atomically; ignore a folder that is not writable."""
    with suppress(InputError), replacing(path) as file:
        file.write(content)
