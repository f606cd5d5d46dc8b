"""Hook for MkDocs: fail if a built page would load anything from another host."""

import re
from pathlib import Path

from mkdocs.exceptions import PluginError

_TAG = re.compile(r"<(?:link|script|img|iframe|source|video|audio|embed|object)\b[^>]*>")
_FOREIGN = re.compile(r"""\b(?:src|href|srcset|data)=["']?(?:https?:)?//""")
#: Links that browsers do not follow by themselves.
_UNLOADED = re.compile(r"""\brel=["']?(?:canonical|next|prev|alternate|edit)\b""")
_FOREIGN_STYLE = re.compile(r"""(?:url\(|@import)\s*["']?(?:https?:)?//""")


def on_post_build(config, **_):
    """Look through all pages and style sheets."""
    for path in sorted(Path(config["site_dir"]).rglob("*")):
        if path.suffix == ".html":
            text = path.read_text(encoding="utf-8")
            loads = [tag for tag in _TAG.findall(text) if _FOREIGN.search(tag) and not _UNLOADED.search(tag)]
        elif path.suffix == ".css":
            loads = _FOREIGN_STYLE.findall(path.read_text(encoding="utf-8"))
        else:
            continue
        if loads:
            raise PluginError(f"{path}: the documentation must work without a network, and this loads: {loads[0]}")
