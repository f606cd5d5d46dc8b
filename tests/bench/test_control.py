"""Policies for environments of MO-Gymnasium: episodes, policy gradients, and what is learned."""

from __future__ import annotations

import math
import sys
import warnings

import mo_gymnasium
import pytest
import torch
from mo_gymnasium.envs.fruit_tree.fruit_tree import FRUITS
from support.stacked import check_stacked, doubled, drawn, same, trained
from torch import nn

import paretograd as pg
from paretograd.bench.tasks.control import DeepSeaTreasure, FruitTree
from paretograd.problems.dominance import non_dominated

TASKS = (DeepSeaTreasure, FruitTree)
every_task = pytest.mark.parametrize("kind", TASKS, ids=[kind.name for kind in TASKS])


def test_a_missing_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "mo_gymnasium", None)
    with pytest.raises(pg.MissingExtraError, match=r"tasks of control need mo_gymnasium.*paretograd\[control\]"):
        FruitTree(small=True).load()


class Always(nn.Module):
    """A policy that looks up the action for each observation."""

    def __init__(self, actions, count):
        super().__init__()
        self.scores = nn.Parameter(1e3 * torch.eye(count)[actions])

    def forward(self, features):
        rows = features.argmax(dim=1)  # the row comes first
        return self.scores[rows]


@every_task
def test_episodes_are_those_of_the_environment(kind):
    """Replayed with all wrappers of the environment."""
    task = kind(small=True)
    torch.manual_seed(0)
    network = task.network()
    seeds = [3, 1, 4, 1, 5]
    episodes = task.play(network, seeds, torch.Generator().manual_seed(0))
    again = task.play(network, seeds, torch.Generator().manual_seed(0))
    assert all(torch.equal(a, b) for a, b in zip(episodes, again, strict=True))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # spaces are rounded
        env = mo_gymnasium.make(task.environment)
    for e, seed in enumerate(seeds):
        observed, _ = env.reset(seed=seed)
        ended = False
        for t in range(task.horizon):
            assert bool(episodes.alive[t, e]) == (not ended)
            if ended:
                assert not episodes.rewards[t, e].any()
                continue
            assert divmod(int(episodes.states[t, e]), task.shape[1]) == tuple(observed)
            observed, reward, ended, *_ = env.step(int(episodes.actions[t, e]))
            assert episodes.rewards[t, e].tolist() == pytest.approx(list(reward), rel=1e-6)


@every_task
def test_stacked_networks_have_the_losses_and_gradients_of_each(kind):
    task = kind(small=True)
    check_stacked(task, task.load())


@every_task
def test_advantages_against_a_loop(kind):
    task = kind(small=True)
    torch.manual_seed(0)
    network, data = task.network(), task.load()
    observations, actions, advantages = drawn(task, data, network, 7)
    assert observations.shape == (task.batch_size, sum(task.shape))
    assert advantages.shape == (task.batch_size, len(task.objectives))
    generator = torch.Generator().manual_seed(7)
    chosen = torch.randint(len(data.train[0]), (task.copies,), generator=generator)
    episodes = task.play(network, data.train[0][chosen].tolist(), generator)
    assert torch.equal(observations, task.states()[episodes.states.flatten()])
    assert torch.equal(actions, episodes.actions.flatten())
    for t in range(task.horizon):
        for e in range(task.copies):
            returns = [episodes.rewards[t:, other].sum(dim=0) for other in range(task.copies)]
            others = torch.stack([value for other, value in enumerate(returns) if other != e]).mean(dim=0)
            expected = (returns[e] - others) * episodes.alive[t, e]
            torch.testing.assert_close(advantages[t * task.copies + e], expected, rtol=1e-4, atol=1e-4)  # float32 sums


