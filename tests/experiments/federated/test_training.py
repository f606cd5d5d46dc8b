"""Attacks, gradients and statistics of clients, and the training of a run, against PyTorch and a simple loop."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from support.federated import ATTACK, CAPPED, CPU, DATA, SMALL, run
from torch.nn.functional import cross_entropy
from torch.nn.utils import parameters_to_vector, vector_to_parameters

import paretograd as pg
from paretograd.descent import Stop
from paretograd.experiments.federated import (
    Run,
)
from paretograd.experiments.federated.clients import Clients, Federation
from paretograd.experiments.federated.report import write_federated
from paretograd.experiments.federated.study import (
    CLEAN,
    attack_of,
    rule_of,
)
from paretograd.experiments.federated.training import Training, attacked, draw
from paretograd.federated import combine_updates
from paretograd.problems.cifar10 import Images, cnn, partition
from paretograd.problems.networks import normalized


def test_the_ordering_on_made_images(tmp_path):
    """The attack stops MGDA and not capped MGDA, in a study of seconds; a class is a colour here."""
    study = replace(SMALL, epochs=10, size=4, test_size=4)
    found = {(row["rule"], row["setting"]): row["accuracy_mean"] for row in run(tmp_path / "s", study).rows}
    assert found["mgda", "relative"] < found[CAPPED, "relative"] - 0.15
    assert found["mgda", "relative"] < found["mgda", "clean"] - 0.05
    assert found[CAPPED, "relative"] > 0.4
    assert found[CAPPED, "clean"] > 0.4


class TestAttack:
    def test_the_draws_are_a_function_of_seed_and_epoch(self):
        assert draw(1, 5, 10) == draw(1, 5, 10)
        assert len({draw(seed, epoch, 10).noise_seed for seed in range(3) for epoch in range(100)}) == 300
        targets = np.bincount([draw(0, epoch, 10).target for epoch in range(1000)], minlength=10)
        assert targets.sum() == 1000
        assert targets.min() > 60

    def test_one_more_row_with_the_opposite_sign(self):
        gradients = torch.randn(10, 500, generator=torch.Generator().manual_seed(0))
        found = attacked(gradients, ATTACK, seed=3, epoch=8)
        assert torch.equal(found[:10], gradients)
        victim = gradients[draw(3, 8, 10).target]
        assert float((found[10] + victim).norm() / victim.norm()) == pytest.approx(0.15, rel=1e-5)
        assert torch.equal(found, attacked(gradients, ATTACK, 3, 8))
        assert attacked(gradients, CLEAN, 3, 8) is gradients

    def test_the_literal_noise_is_longer_than_the_gradient(self):
        """0.01 sqrt(411,626) = 6.4."""
        found = attacked(torch.zeros(10, 411_626), attack_of("literal"), 0, 0)
        assert float(found[10].norm()) == pytest.approx(0.01 * 411_626**0.5, rel=0.01)

    def test_every_rule_faces_the_same_attack(self, federation, monkeypatch):
        seen: dict[str, list[tuple[int, int]]] = {}
        for rule in ("mean", "krum"):
            monkeypatch.setattr(
                "paretograd.experiments.federated.training.draw",
                lambda *given, rule=rule: seen.setdefault(rule, []).append(draw(*given)) or draw(*given),
            )
            Training(SMALL, Run(rule, ATTACK, 0), federation).advance(9)
        assert seen["mean"] == seen["krum"] == [draw(0, epoch, 10) for epoch in range(3)]


class TestClients:
    IMAGES = tuple(
        Images(
            torch.randint(0, 256, (6, 3, 32, 32), dtype=torch.uint8, generator=torch.Generator().manual_seed(k)),
            torch.randint(0, 10, (6,), generator=torch.Generator().manual_seed(k)),
        )
        for k in range(3)
    )

    def test_gradients_are_autograd_s(self):
        model = cnn(seed=4)
        flat = parameters_to_vector(model.parameters()).detach()
        found = Clients(self.IMAGES, CPU).gradients(flat)
        assert found.gradients.shape == (3, 411_626)
        for k, (pixels, labels) in enumerate(self.IMAGES):
            model.zero_grad()
            loss = cross_entropy(model.train()(normalized(pixels)), labels)
            loss.backward()
            wanted = torch.cat([param.grad.reshape(-1) for param in model.parameters()])
            assert float(found.losses[k]) == pytest.approx(loss.item(), rel=1e-5)
            # Sums of float32 over thousands of pixels, in another order where channels come last.
            assert float((found.gradients[k] - wanted).norm()) <= 1e-4 * float(wanted.norm())

    def test_gradients_of_many_images_are_those_of_float64(self):
        """Sums over 78,400 pixels: to what float32 has, and not to what some kernels leave of it."""
        generator = torch.Generator().manual_seed(0)
        own = Images(
            torch.randint(0, 256, (100, 3, 32, 32), dtype=torch.uint8, generator=generator),
            torch.randint(0, 10, (100,), generator=generator),
        )
        model = cnn(seed=0)
        found = Clients([own], CPU).gradients(parameters_to_vector(model.parameters()).detach()).gradients[0]
        model = model.double().train()
        cross_entropy(model(normalized(own.pixels).double()), own.labels).backward()
        wanted = torch.cat([param.grad.reshape(-1) for param in model.parameters()])
        assert float((found.double() - wanted).norm()) <= 1e-4 * float(wanted.norm())

    def test_statistics_are_pooled_over_the_clients(self):
        """The first BatchNorm's against those of all images in one batch; all in an evaluation by the module."""
        model = cnn(seed=4)
        flat, clients = parameters_to_vector(model.parameters()).detach(), Clients(self.IMAGES, CPU)
        moments = clients.gradients(flat).moments
        with torch.no_grad():
            pixels = torch.cat([own.pixels for own in self.IMAGES])
            every = normalized(pixels)
            hidden = model[:2](every).double().transpose(0, 1).flatten(1)
        assert torch.allclose(moments[0][0].double(), hidden.mean(dim=1), rtol=1e-5)
        assert torch.allclose(moments[0][1].double(), hidden.var(dim=1, correction=0), rtol=1e-4)
        for norm, (mean, variance) in zip((model[2], model[6]), moments, strict=True):
            norm.running_mean, norm.running_var = mean.clone(), variance.clone()
        with torch.no_grad():
            wanted = model.eval()(every)
        assert torch.allclose(clients.logits(flat, pixels, moments), wanted, atol=1e-5)

    def test_the_centralised_client_has_all_images(self):
        spread, central = (Federation(DATA, SMALL, 0, one, CPU) for one in (False, True))
        flat = parameters_to_vector(cnn(0).parameters()).detach()
        assert len(spread.clients.gradients(flat).losses) == 10
        found = central.clients.gradients(flat)
        assert len(found.losses) == 1
        assert central.accuracies(flat, found.moments).shape == (10,)

    def test_accuracy_is_of_each_client_s_own_test_images(self, federation):
        flat = parameters_to_vector(cnn(0).parameters()).detach()
        moments = federation.clients.gradients(flat).moments
        dealt = partition(DATA, 0, shards=2, size=2, test_size=2)

        def share(pixels: torch.Tensor, labels: torch.Tensor) -> float:
            return float((federation.clients.logits(flat, pixels, moments).argmax(dim=1) == labels).double().mean())

        own = [share(DATA.test.pixels[numbers], DATA.test.labels[numbers]) for numbers in dealt.test]
        assert federation.accuracies(flat, moments).tolist() == pytest.approx(own)
        assert federation.accuracy(flat, moments) == pytest.approx(share(*DATA.test))


