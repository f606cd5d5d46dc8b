"""Mixed aggregator scheduling: another rule of a pool at each step (alg. mixed_aggr_scheduling)."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import replace
from typing import Any, TypeVar

from torch import Tensor

from paretograd.aggregators.base import Aggregator, Description
from paretograd.aggregators.dual_cone import UPGrad
from paretograd.aggregators.named import MGDA, DualProj
from paretograd.aggregators.power import NashMTL
from paretograd.errors import ParameterError
from paretograd.geometry.gramian import Array
from paretograd.guarantees import DYNAMIC_STEP, MEAN, SUM, Guarantee
from paretograd.schedules import Random, RoundRobin, Schedule, as_schedule
from paretograd.solution import Outcome, Solution

Answer = TypeVar("Answer")


class Mixed(Aggregator):
    r"""A pool of rules, one of which acts at each step, as a schedule says (alg. mixed_aggr_scheduling).

    $$ d_t = A_{j(t)}(J_t), \qquad j(t) \text{ from the schedule} $$

    The rules have different strengths: MGDA may stall where UPGrad goes on, Nash-MTL does not mind scales. A
    property that all of them promise, every step has, so that convergence is guaranteed as for one of them.

    A call is a step: a batch of Gramians given to `solve` or `weights` is one step, in which the same member acts on
    all of the batch, and so is a call of `backward`, whatever its groups of parameters; `one_step` joins several
    calls of yours. A call that fails is none. `position` counts the steps, and is kept in `state_dict`.

    Args:
        pool: the rules.
        schedule: `RoundRobin(n)`, `Random(seed)`, `Sequence([0, 0, 1])`, or a function from the number of the step,
            counted from 0, to a position in the pool; None lets the rules take turns at each step.
    """

    name = "mixed"
    label = "Mixed"
    description = Description(
        formula="d_t = A_j(J_t),  j from a schedule",
        reference="Hu, Ho and Yu 2026 (the paper)",
        paper="alg. mixed_aggr_scheduling; Theorem 2",
        when="No single rule serves the whole run: mix their strengths, or take it as a typical rule to compare with.",
    )

    def __init__(self, pool: Iterable[Aggregator], schedule: Schedule | Callable[[int], int] | None = None) -> None:
        try:
            self.pool = tuple(pool)
        except TypeError:
            self.pool = ()
        if not self.pool or not all(isinstance(rule, Aggregator) for rule in self.pool):
            raise ParameterError(f"Mixed takes a list of aggregators, such as [MGDA(), UPGrad()]; got {pool!r}")
        self.schedule = RoundRobin() if schedule is None else as_schedule(schedule)
        self.schedule.check(len(self.pool))
        self._position = 0
        self._open: ExitStack | None = None  # a step under way; the rest is about it
        self._acting: Aggregator | None = None
        self._answered = False
        self.name, self.label = _names(self.pool, self.schedule)  # type: ignore[misc]
        members = ", ".join(rule.label for rule in self.pool)
        formula = f"d_t = A_j(J_t),  A_j one of {members}, as the schedule {self.schedule.label} says"
        self.description = replace(type(self).description, formula=formula)  # type: ignore[misc]

    @property
    def position(self) -> int:
        """How many steps were taken, which is the number of the next one."""
        return self._position

    def member(self, step: int | None = None) -> Aggregator:
        """The rule that acts at a step; at the next one if None."""
        return self.pool[self.schedule.index(self._position if step is None else step, len(self.pool))]

    @property
    def guarantee(self) -> Guarantee:
        r"""What all members promise, with the smallest constant.

        At step t one member acts, so that whatever all of them promise of every Jacobian (no conflict, a place in the
        cone, in the hull or beyond it, a degree, equivariance) holds at every step, whoever chooses. The theorems are
        about a run, and need one F for all its steps. There are four cases.

        1. All are non-conflicting and in the hull: Theorem 2 asks for nothing else at a step, and its F, the sum, is
           the same at all of them; c = 1. If all satisfy (A) for the mean, F is the mean, which is stronger.
        2. All satisfy (A) for one F: so does the run, with the least of their c. If some do for the mean and others for
           the sum, F is the sum: $\langle d, \nabla \sum_k f_k \rangle
           = m \langle d, \nabla \frac1m \sum_k f_k \rangle \ge m c \|d\|^2 \ge c \|d\|^2$. The converse would
           cost a factor m. In (A) the least c serves all, as $\|d\|^2 \ge 0$. Then Corollary 1 holds, with the step
           c / L for the L of this F, if all are beyond the hull.
        3. Else Theorem 1 with F the sum, which asks for $\langle d_t, \nabla F \rangle \ge c_t \Gamma_t \|d_t\|$
           with a $\Gamma_t \ge \gamma$ of our choice at each step: $\|d\|$ where a member satisfies (A) and is
           beyond the hull, and $\|d\| / \|w\|_1$ with c = 1 where it is non-conflicting with $w \ge 0$, as
           $\sum_k \langle d, g_k \rangle \ge \sum_k \frac{w_k}{\|w\|_1} \langle d, g_k \rangle
           = \|d\|^2 / \|w\|_1$. The bound holds with the least c_t, but the theorem's step,
           $c_t \Gamma_t / (L \|d_t\|)$, depends on the member that acts; the note tells it. A member whose own promise
           is Theorem 1 on a condition brings that condition along.
        4. A member that no theorem covers, or whose F is another one, leaves the pool uncovered: a schedule may choose
           it for ever. The note names it.
        """
        return _pool_guarantee(self.pool, [rule.guarantee for rule in self.pool])

    def _starred_guarantee(self) -> Guarantee:
        """Normalizing what a member answers is normalizing the member."""
        return _pool_guarantee(self.pool, [rule.normalized().guarantee for rule in self.pool])

    def one_step(self) -> AbstractContextManager[None]:
        return nullcontext() if self._open is not None else self._new_step()

    @contextmanager
    def _new_step(self) -> Iterator[None]:
        """A step of all calls within, and of the member that acts in it; it counts if no call fails."""
        with ExitStack() as self._open:
            try:
                yield
                counts = self._answered
            finally:
                self._open, self._acting, self._answered = None, None, False
        self._position += counts

    def _act(self, call: Callable[[Aggregator], Answer]) -> Answer:
        """What the member that acts in this step answers."""
        with self.one_step():
            if self._acting is None:
                member = self.member()
                assert self._open is not None
                self._open.enter_context(member.one_step())
                self._acting = member
            answer = call(self._acting)
            self._answered = True
            return answer

    def _answer(self, G: Array, eps: float) -> Outcome:
        return self._act(lambda rule: rule._answer(G, eps))

    def _least_answer(self, G: Array, eps: float) -> Outcome:
        return self._act(lambda rule: rule._least_answer(G, eps))

    def solve(self, gramian: Tensor) -> Solution:
        return self._act(lambda rule: rule.solve(gramian))

    def weights(self, gramian: Tensor) -> Tensor:
        return self._act(lambda rule: rule.weights(gramian))

    def state_dict(self) -> dict[str, Any]:
        """The position, what the pool and the schedule are, and the states of the members that have one."""
        return {
            "position": self._position,
            "pool": [_signature(rule) for rule in self.pool],
            "schedule": self.schedule.state_dict(),
            "members": {str(j): state for j, rule in enumerate(self.pool) if (state := rule.state_dict())},
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore what `state_dict` returned; a state of another pool or schedule is refused, and nothing changes."""
        if set(state) != {"position", "pool", "schedule", "members"}:
            raise ParameterError(f"a state of {self.label} is what its state_dict returned; got one of {sorted(state)}")
        position, signatures = state["position"], [_signature(rule) for rule in self.pool]
        if list(state["pool"]) != signatures:
            raise ParameterError(f"the state is that of another pool, {list(state['pool'])}; this one is {signatures}")
        if type(position) is not int or position < 0:
            raise ParameterError(f"position={position!r}: the number of steps taken is a whole number of at least 0")
        parts: list[Aggregator | Schedule] = [self.schedule, *self.pool]
        members = (state["members"].get(str(j), {}) for j in range(len(self.pool)))
        _load_all(parts, (state["schedule"], *members))
        self._position = position

    def __repr__(self) -> str:
        return f"Mixed({list(self.pool)}, {self.schedule!r})"


