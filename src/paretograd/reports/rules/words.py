"""Counter-examples in words, for the command and the page."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from fractions import Fraction

from torch import Tensor

from paretograd.reports.rules.counterexamples import (
    NEAR,
    VANISHING,
    Case,
    Counterexample,
    Matrix,
    Moment,
    constants,
    scaling,
)

#: Numbers this close to a fraction with a small denominator are shown as the fraction. Rounding is below.
_SAME = 1e-9
_DENOMINATOR = 99


def sentence(example: Counterexample) -> str:
    """Return the counter-example with the numbers that violate the property, in one line."""
    return _SENTENCES[example.refutes](example)


def number(value: float) -> str:
    """Return a fraction if the value is one, otherwise three digits."""
    near = Fraction(value).limit_denominator(_DENOMINATOR)
    return str(near) if abs(near - value) < _SAME else f"{value:.3g}"


def vector(values: Tensor | Iterable[float]) -> str:
    """Return ``(1, 1/2, 0)``."""
    return f"({', '.join(number(float(value)) for value in values)})"


def matrix(rows: Matrix) -> str:
    """Return ``[1 0; -1 1]``, a row for each gradient."""
    return f"[{'; '.join(' '.join(map(str, row)) for row in rows)}]"


def _seen(case: Case) -> str:
    """Return what the rule sees: the steps before, J and E, and the number of the call if it matters."""
    before = f"after {', then '.join(map(_numbers, case.earlier))}: " if case.earlier else ""
    call = f" (call {case.after + 1})" if case.after else ""
    return f"{before}{_numbers(case, case.step, case.losses_step)}{call}"


def _numbers(moment: Moment, step: Matrix | None = None, losses_step: tuple[int, ...] = ()) -> str:
    last = f"{matrix(moment.jacobian)}{'' if step is None else f' + t {matrix(step)}'}"
    if moment.batches:
        given = [*(matrix(J) for J in moment.batches), last]
        parts = [f"J{k} = {text}" for k, text in enumerate(given, start=4 - len(given))]
    else:
        parts = [f"J = {last}"]
    if moment.losses or losses_step:
        losses = vector(moment.losses or (1,) * len(moment.jacobian))
        parts.append(f"f = {losses}{f' + t {vector(losses_step)}' if losses_step else ''}")
    if moment.learned:
        parts.append(f"s = {vector(moment.learned)}")
    return ", ".join(parts)


def _found(example: Counterexample) -> tuple[str, Tensor, Tensor]:
    """Return what the rule sees, J and d."""
    case = example.cases[0]
    return _seen(case), case.at(), example.direction()


def _separated(example: Counterexample) -> str:
    seen, J, d = _found(example)
    z = J.new_tensor(example.z)
    return f"{seen}, d = {vector(d)}, z = {vector(z)}: <d, z> = {number(float(d @ z))}, J z = {vector(J @ z)}"


def _long(example: Counterexample) -> str:
    seen, J, d = _found(example)
    z = J.new_tensor(example.z)
    bound = float((J @ z).min() / z.norm())
    return (
        f"{seen}, d = {vector(d)}, z = {vector(z)}: |d| = {number(float(d.norm()))}, gamma is at least "
        f"min_k <g_k, z> / |z| = {number(bound)}"
    )


def _non_conflicting(example: Counterexample) -> str:
    seen, J, d = _found(example)
    return f"{seen}, d = {vector(d)}: J d = {vector(J @ d)}"


def _aligned(example: Counterexample) -> str:
    if example.cases[0].step is not None:
        left = ", ".join(f"{float(constants(example, t).max()):.1e}" for t in VANISHING)
        return f"{_seen(example.cases[0])}: max_k <d, g_k> / |d|^2 = {left} for t = 2^-6, 2^-12, 2^-18"
    return "; ".join(_summand(example, case) for case in example.cases)


def _summand(example: Counterexample, case: Case) -> str:
    times = f"{case.multiplier} x " if case.multiplier > 1 else ""
    rule = f" ({case.rule})" if case.rule is not None else ""
    return f"{times}{_seen(case)}{rule}: J d = {vector(case.at() @ case.direction(example.rule))}"


def _degree(example: Counterexample) -> str:
    seen, _, d = _found(example)
    t = f"2^{example.exponent}" if example.exponent < 0 else str(2**example.exponent)
    scaled = vector(example.direction(change=scaling(example.exponent)))
    return f"{seen}, d = {vector(d)}; with all losses times {t}, d = {scaled}"


def _equivariant(example: Counterexample) -> str:
    seen, _, d = _found(example)
    order = ", ".join(str(k) for k in example.order)
    permuted = vector(example.direction(change=lambda step: step.ordered(example.order)))
    return f"{seen}, d = {vector(d)}; with the rows in the order {order}, d = {permuted}"


def _scale_invariant(example: Counterexample) -> str:
    seen, J, d = _found(example)
    factors = J.new_tensor(example.factors)
    scaled = vector(example.direction(change=lambda step: step.times(factors)))
    return f"{seen}, d = {vector(d)}; with the rows times {vector(example.factors)}, d = {scaled}"


def _continuous(example: Counterexample) -> str:
    seen, _, d = _found(example)
    if example.between:
        after = vector(round(value, 3) for value in example.direction(1.0).tolist())
        return f"{seen}: d = {vector(d)} for t = 0, about {after} for t = 1, with a jump between"
    near = vector(round(value, 3) for value in example.direction(NEAR[-1]).tolist())
    return f"{seen}: d = {vector(d)} for t = 0, about {near} for t = 2^-16"


_SENTENCES: dict[str, Callable[[Counterexample], str]] = {
    "in_cone": _separated,
    "in_hull": _separated,
    "long": _long,
    "non_conflicting": _non_conflicting,
    "aligned": _aligned,
    "degree": _degree,
    "equivariant": _equivariant,
    "scale_invariant": _scale_invariant,
    "continuous": _continuous,
    "continuous_inside": _continuous,
}