def test_losses_have_the_gradient_of_the_expected_return():
    """The mean over 8,000 episodes, against a sum over all walks."""
    task = FruitTree(small=True)
    task.copies = 200
    torch.manual_seed(0)
    network, data = task.network().double(), task.load()
    params = list(network.parameters())

    def gradients(values):
        rows = [torch.autograd.grad(value, params, retain_graph=True) for value in values]
        return torch.stack([torch.cat([part.flatten() for part in row]) for row in rows])

    batches = [doubled(drawn(task, data, network, seed)) for seed in range(40)]
    samples = torch.stack([gradients(task.losses(network, batch)) for batch in batches])
    exact = -gradients(expected_returns(task, network))
    noise = samples.var(dim=0).sum(dim=1).sqrt() / len(samples) ** 0.5
    assert (noise < 0.3 * exact.norm(dim=1)).all()
    assert ((samples.mean(dim=0) - exact).norm(dim=1) < 1.5 * noise).all()  # 1 is expected


def expected_returns(task, network):
    """Sum over all 64 walks: the probability times the nutrients of the leaf."""
    chances = network(task.states().double()).softmax(dim=1).view(*task.shape, 2)
    leaves = nutrients()
    found = 0.0
    for leaf in range(64):
        chance = torch.ones((), dtype=torch.float64)
        for row in range(6):
            chance = chance * chances[row, leaf >> (6 - row), (leaf >> (5 - row)) & 1]
        found = found + chance * leaves[leaf]
    return found


def nutrients():
    return torch.tensor(FRUITS["6"], dtype=torch.float64)


def test_every_leaf_of_the_tree_is_pareto_optimal():
    assert nutrients().shape == (64, 6)
    assert non_dominated(-nutrients()).all()


def test_scores_of_known_policies():
    task = DeepSeaTreasure(small=True)
    rows = task.load().test
    down, right = 1, 3
    dive = Always(torch.full((11,), down), 4)
    assert task.scores(dive, rows) == pytest.approx((0.7, 1.0))
    forever = Always(torch.full((11,), right), 4)
    assert task.scores(forever, rows) == pytest.approx((0.0, 30.0))
    assert task.quality((0.0, 30.0)) == 0.0
    front = [(0.7, 1.0), (8.2, 3.0), (16.1, 9.0), (23.7, 19.0)]
    assert max(front, key=task.quality) == (16.1, 9.0)
    tree = FruitTree(small=True)
    left = Always(torch.zeros(7, dtype=torch.long), 2)
    assert tree.scores(left, tree.load().test) == pytest.approx(nutrients()[0].tolist(), rel=1e-6)
    assert tree.quality([2.0] * 6) > tree.quality([6.0, 6.0, 6.0, 0.1, 0.1, 0.1])
    assert tree.quality([2.0] * 5 + [-1.0]) == 0.0


@every_task
def test_a_policy_that_has_diverged(kind):
    """It is not the policy that always takes the first action."""
    task = kind(small=True)
    network = task.network()
    nn.init.constant_(network[2].bias, math.nan)
    scores = task.scores(network, task.load().validation)
    assert all(math.isnan(value) for value in (*scores, task.quality(scores)))


@every_task
def test_seeds_are_disjoint_and_the_same_in_every_call(kind):
    data = kind().load()
    assert same(data, kind().load())
    train, validation, test = (set(part[0].tolist()) for part in data)
    assert [len(part) for part in (train, validation, test)] == [10_000, 200, 200]
    assert not train & validation
    assert not train & test
    assert not validation & test


def test_a_policy_finds_the_best_treasure():
    """The treasure alone, of which the best are 19.6, 20.3, 22.4 and 23.7."""
    task = DeepSeaTreasure(small=True)
    network = trained(task, task.made(), task.steps, 1e-2, (1.0, 0.0))
    assert task.scores(network, task.made().validation)[0] > 15.0


def test_a_policy_for_one_nutrient_finds_more_of_it():
    """A random walk finds the mean of the leaves, about 3; the best leaf has more than 8."""
    task = FruitTree(small=True)
    network = trained(task, task.made(), task.steps, 1e-2, (0.0, 0.0, 0.0, 1.0, 0.0, 0.0))
    assert task.scores(network, task.made().validation)[3] > 6.0
