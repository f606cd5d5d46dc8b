"""Lookup of the wrapper of a parameter: DistributedDataParallel or `fully_shard`.

Torch does not mark parameters, and a graph does not always show the wrapper: a plain DDP module leaves no node in it,
and `fully_shard` none for a module whose inputs require no gradient. But torch keeps a registry of the modules under
`fully_shard`, which is read here.

There is no registry of DDP modules. But torch calls hooks whenever a module gets a submodule, and a DDP module gets the
wrapped one when it is created. `paretograd.distributed` registers such a hook when it is imported, and `note` remembers
the DDP module by a weak reference. Copies of a DDP module, and those from before the import, become known if they are
passed as ``params``. Otherwise their parameters have no known wrapper, which is an error with several processes.
"""

from __future__ import annotations

import sys
import weakref
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from paretograd.distributed.ranks import is_alive
from paretograd.errors import ParameterError

_DDP: weakref.WeakSet[DistributedDataParallel] = weakref.WeakSet()


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


def note(module: DistributedDataParallel) -> None:
    """Remember a DDP module, which may not be complete yet."""
    _DDP.add(module)


def search(module: nn.Module) -> None:
    """Remember the DDP modules in a module."""
    _DDP.update(part for part in module.modules() if isinstance(part, DistributedDataParallel))


def ddp_modules(params: Iterable[Tensor] | None = None) -> list[DistributedDataParallel]:
    """Return the known DDP modules that hold any of the parameters; all for None."""
    wanted = None if params is None else {id(param) for param in params}
    found = [module for module in _DDP if is_alive(module.process_group)]  # not left over from an earlier set-up
    if wanted is None:
        return found
    return [module for module in found if any(id(param) in wanted for param in module._module_parameters)]


def sharded_params() -> list[Sharded]:
    """Return all parameters under `fully_shard` in this process."""
    kind = getattr(sys.modules.get("torch.distributed.fsdp"), "FSDPModule", None)
    registry = getattr(sys.modules.get("torch.distributed._composable_state"), "_module_state_mapping", ())
    found = []
    for module in list(registry):
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
