"""Pairs of images: how they are built and divided, and that both can be learned at once."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from support.stacked import check_stacked, same, trained
from torch import nn

from paretograd.bench.tasks.multi_mnist import Convolution, MultiFashionMNIST, MultiMNIST, pairs
from paretograd.problems.mnist import Images
from paretograd.problems.sources import VARIABLE

TASKS = (MultiMNIST, MultiFashionMNIST)
every_task = pytest.mark.parametrize("kind", TASKS, ids=[kind.name for kind in TASKS])


class Fixed(nn.Module):
    """Answers with the two classes that are hidden in the first two pixels."""

    def forward(self, pixels):
        return nn.functional.one_hot(pixels[:, 0, :2].long(), 10).float().unbind(1)


@every_task
def test_stacked_networks_have_the_losses_and_gradients_of_each(kind):
    task = kind(small=True)
    check_stacked(task, task.made())


@every_task
def test_sizes_of_the_networks(kind):
    sizes = [sum(param.numel() for param in kind(small=small).network().parameters()) for small in (False, True)]
    assert sizes == [27_450, 4_752]


def test_a_convolution_is_a_product():
    layer, x = Convolution(3, 4, 5).double(), torch.randn(2, 3, 12, 11, dtype=torch.float64)
    torch.testing.assert_close(layer.product(x), layer(x), rtol=1e-13, atol=1e-13)


@every_task
def test_something_is_learned_from_made_data(kind):
    """Chance is 10 %; the better of two networks has the higher quality."""
    task = kind(small=True)
    data = task.made()
    scores = {}
    for steps in (0, 60):
        scores[steps] = task.scores(trained(task, data, steps, 1e-2), data.validation)
    assert min(scores[60]) > 30.0 > max(scores[0])
    assert task.quality(scores[60]) > task.quality(scores[0])
    assert task.quality([80.0, 50.0]) == 65.0


def test_made_data_have_the_form_of_pairs_and_are_the_same_every_time():
    data = MultiMNIST(small=True).made()
    for (pixels, labels), count in zip(data, (600, 200, 200), strict=True):
        assert (pixels.shape, pixels.dtype) == ((count, 28, 28), torch.uint8)
        assert (labels.shape, labels.dtype) == ((count, 2), torch.int64)
    assert same(data, MultiMNIST(small=True).made())
    assert same(data, MultiMNIST().made())


def test_scores_are_the_shares_of_right_answers():
    pixels = torch.zeros(5, 28, 28, dtype=torch.uint8)
    pixels[:, 0, :2] = torch.tensor([[1, 2], [3, 4], [5, 6], [7, 8], [9, 0]])
    labels = torch.tensor([[1, 2], [3, 0], [5, 0], [0, 8], [9, 1]])
    assert MultiMNIST().scores(Fixed(), (pixels, labels)) == [80.0, 40.0]


class TestPairs:
    def test_the_canvas_by_loops(self):
        """One pixel at a time, as in the published code, which scales with Pillow."""
        draw = torch.Generator().manual_seed(0)
        images = Images(torch.randint(256, (6, 28, 28), generator=draw, dtype=torch.uint8), torch.arange(6))
        pixels, labels = pairs(images, 8, np.random.default_rng(3))
        assert labels[:, 0].tolist() == [0, 1, 2, 3, 4, 5, 0, 1]
        for found, (first, second) in zip(pixels, labels.tolist(), strict=True):
            canvas = np.zeros((36, 36), dtype=np.uint8)
            for row in range(28):
                for column in range(28):
                    canvas[row, column] = max(canvas[row, column], images.pixels[first, row, column])
            for row in range(28):
                for column in range(28):
                    canvas[row + 6, column + 6] = max(canvas[row + 6, column + 6], images.pixels[second, row, column])
            scaled = Image.fromarray(canvas).resize((28, 28), Image.Resampling.NEAREST)
            assert np.array_equal(found.numpy(), np.asarray(scaled))

    def test_the_second_is_drawn_from_all(self):
        images = Images(torch.zeros(5, 28, 28, dtype=torch.uint8), torch.arange(5))
        _, labels = pairs(images, 200, np.random.default_rng(0))
        assert labels[:, 1].unique().tolist() == [0, 1, 2, 3, 4]


def has(folder: str) -> bool:
    """Return True if the folder of data sets has the named one."""
    return (Path(os.environ.get(VARIABLE, "/nowhere")) / folder).is_dir()


@pytest.mark.parametrize(
    "kind",
    [
        pytest.param(kind, marks=pytest.mark.skipif(not has(name), reason=f"{VARIABLE} has no folder {name}"))
        for kind, name in zip(TASKS, ("mnist", "fashion"), strict=True)
    ],
)
def test_the_real_images(kind):
    """Sizes, classes, and no image that serves for two purposes."""
    task = kind()
    parts = task.images(None)
    assert [len(part.labels) for part in parts] == [50_000, 10_000, 10_000]
    seen = [{image.tobytes() for image in part.pixels.numpy()} for part in parts]
    assert not seen[1] & seen[0]
    assert not seen[2] & (seen[0] | seen[1])
    for part in parts:
        counts = part.labels.bincount()
        assert len(counts) == 10
        # The rarest digit, five, has 9 %; a class of 10,000 rows deviates by 0.3 % of them.
        assert counts.min() > 0.08 * len(part.labels)
    mean, deviation = task.brightness
    scaled = parts[0].pixels.double() / 255.0
    # The published values are those of the publisher's training images, with four digits; 50,000 others deviate.
    assert float(scaled.mean()) == pytest.approx(mean, abs=1e-3)
    assert float(scaled.std()) == pytest.approx(deviation, abs=1e-3)
    small = kind(small=True)
    data = small.load()
    assert [len(part[0]) for part in data] == [4_000, 1_000, 1_000]
    assert same(data, small.load())
