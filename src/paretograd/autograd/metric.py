"""`Metric`: the inner product ``<a, b> = a' P b`` in which a rule works, with a positive definite P.

An optimizer multiplies the direction by its preconditioner P. A rule that works in the metric of P makes its promises
about the product. Adam, RMSprop and most others have a diagonal P, which is read from their state.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from paretograd.errors import DTypeError, ParameterError, ShapeError
from paretograd.geometry.row_lists import real

#: Multiplies a gradient of a parameter by P.
Preconditioner = Callable[[Tensor, Tensor], Tensor]

#: What users may give as a metric.
Given = Optimizer | Tensor | Mapping[Tensor, Tensor] | Sequence[Tensor] | Preconditioner

#: Share of the largest learning rate that a parameter with the rate zero has, so that P is positive definite.
_LEAST_RATE = 1e-20


class Metric(ABC):
    """A positive definite matrix with a block for each parameter.

    Values of complex parameters are real, with a last dimension of two. Those of DTensors are the local parts.
    """

    @abstractmethod
    def roots(self, params: Sequence[Tensor]) -> list[Tensor | None] | None:
        """Return the roots of the diagonals, None for ones; None as a whole if P is not diagonal."""

    @abstractmethod
    def apply(self, params: Sequence[Tensor], vectors: Sequence[Tensor]) -> list[Tensor]:
        """Return P times a vector, which has one part for each parameter."""

    def held(self, params: Sequence[Tensor]) -> Metric:
        """Return the same metric in memory, to apply it several times."""
        return self


class _Diagonal(Metric):
    """Diagonals that are computed when they are needed, and not kept."""

    @abstractmethod
    def diagonals(self, params: Sequence[Tensor]) -> list[Tensor | None]:
        """Return the diagonals of P as new tensors, None for ones."""

    def roots(self, params: Sequence[Tensor]) -> list[Tensor | None]:
        found = self.diagonals(params)
        some = [each for each in found if each is not None]
        if some:
            torch._foreach_sqrt_(some)
        return found

    def apply(self, params: Sequence[Tensor], vectors: Sequence[Tensor]) -> list[Tensor]:
        return _times(self.diagonals(params), vectors)

    def held(self, params: Sequence[Tensor]) -> Metric:
        return _Held(params, self.diagonals(params))


class _Held(Metric):
    """Diagonals that are kept in memory."""

    def __init__(self, params: Sequence[Tensor], diagonals: Sequence[Tensor | None]) -> None:
        self._of = {id(param): diagonal for param, diagonal in zip(params, diagonals, strict=True)}

    def roots(self, params: Sequence[Tensor]) -> list[Tensor | None]:
        found = [self._of[id(param)] for param in params]
        return [None if diagonal is None else diagonal.sqrt() for diagonal in found]

    def apply(self, params: Sequence[Tensor], vectors: Sequence[Tensor]) -> list[Tensor]:
        return _times([self._of[id(param)] for param in params], vectors)


def _times(diagonals: Sequence[Tensor | None], vectors: Sequence[Tensor]) -> list[Tensor]:
    """Multiply the parts of a vector by diagonals, None for ones."""
    found = list(vectors)
    for k, diagonal in enumerate(diagonals):
        if diagonal is not None:
            values = (real(vectors[k]) * diagonal).to(real(vectors[k]).dtype)
            found[k] = torch.view_as_complex(values.contiguous()) if vectors[k].is_complex() else values
    return found


class GivenDiagonal(_Diagonal):
    """Diagonals that the user gave."""

    def __init__(self, diagonals: Iterable[tuple[Tensor, Tensor]]) -> None:
        self._of = {id(param): (param, real(local(values))) for param, values in diagonals}
        for param, values in self._of.values():
            size = real(local(param)).shape
            if values.shape != size:
                raise ShapeError(f"metric has shape {tuple(values.shape)} for a parameter of shape {tuple(size)}")
            if not bool(((values > 0) & torch.isfinite(values)).all()):
                raise ParameterError("metric is the diagonal of P and must be positive and finite")

    def diagonals(self, params: Sequence[Tensor]) -> list[Tensor | None]:
        missing = [param for param in params if id(param) not in self._of]
        if missing:
            raise ParameterError(
                f"metric has no entries for a parameter of shape {tuple(missing[0].shape)}; give one for each parameter"
            )
        return [self._of[id(param)][1].detach().clone() for param in params]


class GivenFunction(Metric):
    """A function that applies P."""

    def __init__(self, function: Preconditioner) -> None:
        self._function = function

    def roots(self, params: Sequence[Tensor]) -> None:
        return None

    def apply(self, params: Sequence[Tensor], vectors: Sequence[Tensor]) -> list[Tensor]:
        found = []
        for param, vector in zip(params, vectors, strict=True):
            product: Any = self._function(param, vector)
            if not isinstance(product, Tensor) or product.shape != vector.shape:
                shown = tuple(product.shape) if isinstance(product, Tensor) else type(product).__name__
                raise ShapeError(f"metric returned {shown} for a gradient of shape {tuple(vector.shape)}")
            found.append(product.to(vector.dtype))
        return found


class OptimizerMetric(_Diagonal):
    """The preconditioner of an optimizer, in its present state, times the learning rates relative to the largest one.

    A parameter without a state, as before the first step, has ones. One that the optimizer does not have, or whose
    learning rate is zero, has next to nothing, because it does not move. Decoupled weight decay is no part of P.
    """

    def __init__(self, optimizer: Optimizer, *, any_kind: bool = False) -> None:
        """Look at an optimizer. Later steps of it change the metric.

        Args:
            optimizer: the optimizer, or one that wraps another in its attribute ``optimizer``.
            any_kind: let an optimizer that is not known have the identity. Otherwise an error says what to do.
        """
        while isinstance(getattr(optimizer, "optimizer", None), Optimizer):
            optimizer = optimizer.optimizer  # type: ignore[attr-defined]
        kind = next((each.__name__ for each in type(optimizer).__mro__ if each.__name__ in _KINDS), None)
        if kind is None and not any_kind:
            raise ParameterError(
                f"metric={type(optimizer).__name__}: its preconditioner is not known. Known are "
                f"{', '.join(sorted(_KINDS))}. For another one, pass a function metric(param, gradient) that returns P "
                "times the gradient"
            )
        self._optimizer, self._kind = optimizer, _KINDS.get(kind or "")

    def diagonals(self, params: Sequence[Tensor]) -> list[Tensor | None]:
        groups = self._optimizer.param_groups
        owner = {id(param): number for number, group in enumerate(groups) for param in group["params"]}
        rates = [float(group.get("lr", 1.0)) for group in groups]
        largest = max(rates, default=0.0) or 1.0
        found: list[Tensor | None] = [None] * len(params)
        for number in {owner.get(id(param), -1) for param in params}:
            places = [k for k, param in enumerate(params) if owner.get(id(param), -1) == number]
            chosen = [params[k] for k in places]
            share = max(rates[number] / largest, _LEAST_RATE) if number >= 0 else _LEAST_RATE
            parts = self._of_group(groups[number], chosen) if number >= 0 else [None] * len(chosen)
            for place, part in zip(places, parts, strict=True):
                if share != 1.0:
                    part = torch.ones_like(real(local(params[place]).detach())) if part is None else part
                    part.mul_(share)
                found[place] = part
        return found

    def _of_group(self, group: dict[str, Any], params: Sequence[Tensor]) -> list[Tensor | None]:
        states: list[Any] = [self._optimizer.state.get(param) for param in params]
        known = [k for k, state in enumerate(states) if state]
        found: list[Tensor | None] = [None] * len(params)
        if self._kind is None or not known:
            return found
        for k, diagonal in zip(known, self._kind(group, [states[k] for k in known]), strict=True):
            found[k] = diagonal
        return found


def metric_of(given: Any, params: Any = None) -> Metric | None:
    """Return the metric that a user gave: an optimizer, a diagonal, or a function that applies P.

    Args:
        given: see `paretograd.backward`.
        params: the parameters of the call, to which a diagonal belongs.
    """
    if given is None or isinstance(given, Metric):
        return given
    if isinstance(given, Optimizer):
        return OptimizerMetric(given)
    if isinstance(given, Mapping):
        return GivenDiagonal(given.items())
    if callable(given) and not isinstance(given, Tensor):
        return GivenFunction(given)
    if isinstance(given, Tensor) or (isinstance(given, Sequence) and not isinstance(given, str)):
        return GivenDiagonal(_paired(given, params))
    raise DTypeError(
        f"metric is a {type(given).__name__}; give an optimizer, the diagonal of P as a tensor or one tensor for each "
        "of params, or a function metric(param, gradient) that returns P times the gradient"
    )


def _paired(given: Tensor | Sequence[Tensor], params: Any) -> list[tuple[Tensor, Tensor]]:
    """Pair parameters with their parts of a diagonal."""
    owners = list(params.parameters()) if isinstance(params, torch.nn.Module) else params
    if owners is None or isinstance(owners, Tensor) or not all(isinstance(param, Tensor) for param in owners):
        raise ParameterError("a diagonal as metric belongs to params: give these as a list or a module, too")
    owners = [param for param in owners if param.requires_grad]
    if isinstance(given, Tensor):
        sizes = [param.numel() for param in owners]
        if given.shape != (sum(sizes),):
            raise ShapeError(f"metric has shape {tuple(given.shape)}; params have {sum(sizes)} entries")
        parts = [part.view(param.shape) for part, param in zip(torch.split(given, sizes), owners, strict=True)]
    else:
        parts = list(given)
        if len(parts) != len(owners):
            raise ShapeError(f"metric has {len(parts)} tensors for {len(owners)} params")
    return list(zip(owners, parts, strict=True))


def local(tensor: Tensor) -> Tensor:
    """Return this process's part of a DTensor, or any other tensor unchanged."""
    inner = getattr(tensor, "_local_tensor", None)
    return tensor if inner is None else inner