class TestTraining:
    @pytest.mark.parametrize(("rule", "setting"), [("dualproj*", ATTACK), ("median", ATTACK), ("mean", CLEAN)])
    def test_it_is_the_server_s_aggregation(self, federation, rule, setting):
        """Bit by bit a plain loop around `combine_updates`."""
        training = Training(SMALL, Run(rule, setting, 0), federation)
        training.advance(100)
        model = cnn(seed=0)
        point = parameters_to_vector(model.parameters()).detach()
        for epoch in range(3):
            vector_to_parameters(point, model.parameters())
            found = federation.clients.gradients(point)
            combined = combine_updates(attacked(found.gradients, setting, 0, epoch), rule_of(rule), bound="none")
            loss, norm, slope, gamma = training.records[epoch]
            assert loss == pytest.approx(float(found.losses.mean()), rel=1e-6)
            assert norm == pytest.approx(float(combined.direction.double().norm()), rel=1e-12)
            assert slope == pytest.approx(float((found.gradients.double() @ combined.direction.double()).min()))
            assert gamma == combined.gamma
            assert np.array_equal(training.weights[epoch], combined.weights.numpy(), equal_nan=True)
            point = point - 0.05 * combined.direction
        assert torch.equal(training.parameters, point)
        assert (training.reason, training.looks, training.epoch) == (Stop.STEPS, [0, 2, 3], 3)
        assert 0.0 <= training.overall <= 1.0
        assert np.isnan(training.weights).all() == (rule == "median")

    def test_a_run_that_diverges_counts_as_a_guess(self, federation, tmp_path):
        study = replace(SMALL, methods=("mean",), parts=("table",), lr=1e30, epochs=9)
        results = run(tmp_path, study)
        [found] = results.runs.values()
        assert found.reason is Stop.NOT_FINITE
        assert 0 < found.length < 9
        assert (found.accuracy, found.overall) == (pytest.approx(0.1), 0.1)
        assert "Mean, rho 0.15, seed 0: a loss or gradient is not finite" in (tmp_path / "table.md").read_text()
        assert write_federated(results, {})

    def test_the_state_of_a_run_at_any_time(self, federation):
        """Under way, at its end, and lost."""
        for lr, count, reason in ((0.05, 1, Stop.RUNNING), (0.05, 9, Stop.STEPS), (1e30, 9, Stop.NOT_FINITE)):
            study, one = replace(SMALL, lr=lr), Run("mean", CLEAN, 0)
            first, second = Training(study, one, federation), Training(study, one, federation)
            first.advance(count)
            assert first.reason is reason
            second.load_state_dict(first.state_dict())
            for training in (first, second):
                training.advance(9)
            assert (second.reason, second.looks) == (first.reason, first.looks)
            assert torch.equal(second.parameters, first.parameters)
            assert np.array_equal(second.accuracies, first.accuracies)
            assert second.overall == first.overall

    def test_a_rule_without_a_direction_ends_its_run(self, federation, monkeypatch):
        def fails(*_: object, **__: object) -> None:
            raise pg.ParameterError("no direction")

        monkeypatch.setattr("paretograd.experiments.federated.training.combine_updates", fails)
        training = Training(SMALL, Run("mean", CLEAN, 0), federation)
        training.advance(5)
        assert (training.reason, training.why, training.epoch) == (Stop.DEGENERATE, "no direction", 0)
        assert training.accuracies.tolist() == [[0.1] * 10]
