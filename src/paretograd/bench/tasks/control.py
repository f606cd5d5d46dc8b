"""Multi-objective control: policies for finite environments of MO-Gymnasium, by policy gradients."""

from __future__ import annotations

import math
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from paretograd.bench.task import Batch, Data, Metric, Task
from paretograd.errors import needs

#: Seeds of the training episodes, of which each step draws some, and of the episodes that are scored.
_TRAIN, _VALIDATION, _TEST = range(20_000, 30_000), range(200), range(10_000, 10_200)
_WIDTH = 64


class Episodes(NamedTuple):
    """Episodes of E copies of an environment, padded to T steps.

    Attributes:
        states: what was observed, by its row in `Control.states`, shape ``(T, E)``.
        actions: shape ``(T, E)``.
        rewards: zero after the end of an episode, shape ``(T, E, m)``; NaN if the policy has diverged.
        alive: True before the end of an episode, shape ``(T, E)``.
    """

    states: Tensor
    actions: Tensor
    rewards: Tensor
    alive: Tensor


class Control(Task):
    r"""A policy with an objective for each component of the reward.

    **Set-up.** REINFORCE (Williams, 1992) with vector rewards. A step plays E episodes with the present policy. The
    gradient of loss k is the plain policy gradient of the expected return $R_k$:

    $$f_k = -\frac1E \sum_{e,t} A_{etk} \log \pi(a_{et} \mid s_{et}), \qquad
    A_{etk} = G_{etk} - \frac{1}{E - 1} \sum_{e' \ne e} G_{e'tk}$$

    with the return $G_{etk}$ from step t on, undiscounted. The baseline is the mean of the other episodes at the same
    step (Kool, van Hoof and Welling, 2019), so the gradient is unbiased. Advantages are not normalised: the components
    keep their scales. Episodes end after `horizon` steps. The policy is a perceptron with one hidden layer of 64 tanh
    units. It sees row and column of the observation as one-hot vectors.

    **Losses.** Their values can have any sign and say nothing about the policy, so `positive` is False. These rules
    cannot be used: all that read losses, such as DWA, uncertainty weighting, FAMO, GLS, Tchebycheff or GradNorm.

    **Metrics.** The mean return of each component over 200 episodes of the stochastic policy. Validation and test
    episodes have other seeds than training episodes, and than each other. The environments are deterministic, so a
    seed fixes the draws of the policy alone, and both kinds of episodes estimate the same expectation.

    **Data.** None, but the environments of MO-Gymnasium (Felten et al., 2023; MIT licence), which the extra ``control``
    installs.

    Hyper-parameters are chosen by the geometric mean of the returns: the volume between the returns and the worst
    ones, up to a power. Their arithmetic mean would be the goal of the rule ``mean``.

    Attributes:
        environment: id in MO-Gymnasium. The observation consists of a row and a column.
        shape: number of rows and columns.
        actions: number of actions.
        horizon: longest episode.
        copies: episodes of a step, E.
    """

    acts = True
    positive = False
    rates: ClassVar[dict[str, tuple[float, float]]] = {"sgd": (1e-4, 1e-1), "adamw": (3e-4, 3e-2)}
    environment: ClassVar[str]
    shape: ClassVar[tuple[int, int]]
    actions: ClassVar[int]
    horizon: ClassVar[int]

    def __init__(self, *, small: bool = False) -> None:
        super().__init__(small=small)
        self.steps, self.copies = (150, 8) if small else (300, 16)
        self.batch_size = self.copies * self.horizon
        self._made: list[Any] = []

    def load(self, data_dir: str | Path | None = None) -> Data:
        """Return seeds of episodes; there are no files."""
        self._environments(1)  # fails now, not after an hour, if the extra is missing
        return Data(*((torch.tensor(seeds, device="cpu"),) for seeds in (_TRAIN, _VALIDATION, _TEST)))

    def network(self) -> nn.Module:
        return nn.Sequential(nn.Linear(sum(self.shape), _WIDTH), nn.Tanh(), nn.Linear(_WIDTH, self.actions))

    def losses(self, network: nn.Module, batch: Batch) -> Sequence[Tensor]:
        observations, actions, advantages = batch
        chosen: Tensor = network(observations).log_softmax(dim=1).gather(1, actions.unsqueeze(1))
        return (-(chosen * advantages).sum(dim=0) / self.copies).unbind()

    def batch(self, data: Data, generator: torch.Generator, network: nn.Module) -> Batch:
        """Play episodes. Return what was observed, the actions, and the advantages, shape ``(rows, m)``.

        Rows after the end of an episode have advantages zero.
        """
        seeds = data.train[0]
        drawn = torch.randint(len(seeds), (self.copies,), generator=generator, device="cpu")
        episodes = self.play(network, seeds[drawn.to(seeds.device)].tolist(), generator)
        returns = episodes.rewards.flip(0).cumsum(0).flip(0)
        others = (returns.sum(1, keepdim=True) - returns) / (self.copies - 1)
        advantages = (returns - others) * episodes.alive.unsqueeze(2)
        rows = self.states()[episodes.states], episodes.actions, advantages
        return tuple(part.flatten(0, 1).to(seeds.device, non_blocking=True) for part in rows)

    def scores(self, network: nn.Module, rows: Batch) -> Sequence[float]:
        seeds = rows[0].tolist()
        episodes = self.play(network, seeds, torch.Generator().manual_seed(seeds[0]))
        found: list[float] = episodes.rewards.double().sum(0).mean(0).tolist()
        return found

    def quality(self, scores: Sequence[float]) -> float:
        """Return the geometric mean of the returns; zero if one is negative."""
        return float(math.prod(max(value, 0.0) for value in scores) ** (1.0 / len(scores)))

    def states(self) -> Tensor:
        """Return the features of all observations, row by row: one-hot vectors of row and column, side by side."""
        rows, columns = (torch.eye(size, device="cpu") for size in self.shape)
        return torch.cat((rows.repeat_interleave(len(columns), dim=0), columns.repeat(len(rows), 1)), dim=1)

    def play(self, network: nn.Module, seeds: Sequence[int], generator: torch.Generator) -> Episodes:
        """Play one episode for each seed.

        Args:
            network: the policy; it is evaluated once, for all observations.
            seeds: of the environments.
            generator: draws the actions.
        """
        E, T, columns = len(seeds), self.horizon, self.shape[1]
        with torch.no_grad():
            logits = network(self.states().to(next(network.parameters())))
        chances = logits.double().softmax(dim=1).cumsum(dim=1).cpu().numpy()
        draws = torch.rand((T, E), generator=generator, dtype=torch.float64, device="cpu").numpy()
        states, actions = np.zeros((T, E), np.int64), np.zeros((T, E), np.int64)
        rewards, alive = np.zeros((T, E, len(self.objectives)), np.float32), np.zeros((T, E), bool)
        copies = self._environments(E)
        here = np.array([_place(copy.reset(seed=seed)[0], columns) for copy, seed in zip(copies, seeds, strict=True)])
        playing = list(range(E))
        for t in range(T):
            states[t] = here
            # The last chance is 1 up to rounding, so it is left out.
            actions[t] = (chances[here, :-1] <= draws[t, :, None]).sum(axis=1)
            alive[t, playing] = True
            still = []
            for e in playing:
                observed, rewards[t, e], ended, *_ = copies[e].step(actions[t, e])
                here[e] = _place(observed, columns)
                if not ended:
                    still.append(e)
            playing = still
            if not playing:
                break
        if np.isnan(chances).any():
            rewards[:] = np.nan
        return Episodes(*(torch.from_numpy(part) for part in (states, actions, rewards, alive)))

    def _environments(self, count: int) -> list[Any]:
        """Return copies of the environment, without the wrappers that check each step."""
        with needs("mo_gymnasium", "tasks of control need", "control"):
            import mo_gymnasium
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", ".*precision lowered by casting", UserWarning)
            while len(self._made) < count:
                self._made.append(mo_gymnasium.make(self.environment).unwrapped)
        return self._made[:count]


