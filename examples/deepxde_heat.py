"""DeepXDE: a physics-informed network for the heat equation, whose losses are objectives of a rule.

`MultiObjectiveModel` replaces `deepxde.Model`. Geometry, equations, conditions, callbacks and metrics stay DeepXDE's.
The temperature satisfies u_t = a u_xx, u = 0 at both ends, and u(x, 0) = sin(pi x).

Run: pip install 'paretograd[deepxde]'; python examples/deepxde_heat.py [--steps 1000] [--seed 0]
"""

import argparse
import os

os.environ.setdefault("DDE_BACKEND", "pytorch")  # before deepxde is imported

import deepxde as dde
import numpy as np

import paretograd as pg
from paretograd.integrations.deepxde import MultiObjectiveModel

DIFFUSIVITY = 0.1


def equation(x, u):
    return dde.grad.jacobian(u, x, i=0, j=1) - DIFFUSIVITY * dde.grad.hessian(u, x, i=0, j=0)


def start(x):
    return np.sin(np.pi * x[:, :1])


def solution(x):
    return np.exp(-DIFFUSIVITY * np.pi**2 * x[:, 1:]) * start(x)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    dde.config.set_random_seed(args.seed)
    place = dde.geometry.GeometryXTime(dde.geometry.Interval(0, 1), dde.geometry.TimeDomain(0, 1))
    conditions = [
        dde.icbc.DirichletBC(place, lambda x: 0, lambda _, on_boundary: on_boundary),
        dde.icbc.IC(place, start, lambda _, on_initial: on_initial),
    ]
    counts = {"num_domain": 200, "num_boundary": 40, "num_initial": 40, "num_test": 400}
    data = dde.data.TimePDE(place, equation, conditions, solution=solution, **counts)
    model = MultiObjectiveModel(data, dde.nn.FNN([2, 32, 32, 1], "tanh", "Glorot uniform"))
    names = ["equation", "boundary", "start"]
    model.compile("adam", lr=5e-3, metrics=["l2 relative error"], rule=pg.ConFIG(), names=names, verbose=0)
    history, _ = model.train(iterations=args.steps, display_every=args.steps, verbose=0)
    print(", ".join(f"{name} {loss:.2e}" for name, loss in zip(names, history.loss_test[-1], strict=True)))
    print(f"relative error: {history.metrics_test[0][0]:.4f} -> {history.metrics_test[-1][0]:.4f}")
    print(", ".join(f"{key}={value:.3g}" for key, value in model.step.metrics().items()))


if __name__ == "__main__":
    main()
