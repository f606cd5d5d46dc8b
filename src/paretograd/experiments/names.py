"""Names of files from the labels of methods."""

from __future__ import annotations

import re
from collections.abc import Sequence

_LONGEST = 60


def file_names(labels: Sequence[str]) -> tuple[str, ...]:
    """``nash-mtl-star`` for ``Nash-MTL*``: lower case, no sign that a shell or a file system minds, all different."""
    names: list[str] = []
    for label in labels:
        words = label.lower().replace("*", "-star").replace("+", "-plus")
        base = re.sub(r"[^a-z0-9.]+", "-", words).strip("-.")[:_LONGEST] or "method"
        name, number = base, 1
        while name in names:
            number += 1
            name = f"{base}-{number}"
        names.append(name)
    return tuple(names)