def _place(observation: Any, columns: int) -> int:
    return int(observation[0]) * columns + int(observation[1])


class DeepSeaTreasure(Control):
    """A submarine searches for a treasure, and the deeper it dives the more it finds (Vamplew et al., 2011).

    The map is that of Yang et al. (2019), an 11 x 11 grid with a convex front. An episode ends at the first treasure,
    or after 30 steps instead of 100; the best treasure is 19 steps away. Two objectives: the treasure, and the time.

    The time alone is best after one step, with the least treasure. This is no reference for the time that a dive takes,
    so the reference is the mean of the losses. The time is reported as a number of steps; fewer are better.
    Hyper-parameters are chosen by the geometric mean of the treasure and the steps that are left.
    """

    name = "deep-sea-treasure"
    title = "Deep sea treasure"
    summary = "A submarine's treasure against its time, by policy gradients; needs the extra control."
    single = False
    environment = "deep-sea-treasure-v0"
    shape, actions, horizon = (11, 11), 4, 30
    objectives = ("treasure", "time")
    metrics = (Metric("treasure", 0, unit=""), Metric("steps", 1, higher=False, unit=""))

    def scores(self, network: nn.Module, rows: Batch) -> Sequence[float]:
        treasure, time = super().scores(network, rows)
        return treasure, -time

    def quality(self, scores: Sequence[float]) -> float:
        treasure, steps = scores
        return super().quality((treasure, self.horizon - steps))


class FruitTree(Control):
    """A walk from the root of a binary tree to one of its 64 leaves, each with six nutrients (Yang et al., 2019).

    Six objectives, one for each nutrient. Every leaf is Pareto optimal, by construction. All episodes have six steps.
    The reference for each nutrient is a policy that is trained with it alone, the ideal point of multi-objective
    optimisation. No policy reaches it for all six, so every rule is far below it.
    """

    name = "fruit-tree"
    title = "Fruit tree"
    summary = "Six nutrients at the leaves of a tree, by policy gradients; needs the extra control."
    environment = "fruit-tree-v0"
    shape, actions, horizon = (7, 64), 2, 6
    objectives = ("protein", "carbs", "fats", "vitamins", "minerals", "water")
    metrics = tuple(Metric(name, k, unit="") for k, name in enumerate(objectives))
