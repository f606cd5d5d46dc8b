"""Automatic optimization in Lightning with several losses (extra ``lightning``)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor

from paretograd.autograd.step import Step
from paretograd.errors import ParameterError, needs
from paretograd.integrations.training import Rule, TrainingLosses

with needs("lightning", "paretograd.integrations.lightning needs", "lightning"):
    from lightning.pytorch import LightningModule
    from lightning.pytorch.strategies import DDPStrategy, SingleDeviceStrategy

__all__ = ["MultiObjectiveModule"]


class MultiObjectiveModule(LightningModule):
    """A LightningModule that trains on several losses with automatic optimization.

    ``training_step`` returns ``self.losses({"depth": ..., "segmentation": ...})``. Lightning does the rest:
    micro-batches (``accumulate_grad_batches``), precision, clipping, schedulers and checkpoints. The rule is applied
    once for each optimizer step, and its state is in the module's `state_dict`. As a mixin, name this class before
    another LightningModule.

    Attributes:
        rule: the rule, as the module or the weighting that holds its state.
    """

    def __init__(self, *args: Any, rule: Rule, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._losses = TrainingLosses(rule)
        self.rule = self._losses.rule

    @property
    def step(self) -> Step | None:
        """The last step, with its weights and its certificate; None before the first."""
        return self._losses.step

    def losses(self, losses: Mapping[str, Tensor]) -> Tensor:
        """Return what ``training_step`` returns for these losses: their sum.

        Each is divided by ``accumulate_grad_batches``, as Lightning does with a single loss.
        """
        if not self.automatic_optimization:
            raise ParameterError(
                "automatic_optimization is False: call paretograd.backward in the training step instead of self.losses"
            )
        strategy = self.trainer.strategy
        if not isinstance(strategy, DDPStrategy | SingleDeviceStrategy):
            raise ParameterError(
                f"the strategy is {type(strategy).__name__}; automatic optimization with several losses is tested on a "
                "single device and with DDP. Use one of these, or manual optimization with paretograd.backward"
            )
        return self._losses.total(losses)

    def backward(self, loss: Tensor, *args: Any, **kwargs: Any) -> None:
        """Fill ``.grad`` with the direction of the rule. Lightning calls this for every micro-batch."""
        scaler = getattr(self.trainer.precision_plugin, "scaler", None)
        last = not self.trainer.fit_loop._should_accumulate()
        self._losses.backward(loss, last=last, scaled=scaler is not None and scaler.is_enabled())
        if last:
            self.log_step()

    def log_step(self) -> None:
        """Log the metrics of the last step. Override it to log others."""
        self.log_dict(self._losses.metrics())

    def on_train_start(self) -> None:
        """Forget micro-batches of a run that was interrupted."""
        super().on_train_start()
        self._losses.clear()
