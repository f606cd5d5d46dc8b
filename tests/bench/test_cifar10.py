"""CIFAR-10 as ten binary tasks, on made images and on the real ones."""

from __future__ import annotations

import math
import os

import pytest
import torch
from support.stacked import check_stacked, drawn, same, trained
from torch import nn
from torch.nn.functional import binary_cross_entropy_with_logits

from paretograd.bench.tasks.cifar10 import CIFAR10, CLASSES
from paretograd.errors import DataError
from paretograd.problems.cifar10 import load_cifar10

SMALL = CIFAR10(small=True)


@pytest.fixture(scope="module")
def made():
    return SMALL.made()


class Fixed(nn.Module):
    """Returns the logits that are hidden in the first pixels of an image."""

    def forward(self, pixels):
        return pixels[:, 0, 0, : len(CLASSES)].float().unbind(1)


def images(logits):
    pixels = torch.zeros(len(logits), 3, 32, 32, dtype=torch.uint8)
    pixels[:, 0, 0, : len(CLASSES)] = logits
    return pixels


def test_stacked_networks_have_the_losses_and_gradients_of_each(made):
    check_stacked(SMALL, made)


def test_sizes_of_the_networks():
    for task, size in ((SMALL, 5_166), (CIFAR10(), 77_850)):
        assert sum(param.numel() for param in task.network().parameters()) == size
    assert [len(task.metrics) for task in (SMALL, CIFAR10())] == [11, 11]


def test_losses_against_a_loop_over_the_classes():
    draw = torch.Generator().manual_seed(0)
    logits, labels = torch.randint(9, (40, 10), generator=draw), torch.randint(10, (40,), generator=draw)
    found = SMALL.losses(Fixed(), (images(logits), labels))
    for k, loss in enumerate(found):
        target = torch.tensor([float(label == k) for label in labels])
        assert float(loss) == pytest.approx(float(binary_cross_entropy_with_logits(logits[:, k].float(), target)))


def test_the_first_losses_are_the_entropy_of_the_shares(made):
    """Without features, the bias says one in ten."""
    network = SMALL.network().requires_grad_(False)
    for head in network.heads:
        nn.init.zeros_(head.weight)
    entropy = -(0.1 * math.log(0.1) + 0.9 * math.log(0.9))
    shares = [float((made.train[1] == k).float().mean()) for k in range(10)]
    for share, loss in zip(shares, SMALL.losses(network, made.train), strict=True):
        assert float(loss) == pytest.approx(entropy + (share - 0.1) * math.log(9.0), rel=1e-5)


def test_scores_of_known_logits():
    labels = torch.arange(10).repeat(3)
    right = 5 * torch.eye(10, dtype=torch.long)[labels]
    assert SMALL.scores(Fixed(), (images(right), labels)) == pytest.approx([100.0] * 11)
    assert SMALL.scores(Fixed(), (images(5 - right), labels)) == pytest.approx([0.0] * 11)
    chance = SMALL.scores(Fixed(), (images(0 * right), labels))  # all logits tie; argmax takes the first
    assert chance == pytest.approx([50.0] * 10 + [10.0])
    assert SMALL.quality([90.0] * 10 + [0.0]) > SMALL.quality([80.0] * 10 + [100.0])


def test_half_of_the_images_are_mirrored(made):
    pixels, labels = drawn(SMALL, made, nn.Identity(), 3)
    chosen = torch.randint(len(made.train[1]), (SMALL.batch_size,), generator=torch.Generator().manual_seed(3))
    original = made.train[0][chosen]
    assert torch.equal(labels, made.train[1][chosen])
    mirrored = [torch.equal(a, b.flip(-1)) and not torch.equal(a, b) for a, b in zip(pixels, original, strict=True)]
    kept = [torch.equal(a, b) for a, b in zip(pixels, original, strict=True)]
    assert all(a or b for a, b in zip(mirrored, kept, strict=True))
    assert 3 < sum(mirrored) < 13  # of 16; the seed is fixed


def test_made_images_can_be_learned(made):
    assert same(made, SMALL.made())
    assert made.train[0].dtype == torch.uint8
    assert made.train[0].shape[1:] == (3, 32, 32)
    assert SMALL.quality(SMALL.scores(trained(SMALL, made, 80, 1e-2), made.validation)) > 70.0


@pytest.fixture(scope="module")
def real():
    if not os.environ.get("PARETOGRAD_DATA"):
        pytest.skip("PARETOGRAD_DATA names no folder")
    try:
        return load_cifar10()
    except DataError as error:
        pytest.skip(str(error))


class TestRealData:
    def test_split(self, real):
        whole, data = real, CIFAR10().load()
        assert [len(labels) for _, labels in data] == [45_000, 5_000, 10_000]
        assert torch.equal(torch.cat((data.train[0], data.validation[0])), whole.train.pixels)
        assert torch.equal(torch.cat((data.train[1], data.validation[1])), whole.train.labels)
        assert all(torch.equal(a, b) for a, b in zip(data.test, whole.test, strict=True))
        assert 450 < int(data.validation[1].bincount().min()) <= int(data.validation[1].bincount().max()) < 550

    @pytest.mark.usefixtures("real")
    def test_small_variant(self):
        data = SMALL.load()
        assert [len(labels) for _, labels in data] == [5_000, 1_000, 1_000]
        scores = SMALL.scores(trained(SMALL, data, SMALL.steps, 3e-3), data.validation)
        assert SMALL.quality(scores) > 60.0  # chance is 50
