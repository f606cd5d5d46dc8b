"""The task: synthetic digits, a small network with BatchNorm, and clients with different digits."""

from __future__ import annotations

import torch
from torch import Tensor, nn

#: Digits of a 5 by 7 font: seven rows of five bits.
FONT = (
    (14, 17, 19, 21, 25, 17, 14),
    (4, 12, 4, 4, 4, 4, 14),
    (14, 17, 1, 2, 4, 8, 31),
    (31, 2, 4, 2, 1, 17, 14),
    (2, 6, 10, 18, 31, 2, 2),
    (31, 16, 30, 1, 1, 17, 14),
    (6, 8, 16, 30, 17, 17, 14),
    (31, 1, 2, 4, 8, 8, 8),
    (14, 17, 17, 14, 17, 17, 14),
    (14, 17, 17, 15, 1, 2, 12),
)
SIDE, CLASSES, TRAIN, TEST = 8, 10, 320, 500


class Net(nn.Module):
    """Two convolutions with BatchNorm, whose running statistics the server averages."""

    def __init__(self) -> None:
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(1, 8, 3, padding=1, bias=False),
            nn.BatchNorm2d(8),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Conv2d(8, 16, 3, padding=1, bias=False),
            nn.BatchNorm2d(16),
            nn.ReLU(),
            nn.MaxPool2d(2),
        )
        self.head = nn.Linear(16 * (SIDE // 4) ** 2, CLASSES)

    def forward(self, images: Tensor) -> Tensor:
        return self.head(self.features(images).flatten(1))


def initial() -> Net:
    """Return a network with the same parameters in every process."""
    torch.manual_seed(0)
    return Net()


def draw(labels: Tensor, generator: torch.Generator) -> Tensor:
    """Return images of digits at random positions on a noisy background, ``(n, 1, SIDE, SIDE)``."""
    glyphs = torch.tensor([[[row >> (4 - bit) & 1 for bit in range(5)] for row in rows] for rows in FONT]).float()
    images = 0.3 * torch.randn(len(labels), 1, SIDE, SIDE, generator=generator)
    tops = torch.randint(SIDE - 7 + 1, (len(labels),), generator=generator).tolist()
    lefts = torch.randint(SIDE - 5 + 1, (len(labels),), generator=generator).tolist()
    for image, label, top, left in zip(images, labels.tolist(), tops, lefts, strict=True):
        image[0, top : top + 7, left : left + 5] += glyphs[label]
    return images


def client_data(client: int) -> tuple[Tensor, Tensor]:
    """Return a client's images and labels: half show three digits specific to the client, half all ten."""
    generator = torch.Generator().manual_seed(1000 + client)
    own = (client + torch.randint(3, (TRAIN // 2,), generator=generator) * 3) % 10
    common = torch.randint(10, (TRAIN // 2,), generator=generator)
    labels = torch.cat([own, common])
    return draw(labels, generator), labels


def held_out() -> tuple[Tensor, Tensor]:
    """Return held-out images and labels."""
    generator = torch.Generator().manual_seed(1)
    labels = torch.arange(TEST) % 10
    return draw(labels, generator), labels


def train(net: Net, images: Tensor, labels: Tensor, lr: float, seed: int) -> float:
    """Make one pass over the images and return the mean loss."""
    net.train()
    optimizer = torch.optim.SGD(net.parameters(), lr=lr, momentum=0.9)
    order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(seed))
    losses = []
    for batch in order.split(32):
        loss = nn.functional.cross_entropy(net(images[batch]), labels[batch])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(float(loss.detach()))
    return sum(losses) / len(losses)


@torch.no_grad()
def evaluate(net: Net, images: Tensor, labels: Tensor) -> tuple[float, float]:
    """Return the loss and accuracy."""
    net.eval()
    scores = net(images)
    return float(nn.functional.cross_entropy(scores, labels)), float((scores.argmax(1) == labels).float().mean())
