"""Base classes of rules that see the losses: weights from the values of the losses, without any gradient.

A `Scalarization` is a function F of the losses, and its weights are the gradient of F. A `Weighting` only has weights.
"""

from __future__ import annotations

import inspect
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor, nn

from paretograd.aggregators.base import Description
from paretograd.checks import shown_value
from paretograd.errors import DTypeError, InputError, NonFiniteGradientError, ParameterError, ShapeError
from paretograd.guarantees import STEP, Guarantee

#: What a call may give as losses: a vector, scalars, or scalars by name.
Given = Tensor | Sequence[Tensor | float] | Mapping[str, Tensor | float]

#: A function that takes the losses of this process, or the error that it met instead, and returns those of all.
Share = Callable[[Tensor | None, Exception | None], Tensor]


class Graded(NamedTuple):
    """What a rule computes from the losses of a step.

    Attributes:
        weights: shape ``(m,)``, float64.
        value: F, or ``sum_k weights_k f_k`` for a weighting without F.
        own: the rule's parameters with the gradients of F with respect to them.
    """

    weights: Tensor
    value: Tensor
    own: list[tuple[Tensor, Tensor]]


class Weighting(nn.Module, ABC):
    """A rule that weights m losses by their values. The direction is ``d = sum_k phi_k g_k``.

    `paretograd.backward` takes it in place of an aggregator. It runs one plain backward pass and needs no Gramian. The
    state is in `state_dict`, and learned weights are parameters.
    """

    #: Name in the registry.
    name: ClassVar[str]
    #: The name in its paper, for tables.
    label: ClassVar[str]
    description: ClassVar[Description]

    #: What each loss must be, in words, and the buffers that have one entry for each loss.
    domain: ClassVar[str] = "finite"
    _by_loss: ClassVar[tuple[str, ...]] = ()

    @property
    @abstractmethod
    def guarantee(self) -> Guarantee:
        """Properties that the theory guarantees for every direction of this rule."""

    @abstractmethod
    def _phi(self, values: Tensor) -> Tensor:
        """Return the weights, shape ``(m,)``, for finite losses in the domain. The state does not change."""

    def _inside(self, values: Tensor) -> Tensor:
        """Return for each loss whether it is in the domain, shape ``(m,)``."""
        return torch.ones_like(values, dtype=torch.bool)

    def _advance(self, values: Tensor) -> None:
        """Take note of a step that was taken with these losses."""

    def _continue(self, values: Tensor) -> None:
        """Take note of the losses before a step, which are also those after the last one, on the same data."""

    def _share(self, share: Share | None) -> None:
        """Take a function that collects the losses of all processes, after a step of several; None after one of one."""

    def weights(self, losses: Given) -> Tensor:
        """Return the weights of a step, shape ``(m,)``, in the dtype and on the device of the losses.

        A rule with state takes note of the step, as it does in `paretograd.backward`.
        """
        vector = as_vector(losses)
        phi = self._graded(vector.double()).weights
        self._advance(vector.double())
        return phi.to(vector)

    def _graded(self, values: Tensor, names: Sequence[str] | None = None) -> Graded:
        """Return what the losses imply, without taking note of it.

        Args:
            values: losses, float64, shape ``(m,)``.
            names: their names, for messages.
        """
        self._check(values, names)
        graded = self._differentiated(values)
        if not bool(torch.isfinite(graded.weights).all()):
            raise InputError(
                f"{self!r} has no finite weights for the losses {values.tolist()}: they are too large, too small, or "
                "too far apart. Rescale the losses"
            )
        return graded

    def _differentiated(self, values: Tensor) -> Graded:
        phi = self._phi(values)
        return Graded(phi, phi @ values, [])

    def _check(self, values: Tensor, names: Sequence[str] | None) -> None:
        """Raise if the losses are not finite or not in the domain, or if the rule is for another number of them."""
        bad = (~torch.isfinite(values)).nonzero().flatten().tolist()
        if bad:
            raise NonFiniteGradientError(bad, "loss", names=names)
        self._check_size(len(values))
        outside = (~self._inside(values)).nonzero().flatten().tolist()
        if outside:
            shown = ", ".join(str(k) if names is None else repr(names[k]) for k in outside[:8])
            raise InputError(
                f"{type(self).__name__} needs losses that are {self.domain}; got {values[outside[0]].item():.6g} for "
                f"objective {shown}{', ...' if len(outside) > 8 else ''}. Nothing was changed. Use another rule, or "
                "add a constant to that loss"
            )

    def _check_size(self, m: int) -> None:
        """Raise if the state is that of another number of losses."""
        for name in self._by_loss:
            if len(getattr(self, name)) not in (0, m):
                raise ParameterError(
                    f"{self!r} has the state of {len(getattr(self, name))} losses; got {m}. Use a new rule for other "
                    "losses"
                )

    def _entries(self, name: str, like: Tensor) -> Tensor:
        """Return a buffer with an entry for each loss, zeros before the first step, on the device of the losses."""
        buffer: Tensor = getattr(self, name)
        return buffer.to(like) if len(buffer) else torch.zeros_like(like)

    def _keep(self, name: str, values: Tensor) -> None:
        """Store a buffer, in its own dtype and on its own device."""
        setattr(self, name, values.detach().to(getattr(self, name), copy=True))

    def _packed(self, m: int) -> Tensor:
        """Return state and parameters as one vector, float64 on the CPU, for processes to exchange."""
        parts = [torch.empty(0, dtype=torch.float64, device="cpu")]
        for name, values in self._state():
            sized = name in self._by_loss and not len(values)
            parts.append(parts[0].new_zeros(m) if sized else values.detach().double().cpu().reshape(-1))
        return torch.cat(parts)

    def _unpack(self, vector: Tensor, m: int) -> None:
        """Take over what `_packed` returned."""
        at = 0
        for name, values in self._state():
            count = m if name in self._by_loss else values.numel()
            new, at = vector[at : at + count], at + count
            if name in self._by_loss:
                self._keep(name, new)
            else:
                with torch.no_grad():
                    values.copy_(new.reshape(values.shape))

    def _state(self) -> list[tuple[str, Tensor]]:
        return [*self.named_buffers(), *self.named_parameters()]

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Weighting:
        """Follow a model to a device, but keep the state in float64 if the model is cast to another dtype."""
        before = {name: getattr(self, name) for name in self._by_loss}
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        for name, values in before.items():
            if not values.is_meta:
                setattr(self, name, values.to(getattr(self, name).device))
        return self

    def _load_from_state_dict(self, state_dict: Mapping[str, Any], prefix: str, *args: Any) -> None:
        for name in self._by_loss:
            saved = state_dict.get(prefix + name)
            if isinstance(saved, Tensor) and saved.ndim == 1:
                setattr(self, name, getattr(self, name).new_zeros(len(saved)))
        super()._load_from_state_dict(state_dict, prefix, *args)

    def __repr__(self) -> str:
        """Return the expression that creates this rule, without default arguments and without its state."""
        shown = []
        for name, parameter in inspect.signature(type(self).__init__).parameters.items():
            value = getattr(self, f"_given_{name}", parameter.default)
            if name != "self" and value is not parameter.default and value != parameter.default:
                shown.append(f"{name}={shown_value(value)}")
        return f"{type(self).__name__}({', '.join(shown)})"


