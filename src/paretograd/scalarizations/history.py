"""Weightings that are no gradient of a function of the losses: dynamic weight average, and random weights."""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor

from paretograd.aggregators.base import Description
from paretograd.checks import as_number, make_rng, whole_number
from paretograd.errors import InputError, ParameterError
from paretograd.guarantees import Guarantee
from paretograd.scalarizations.base import Weighting

#: Seeds are below this, so that processes can exchange them as float64.
_SEEDS = 2**52


class DWA(Weighting):
    r"""Dynamic weight average: losses that decrease more slowly get more weight.

    $$ \phi_k = m\, \mathrm{softmax}_k \frac{r}{T}, \qquad r_k = \frac{\bar f_k(t-1)}{\bar f_k(t-2)} $$

    Here $\bar f_k(t)$ is the mean of loss k over epoch t. Every step adds its losses to the mean of the present epoch,
    and `next_epoch` ends it. The weights are one in the first two epochs.

    Args:
        temperature: T, above 0. Large values make the weights equal.
    """

    name = "dwa"
    label = "DWA"
    description = Description(
        formula="phi = m softmax(r / T), r the ratios of the mean losses of the last two epochs",
        reference="Liu et al. 2019, arXiv:1803.10704",
        paper="-",
        when="Tasks that learn at different speeds. Needs whole epochs.",
    )
    _by_loss = ("_total", "_last", "_before")
    _total: Tensor
    _last: Tensor
    _before: Tensor
    _steps: Tensor
    _epochs: Tensor

    def __init__(self, temperature: float = 2.0) -> None:
        super().__init__()
        self._given_temperature = as_number(temperature, "temperature")
        if not 0.0 < self._given_temperature < math.inf:
            raise ParameterError(f"temperature={temperature!r}: a finite number above 0 is needed")
        for name in self._by_loss:
            self.register_buffer(name, torch.empty(0, dtype=torch.float64, device="cpu"))
        for name in ("_steps", "_epochs"):
            self.register_buffer(name, torch.zeros((), dtype=torch.int64, device="cpu"))

    @property
    def guarantee(self) -> Guarantee:
        """No theorem: the weights follow the history, and no F has them for its gradient."""
        return Guarantee(None, beyond_hull=True, continuous=True, note="Positive weights that sum to m.")

    def _phi(self, values: Tensor) -> Tensor:
        if self._epochs < 2:
            return torch.ones_like(values)
        ratios = self._entries("_last", values) / self._entries("_before", values)
        return len(values) * torch.softmax(ratios / self._given_temperature, 0)

    def _advance(self, values: Tensor) -> None:
        self._keep("_total", self._entries("_total", values) + values)
        self._steps += 1

    def _continue(self, values: Tensor) -> None:
        if self._steps:
            self.next_epoch()

    def next_epoch(self) -> None:
        """End an epoch. The next step begins another."""
        if not self._steps:
            raise ParameterError("DWA.next_epoch: there was no step since the last epoch; call it after an epoch")
        mean = self._total / self._steps
        bad = (~(torch.isfinite(mean) & (mean > 0.0))).nonzero().flatten().tolist()
        if bad:
            raise InputError(
                f"DWA needs losses whose mean over an epoch is above 0; got {mean[bad[0]].item():.6g} for objective "
                f"{', '.join(map(str, bad))}. Nothing was changed. Add a constant to that loss"
            )
        if self._epochs:
            self._keep("_before", self._last)
        self._keep("_last", mean)
        self._keep("_total", torch.zeros_like(mean))
        self._steps.zero_()
        self._epochs += 1


class RLW(Weighting):
    r"""Random loss weighting: random weights on the simplex, drawn anew for every step.

    $$ \phi = \mathrm{softmax}(\xi), \qquad \xi \sim \mathcal N(0, I) $$

    Args:
        seed: a whole number of at least 0; None draws one from torch's global generator. Processes that share a model
            use the seed of the first.
    """

    name = "rlw"
    label = "RLW"
    description = Description(
        formula="phi = softmax(xi),  xi ~ N(0, I)",
        reference="Lin et al. 2022, arXiv:2111.10603",
        paper="-",
        when="As a baseline: on average the mean, with more noise.",
    )
    _seed: Tensor
    _steps: Tensor

    def __init__(self, seed: int | None = None) -> None:
        super().__init__()
        self._given_seed = seed
        number = int(make_rng(None, None).integers(_SEEDS)) if seed is None else whole_number("RLW", "seed", seed, 0)
        if number >= _SEEDS:
            raise ParameterError(f"RLW: seed={seed} is too large; the largest is {_SEEDS - 1}")
        self.register_buffer("_seed", torch.tensor(number, dtype=torch.int64, device="cpu"))
        self.register_buffer("_steps", torch.zeros((), dtype=torch.int64, device="cpu"))

    @property
    def guarantee(self) -> Guarantee:
        """No theorem: random weights have no fixed point unless every gradient vanishes."""
        note = "No fixed point: no guarantee is possible."
        return Guarantee(None, in_hull=True, equivariant=False, continuous=True, note=note)

    def _phi(self, values: Tensor) -> Tensor:
        # A function of seed and step, so that a step that fails draws nothing.
        normals = np.random.default_rng([int(self._seed), int(self._steps)]).standard_normal(len(values))
        return torch.softmax(torch.from_numpy(normals), 0).to(values)

    def _advance(self, values: Tensor) -> None:
        self._steps += 1
