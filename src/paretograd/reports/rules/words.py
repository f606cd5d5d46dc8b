"""Counter-examples in words, for the command and the page."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from fractions import Fraction

from torch import Tensor

from paretograd.reports.rules.counterexamples import NEAR, VANISHING, Case, Counterexample, Matrix, constants

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


def _jacobian(example: Counterexample) -> str:
    """Return J, with E and the number of the call if there are any."""
    case = example.cases[0]
    step = f" + t {matrix(case.step)}" if case.step is not None else ""
    call = f" (call {case.after + 1})" if case.after else ""
    return f"J = {matrix(case.jacobian)}{step}{call}"


def _found(example: Counterexample) -> tuple[Tensor, Tensor]:
    J = example.cases[0].at()
    return J, example.direction(J)


def _separated(example: Counterexample) -> str:
    J, d = _found(example)
    z = J.new_tensor(example.z)
    return (
        f"{_jacobian(example)}, d = {vector(d)}, z = {vector(z)}: <d, z> = {number(float(d @ z))}, "
        f"J z = {vector(J @ z)}"
    )


def _long(example: Counterexample) -> str:
    J, d = _found(example)
    z = J.new_tensor(example.z)
    bound = float((J @ z).min() / z.norm())
    return (
        f"{_jacobian(example)}, d = {vector(d)}, z = {vector(z)}: |d| = {number(float(d.norm()))}, gamma is at least "
        f"min_k <g_k, z> / |z| = {number(bound)}"
    )


def _non_conflicting(example: Counterexample) -> str:
    J, d = _found(example)
    return f"{_jacobian(example)}, d = {vector(d)}: J d = {vector(J @ d)}"


def _aligned(example: Counterexample) -> str:
    if example.cases[0].step is not None:
        left = ", ".join(
            f"{float(constants(J, example.direction(J)).max()):.1e}" for J in map(example.cases[0].at, VANISHING)
        )
        return f"{_jacobian(example)}: max_k <d, g_k> / |d|^2 = {left} for t = 2^-6, 2^-12, 2^-18"
    return "; ".join(_summand(example, case) for case in example.cases)


def _summand(example: Counterexample, case: Case) -> str:
    J = case.at()
    times = f"{case.multiplier} x " if case.multiplier > 1 else ""
    rule = f" ({case.rule})" if case.rule is not None else ""
    return f"{times}J = {matrix(case.jacobian)}{rule}: J d = {vector(J @ case.direction(example.rule, J))}"


def _degree(example: Counterexample) -> str:
    J, d = _found(example)
    return f"{_jacobian(example)}, A(J) = {vector(d)}, A(2 J) = {vector(example.direction(2.0 * J))}"


def _equivariant(example: Counterexample) -> str:
    J, d = _found(example)
    order = ", ".join(str(k) for k in example.order)
    permuted = vector(example.direction(J[list(example.order)]))
    return f"{_jacobian(example)}, d = {vector(d)}; with the rows in the order {order}, d = {permuted}"


def _scale_invariant(example: Counterexample) -> str:
    J, d = _found(example)
    scaled = vector(example.direction(J.new_tensor(example.factors)[:, None] * J))
    return f"{_jacobian(example)}, d = {vector(d)}; with the rows times {vector(example.factors)}, d = {scaled}"


def _continuous(example: Counterexample) -> str:
    _, d = _found(example)
    t = NEAR[-1]
    near = vector(round(value, 3) for value in example.direction(example.cases[0].at(t)).tolist())
    return f"{_jacobian(example)}: d = {vector(d)} for t = 0, about {near} for t = 2^-16"


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