class Scalarization(Weighting):
    """A function F of m losses. Its weights are its gradient, so that the direction is the gradient of F.

    A subclass defines `forward` and a guarantee. ``rule(losses)`` is F as a tensor with a graph.
    """

    @abstractmethod
    def forward(self, losses: Tensor) -> Tensor:
        """Return F of a vector of losses, as a scalar."""

    def _phi(self, values: Tensor) -> Tensor:
        return self._differentiated(values).weights

    def _differentiated(self, values: Tensor) -> Graded:
        own = [param for param in self.parameters() if param.requires_grad]
        with torch.enable_grad():
            leaf = values.detach().to(own[0].device if own else values.device, copy=True).requires_grad_()
            value = self(leaf)
            phi, *grads = torch.autograd.grad(value, [leaf, *own], materialize_grads=True)
        return Graded(phi.to(values.device), value.detach().to(values.device), list(zip(own, grads, strict=True)))


def gradient_of_f(theorem: str | None, note: str, **properties: Any) -> Guarantee:
    """Return the guarantee of a scalarization: ``d = grad F``, so condition (A) holds for F with c = 1."""
    return Guarantee(theorem, alignment=1.0, F=STEP, note=note, **properties)


def as_vector(losses: Given) -> Tensor:
    """Return losses as a vector without a graph."""
    if isinstance(losses, Tensor):
        vector = losses.detach()
    else:
        items: Iterable[Any] = losses.values() if isinstance(losses, Mapping) else losses
        try:
            scalars = [
                item.detach() if isinstance(item, Tensor) else torch.tensor(item, dtype=torch.float64, device="cpu")
                for item in items
            ]
        except (TypeError, ValueError, RuntimeError):
            raise DTypeError(f"losses is a vector or a list of scalars; got {type(losses).__name__}") from None
        if not scalars or any(scalar.numel() != 1 for scalar in scalars):
            raise ShapeError(f"losses is a vector or a list of scalars; got shapes {[tuple(s.shape) for s in scalars]}")
        vector = torch.stack([scalar.reshape(()).to(scalars[0].device) for scalar in scalars])
    if vector.ndim != 1 or not len(vector):
        raise ShapeError(f"losses is a vector, one number per objective; got shape {tuple(vector.shape)}")
    if not torch.is_floating_point(vector):
        raise DTypeError(f"losses has dtype {vector.dtype}; floating-point numbers are needed")
    return vector
