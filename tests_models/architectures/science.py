"""Networks on graphs and molecules, and physics-informed networks, whose losses hold derivatives by the inputs."""

from __future__ import annotations

import torch
from support.models import Losses, Problem, all_params
from torch import Tensor, nn
from torch.nn import functional
from torch_geometric.nn import GAT, GCN, SchNet

from .table import architecture


def on_graph(net: nn.Module) -> Problem:
    """Return three tasks of a network with five outputs: classes of nodes, a value of each, and links."""
    x, edges, labels = torch.randn(8, 4), torch.randint(8, (2, 20)), torch.randint(3, (8,))

    def losses() -> Losses:
        out = net(x, edges)
        code = out[:, 3:]
        linked = (code[edges[0]] * code[edges[1]]).sum(dim=1)
        return {
            "class": functional.cross_entropy(out[:, :3], labels),
            "value": functional.mse_loss(out[:, 3], x.sum(dim=1)),
            "link": functional.softplus(-linked).mean(),
        }

    return Problem(all_params(net), losses)


@architecture
def gcn() -> Problem:
    """Messages are gathered from the edges and scattered to the nodes."""
    return on_graph(GCN(4, 8, 2, 5))


@architecture
def gat() -> Problem:
    """The same with attention: a softmax over the edges of each node."""
    return on_graph(GAT(4, 8, 2, 5, heads=2))


@architecture
def schnet_with_forces() -> Problem:
    """Energy, forces and virial of two molecules: forces are derivatives by the positions, which are no parameters."""
    places, kinds, molecule = torch.randn(6, 3), torch.randint(1, 9, (6,)), torch.tensor([0, 0, 0, 1, 1, 1])
    pairs = torch.tensor([(i, j) for i in range(6) for j in range(6) if i != j and i // 3 == j // 3]).T

    def near(position: Tensor, _: Tensor) -> tuple[Tensor, Tensor]:
        return pairs, (position[pairs[0]] - position[pairs[1]]).norm(dim=1)

    net = SchNet(hidden_channels=8, num_filters=8, num_interactions=2, num_gaussians=6, interaction_graph=near)
    energies, forces = torch.randn(2, 1), torch.randn(6, 3)

    def losses() -> Losses:
        position = places.clone().requires_grad_()
        energy = net(kinds, position, molecule)
        (slope,) = torch.autograd.grad(energy.sum(), position, create_graph=True)
        return {
            "energy": functional.mse_loss(energy, energies),
            "forces": functional.mse_loss(-slope, forces),
            "virial": (slope * places).sum().square(),
        }

    return Problem(all_params(net), losses)


@architecture
def physics_informed() -> Problem:
    """Burgers' equation, u_t + u u_x = 0.1 u_xx + 1: its residual, the initial values, and the boundary."""
    net = nn.Sequential(nn.Linear(2, 8), nn.Tanh(), nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 1))
    inside, start = torch.rand(12, 2), torch.stack([torch.linspace(-1.0, 1.0, 6), torch.zeros(6)], dim=1)
    edge = torch.stack([torch.tensor([-1.0, 1.0, -1.0, 1.0]), torch.rand(4)], dim=1)
    points = inside.requires_grad_()

    def losses() -> Losses:
        u = net(points)
        u_x, u_t = torch.autograd.grad(u.sum(), points, create_graph=True)[0].T
        u_xx = torch.autograd.grad(u_x.sum(), points, create_graph=True)[0][:, 0]
        return {
            "residual": (u_t + u[:, 0] * u_x - 0.1 * u_xx - 1.0).square().mean(),
            "start": (net(start)[:, 0] + (torch.pi * start[:, 0]).sin()).square().mean(),
            "boundary": net(edge).square().mean(),
        }

    return Problem(all_params(net), losses)