# ---- optimizers ------------------------------------------------------------------------------------------------------

States = Sequence[dict[str, Any]]


def _held(states: States, key: str) -> list[Tensor]:
    return [real(local(state[key])).detach() for state in states]


def _steps(states: States) -> list[float]:
    """Return the numbers of steps, which lie on the GPU for some optimizers, with one synchronisation."""
    steps = [state["step"] for state in states]
    if all(isinstance(step, Tensor) for step in steps):
        return torch.stack([local(step).detach().reshape(()) for step in steps]).tolist()
    return [float(step) for step in steps]


def _inverse_root(squares: Sequence[Tensor], factors: Sequence[float], eps: float) -> list[Tensor]:
    """Return ``1 / (sqrt(v) factor + eps)``."""
    found = list(torch._foreach_sqrt(list(squares)))
    if any(factor != 1.0 for factor in factors):
        torch._foreach_mul_(found, list(factors))
    torch._foreach_add_(found, eps)
    torch._foreach_reciprocal_(found)
    return found


def _adam(group: dict[str, Any], states: States) -> list[Tensor]:
    squares = _held(states, "max_exp_avg_sq" if group.get("amsgrad") else "exp_avg_sq")
    beta = float(group["betas"][1])
    return _inverse_root(squares, [1.0 / math.sqrt(1.0 - beta**step) for step in _steps(states)], group["eps"])


