"""The properties in the table of rules: what each says, and where a guarantee claims it.

All of them are statements about one direction ``d = A(J)``, for every number m of objectives that the rule takes, every
Jacobian J with m rows, all values of the losses, and every state to which earlier steps can lead. Random numbers are
fixed: a rule that draws has a property if it holds for every draw.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from paretograd.guarantees import STEP, Guarantee


@dataclass(frozen=True)
class Property:
    """A column of the table.

    Attributes:
        key: its name in `TableRow.answers` and in the file of counter-examples.
        heading: the column's heading.
        letter: its heading in a narrow terminal.
        statement: what holds if the answer is "yes".
        refuted: what a counter-example consists of.
        claim: returns what a guarantee claims: a detail to print, such as the degree, an empty text, or None for no
            claim.
    """

    key: str
    heading: str
    letter: str
    statement: str
    refuted: str
    claim: Callable[[Guarantee], str | None]


def _flag(*names: str) -> Callable[[Guarantee], str | None]:
    """Return the claim of a property for which one of these flags of the guarantee suffices."""
    return lambda guarantee: "" if any(getattr(guarantee, name) for name in names) else None


def _degree(guarantee: Guarantee) -> str | None:
    return None if guarantee.degree is None else f"{guarantee.degree:.3g}"


def _aligned(guarantee: Guarantee) -> str | None:
    if guarantee.alignment is None:
        return None
    return f"c = {guarantee.alignment:.3g}, F = {'F(f)' if guarantee.F == STEP else guarantee.F}"


PROPERTIES: dict[str, Property] = {
    found.key: found
    for found in (
        Property(
            "in_cone",
            "in the cone",
            "C",
            "d = J'w for some w >= 0",
            "a vector z with J z >= 0 and <d, z> < 0, which separates d from the cone (Farkas)",
            _flag("in_cone"),
        ),
        Property(
            "in_hull",
            "in the hull",
            "H",
            "d = J'w for some w >= 0 that sums to 1",
            "a vector z with <d, z> < <g_k, z> for every k, which separates d from the hull",
            _flag("in_hull"),
        ),
        Property(
            "non_conflicting",
            "non-conflicting",
            "N",
            "<d, g_k> >= 0 for every k",
            "a Jacobian with <d, g_k> < 0 for some k",
            _flag("non_conflicting"),
        ),
        Property(
            "long",
            "|d| >= gamma",
            "L",
            "|d| >= gamma, the distance of the hull from 0",
            "a vector z with |d| |z| < <g_k, z> for every k, so that |d| < gamma",
            _flag("beyond_hull", "long"),
        ),
        Property(
            "aligned",
            "condition (A)",
            "A",
            "<d, grad F> >= c |d|^2 for one c > 0 and, for each m, one F = sum_k phi_k f_k with phi >= 0, or the "
            "rule's own F(f)",
            "Jacobians J_i for the same losses, not all of which have <d_i, grad F> > 0, whatever F: multipliers "
            "y_i > 0 with sum_i y_i <d_i, g_ik> < 0 for every k (Farkas). Or Jacobians J(t) with "
            "max_k <d, g_k> / |d|^2, which no c for weights phi that sum to 1 exceeds, going to 0 with t",
            _aligned,
        ),
        Property(
            "degree",
            "degree",
            "D",
            "multiplying all losses by t > 0, from the first step on, multiplies d by t^degree",
            "a Jacobian for which A(J), A(t J) and A(t^2 J) are no such powers",
            _degree,
        ),
        Property(
            "equivariant",
            "equivariant",
            "E",
            "permuting the objectives, from the first step on, does not change d",
            "a Jacobian and an order of its rows",
            _flag("equivariant"),
        ),
        Property(
            "scale_invariant",
            "scale-invariant",
            "S",
            "multiplying each loss by a positive factor of its own, from the first step on, changes at most the length "
            "of d",
            "a Jacobian and factors of its rows",
            _flag("scale_invariant"),
        ),
        Property(
            "continuous",
            "continuous",
            "K",
            "d is a continuous function of J, and of the losses of the step, everywhere",
            "a Jacobian J and a step E: A(J + t E) stays away from A(J) as t goes to 0",
            _flag("continuous"),
        ),
        Property(
            "continuous_inside",
            "continuous if gamma > 0",
            "G",
            "d is continuous at every J with gamma > 0, that is, away from Pareto stationary points",
            "the same, and a vector z with J z > 0, which proves gamma > 0",
            _flag("continuous_inside"),
        ),
    )
}
