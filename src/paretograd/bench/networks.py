"""Many networks of a task at once: stacked parameters, the gradients of all losses, and stacked optimizers."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.func import functional_call

from paretograd.bench.passes import Pass, Recording
from paretograd.bench.task import Batch, Task
from paretograd.errors import InputError, ParameterError

#: Names of the optimizers.
OPTIMIZERS = ("sgd", "adamw")
_MOMENTUM = 0.9
#: AdamW's decay rates, its term against division by zero, and its weight decay: torch's defaults.
_MEAN, _SQUARE, _EPS, _DECAY = 0.9, 0.999, 1e-8, 0.01


class _Losses(nn.Module):
    """The losses of a task as a module, for `functional_call`."""

    def __init__(self, task: Task, network: nn.Module) -> None:
        super().__init__()
        self.network, self._task = network, task

    def forward(self, batch: Batch) -> tuple[Tensor, ...]:
        return tuple(self._task.losses(self.network, batch))


class Part(NamedTuple):
    """A parameter within the vector of a network.

    Attributes:
        name: of the parameter.
        shape: of the parameter.
        columns: its place in the vector.
    """

    name: str
    shape: torch.Size
    columns: slice


class Networks:
    """B networks of a task with the same shape.

    Args:
        task: creates the networks, and has their losses.
        seeds: one for the initial weights of each network.
        device: where the networks are.
        dtype: of the parameters.

    Attributes:
        flat: the parameters, ``(B, n)``; an optimizer changes them in place.
        parts: where each parameter is.
        private: the parameters that one loss alone reaches, by name, with that loss; known after `arrange`.
        shared: the place of the others, which a rule aggregates.
        module: a network of this shape, with the parameters that `one` has last put there.
    """

    def __init__(
        self, task: Task, seeds: Sequence[int], device: torch.device, dtype: torch.dtype = torch.float32
    ) -> None:
        made: dict[int, nn.Module] = {}
        for seed in dict.fromkeys(seeds):
            with torch.random.fork_rng(devices=[]), torch.device("cpu"):
                torch.manual_seed(seed)
                made[seed] = task.network()
        first = made[seeds[0]]
        if any(True for _ in first.buffers()):
            raise InputError(f"the network of {task.name} has buffers, such as BatchNorm's; use GroupNorm or LayerNorm")
        named = dict(first.named_parameters())
        self.parts = _placed((name, value.shape) for name, value in named.items())
        vectors = {seed: nn.utils.parameters_to_vector(network.parameters()) for seed, network in made.items()}
        self.flat = torch.stack([vectors[seed].detach() for seed in seeds]).to(device, dtype)
        self.private: dict[str, int] = {}
        self.shared = slice(self.flat.shape[1])
        self.module = first.to(device, dtype).requires_grad_(False)
        self._losses = _Losses(task, self.module)
        self._recording: Recording | None = None

    def __len__(self) -> int:
        return len(self.flat)

    def arrange(self, batch: Batch, common: bool) -> None:
        """Find out which losses reach which parameters, and put those that several reach first.

        Args:
            batch: any, as for `forward`.
            common: likewise.
        """
        reached: dict[str, list[int]] = {part.name: [] for part in self.parts}
        each = Pass(self, batch, common).each()
        for k, gradients in enumerate(each):
            for part, gradient in zip(self.parts, gradients, strict=True):
                if gradient is not None:
                    reached[part.name].append(k)
        unused = [name for name, losses in reached.items() if not losses]
        if unused:
            raise InputError(f"no loss depends on the parameter {unused[0]} of the network; leave it out")
        self.private = {name: losses[0] for name, losses in reached.items() if len(losses) == 1 < len(each)}
        before = sorted(self.parts, key=lambda part: part.name in self.private)
        if before[0].name in self.private:
            raise InputError("every parameter of the network belongs to one loss alone: there is nothing to aggregate")
        self.flat = torch.cat([self.flat[:, part.columns] for part in before], dim=1)
        self.parts = _placed((part.name, part.shape) for part in before)
        self.shared = slice(max(part.columns.stop for part in self.parts if part.name not in self.private))

    def one(self, index: int) -> nn.Module:
        """Return the network with this index. The module is the same in every call."""
        params = dict(self.module.named_parameters())
        for part in self.parts:
            params[part.name].copy_(self.flat[index, part.columns].view(part.shape))
        return self.module

    def forward(self, batch: Batch, common: bool) -> Pass | Recording:
        """Compute the losses of all networks. On a GPU, the result of the call before is no longer valid.

        Args:
            batch: one batch for each network, stacked along a new first dimension, or one for all.
            common: True if there is one batch for all.
        """
        if not self.flat.is_cuda:
            return Pass(self, batch, common)
        if self._recording is None:
            self._recording = Recording(self, batch, common)
        return self._recording.load(batch) if self._recording.fits(batch) else Pass(self, batch, common)

    def evaluate(self, batch: Batch, common: bool) -> tuple[tuple[Tensor, ...], list[Tensor]]:
        """Return the losses, m vectors with B entries, and the leaves of their graph in the order of `parts`.

        Args:
            batch: as for `forward`.
            common: as for `forward`.
        """
        places = (self.flat[:, part.columns].reshape(len(self), *part.shape) for part in self.parts)
        leaves = [place.detach() for place in places]  # views of the vectors
        for leaf in leaves:
            leaf.requires_grad_()

        def losses(params: Sequence[Tensor], rows: Batch) -> tuple[Tensor, ...]:
            named = {f"network.{part.name}": value for part, value in zip(self.parts, params, strict=True)}
            found: tuple[Tensor, ...] = functional_call(self._losses, named, (rows,))
            return found

        return torch.vmap(losses, in_dims=(0, None if common else 0), randomness="error")(leaves, batch), leaves

    def fill_private(self, direction: Tensor, rows: Tensor, losses: Sequence[int]) -> None:
        """Write the gradient of its own loss into the part of each parameter that only one loss reaches.

        Args:
            direction: ``(B, n)``, changed in place.
            rows: the gradients of all losses, ``(B, m, n)``.
            losses: those that the rule differentiates in this step; the parameters of the others wait.
        """
        for part in self.parts:
            if part.name in self.private and self.private[part.name] in losses:
                direction[:, part.columns] = rows[:, self.private[part.name], part.columns]


def _placed(named: Iterable[tuple[str, torch.Size]]) -> list[Part]:
    """Return the places of parameters that follow each other in a vector."""
    parts, start = [], 0
    for name, shape in named:
        parts.append(Part(name, shape, slice(start, start + shape.numel())))
        start += shape.numel()
    return parts


class Optimizer:
    """An optimizer for stacked vectors with a learning rate for each, by torch's formulas.

    Args:
        name: ``sgd``, with momentum 0.9, or ``adamw``.
        like: the vectors, ``(B, n)``.
    """

    def __init__(self, name: str, like: Tensor) -> None:
        if name not in OPTIMIZERS:
            raise ParameterError(f"no optimizer of the benchmark is called {name!r}; use {' or '.join(OPTIMIZERS)}")
        self.name, self._steps = name, 0
        self._mean = torch.zeros_like(like)
        self._square = torch.zeros_like(like) if name == "adamw" else None

    def step(self, flat: Tensor, gradient: Tensor, rates: Tensor) -> None:
        """Change the vectors in place.

        Args:
            flat: ``(B, n)``.
            gradient: ``(B, n)``.
            rates: ``(B, 1)``.
        """
        self._steps += 1
        if self._square is None:
            if self._steps == 1:
                self._mean.copy_(gradient)
            else:
                self._mean.mul_(_MOMENTUM).add_(gradient)
            flat.sub_(rates * self._mean)
            return
        self._mean.lerp_(gradient, 1.0 - _MEAN)
        self._square.mul_(_SQUARE).addcmul_(gradient, gradient, value=1.0 - _SQUARE)
        root = (self._square / (1.0 - _SQUARE**self._steps)).sqrt_().add_(_EPS)
        flat.mul_(1.0 - rates * _DECAY).sub_(rates * self._mean / (1.0 - _MEAN**self._steps) / root)

    def state_dict(self) -> dict[str, Any]:
        """Return the state as arrays and numbers."""
        found = {"optimizer_steps": self._steps, "mean": self._mean.cpu().numpy()}
        return found if self._square is None else {**found, "square": self._square.cpu().numpy()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore what `state_dict` returned."""
        self._steps = int(state["optimizer_steps"])
        self._mean.copy_(torch.from_numpy(state["mean"]))
        if self._square is not None:
            self._square.copy_(torch.from_numpy(state["square"]))
