"""Small models in float64 with three losses or more, one for every way in which a parameter meets a graph.

Each entry of `MODELS` builds, from a fixed seed, a `Problem`: the parameters to fill and a function that computes the
losses afresh. Together they cover the layers with a rule, layers without, and every shape of sharing.
"""

from . import bare, dense, layers  # each adds its models to `MODELS`
from .dense import mlp, task_heads
from .problem import MODELS, Losses, Problem, all_params, three

__all__ = ["MODELS", "Losses", "Problem", "all_params", "bare", "dense", "layers", "mlp", "task_heads", "three"]
