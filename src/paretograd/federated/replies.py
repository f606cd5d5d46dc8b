"""What clients send back, checked against the global model before anything is computed with it."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

#: Numbers beyond this would overflow when squared and summed.
LARGEST = 1e100

Arrays = Mapping[str, NDArray[np.generic]]


class Dropped(NamedTuple):
    """A reply that is not used.

    Attributes:
        node: who sent it.
        reason: what is wrong with it, for a person.
    """

    node: int
    reason: str


class Checked(NamedTuple):
    """Replies that can be used, in the order of their nodes' numbers, and those that cannot."""

    valid: dict[int, dict[str, NDArray[np.generic]]]
    dropped: list[Dropped]


def check_replies(model: Arrays, replies: Mapping[int, object], averaged: Collection[str] = ()) -> Checked:
    """Sort out what is not a model of the same form with finite numbers.

    Args:
        model: the global model, by the names of its arrays.
        replies: what each node sent, whatever it is; an exception for one that could not be read.
        averaged: names of arrays that are averaged. Those that a name says to be variances may not be negative. Where
            one of the model's is infinite, as in a mask, replies must be the same.
    """
    valid: dict[int, dict[str, NDArray[np.generic]]] = {}
    dropped = []
    for node in sorted(replies):
        reply = replies[node]
        try:
            reason = fault(model, reply, averaged)
            if reason is None:
                assert isinstance(reply, Mapping)
                valid[node] = {name: np.asarray(reply[name]) for name in model}
        except Exception as error:  # noqa: BLE001  what a reply does when it is read is the client's choice as well
            reason = f"it cannot be read: {type(error).__name__}"
        if reason is not None:
            dropped.append(Dropped(node, reason))
    return Checked(valid, dropped)


def fault(model: Arrays, reply: object, averaged: Collection[str] = ()) -> str | None:
    """What is wrong with a reply; None if nothing is. For the arguments see `check_replies`."""
    if isinstance(reply, Exception):
        reason = str(reply)[:300]
        return reason if reason.isprintable() else repr(reason)
    if not isinstance(reply, Mapping):
        return f"it holds no arrays but a {type(reply).__name__}"
    missing, more = sorted(set(model) - set(reply)), sorted(map(str, set(reply) - set(model)))
    if missing or more:
        parts = [f"{what} {_listed(names)}" for what, names in (("lacks", missing), ("adds", more)) if names]
        return f"its arrays are not the model's: it {' and '.join(parts)}"
    for name, wanted in model.items():
        if not isinstance(reply[name], np.ndarray) or reply[name].dtype.kind not in "fiub":
            return f"{name} is a {type(reply[name]).__name__} and not a numpy array of numbers"
        found = np.asarray(reply[name])  # a masked array, which is an array, would hide what is below the mask
        if found.shape != wanted.shape:
            return f"{name} has shape {found.shape}, not {wanted.shape}"
        if found.dtype != wanted.dtype:
            return f"{name} has dtype {found.dtype}, not {wanted.dtype}"
        if found.dtype.kind == "f":
            beyond = _beyond(found)
            if name in averaged:  # what is constant, such as a mask of -inf, may be: it is no part of the training
                constant = _beyond(wanted) & ~np.isnan(wanted)
                if not np.array_equal(found[constant], wanted[constant]):
                    return f"{name} is not the model's where that is infinite"
                beyond &= ~constant
            if bool(beyond.any()):
                return f"{name} holds NaN, infinity, or a number beyond {LARGEST:g}"
        # The square root of a variance is NaN wherever one client made the average negative.
        if bool((found < 0).any()) and _is_variance(name, wanted, averaged):
            return f"{name} holds a negative variance"
    return None


def _beyond(array: NDArray[np.generic]) -> NDArray[np.bool_]:
    """Where numbers are infinite or nearly so, or NaN."""
    return ~np.asarray(np.abs(array.astype(np.float64)) <= LARGEST)


def _is_variance(name: str, wanted: NDArray[np.generic], averaged: Collection[str]) -> bool:
    """By torch's name in every normalization; of what is averaged also by others', such as ``bn/moving_variance``."""
    last = re.split("[./]", name)[-1]
    if last == "running_var":
        return True
    called = last.endswith("running_var") or (name in averaged and "var" in last.lower())
    # What is negative already is no variance.
    return called and wanted.dtype.kind == "f" and not bool(np.any(np.less(wanted, 0)))


def shown(text: object, length: int = 40) -> str:
    """A client's words for a log: cut, and on one line, so that they cannot look like lines of the server's."""
    return repr(str(text)[:length])


def _listed(names: list[str]) -> str:
    return ", ".join(map(shown, names[:3])) + (f" and {len(names) - 3} more" if len(names) > 3 else "")
