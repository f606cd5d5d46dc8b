"""Hugging Face's `Trainer` with several losses (extra ``transformers``), also as a mixin for TRL's trainers."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from functools import wraps
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from paretograd.aggregators.base import AggregatorModule
from paretograd.autograd.step import Step
from paretograd.errors import ParameterError, needs
from paretograd.integrations.training import Rule, TrainingLosses
from paretograd.scalarizations.base import Weighting

with needs("transformers", "paretograd.integrations.transformers needs", "transformers"):
    from transformers import Trainer

with needs("accelerate", "Hugging Face's Trainer needs", "transformers"):
    from accelerate.utils import DistributedType

__all__ = ["MultiObjectiveTrainer"]

#: The file in a checkpoint that has the state of the rule.
RULE_NAME = "rule.pt"

#: Ways to run processes in which every process holds all parameters.
_REPLICATED = (DistributedType.NO, DistributedType.MULTI_CPU, DistributedType.MULTI_GPU)


class MultiObjectiveTrainer(Trainer):
    """A `Trainer` whose ``compute_loss`` returns a dictionary of losses.

    With ``return_outputs=True``, it returns the dictionary and the outputs. `Trainer` does the rest: micro-batches
    (``gradient_accumulation_steps``), precision, clipping, schedulers and checkpoints. The rule is applied once for
    each optimizer step. Its state is saved with that of the optimizer, and its metrics are logged with the loss.
    Evaluation reports the sum of the losses.

    The losses are means over a micro-batch, so each is divided by the number of micro-batches. If they are divided
    already, set ``loss_is_scaled_for_ga = True`` in the class, as for a single loss.

    As a mixin, name this class before another trainer: ``class Mine(MultiObjectiveTrainer, DPOTrainer)``.

    Args:
        rule: the rule.
        args: for the next class.
        kwargs: for the next class.
    """

    loss_is_scaled_for_ga: bool | None
    compute_loss: Callable[..., Any]

    def __init__(self, *args: Any, rule: Rule, **kwargs: Any) -> None:
        self._losses = TrainingLosses(rule)
        if any(param.requires_grad for param in self.rule.parameters()):
            raise ParameterError(
                f"rule={self.rule!r} has parameters of its own, which the Trainer's optimizer does not hold. Use "
                "another rule, or a training loop of your own with paretograd.backward"
            )
        super().__init__(*args, **kwargs)
        if self.loss_is_scaled_for_ga is None:
            self.loss_is_scaled_for_ga = False
        self.compute_loss = _summed(self.compute_loss, self._losses)

    @property
    def rule(self) -> AggregatorModule | Weighting:
        """The rule, as the module or the weighting that holds its state."""
        return self._losses.rule

    @property
    def step(self) -> Step | None:
        """The last step, with its weights and its certificate; None before the first."""
        return self._losses.step

    def create_accelerator_and_postprocess(self) -> None:
        """Let the accelerator's ``backward`` fill ``.grad`` with the direction of the rule."""
        super().create_accelerator_and_postprocess()
        self.accelerator.backward = self._backward

    def train(self, *args: Any, **kwargs: Any) -> Any:
        """Train as `Trainer` does, from no micro-batches."""
        self._refuse_unsupported()
        self._losses.clear()
        return super().train(*args, **kwargs)

    def _refuse_unsupported(self) -> None:
        """Raise for options under which the loss is not differentiated here, or not whole."""
        kind = self.accelerator.distributed_type
        if kind not in _REPLICATED or self.args.n_gpu > 1:
            given = f"torch.nn.DataParallel on {self.args.n_gpu} GPUs" if self.args.n_gpu > 1 else kind.value
            raise ParameterError(
                f"the Trainer uses {given}; several losses are tested on one device and with DistributedDataParallel. "
                "Start the script with torchrun, or use a training loop of your own with paretograd.backward"
            )
        if self.args.auto_find_batch_size and self.args.gradient_accumulation_steps > 1:
            raise ParameterError(
                "auto_find_batch_size=True may repeat a step after some of its micro-batches. Set it to False, or "
                "gradient_accumulation_steps to 1"
            )

    def _backward(self, loss: Tensor, **kwargs: Any) -> None:
        """Differentiate the losses behind one micro-batch, in place of ``accelerator.backward``."""
        if kwargs.get("learning_rate") is not None:
            raise ParameterError(
                f"optim={self.args.optim.value!r} updates the parameters during the backward pass, before the rule "
                "sees all gradients. Use another optimizer, such as adamw_torch"
            )
        scaler = self.accelerator.scaler
        scaled = scaler is not None and scaler.is_enabled()
        loss = scaler.scale(loss) if scaled else loss
        self._losses.backward(loss, last=self.accelerator.sync_gradients, scaled=scaled)

    def log(self, logs: dict[str, float], start_time: float | None = None) -> None:
        """Log the metrics of the last step together with the loss."""
        if "loss" in logs:
            logs |= self._losses.metrics()
        super().log(logs, start_time)

    def _save_optimizer_and_scheduler(self, output_dir: str) -> None:
        super()._save_optimizer_and_scheduler(output_dir)
        if self.args.should_save:
            torch.save(self.rule.state_dict(), Path(output_dir) / RULE_NAME)

    def _load_optimizer_and_scheduler(self, checkpoint: str | None) -> None:
        super()._load_optimizer_and_scheduler(checkpoint)
        if checkpoint is None:
            return
        file = Path(checkpoint) / RULE_NAME
        if file.exists():
            self.rule.load_state_dict(torch.load(file, map_location="cpu", weights_only=True))
        else:
            warnings.warn(f"{checkpoint} has no {RULE_NAME}: the rule starts anew", UserWarning, stacklevel=2)


def _summed(compute_loss: Callable[..., Any], losses: TrainingLosses) -> Callable[..., Any]:
    """Return ``compute_loss`` with the sum of the losses in place of their dictionary."""

    @wraps(compute_loss)
    def outer(*args: Any, **kwargs: Any) -> Any:
        found = compute_loss(*args, **kwargs)
        return (losses.total(found[0]), *found[1:]) if isinstance(found, tuple) else losses.total(found)

    return outer