def _radam(group: dict[str, Any], states: States) -> list[Tensor]:
    """Rectified Adam. As long as the variance is not known, its steps are not adapted."""
    beta = float(group["betas"][1])
    most = 2.0 / (1.0 - beta) - 1.0
    found = []
    for square, step in zip(_held(states, "exp_avg_sq"), _steps(states), strict=True):
        power = beta**step
        known = most - 2.0 * step * power / (1.0 - power)
        if known <= 5.0:
            found.append(torch.ones_like(square))
            continue
        rectified = (known - 4.0) * (known - 2.0) * most / ((most - 4.0) * (most - 2.0) * known)
        found.append(square.sqrt().add_(group["eps"]).reciprocal_().mul_(math.sqrt(rectified * (1.0 - power))))
    return found


def _adamax(group: dict[str, Any], states: States) -> list[Tensor]:
    return [each.clamp(min=group["eps"]).reciprocal_() for each in _held(states, "exp_inf")]


def _adadelta(group: dict[str, Any], states: States) -> list[Tensor]:
    pairs = zip(_held(states, "acc_delta"), _held(states, "square_avg"), strict=True)
    return [((delta + group["eps"]) / (square + group["eps"])).sqrt_() for delta, square in pairs]


def _adagrad(group: dict[str, Any], states: States) -> list[Tensor]:
    squares = _held(states, "sum")
    return _inverse_root(squares, [1.0] * len(squares), group["eps"])


def _rmsprop(group: dict[str, Any], states: States) -> list[Tensor]:
    squares = _held(states, "square_avg")
    if group["centered"]:
        means = _held(states, "grad_avg")
        squares = [(square - mean * mean).clamp_(min=0.0) for square, mean in zip(squares, means, strict=True)]
    return _inverse_root(squares, [1.0] * len(squares), group["eps"])


def _sparse_adam(group: dict[str, Any], states: States) -> list[Tensor]:
    squares = _held(states, "exp_avg_sq")
    return _inverse_root(squares, [1.0] * len(squares), group["eps"])


#: From the names of torch's optimizers to their diagonals; None for the identity.
_KINDS: dict[str, Callable[[dict[str, Any], States], list[Tensor]] | None] = {
    "SGD": None,
    "ASGD": None,
    "RMSprop": _rmsprop,
    "Adagrad": _adagrad,
    "Adadelta": _adadelta,
    "Adam": _adam,
    "AdamW": _adam,
    "NAdam": _adam,
    "RAdam": _radam,
    "Adamax": _adamax,
    "SparseAdam": _sparse_adam,
}