def paper_pool() -> tuple[Aggregator, ...]:
    """The rules that the paper mixes: MGDA, Nash-MTL*, UPGrad*, DualProj*."""
    return MGDA(), NashMTL().normalized(), UPGrad().normalized(), DualProj().normalized()


def mas_rand(seed: int | None = None) -> Mixed:
    """The paper's pool, with a rule drawn anew at each step.

    Args:
        seed: a whole number, at least 0; None takes one from torch's global generator.
    """
    return Mixed(paper_pool(), Random(seed))


def mas_rr(n: int) -> Mixed:
    """The paper's pool, with each rule for n steps in a row.

    Args:
        n: for how many steps in a row each rule acts, at least 1; written mas-rr(1000) or mas-rr(1k).
    """
    return Mixed(paper_pool(), RoundRobin(n))


def _names(pool: tuple[Aggregator, ...], schedule: Schedule) -> tuple[str, str]:
    """Name and label: those of the registry and the paper if the pool is the paper's."""
    if repr(pool) == repr(paper_pool()):
        if isinstance(schedule, Random):
            return "mas-rand", f"MAS-{schedule.label}"
        if isinstance(schedule, RoundRobin):
            return f"mas-rr({schedule.n})", f"MAS-{schedule.label}"
    return "mixed", f"Mixed({', '.join(rule.label for rule in pool)}; {schedule.label})"


