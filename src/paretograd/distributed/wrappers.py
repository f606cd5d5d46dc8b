"""Lookup of the wrapper of a parameter: DistributedDataParallel or `fully_shard`.

Torch does not mark parameters. If the module is given, it is searched for wrappers. Otherwise the wrappers that are
alive in this process are looked up among the objects of Python's garbage collector, once for each model.
"""

from __future__ import annotations

import gc
import sys
import weakref
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from paretograd.distributed.ranks import is_alive
from paretograd.errors import ParameterError

_KNOWN: weakref.WeakSet[nn.Module] = weakref.WeakSet()

#: Parameters known to have no wrapper, by ``id``.
_BARE: dict[int, weakref.ref[Tensor]] = {}


class Sharded(NamedTuple):
    """A parameter under `fully_shard`.

    Attributes:
        shard: the tensor that the optimizer holds.
        leaf: the whole parameter, which the graph holds; None before the first forward pass.
        state: torch's own record of it.
        group: torch's record of the parameters that are communicated together.
    """

    shard: Tensor
    leaf: Tensor | None
    state: Any
    group: Any


def _fsdp_module() -> Any:
    """Return the class of modules under `fully_shard`; None if it has not been imported."""
    fsdp = sys.modules.get("torch.distributed.fsdp")
    return getattr(fsdp, "FSDPModule", None)


def _old_fsdp_module() -> Any:
    fsdp = sys.modules.get("torch.distributed.fsdp")
    return getattr(fsdp, "FullyShardedDataParallel", None)


def know(module: nn.Module) -> None:
    """Remember the wrappers in a module."""
    kinds = tuple(kind for kind in (DistributedDataParallel, _fsdp_module(), _old_fsdp_module()) if kind is not None)
    _KNOWN.update(part for part in module.modules() if isinstance(part, kinds))


def look_up() -> None:
    """Remember all wrappers that are alive."""
    kinds = tuple(kind for kind in (DistributedDataParallel, _fsdp_module(), _old_fsdp_module()) if kind is not None)
    # Not `isinstance`: it asks objects for their class, and some answer with an import.
    _KNOWN.update(thing for thing in gc.get_objects() if issubclass(type(thing), kinds))


def ddp_modules(params: Iterable[Tensor] | None = None) -> list[DistributedDataParallel]:
    """Return the known DDP modules that hold any of the parameters; all for None."""
    wanted = None if params is None else {id(param) for param in params}
    found = [module for module in _KNOWN if isinstance(module, DistributedDataParallel)]
    found = [module for module in found if is_alive(module.process_group)]  # not left over from an earlier set-up
    if wanted is None:
        return found
    return [module for module in found if any(id(param) in wanted for param in module._module_parameters)]


def sharded_params() -> list[Sharded]:
    """Return all parameters of the known modules under `fully_shard`."""
    kind = _fsdp_module()
    found = []
    for module in _KNOWN:
        if kind is None or not isinstance(module, kind):
            continue
        state = module._get_fsdp_state()
        groups = getattr(state, "_fsdp_param_groups", None)
        if groups is None:
            groups = [state._fsdp_param_group] if state._fsdp_param_group else []
        for group in groups:
            found += [
                Sharded(param.sharded_param, getattr(param, "_unsharded_param", None), param, group)
                for param in group.fsdp_params
            ]
    return found


def check_no_old_fsdp(leaves: Sequence[Tensor]) -> None:
    """Raise if a parameter belongs to the older FullyShardedDataParallel, which hides parameters from the graph."""
    if any(type(leaf).__name__ == "FlatParameter" for leaf in leaves):
        raise ParameterError(
            "the model is under FullyShardedDataParallel, which is not supported; use fully_shard of "
            "torch.distributed.fsdp"
        )


def is_bare(param: Tensor) -> bool:
    """Return True if a parameter was looked up before and has no wrapper."""
    reference = _BARE.get(id(param))
    return reference is not None and reference() is param


def note_bare(params: Sequence[Tensor]) -> None:
    """Remember that these parameters have no wrapper."""
    for param in params:
        _BARE[id(param)] = weakref.ref(param)
