"""Hook for MkDocs: convert the formulas of each page to MathML, which browsers display without a network or scripts.

The converter knows TeX's commands, but few of its habits; `set_as_tex_does` adds those that the pages need.
"""

import html
import re
import unicodedata
import xml.etree.ElementTree as ET

from latex2mathml.converter import convert
from mkdocs.exceptions import PluginError

#: What arithmatex (generic) leaves: a formula between \\( \\) in a line, and between \\[ \\] on a line of its own.
#: A line does not break between a formula and the sign behind it.
_FORMULA = re.compile(r'<(span|div) class="arithmatex">\\([(\[])(.*?)\\[)\]]</\1>([.,;:!?)\-]*)', re.DOTALL)

#: Commands that the converter leaves as they are after a command for a size, and ``\\arg``.
_LEFT = {r"\arg": "arg", r"\|": "\u2016", r"\lVert": "\u2016", r"\rVert": "\u2016"}
#: Operators that the converter takes for names.
_SIGNS = {":": ":", ";": ";", "~": "\u223c"}
_ACCENTS = {"^": "\u02c6", "~": "\u02dc"}
_THIN = "0.167em"
_SCRIPTS = ("munder", "msub", "msup")

_NAMESPACE = "http://www.w3.org/1998/Math/MathML"
ET.register_namespace("", _NAMESPACE)


def on_page_content(content, page, **_):
    """Replace all formulas in the HTML of a page."""

    def mathml(found):
        tag, opened, tex, sign = found.groups()
        math = ET.fromstring(convert(html.unescape(tex).strip(), display="block" if opened == "[" else "inline"))
        set_as_tex_does(math)
        if "\\" in "".join(math.itertext()):  # the converter prints commands that it does not know
            raise PluginError(f"{page.file.src_path}: write this formula with other commands: {tex.strip()}")
        made = f'<{tag} class="formula">{ET.tostring(math, encoding="unicode")}</{tag}>'
        return f'<span class="formula-and-sign">{made}{sign}</span>' if sign else made

    return _FORMULA.sub(mathml, content)


def set_as_tex_does(math):
    """Correct the signs, alphabets, limits and spaces of a formula in place."""
    for node in math.iter():
        _correct(node)
    for row in math.iter():
        if _tag(row) not in _SCRIPTS:
            _space(row)


def _correct(node):
    text = node.text or ""
    if text in _LEFT:
        node.text = _LEFT[text]
    elif _tag(node) == "mi" and text in _SIGNS:
        node.tag = _named("mo")
        node.text = _SIGNS[text]
    elif _tag(node) == "mi" and "\u0391" <= text <= "\u03a9":
        node.set("mathvariant", "normal")  # capital Greek letters stand upright
    elif text == "\u2026":
        node.tag = _named("mi")  # no space around the dots
    elif text == "\u25fb":
        node.text = "\u25a1"
    elif _tag(node) == "mover" and node[1].text in _ACCENTS:
        node[1].text = _ACCENTS[node[1].text]
        node[1].set("stretchy", "false")
    if node.text in ("\u2016", "|"):
        node.set("stretchy", "false")  # as high as letters
    if node.text in ("\u2016", "|", "/"):
        _set_spaces(node, "0", "0")
    if "mathvariant" in node.attrib:
        _choose_letters(node)
    _join_letters(node)
    if _tag(node) == "msub" and _is_name(node[0]):
        node.tag = _named("munder")
        node[0].set("movablelimits", "true")


def _space(row):
    """Set names apart from letters, but not from brackets, and no sign apart from its number."""
    for before, node, after in zip([None, *row], list(row), [*row[1:], None], strict=False):
        core = node[0] if _tag(node) in _SCRIPTS else node
        if _is_name(core):
            core.tag = _named("mo")
            left = "0" if before is None or _tag(before) in ("mo", "mspace") else _THIN
            right = "0" if after is None or (_tag(after) == "mo" and after.text in "(,.") else _THIN
            _set_spaces(core, left, right)
        elif node.text in ("-", "\u2212") and _tag(before) == "mo" and before.text not in ")]}|\u2016\u27e9":
            _set_spaces(node, "0", "0")


def _set_spaces(node, left, right):
    node.set("lspace", left)
    node.set("rspace", right)


def _choose_letters(node):
    """Write bold and script letters as characters of their own: browsers ignore the attribute."""
    style = node.get("mathvariant").upper()
    if style in ("BOLD", "SCRIPT"):
        name = unicodedata.name(node.text).replace("LATIN ", "").replace("LETTER ", "")
        node.text = unicodedata.lookup(f"MATHEMATICAL {style} {name}")
        del node.attrib["mathvariant"]


def _join_letters(row):
    """Join the upright letters of a name that stand one by one."""
    for before, node in zip(list(row), list(row)[1:], strict=False):
        if all(
            _tag(each) == "mi" and each.get("mathvariant") == "normal" and each.text.isascii()
            for each in (before, node)
        ):
            node.text = before.text + node.text
            row.remove(before)


def _is_name(node):
    """Return True for an operator's name, such as *min* or *log*."""
    return _tag(node) in ("mi", "mo") and len(node.text or "") > 1 and node.text.isalpha()


def _tag(node):
    return "" if node is None else node.tag.rpartition("}")[2]


def _named(tag):
    return f"{{{_NAMESPACE}}}{tag}"
