"""Validation of client replies against the global model, before anything is computed from them."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

#: Numbers beyond this would overflow when squared and summed.
LARGEST = 1e100

#: Numbers of an array that are checked at a time.
_BLOCK = 1 << 16

#: Fault of an array, by name.
_TOO_LARGE = f"{{}} holds NaN, infinity, or a number beyond {LARGEST:g}"

Arrays = Mapping[str, NDArray[np.generic]]


class Dropped(NamedTuple):
    """A reply that is not used.

    Attributes:
        node: number of the node that sent it.
        reason: description of the fault, for people.
    """

    node: int
    reason: str


class Checked(NamedTuple):
    """Valid replies, in the order of their node numbers, and dropped ones."""

    valid: dict[int, dict[str, NDArray[np.generic]]]
    dropped: list[Dropped]


def check_replies(
    model: Arrays, replies: Mapping[int, object], averaged: Collection[str] = (), unread: Collection[str] = ()
) -> Checked:
    """Drop replies that are not models of the same form with finite numbers.

    Args:
        model: arrays of the global model, by name.
        replies: the reply of each node, of any type; an exception for one that could not be read.
        averaged: names of arrays that are averaged. Those whose name marks them as variances must not be negative.
            Where the model's array is infinite, as in a mask, replies must equal it.
        unread: names of arrays whose form is checked, but not their numbers.
    """
    valid: dict[int, dict[str, NDArray[np.generic]]] = {}
    dropped = []
    for node in sorted(replies):
        reply = replies[node]
        try:
            reason = fault(model, reply, averaged, unread)
            if reason is None:
                assert isinstance(reply, Mapping)
                valid[node] = {name: np.asarray(reply[name]) for name in model}
        except Exception as error:  # noqa: BLE001  a client also chooses what its reply does when it is read
            reason = f"it cannot be read: {type(error).__name__}"
        if reason is not None:
            dropped.append(Dropped(node, reason))
    return Checked(valid, dropped)


def fault(model: Arrays, reply: object, averaged: Collection[str] = (), unread: Collection[str] = ()) -> str | None:
    """Return a description of the fault of a reply, or None. The arguments are those of `check_replies`."""
    if isinstance(reply, Exception):
        reason = str(reply)[:300]
        return reason if reason.isprintable() else repr(reason)
    if not isinstance(reply, Mapping):
        return f"it is a {type(reply).__name__}, not a mapping of arrays"
    missing, more = sorted(set(model) - set(reply)), sorted(map(str, set(reply) - set(model)))
    if missing or more:
        parts = [f"{what} {_listed(names)}" for what, names in (("lacks", missing), ("adds", more)) if names]
        return f"its arrays are not the model's: it {' and '.join(parts)}"
    for name, wanted in model.items():
        if not isinstance(reply[name], np.ndarray) or reply[name].dtype.kind not in "fiub":
            return f"{name} is a {type(reply[name]).__name__} and not a numpy array of numbers"
        found = np.asarray(reply[name])  # a masked array is an array, too, and would hide what is below the mask
        if found.shape != wanted.shape:
            return f"{name} has shape {found.shape}, not {wanted.shape}"
        if found.dtype != wanted.dtype:
            return f"{name} has dtype {found.dtype}, not {wanted.dtype}"
        if found.dtype.kind == "f" and name not in unread:
            constants = name in averaged and not _within(wanted)
            if constants and (broken := _constants_fault(name, wanted, found)) is not None:
                return broken
            if not constants and not _within(found):
                return _TOO_LARGE.format(name)
        # If one client made the averaged variance negative, its square root would be NaN.
        if _is_variance(name, wanted, averaged) and found.size and bool(found.min() < 0):
            return f"{name} holds a negative variance"
    return None


def _constants_fault(name: str, wanted: NDArray[Any], found: NDArray[Any]) -> str | None:
    """Check an averaged array with infinite constants, such as a mask of -inf: they are allowed and not trained."""
    constant = _beyond(wanted) & ~np.isnan(wanted)
    if not np.array_equal(found[constant], wanted[constant]):
        return f"{name} differs from the model's where that is infinite"
    return _TOO_LARGE.format(name) if bool((_beyond(found) & ~constant).any()) else None


def _within(array: NDArray[Any]) -> bool:
    """Return True if all numbers are finite and at most `LARGEST` in size, without a copy of the array."""
    entries = flat(array)
    with np.errstate(invalid="ignore"):
        return all(_block_within(entries[start : start + _BLOCK]) for start in range(0, array.size, _BLOCK))


def _block_within(block: NDArray[Any]) -> bool:
    return abs(float(block.min())) <= LARGEST and abs(float(block.max())) <= LARGEST


def flat(array: NDArray[Any]) -> Any:
    """Return an object whose slices are the entries of an array in C order, without a copy of the whole array."""
    return array.reshape(-1) if array.flags.c_contiguous else array.flat


def _beyond(array: NDArray[np.generic]) -> NDArray[np.bool_]:
    """Return a mask of the numbers that are NaN, infinite or beyond `LARGEST`."""
    return ~np.asarray(np.abs(array.astype(np.float64)) <= LARGEST)


def _is_variance(name: str, wanted: NDArray[np.generic], averaged: Collection[str]) -> bool:
    """Return True for torch's ``running_var`` and, among averaged arrays, for names such as ``bn/moving_variance``."""
    last = re.split("[./]", name)[-1]
    if last == "running_var":
        return True
    called = last.endswith("running_var") or (name in averaged and "var" in last.lower())
    # An array that is already negative is not a variance.
    return called and wanted.dtype.kind == "f" and not bool(np.any(np.less(wanted, 0)))


def shown(text: object, length: int = 40) -> str:
    """Shorten a client's text to one line for a log, so that it cannot imitate lines of the server."""
    return repr(str(text)[:length])


def _listed(names: list[str]) -> str:
    return ", ".join(map(shown, names[:3])) + (f" and {len(names) - 3} more" if len(names) > 3 else "")
