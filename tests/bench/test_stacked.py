"""Networks that are trained at once take the same steps as each by itself, with `paretograd.backward` and torch."""

from __future__ import annotations

import math
import warnings
from weakref import ref

import numpy as np
import pytest
import torch
from support.toy import Toy64, TwoHeads
from torch import nn

import paretograd as pg
from paretograd.autograd.recorded import uncollected
from paretograd.bench.networks import Networks, Optimizer
from paretograd.bench.passes import Recording
from paretograd.bench.roster import RULES, draw, make
from paretograd.bench.training import Training, Trial
from paretograd.errors import InputError, ParameterError
from paretograd.scalarizations.base import Weighting

STEPS = 8
TASK = Toy64()
DATA = TASK.load()
#: Masks of GradDrop are drawn for each parameter by `backward`, and for the whole Jacobian here. M-ConFIG needs one
#: gradient a step: torch then skips the other heads, and here their momentum goes on. A trimmed mean needs three
#: objectives.
COMPARED = [name for name in RULES if name not in ("graddrop", "m-config", "trimmed-mean")]
#: Learned weights are float32; all else is float64.
ROUNDING = {"uncertainty": 1e-7, "imtl-l": 1e-7}


def alone(trial: Trial, name: str) -> torch.Tensor:
    """The parameters of a network that a user trains."""
    torch.manual_seed(trial.seed)
    network, rule = TASK.network().double(), make(trial.rule, 2, trial.seed)
    params = [*network.parameters(), *(rule.parameters() if isinstance(rule, Weighting) else [])]
    optimizer: torch.optim.Optimizer = (
        torch.optim.SGD(params, lr=1.0, momentum=0.9) if name == "sgd" else torch.optim.AdamW(params, lr=1.0)
    )
    for step in range(STEPS):
        optimizer.param_groups[0]["lr"] = trial.rate * (0.5 + 0.5 * math.cos(math.pi * step / STEPS))
        batches = [TASK.batch(DATA, generator(trial.seed, step, number), network) for number in (0, 1)]
        optimizer.zero_grad()
        if isinstance(rule, pg.Aggregator) and "batches" in rule.needs:
            pg.backward([list(TASK.losses(network, batch)) for batch in batches], rule)
        else:
            pg.backward(list(TASK.losses(network, batches[0])), rule)
        optimizer.step()
        if isinstance(rule, pg.FAMO):
            rule.update(list(TASK.losses(network, batches[0])))
        if isinstance(rule, pg.DWA) and (step + 1) % (100 // 16) == 0:
            rule.next_epoch()
    return nn.utils.parameters_to_vector(network.parameters()).detach()


def generator(seed: int, step: int, number: int) -> torch.Generator:
    state = np.random.SeedSequence([seed, step, number]).generate_state(1, np.uint64)
    return torch.Generator().manual_seed(int(state[0] >> np.uint64(1)))


@pytest.mark.parametrize("name", COMPARED)
def test_same_steps_as_backward(name):
    rng = np.random.default_rng(0)
    for optimizer in ("sgd", "adamw"):
        trials = [Trial(draw(name, u, 2, rng), 0.01 * (k + 1), k) for k, u in enumerate((0.2, 0.7))]
        training = Training(TASK, DATA, trials, optimizer, STEPS, torch.float64)
        training.advance(STEPS)
        assert training.steering.reasons == ["", ""]
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # an inexact step of a rule would warn in both
            for k, trial in enumerate(trials):
                mine = nn.utils.parameters_to_vector(training.networks.one(k).parameters())
                torch.testing.assert_close(mine, alone(trial, optimizer), rtol=0.0, atol=ROUNDING.get(name, 1e-12))


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("name", [name for name in RULES if name not in ("graddrop", "trimmed-mean")])
def test_same_steps_on_a_gpu(name):
    """There, passes are recorded. The masks of GradDrop depend on the device."""
    for shared in (True, False):
        trials = [Trial(draw(name, 0.5, 2, np.random.default_rng(0)), 0.01 * k, 1 if shared else k) for k in (1, 2)]
        here, there = (
            Training(TASK, DATA.to(torch.device(device)), trials, "adamw", STEPS, torch.float64)
            for device in ("cpu", "cuda")
        )
        here.advance(STEPS)
        there.advance(STEPS)
        assert there.steering.reasons == ["", ""]
        torch.testing.assert_close(there.networks.flat.cpu(), here.networks.flat, rtol=0.0, atol=1e-6)
        np.testing.assert_allclose(there.curves.losses, here.curves.losses, rtol=0.0, atol=1e-6)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_batches_of_other_sizes_work_on_a_gpu():
    class Growing(Toy64):
        def batch(self, data, generator, network):
            return tuple(part[: 10 + int(torch.randint(9, (), generator=generator))] for part in data.train)

    here, there = (
        Training(Growing(), DATA.to(torch.device(device)), [Trial("upgrad", 0.01, 1)], "sgd", STEPS, torch.float64)
        for device in ("cpu", "cuda")
    )
    here.advance(STEPS)
    there.advance(STEPS)
    torch.testing.assert_close(there.networks.flat.cpu(), here.networks.flat, rtol=0.0, atol=1e-9)


def test_state_dict_goes_on_exactly():
    """Every rule with a memory continues as if it had not been interrupted."""
    for name in (
        "cagrad",
        "gradvac",
        "moco",
        "m-config",
        "db-mtl",
        "graddrop",
        "modo",
        "famo",
        "dwa",
        "uncertainty",
        "mas-rand",
    ):
        trials = [Trial(draw(name, 0.5, 2, np.random.default_rng(0)), 0.02, seed) for seed in (1, 2)]
        whole, first, second = (Training(TASK, DATA, trials, "adamw", STEPS, torch.float64) for _ in range(3))
        whole.advance(STEPS)
        first.advance(5)
        second.load_state_dict(first.state_dict())
        assert second.step == 5
        second.advance(STEPS)
        assert torch.equal(second.networks.flat, whole.networks.flat), name
        for mine, theirs in zip(second.curves, whole.curves, strict=True):
            np.testing.assert_array_equal(mine, theirs)


def test_state_of_other_trials_is_refused():
    first, second = (Training(TASK, DATA, [Trial("mean", r, 1)], "sgd", STEPS, torch.float64) for r in (0.1, 0.2))
    with pytest.raises(InputError, match="other trials"):
        second.load_state_dict(first.state_dict())


def test_a_network_that_diverges_stops_alone():
    trials = [Trial("mgda", 0.01, 1), Trial("mgda", 1e30, 1)]
    training = Training(TASK, DATA, trials, "sgd", 30, torch.float64)
    training.advance(30)
    assert training.steering.reasons[0] == ""
    assert "not finite" in training.steering.reasons[1]
    scores = training.scores(DATA.validation)
    assert np.isfinite(scores[0]).all()
    assert np.isnan(scores[1]).all()
    single = Training(TASK, DATA, trials[:1], "sgd", 30, torch.float64)
    single.advance(30)
    torch.testing.assert_close(training.networks.flat[0], single.networks.flat[0], rtol=1e-12, atol=1e-12)


def test_losses_take_turns_after_the_first_network_has_stopped():
    """M-ConFIG differentiates one loss a step, and trains the head of that loss."""
    trials = [Trial("m-config", 0.01, seed) for seed in (1, 2)]
    both, single = (Training(TASK, DATA, few, "sgd", STEPS, torch.float64) for few in (trials, trials[1:]))
    both.networks.flat[0] = math.nan
    both.advance(STEPS)
    single.advance(STEPS)
    assert both.steering.reasons == ["a loss is not finite", ""]
    torch.testing.assert_close(both.networks.flat[1], single.networks.flat[0], rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("rule", ["mgda", "graddrop", "modo", "tuned-mean", "stch", "famo"])
def test_gradients_that_are_not_finite_stop_their_network(rule):
    class Broken(Toy64):
        def losses(self, network, batch):
            """The square root has no derivative at zero, where the second network is sent."""
            first, second = super().losses(network, batch)
            return first, second + (network.heads[0].bias.sum() - 5.0).square().sqrt()

    trials = [Trial(draw(rule, 0.5, 2, np.random.default_rng(0)), 0.01, seed) for seed in (1, 2)]
    training = Training(Broken(), DATA, trials, "sgd", 4, torch.float64)
    bias = next(part for part in training.networks.parts if part.name == "heads.0.bias")
    training.networks.flat[1, bias.columns] = 5.0
    training.advance(4)
    assert training.steering.reasons == ["", "a gradient is not finite"]
    assert float(training.networks.flat[1, bias.columns]) == 5.0
    assert torch.isfinite(training.networks.flat).all()


def test_parameters_of_one_loss_are_private():
    networks = Networks(TASK, [0, 1], torch.device("cpu"), torch.float64)
    networks.arrange(TASK.batch(DATA, generator(0, 0, 0), networks.one(0)), common=True)
    assert networks.private == {"heads.0.weight": 0, "heads.0.bias": 0, "heads.1.weight": 1, "heads.1.bias": 1}
    assert networks.shared == slice(3 * 5 + 5)
    torch.manual_seed(1)
    for mine, theirs in zip(networks.one(1).parameters(), TASK.network().double().parameters(), strict=True):
        assert torch.equal(mine, theirs)


def test_one_network_has_its_parameters():
    networks = Networks(TASK, [3, 4], torch.device("cpu"))
    torch.manual_seed(4)
    expected = TASK.network()
    for mine, theirs in zip(networks.one(1).parameters(), expected.parameters(), strict=True):
        assert torch.equal(mine, theirs)


def test_a_recording_goes_with_its_networks():
    """It holds memory of the GPU, which must not wait for the garbage collector."""
    networks = Networks(TASK, [3], torch.device("cpu"), torch.float64)
    recording = Recording(networks, TASK.batch(DATA, generator(3, 0, 0), networks.one(0)), common=True)
    networks._recording = recording
    gone = ref(recording)
    with uncollected():
        del networks, recording
        assert gone() is None


def test_buffers_and_unused_parameters_are_refused():
    class Normed(Toy64):
        def network(self) -> nn.Module:
            return nn.Sequential(TwoHeads(), nn.BatchNorm1d(2))

    class Idle(Toy64):
        def network(self) -> nn.Module:
            made = TwoHeads()
            made.idle = nn.Linear(1, 1)
            return made

    with pytest.raises(InputError, match="buffers"):
        Networks(Normed(), [0], torch.device("cpu"))
    with pytest.raises(InputError, match=r"idle\.weight"):
        Training(Idle(), DATA, [Trial("mgda", 0.1, 0)], "sgd", 2, torch.float64)


def test_optimizers_are_known():
    with pytest.raises(ParameterError, match="sgd or adamw"):
        Optimizer("adam", torch.zeros(1, 2))
