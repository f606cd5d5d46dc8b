"""`Layout`: how the processes share a model, read from its parameters or given by the caller."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from paretograd.autograd.call import Call, as_params
from paretograd.distributed import wrappers
from paretograd.distributed.ranks import Ranks
from paretograd.distributed.wrappers import Sharded
from paretograd.errors import DTypeError, ParameterError, ParetogradError

Kind = Literal["data", "objectives", "sharded"]


@dataclass
class Layout:
    """The way in which the processes share a model.

    Attributes:
        kind: ``data`` for replicas with a batch each, ``objectives`` for replicas with some losses each, ``sharded``
            for parameters that are DTensors.
        ranks: the processes.
        params: parameters that may be filled, in the same order on all processes; None for those that the losses reach.
        records: records of all parameters under `fully_shard` that the losses reach, by the ``id`` of their shard.
        shard_of: the shard of each parameter that was given whole, by the ``id`` of the latter.
    """

    kind: Kind
    ranks: Ranks
    params: list[Tensor] | None = None
    records: dict[int, Sharded] = field(default_factory=dict)
    shard_of: dict[int, Tensor] = field(default_factory=dict)

    def target(self, param: Tensor) -> Tensor:
        """Return the tensor that holds the ``.grad`` of a parameter."""
        return self.shard_of.get(id(param), param)

    def leaf(self, target: Tensor) -> Tensor:
        """Return the tensor in the graph that belongs to a target."""
        record = self.records.get(id(target))
        return target if record is None or record.leaf is None else record.leaf


class UnknownLayoutError(ParameterError):
    """An unknown layout: it is not certain which other processes to tell of the error."""


def find(call: Call, leaves: Sequence[Tensor]) -> Layout | None:
    """Return how the processes share the model of the losses; None if this one works alone.

    Args:
        call: the call.
        leaves: parameters that the losses reach; empty if there are no losses.
    """
    if call.parallel == "none":
        return None
    if isinstance(call.params, nn.Module):
        wrappers.search(call.params)
    wrappers.check_no_old_fsdp(leaves)
    given = _flat(call)
    if call.parallel == "objectives":
        return _objectives(call, given, leaves)
    several = dist.get_world_size(_group(call)) > 1
    if call.parallel == "data":
        if given is None and several:
            raise _needs_params(call)
        return Layout("data", Ranks([_group(call)]), given) if several else None
    sharded = _sharded(given, leaves)
    if sharded is not None:
        return sharded
    if not several:
        return None
    modules = (
        [call.params] if isinstance(call.params, DistributedDataParallel) else wrappers.ddp_modules(given or leaves)
    )
    if not modules and not leaves:
        return None
    return _data(modules, given, leaves)


def fallback(call: Call, earlier: Sequence[Ranks]) -> Ranks | None:
    """Return the processes to tell of an error that occurred before the layout was known; None if uncertain.

    Args:
        call: the call.
        earlier: the processes of earlier calls.
    """
    if call.process_group is not None or call.parallel != "auto":
        return Ranks([_group(call)])
    try:
        layout = find(call, []) if call.params is not None else None
    except ParetogradError:
        layout = None
    if layout is not None:
        return layout.ranks
    living = [ranks for ranks in earlier if ranks.alive]
    if living:
        return living[0] if len(living) == 1 else None
    groups = [module.process_group for module in wrappers.ddp_modules()]
    if groups:
        return Ranks([groups[0]]) if all(group is groups[0] for group in groups) else None
    meshes = [each.state.sharded_param.device_mesh for each in wrappers.sharded_params()]
    return Ranks.of_mesh(max(meshes, key=lambda mesh: int(mesh.size()))) if meshes else None


def _flat(call: Call) -> list[Tensor] | None:
    """Return the given parameters in one list, without their groups."""
    given = as_params(call.params)
    if given is None:
        return None
    flat = [given] if isinstance(given, Tensor) else list(given)
    params = [param for item in flat for param in ([item] if isinstance(item, Tensor) else item)]
    for param in params:
        if not isinstance(param, Tensor):
            raise DTypeError(f"params holds a {type(param).__name__}; a tensor is needed")
    return params


def _group(call: Call) -> Any:
    group = dist.group.WORLD if call.process_group is None else call.process_group
    if dist.get_rank(group) < 0:
        raise UnknownLayoutError(
            f"process {dist.get_rank()} is not in the given process_group; only its members may call"
        )
    return group


def _needs_params(call: Call) -> ParameterError:
    return ParameterError(
        f"parallel={call.parallel!r} needs params: the losses of one process may not reach all parameters. Give the "
        "model, or the same list of its parameters on every process"
    )


def _objectives(call: Call, given: list[Tensor] | None, leaves: Sequence[Tensor]) -> Layout | None:
    group = _group(call)
    if given is None:
        modules = wrappers.ddp_modules(leaves)
        if len(modules) != 1:
            raise _needs_params(call)
        given = [param for param in modules[0].parameters() if param.requires_grad]
    if any(_is_dtensor(param) for param in given):
        raise ParameterError("parallel='objectives' takes parameters that every process holds whole, not DTensors")
    return Layout("objectives", Ranks([group]), given) if dist.get_world_size(group) > 1 else None


def _is_dtensor(tensor: Tensor) -> bool:
    return hasattr(tensor, "device_mesh") and hasattr(tensor, "placements")


def _sharded(given: list[Tensor] | None, leaves: Sequence[Tensor]) -> Layout | None:
    """Return the layout for parameters under `fully_shard` and DTensors; None if there are neither."""
    chosen = leaves if given is None else given
    records = _records(chosen)
    if not records and not any(map(_is_dtensor, chosen)):
        return None
    if wrappers.ddp_modules(chosen):
        raise ParameterError(
            "the model is under DistributedDataParallel and has DTensor parameters, which is not supported; use "
            "fully_shard on a mesh of two dimensions"
        )
    params = list({id(shard): shard for shard in (_shard_of(param, records) for param in chosen)}.values())
    records |= _records(leaves)  # also those that were not chosen, because the passes fill them
    by_shard = {id(each.shard): each for each in records.values()}
    meshes = [param.device_mesh for param in params if _is_dtensor(param)]  # type: ignore[attr-defined]
    largest = max(meshes, key=lambda mesh: mesh.size())
    _check_mesh(largest, [param for param in params if not _is_dtensor(param)], bool(by_shard))
    if any(mesh.size() != largest.size() for mesh in meshes) and largest.size() != dist.get_world_size():
        raise ParameterError("the parameters lie on meshes of different sizes, none of which has all processes")
    shard_of = {key: each.shard for key, each in records.items()}
    return Layout("sharded", Ranks.of_mesh(largest), params, by_shard, shard_of)


def has_shards(call: Call, leaves: Sequence[Tensor]) -> bool:
    """Return True if some of the parameters are DTensors or under `fully_shard`."""
    chosen = _flat(call) or leaves
    return bool(_records(chosen)) or any(map(_is_dtensor, chosen))


def _records(chosen: Sequence[Tensor]) -> dict[int, Sharded]:
    """Return the records of parameters under `fully_shard`, by the ``id`` of the given tensor, shard or whole."""
    wanted, found = {id(param) for param in chosen}, {}
    for each in wrappers.sharded_params():
        for tensor in (each.shard, each.leaf):
            if tensor is not None and id(tensor) in wanted:
                found[id(tensor)] = each
    return found


def _shard_of(param: Tensor, records: dict[int, Sharded]) -> Tensor:
    return records[id(param)].shard if id(param) in records else param


def _check_mesh(mesh: Any, plain: Sequence[Tensor], wrapped: bool) -> None:
    """Raise if the treatment of some dimension of the mesh, or of some parameter, is undefined."""
    if wrapped and plain:
        raise ParameterError(
            f"the losses reach {len(plain)} tensors that are not under fully_shard, the first of shape "
            f"{tuple(plain[0].shape)}, and nothing averages their gradients over the processes. Shard them, too, or "
            "name the parameters in params"
        )
    root = _root_of(mesh)
    if not wrapped and root.size() > mesh.size():
        raise ParameterError(
            f"the parameters are sharded over {mesh.size()} of the {root.size()} processes of a mesh, and nothing says "
            "how the others take part. Apply fully_shard along the other dimension"
        )


def _root_of(mesh: Any) -> Any:
    """Return the mesh of which a mesh is a part, or itself."""
    if hasattr(mesh, "_get_root_mesh"):
        return mesh._get_root_mesh()
    from torch.distributed import device_mesh

    return device_mesh._mesh_resources.get_root_mesh(mesh)


def _signature(module: nn.Module) -> list[tuple[str, tuple[int, ...]]]:
    return [(name, tuple(param.shape)) for name, param in module.named_parameters()]


def _data(modules: list[DistributedDataParallel], given: list[Tensor] | None, leaves: Sequence[Tensor]) -> Layout:
    """Return the layout for replicas under DistributedDataParallel."""
    if not modules:
        raise UnknownLayoutError(
            f"torch.distributed has {dist.get_world_size()} processes, and nothing says how they share this model: it "
            "is not under DistributedDataParallel or fully_shard, and has no DTensor parameters. Pass "
            "parallel='data' (the same parameters and another batch on each process), 'objectives' (other losses on "
            "each process) or 'none' (this process works alone). If it is under a DistributedDataParallel module that "
            "was created before paretograd was imported, or copied, pass that as params"
        )
    group = modules[0].process_group
    if any(module.process_group is not group for module in modules):
        raise ParameterError("the parameters are under DistributedDataParallel modules of different process groups")
    for module in modules:
        if module._join_config.enable:
            raise UnknownLayoutError(
                "DistributedDataParallel's join() is not supported: a process without batches left cannot follow "
                "the others here. Let it continue with an empty batch and samples=0"
            )
        if module.static_graph or getattr(module, "mixed_precision", None) is not None:
            raise ParameterError(
                "DistributedDataParallel with static_graph=True or mixed_precision is not supported; leave them out, "
                "and use torch.autocast"
            )
    if given is not None:
        return Layout("data", Ranks([group]), given)
    order = {id(leaf): place for place, leaf in enumerate(leaves)}
    modules = sorted(modules, key=lambda module: min(order.get(id(p), len(order)) for p in module.parameters()))
    modules = sorted(modules, key=_signature)  # the same order on all processes, whichever is reached first
    params: list[Tensor] = [param for module in modules for param in module.parameters() if param.requires_grad]
    inside = {id(param) for param in params}
    outside = [leaf for leaf in leaves if id(leaf) not in inside]
    if outside:
        raise ParameterError(
            f"the losses reach {len(outside)} tensors outside the DistributedDataParallel module, the first of shape "
            f"{tuple(outside[0].shape)}, and nothing keeps them equal on all processes. Name the parameters to fill in "
            "params"
        )
    return Layout("data", Ranks([group]), params)
