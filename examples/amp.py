"""Mixed precision: bfloat16 or float16 autocast, with a GradScaler for float16.

Compute the losses under autocast and call `pg.backward` outside it, like `backward`. Gradients have the dtype of the
parameters; their products are computed in float32 and summed in float64, and the weights are computed in float64.
float16 needs a scaler, which requires two changes to the usual loop:

- Scale each loss instead of their sum. The rule must have degree one (`rule.guarantee.degree`), as most do: then the
  direction scales with the losses, and unscaling restores it.
- Pass nonfinite="propagate". If a scaled gradient overflows, `pg.backward` would otherwise raise an error and leave
  `.grad` unchanged. With this option the scaler sees the infinity, skips the step and lowers the scale.

Run: python examples/amp.py [--steps 200] [--seed 0] [--device cpu] [--dtype bfloat16|float16]
"""

import argparse

import torch
from torch import Tensor, nn
from torch.nn import functional

import paretograd as pg


def task_losses(model: nn.Module, x: Tensor, y: Tensor) -> list[Tensor]:
    """Return the mean squared error of each output, in float32."""
    return list(functional.mse_loss(model(x).float(), y, reduction="none").mean(dim=0).unbind())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--dtype", choices=("bfloat16", "float16"), default="bfloat16")
    parser.add_argument("--scale", type=float, default=2.0**16, help="initial scale of the losses, for float16")
    args = parser.parse_args()

    torch.manual_seed(args.seed)
    x = torch.randn(1024, 16)
    y = torch.stack([x[:, 0].sin(), x[:, 1] * x[:, 2], x[:, :4].mean(dim=1)], dim=1)
    x, y = x.to(args.device), y.to(args.device)
    hidden = (nn.Linear(16, 128), nn.LayerNorm(128), nn.GELU(), nn.Linear(128, 128), nn.LayerNorm(128), nn.GELU())
    model = nn.Sequential(*hidden, nn.Linear(128, 3)).to(args.device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    scaler = torch.amp.GradScaler(args.device, init_scale=args.scale, enabled=args.dtype == "float16")
    nonfinite = "propagate" if scaler.is_enabled() else "raise"  # bfloat16 has the range of float32
    rule, dtype, skipped = pg.UPGrad(), getattr(torch, args.dtype), 0

    before = task_losses(model, x, y)
    for _ in range(args.steps):
        optimizer.zero_grad()
        rows = torch.randint(len(x), (128,)).to(args.device)
        with torch.autocast(args.device, dtype=dtype):
            losses = task_losses(model, x[rows], y[rows])
        pg.backward([scaler.scale(loss) for loss in losses], rule, nonfinite=nonfinite)
        scale = scaler.get_scale()
        scaler.step(optimizer)  # unscales first; an ordinary step if the scaler is disabled
        scaler.update()
        skipped += scaler.get_scale() < scale
    after = task_losses(model, x, y)

    print(f"{args.dtype} on {args.device}, {skipped} of {args.steps} steps skipped")
    for k, (old, new) in enumerate(zip(before, after, strict=True)):
        print(f"task {k}: loss {old.item():.4f} -> {new.item():.4f}")


if __name__ == "__main__":
    main()
