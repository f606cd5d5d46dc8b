"""Runs that are trained side by side: on a GPU one computes while the host thinks about another's step."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import torch

from paretograd.experiments.federated.training import Training
from paretograd.experiments.recorded import full_or_tf32


class Together:
    """Several runs, a few epochs at a time; each goes its own way, as it would alone.

    Attributes:
        trainings: the runs, of one case, one for each seed.
    """

    def __init__(self, trainings: Sequence[Training]) -> None:
        self.trainings = list(trainings)
        self._device = self.trainings[0].parameters.device
        self._streams: list[torch.cuda.Stream] = []
        if self._device.type == "cuda":
            self._streams = [torch.cuda.Stream(self._device) for _ in self.trainings]  # type: ignore[no-untyped-call]

    @property
    def running(self) -> int:
        """How many are not done."""
        return sum(training.running for training in self.trainings)

    @property
    def epoch(self) -> int:
        """Of the run that is furthest behind among those that are not done, or the last of all."""
        every = [training for training in self.trainings if training.running] or self.trainings
        return min(training.epoch for training in every)

    def advance(self, count: int) -> None:
        """Take this many epochs in each run, or as many as are left."""
        if not self._streams:
            for training in self.trainings:
                training.advance(count)
            return
        # One switch for all threads: torch has one for the process.
        with full_or_tf32(self.trainings[0].study.tf32), ThreadPoolExecutor(len(self.trainings)) as pool:
            list(pool.map(self._advance, self.trainings, self._streams, [count] * len(self.trainings)))

    def _advance(self, training: Training, stream: torch.cuda.Stream, count: int) -> None:
        stream.wait_stream(torch.cuda.default_stream(self._device))  # which has made what this one reads
        with torch.cuda.stream(stream):
            training.advance(count)
        stream.synchronize()

    def state_dict(self) -> dict[str, Any]:
        """Plain arrays and numbers, from which the runs go on bit by bit."""
        states = {training.run.seed: training.state_dict() for training in self.trainings}
        return {f"{seed}_{name}": value for seed, state in states.items() for name, value in state.items()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from what `state_dict` returned."""
        for training in self.trainings:
            start = f"{training.run.seed}_"
            training.load_state_dict(
                {name.removeprefix(start): value for name, value in state.items() if name.startswith(start)}
            )
