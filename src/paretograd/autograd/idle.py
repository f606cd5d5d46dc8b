"""Warning about losses that reach no aggregated parameter, and so have a zero gradient."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Mapping

from torch import Tensor

from paretograd.callers import callers_level

#: Number of losses that a warning names.
_NAMED = 8


def warn_of_idle(common: Iterable[Tensor], reached_by: Mapping[int, int], m: int) -> None:
    """Warn of losses that reach no shared parameter if others share some.

    Args:
        common: parameters to aggregate.
        reached_by: for each of them, by ``id``, a bit for every loss that reaches it.
        m: number of losses.
    """
    reaching = 0
    for param in common:
        reaching |= reached_by[id(param)]
    if reaching.bit_count() < 2 or reaching.bit_count() == m:
        return
    idle = [k for k in range(m) if not reaching >> k & 1]
    several = len(idle) > 1
    warnings.warn(
        f"{_named(idle)} {'reach' if several else 'reaches'} no parameter that the other losses share. For the rule "
        f"{'each' if several else 'it'} is an objective whose gradient is zero, at which MGDA, Nash-MTL and others "
        "stop: the shared parameters may get no gradient. Call loss.backward() on "
        f"{'each of them by itself, and leave them' if several else 'it by itself, and leave it'} out of "
        "paretograd.backward",
        UserWarning,
        stacklevel=callers_level(),
    )


def _named(losses: list[int]) -> str:
    names = [f"losses[{k}]" for k in losses[:_NAMED]]
    if len(losses) > _NAMED:
        names.append(f"{len(losses) - _NAMED} more")
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"
