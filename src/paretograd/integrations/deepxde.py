"""DeepXDE's `Model` with a rule for the losses of equations and conditions (extra ``deepxde``, backend PyTorch)."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from paretograd.aggregators.base import AggregatorModule
from paretograd.autograd.backward import backward
from paretograd.autograd.step import Step
from paretograd.errors import ParameterError, needs
from paretograd.integrations.training import Rule, TrainingLosses
from paretograd.scalarizations.base import Weighting

with needs("deepxde", "paretograd.integrations.deepxde needs", "deepxde"):
    import deepxde

__all__ = ["MultiObjectiveModel"]


class MultiObjectiveModel(deepxde.Model):
    """A ``deepxde.Model`` that aggregates the gradients of its losses with a rule.

    Each equation and each condition is an objective, after ``loss_weights``. An external trainable variable is a
    parameter like those of the network. Test losses, callbacks and learning rates stay DeepXDE's.

    Attributes:
        rule: the rule, as the module or the weighting that holds its state.
        step: the last step, with its weights, its certificate and its `metrics`; None before the first.
    """

    rule: AggregatorModule | Weighting
    step: Step | None = None

    def compile(
        self, optimizer: Any, *args: Any, rule: Rule, names: Sequence[str] | None = None, **kwargs: Any
    ) -> None:
        """Configure the model for training, as ``deepxde.Model.compile`` does.

        Args:
            optimizer: an optimizer that takes one gradient for each step, such as ``"adam"``.
            args: for ``deepxde.Model.compile``.
            rule: the rule.
            names: names of the losses for metrics and messages, in the order of ``loss_weights``.
            kwargs: for ``deepxde.Model.compile``.
        """
        if deepxde.backend.backend_name != "pytorch":
            raise ParameterError(
                f"DeepXDE's backend is {deepxde.backend.backend_name}; paretograd needs pytorch. Set "
                "DDE_BACKEND=pytorch before deepxde is imported"
            )
        if optimizer in ("L-BFGS", "L-BFGS-B", "NNCG"):
            raise ParameterError(
                f"optimizer={optimizer!r} needs the values of one function, which a rule does not have. Use another, "
                "such as 'adam', or compile a deepxde.Model for this phase"
            )
        if deepxde.config.mixed:
            raise ParameterError(
                "mixed precision in DeepXDE has no GradScaler: gradients that underflow would pass for zeros. Use "
                "deepxde.config.set_default_float('float32')"
            )
        self.rule = TrainingLosses(rule).rule
        super().compile(optimizer, *args, **kwargs)
        self._names = None if names is None else list(map(str, names))
        own = [param for param in self.rule.parameters() if param.requires_grad]
        if own:
            self.opt.add_param_group({"params": own, "weight_decay": 0})
        self.train_step = self._take_step

    def _take_step(self, inputs: Any, targets: Any, auxiliary_vars: Any) -> None:
        """Change the parameters once, in place of the function that ``deepxde.Model.compile`` made."""
        losses = self.outputs_losses_train(inputs, targets, auxiliary_vars)[1]
        self.opt.zero_grad()
        params = [*self.net.parameters(), *self.external_trainable_variables]
        self.step = backward(self._named(losses), self.rule, [param for param in params if param.requires_grad])
        self.opt.step()
        if self.lr_scheduler is not None:
            self.lr_scheduler.step()

    def _named(self, losses: Tensor) -> Tensor | dict[str, Tensor]:
        if self._names is None:
            return losses
        if len(self._names) != len(losses):
            raise ParameterError(
                f"names={self._names} has {len(self._names)} names for {len(losses)} losses. The order is that of "
                "loss_weights: equations, then conditions, then a regularizer, if there is one"
            )
        return dict(zip(self._names, losses.unbind(), strict=True))

    def save(self, save_path: str, protocol: str = "backend", verbose: int = 0) -> str:
        """Save the model as ``deepxde.Model.save`` does, and the state of the rule beside it."""
        path: str = super().save(save_path, protocol, verbose)
        if protocol == "backend":
            torch.save(self.rule.state_dict(), _beside(path))
        return path

    def restore(self, save_path: str, device: str | None = None, verbose: int = 0) -> None:
        """Restore what `save` saved."""
        super().restore(save_path, device, verbose)
        file = _beside(save_path)
        if file.exists():
            self.rule.load_state_dict(torch.load(file, map_location=device, weights_only=True))
        else:
            warnings.warn(f"{file} does not exist: the rule starts anew", UserWarning, stacklevel=2)


def _beside(path: str) -> Path:
    """Return the file with the state of the rule."""
    return Path(path).with_suffix(".rule.pt")
