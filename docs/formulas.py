"""Hook for MkDocs: convert the formulas of each page to MathML, which browsers display without a network or scripts."""

import html
import re

from latex2mathml.converter import convert
from mkdocs.exceptions import PluginError

#: What arithmatex (generic) leaves: a formula between \\( \\) in a line, and between \\[ \\] on a line of its own.
_FORMULA = re.compile(r'<(span|div) class="arithmatex">\\([(\[])(.*?)\\[)\]]</\1>', re.DOTALL)

#: Commands that the converter leaves as they are after a command for a size, and ``\\arg``.
_LEFT = {">\\arg<": ">arg<", ">\\|<": ">\u2016<", ">\\lVert<": ">\u2016<", ">\\rVert<": ">\u2016<"}


def on_page_content(content, page, **_):
    """Replace all formulas in the HTML of a page."""

    def mathml(found):
        tag, opened, tex = found.groups()
        made = convert(html.unescape(tex).strip(), display="block" if opened == "[" else "inline")
        for command, sign in _LEFT.items():
            made = made.replace(command, sign)
        made = re.sub("<mo>(&#x02016;|&#x0007C;)</mo>", r'<mo stretchy="false">\1</mo>', made)  # as high as letters
        if "\\" in re.sub(r"<[^>]*>", "", made):  # the converter prints commands that it does not know
            raise PluginError(f"{page.file.src_path}: write this formula with other commands: {tex.strip()}")
        return f'<{tag} class="formula">{made}</{tag}>'

    return _FORMULA.sub(mathml, content)
