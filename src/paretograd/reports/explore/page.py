"""The page as HTML, in one file, and the policy that lets it run its own scripts and talk to its own server only."""

from __future__ import annotations

import json
from functools import cache
from string import Template

from paretograd.reports.explore.choices import catalogue
from paretograd.reports.inline import asset, only
from paretograd.reports.palette import CONE, DUAL, GRADIENT

_SCRIPTS = ("picture.js", "page.js")


@cache
def page() -> str:
    """Return the page."""
    picture, script = map(_asset, _SCRIPTS)
    data = json.dumps(catalogue(), ensure_ascii=False).replace("<", "\\u003c")
    colours = {"cone": CONE.face, "coneEdge": CONE.edge, "dual": DUAL.face, "dualEdge": DUAL.edge, "gradient": GRADIENT}
    style = Template(_asset("page.css")).substitute(colours)
    return Template(_asset("page.html")).substitute(style=style, catalogue=data, picture=picture, script=script)


@cache
def policy() -> str:
    """Return the content security policy of the page."""
    scripts = only([_asset(name) for name in _SCRIPTS])
    return (
        f"default-src 'none'; script-src {scripts}; style-src 'unsafe-inline'; connect-src 'self'; img-src data:; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    )


def _asset(name: str) -> str:
    return asset("paretograd.reports.explore", name)
