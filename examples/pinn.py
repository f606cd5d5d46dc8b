"""A physics-informed network for the heat equation, with three conflicting losses.

The network u(x, t) should satisfy u_t = a u_xx on [0, 1] x [0, 1], u = 0 at both ends, and u(x, 0) = sin(pi x). The
residual, the boundary condition and the initial condition give one loss each. ConFIG finds a direction that has the
same cosine with all three gradients. The exact solution is exp(-a pi^2 t) sin(pi x), so we can report the error.

The derivatives of u in the residual are computed with create_graph=True, as usual; `pg.backward` needs nothing else.

Run: python examples/pinn.py [--steps 1000] [--seed 0] [--device cpu]
"""

import argparse
import math

import torch
from torch import Tensor, nn

import paretograd as pg

DIFFUSIVITY = 0.1


def solution(x: Tensor, t: Tensor) -> Tensor:
    return torch.exp(-DIFFUSIVITY * math.pi**2 * t) * torch.sin(math.pi * x)


def derivative(u: Tensor, by: Tensor) -> Tensor:
    """Return du/dby at every point, itself differentiable."""
    return torch.autograd.grad(u.sum(), by, create_graph=True)[0]


def physics_losses(model: nn.Module, count: int, device: str) -> list[Tensor]:
    """Return the mean squares of the residual, boundary and initial errors at new random points."""
    x, t = (torch.rand(count, 1).to(device).requires_grad_() for _ in range(2))
    u = model(torch.cat([x, t], dim=1))
    residual = derivative(u, t) - DIFFUSIVITY * derivative(derivative(u, x), x)
    times = torch.rand(count, 1).to(device)
    ends = torch.randint(2, (count, 1)).to(times)
    boundary = model(torch.cat([ends, times], dim=1))
    places = torch.rand(count, 1).to(device)
    start = torch.zeros_like(places)
    initial = model(torch.cat([places, start], dim=1)) - solution(places, start)
    return [part.square().mean() for part in (residual, boundary, initial)]


def relative_error(model: nn.Module, device: str) -> float:
    """Return the relative L2 error."""
    grid = torch.linspace(0.0, 1.0, 51, device=device)
    x, t = (part.reshape(-1, 1) for part in torch.meshgrid(grid, grid, indexing="ij"))
    with torch.no_grad():
        wanted = solution(x, t)
        return ((model(torch.cat([x, t], dim=1)) - wanted).norm() / wanted.norm()).item()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--device", default="cpu")
    args = parser.parse_args()

    torch.manual_seed(args.seed)
    model = nn.Sequential(nn.Linear(2, 32), nn.Tanh(), nn.Linear(32, 32), nn.Tanh(), nn.Linear(32, 1)).to(args.device)
    parameters = list(model.parameters())
    optimizer = torch.optim.Adam(parameters, lr=5e-3)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, args.steps)
    rule = pg.ConFIG()
    before = relative_error(model, args.device)
    for _ in range(args.steps):
        optimizer.zero_grad()
        losses = physics_losses(model, 128, args.device)
        pg.backward(losses, rule, parameters)  # x and t are leaves too, but not parameters
        optimizer.step()
        schedule.step()
    names = ("residual", "boundary", "initial")
    print(", ".join(f"{name} {loss.item():.2e}" for name, loss in zip(names, losses, strict=True)))
    print(f"relative L2 error: {before:.4f} -> {relative_error(model, args.device):.4f}")


if __name__ == "__main__":
    main()
