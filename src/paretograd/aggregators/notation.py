"""Parser for rules written as text: ``mgda, upgrad*, mas-rr(100), capped-mgda(cap=0.2)``.

Values are numbers, words, lists of numbers, ``none``, ``true``, ``false`` and ``inf``. They are parsed, never executed.
"""

from __future__ import annotations

import ast
import math
import re
from dataclasses import dataclass
from typing import Any

from paretograd.errors import ParameterError, UnknownNameError

_RULE = re.compile(r"(?P<name>[^()*\s](?:[^()*]*[^()*\s])?)\s*(?:\((?P<inside>.*)\))?\s*(?P<star>\*?)", re.DOTALL)
_KEY = re.compile(r"\s*(?P<key>[A-Za-z_]\w*)\s*=(?P<value>.*)", re.DOTALL)
_WORD = re.compile(r"[A-Za-z][\w+-]*")
_THOUSANDS = re.compile(r"(\d+(?:\.\d+)?)[kK]")
_CONSTANTS = {"none": None, "true": True, "false": False, "inf": math.inf, "-inf": -math.inf}
_EXAMPLE = "such as mgda, upgrad*, mas-rr(100) or capped-mgda(cap=0.2)"


@dataclass(frozen=True)
class Written:
    """A parsed rule: its name in lower case, the arguments in its parentheses, and whether a star follows."""

    name: str
    values: tuple[Any, ...] = ()
    keywords: tuple[tuple[str, Any], ...] = ()
    starred: bool = False


def read_rule(text: str) -> Written:
    """Parse one rule, such as ``capped-mgda(cap=0.2)*``."""
    found = _RULE.fullmatch(text.strip())
    if found is None:
        error = ParameterError if "(" in text else UnknownNameError
        raise error(f"{text!r} is not a rule; write a name, {_EXAMPLE}. A star goes at the end")
    values: list[Any] = []
    keywords: dict[str, Any] = {}
    for part in split_list(found["inside"] or ""):
        named = _KEY.fullmatch(part)
        if named is None:
            if keywords:
                raise ParameterError(f"{text!r}: {part!r} follows a named parameter; name it as well, as in cap=0.2")
            values.append(_value(part, text))
        elif named["key"] in keywords:
            raise ParameterError(f"{text!r} gives {named['key']} twice")
        else:
            keywords[named["key"]] = _value(named["value"].strip(), text)
    return Written(found["name"].lower(), tuple(values), tuple(keywords.items()), bool(found["star"]))


def split_list(text: str) -> list[str]:
    """Split the text at commas, except inside parentheses, brackets and quotes."""
    parts, depth, quote = [""], 0, ""
    for sign in text:
        if quote:
            quote = "" if sign == quote else quote
        elif sign in "'\"":
            quote = sign
        elif sign in "([":
            depth += 1
        elif sign in ")]":
            depth -= 1
        if depth < 0:
            break
        if sign == "," and not depth and not quote:
            parts.append("")
        else:
            parts[-1] += sign
    if depth or quote:
        raise ParameterError(f"{text!r}: a parenthesis, bracket or quote is not closed; write rules {_EXAMPLE}")
    return [part.strip() for part in parts if part.strip()]


def _value(text: str, rule: str) -> Any:
    """Parse a number, a word or a list of numbers."""
    if text.lower() in _CONSTANTS:
        return _CONSTANTS[text.lower()]
    thousands = _THOUSANDS.fullmatch(text)
    if thousands:  # the paper writes 2500 as 2.5k
        number = 1000.0 * float(thousands[1])
        return int(number) if number.is_integer() else number
    if _WORD.fullmatch(text):
        return text
    try:
        value = ast.literal_eval(text)
    except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
        value = None
    listed = value if isinstance(value, (list, tuple)) else [value]
    if not isinstance(value, str) and not all(type(entry) in (int, float) for entry in listed):
        raise ParameterError(f"{rule!r}: {text!r} is not a number, word, or list of numbers such as [1, 2, 3]")
    return list(value) if isinstance(value, tuple) else value