def _signature(rule: Aggregator) -> str:
    """What tells a rule from others, the same in another process: its parameters, unless its state holds them."""
    return rule.name if rule.state_dict() else re.sub(r" at 0x[0-9a-fA-F]+", "", repr(rule))


def _load_all(parts: Iterable[Aggregator | Schedule], states: Iterable[Mapping[str, Any]]) -> None:
    """Load a state into each part, or, if one of them refuses, into none."""
    before: list[tuple[Aggregator | Schedule, dict[str, Any]]] = []
    for part, state in zip(parts, states, strict=True):
        before.append((part, part.state_dict()))
        try:
            part.load_state_dict(state)
        except (LookupError, TypeError, ValueError, RuntimeError) as error:
            for changed, old in reversed(before):
                changed.load_state_dict(old)
            if isinstance(error, ParameterError):
                raise
            raise ParameterError(f"the state of {part!r} cannot be loaded ({error!r}); nothing was changed") from error


def _pool_guarantee(pool: Sequence[Aggregator], promises: Sequence[Guarantee]) -> Guarantee:
    """Return the guarantee of a pool from those of its members. `Mixed.guarantee` has the proof, case by case."""
    if len(set(pool)) == 1:
        return promises[0]
    common = Guarantee.shared(promises)
    named = list(zip((rule.label for rule in pool), promises, strict=True))
    uncovered = dict.fromkeys(label for label, promise in named if promise.theorem is None)
    if uncovered:
        return replace(common, note=f"The pool holds {', '.join(uncovered)}, which no theorem covers.")
    aligned = Guarantee.common_alignment(promises)
    others = dict.fromkeys(f"{label} has F = {promise.F}" for label, promise in named if not _serves_sum(promise))
    if others and aligned is None:
        return replace(common, note=f"No F serves all rules of the pool: {'; '.join(others)}.")
    if aligned is not None:
        common = replace(common, alignment=aligned.alignment, F=aligned.F)
        if common.in_hull and common.non_conflicting:
            return replace(common, theorem="thm:cvg_nonconflict")
        if aligned.theorem != "thm:PS-cvx" or all(promise.theorem == "thm:PS-cvx" for promise in promises):
            return replace(common, theorem=aligned.theorem, note=_notes(named))
        if common.beyond_hull:
            return replace(common, theorem="thm:PS-cvx")
        if common.F == MEAN:
            common = replace(common, F=SUM)  # (A) for the mean is (A) for the sum; for other weights it is not
    note = DYNAMIC_STEP if common.non_conflicting and common.in_cone else _notes(named)
    return replace(common, theorem="thm:PS-fd", note=note)


def _serves_sum(promise: Guarantee) -> bool:
    """Return True if Theorem 1 covers a rule with F the sum."""
    return promise.F in (SUM, MEAN) or (promise.non_conflicting and promise.in_cone)


def _notes(named: Sequence[tuple[str, Guarantee]]) -> str:
    """What the promises depend on, of those for which a constant step is not enough."""
    kept = {}
    for label, promise in named:
        if not promise.beyond_hull or promise.constant_for(SUM) is None:
            note = promise.note or (DYNAMIC_STEP if promise.non_conflicting else "")
            kept[f"{label}: {note}"] = note
    return " ".join(text for text, note in kept.items() if note)
