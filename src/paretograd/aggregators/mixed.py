"""Mixed aggregator scheduling: each step uses one rule of a pool (alg. mixed_aggr_scheduling)."""

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
    r"""A pool of rules and a schedule that chooses one of them for each step (alg. mixed_aggr_scheduling).

    $$ d_t = A_{j(t)}(J_t), \qquad j(t) \text{ from the schedule} $$

    The rules have different strengths: MGDA may stall where UPGrad still progresses, and Nash-MTL ignores the scales of
    the losses. If all rules guarantee a property, every step has it. Convergence follows as for a single rule.

    Each call counts as one step. A batch of Gramians given to `solve` or `weights` is one step, in which one member
    handles the whole batch. A call of `backward` is one step, however many parameter groups it has. `one_step` joins
    several calls into one. A call that fails does not count. `position` counts the steps; `state_dict` saves it.

    Args:
        pool: the rules.
        schedule: `RoundRobin(n)`, `Random(seed)`, `Sequence([0, 0, 1])`, or a function from the number of the step,
            counted from 0, to a position in the pool. None switches to the next rule at each step.
    """

    name = "mixed"
    label = "Mixed"
    description = Description(
        formula="d_t = A_j(J_t),  j from a schedule",
        reference="Hu, Ho and Yu 2026 (the paper)",
        paper="alg. mixed_aggr_scheduling; Theorem 2",
        when="No single rule serves the whole run: mix their strengths, or use it as a typical rule for comparison.",
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
        self._open: ExitStack | None = None  # the step in progress, if any; the next two describe it
        self._acting: Aggregator | None = None
        self._answered = False
        self.name, self.label = _names(self.pool, self.schedule)  # type: ignore[misc]
        self.needs = frozenset[str]().union(*(rule.needs for rule in self.pool))
        members = ", ".join(rule.label for rule in self.pool)
        formula = f"d_t = A_j(J_t),  A_j one of {members}, as the schedule {self.schedule.label} says"
        self.description = replace(type(self).description, formula=formula)  # type: ignore[misc]

    @property
    def position(self) -> int:
        """Number of steps taken, which is the index of the next one."""
        return self._position

    def member(self, step: int | None = None) -> Aggregator:
        """Return the rule for a step; None is the next step."""
        return self.pool[self.schedule.index(self._position if step is None else step, len(self.pool))]

    @property
    def guarantee(self) -> Guarantee:
        r"""The properties that all members guarantee, with the smallest constant.

        At step t one member acts. So whatever all members guarantee for every Jacobian (no conflict, weights in the
        cone, in the hull or beyond it, a degree, equivariance) holds at every step, for every schedule. The theorems
        are about a run, and need one F for all its steps. There are four cases.

        1. All are non-conflicting and in the hull. Theorem 2 requires nothing else of a step, and its F, the sum, is
           the same at every step; c = 1. If all satisfy (A) for the mean, F is the mean, which is stronger.
        2. All satisfy (A) for one F. Then so does the run, with the smallest c, because $\|d\|^2 \ge 0$. If some
           satisfy it for the mean and others for the sum, F is the sum: $\langle d, \nabla \sum_k f_k \rangle
           = m \langle d, \nabla \frac1m \sum_k f_k \rangle \ge m c \|d\|^2 \ge c \|d\|^2$. The converse would
           cost a factor m. If all are beyond the hull, Corollary 1 holds, with the step c / L for the L of this F.
        3. Otherwise Theorem 1 applies with F the sum. It requires
           $\langle d_t, \nabla F \rangle \ge c_t \Gamma_t \|d_t\|$ for some $\Gamma_t \ge \gamma$ at each step. If
           the member satisfies (A) and is beyond the hull, take $\Gamma = \|d\|$. If it is non-conflicting with
           $w \ge 0$, take $\Gamma = \|d\| / \|w\|_1$ and c = 1, because
           $\sum_k \langle d, g_k \rangle \ge \sum_k \frac{w_k}{\|w\|_1} \langle d, g_k \rangle
           = \|d\|^2 / \|w\|_1$. The bound holds with the smallest c_t, but the theorem's step,
           $c_t \Gamma_t / (L \|d_t\|)$, depends on the acting member; the note states it. If a member's own
           guarantee is Theorem 1 under a condition, the pool inherits the condition.
        4. If no theorem covers a member, or its F is a different one, the pool is not covered: the schedule may choose
           that member forever. The note names it.
        """
        return _pool_guarantee(self.pool, [rule.guarantee for rule in self.pool])

    def _starred_guarantee(self) -> Guarantee:
        """Return the guarantee of the normalized members: normalizing the answer normalizes the member."""
        return _pool_guarantee(self.pool, [rule.normalized().guarantee for rule in self.pool])

    def observe(self, losses: Tensor | Sequence[float | Tensor]) -> None:
        for rule in self.pool:
            rule.observe(losses)

    def one_step(self) -> AbstractContextManager[None]:
        return nullcontext() if self._open is not None else self._new_step()

    @contextmanager
    def _new_step(self) -> Iterator[None]:
        """Join all calls inside into one step of the pool and of its acting member. It counts if no call fails."""
        with ExitStack() as self._open:
            try:
                yield
                counts = self._answered
            finally:
                self._open, self._acting, self._answered = None, None, False
        self._position += counts

    def _act(self, call: Callable[[Aggregator], Answer]) -> Answer:
        """Return the answer of the member that acts in this step."""
        with self.one_step():
            if self._acting is None:
                member = self.member()
                assert self._open is not None
                self._open.enter_context(member.one_step())
                self._acting = member
            answer = call(self._acting)
            self._answered = True
            return answer

    def _turn_to(self, part: int) -> None:
        if self._open is not None:  # the acting rule is then in a step, too
            self._act(lambda rule: rule._turn_to(part))

    def _answer(self, G: Array, eps: float) -> Outcome:
        return self._act(lambda rule: rule._answer(G, eps))

    def _least_answer(self, G: Array, eps: float) -> Outcome:
        return self._act(lambda rule: rule._least_answer(G, eps))

    def solve(self, gramian: Tensor) -> Solution:
        return self._act(lambda rule: rule.solve(gramian))

    def weights(self, gramian: Tensor) -> Tensor:
        return self._act(lambda rule: rule.weights(gramian))

    def state_dict(self) -> dict[str, Any]:
        """Return the position, the signatures of pool and schedule, and the states of members that have one."""
        return {
            "position": self._position,
            "pool": [_signature(rule) for rule in self.pool],
            "schedule": self.schedule.state_dict(),
            "members": {str(j): state for j, rule in enumerate(self.pool) if (state := rule.state_dict())},
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore what `state_dict` returned. Raise for the state of another pool or schedule, and change nothing."""
        if set(state) != {"position", "pool", "schedule", "members"}:
            raise ParameterError(f"{self.label} loads what its state_dict returned; got a state with {sorted(state)}")
        position, signatures = state["position"], [_signature(rule) for rule in self.pool]
        if list(state["pool"]) != signatures:
            raise ParameterError(f"the state belongs to another pool, {list(state['pool'])}; this one is {signatures}")
        if type(position) is not int or position < 0:
            raise ParameterError(f"position={position!r}: the number of steps must be a whole number of at least 0")
        parts: list[Aggregator | Schedule] = [self.schedule, *self.pool]
        members = (state["members"].get(str(j), {}) for j in range(len(self.pool)))
        _load_all(parts, (state["schedule"], *members))
        self._position = position

    def __repr__(self) -> str:
        return f"Mixed({list(self.pool)}, {self.schedule!r})"


def paper_pool() -> tuple[Aggregator, ...]:
    """Return the rules that the paper mixes: MGDA, Nash-MTL*, UPGrad* and DualProj*."""
    return MGDA(), NashMTL().normalized(), UPGrad().normalized(), DualProj().normalized()


def mas_rand(seed: int | None = None) -> Mixed:
    """Return the paper's pool with a random rule at each step.

    Args:
        seed: a whole number, at least 0; None draws one from torch's global generator.
    """
    return Mixed(paper_pool(), Random(seed))


def mas_rr(n: int) -> Mixed:
    """Return the paper's pool with each rule for n steps in a row.

    Args:
        n: number of steps in a row for each rule, at least 1; written mas-rr(1000) or mas-rr(1k).
    """
    return Mixed(paper_pool(), RoundRobin(n))


def _names(pool: tuple[Aggregator, ...], schedule: Schedule) -> tuple[str, str]:
    """Return name and label. The paper's pool has those of the registry and the paper."""
    if repr(pool) == repr(paper_pool()):
        if isinstance(schedule, Random):
            return "mas-rand", f"MAS-{schedule.label}"
        if isinstance(schedule, RoundRobin):
            return f"mas-rr({schedule.n})", f"MAS-{schedule.label}"
    return "mixed", f"Mixed({', '.join(rule.label for rule in pool)}; {schedule.label})"


def _signature(rule: Aggregator) -> str:
    """Return a text that identifies a rule across processes: its name if it has a state, otherwise its `repr`."""
    return rule.name if rule.state_dict() else re.sub(r" at 0x[0-9a-fA-F]+", "", repr(rule))


def _load_all(parts: Iterable[Aggregator | Schedule], states: Iterable[Mapping[str, Any]]) -> None:
    """Load a state into each part, or into none if one of them fails."""
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
    """Return the guarantee of a pool from those of its members. `Mixed.guarantee` has the proof for each case."""
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
            common = replace(common, F=SUM)  # (A) for the mean implies (A) for the sum; other weights do not
    note = DYNAMIC_STEP if common.non_conflicting and common.in_cone else _notes(named)
    return replace(common, theorem="thm:PS-fd", note=note)


def _serves_sum(promise: Guarantee) -> bool:
    """Return True if Theorem 1 covers a rule with F the sum."""
    return promise.F in (SUM, MEAN) or (promise.non_conflicting and promise.in_cone)


def _notes(named: Sequence[tuple[str, Guarantee]]) -> str:
    """Return the conditions of the members for which a constant step does not suffice."""
    kept = {}
    for label, promise in named:
        if not promise.beyond_hull or promise.constant_for(SUM) is None:
            note = promise.note or (DYNAMIC_STEP if promise.non_conflicting else "")
            kept[f"{label}: {note}"] = note
    return " ".join(text for text, note in kept.items() if note)
