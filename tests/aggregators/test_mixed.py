"""Pools of rules and their schedules: which rule acts when, what counts as a step, and how a pool resumes."""

from __future__ import annotations

import copy
import json
import math
from collections import Counter
from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import paretograd as pg
from paretograd.guarantees import MEAN, SUM

J = torch.tensor([[3.0, 0.0, 1.0], [-1.0, 1.0, 0.0], [0.5, 0.5, -1.0]], dtype=torch.float64)
G = pg.gramian(J)
BAD = torch.tensor([[1.0, 2.0], [2.0, 1.0]], dtype=torch.float64)
RULES = (pg.MGDA(), pg.UPGrad(), pg.Mean())


def acted(rule: pg.Mixed, steps: int) -> list[int]:
    return [rule.schedule.index(step, len(rule.pool)) for step in range(steps)]


# ---- schedules -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("schedule", "expected"),
    [
        (None, [0, 1, 2, 0, 1, 2, 0, 1]),
        (pg.RoundRobin(), [0, 1, 2, 0, 1, 2, 0, 1]),
        (pg.RoundRobin(3), [0, 0, 0, 1, 1, 1, 2, 2]),
        (pg.Sequence([0, 2, 2, 1]), [0, 2, 2, 1, 0, 2, 2, 1]),
        (lambda step: min(step // 2, 2), [0, 0, 1, 1, 2, 2, 2, 2]),
        (lambda step: np.int64(step % 2), [0, 1, 0, 1, 0, 1, 0, 1]),
    ],
)
def test_who_acts_when(schedule: object, expected: list[int]) -> None:
    rule = pg.Mixed(RULES, schedule)  # type: ignore[arg-type]
    taken = []
    for step in range(8):
        assert rule.position == step
        taken.append(RULES.index(rule.member()))
        assert torch.equal(rule(J), RULES[taken[-1]](J))
    assert taken == expected == acted(rule, 8)


def test_random_draws_are_uniform_and_those_of_the_seed() -> None:
    schedule = pg.Random(3)
    draws = [schedule.index(step, 4) for step in range(40_000)]
    counts = Counter(draws)
    assert set(counts) == {0, 1, 2, 3}
    # Standard deviation 87 of 10,000; successive draws are independent: 2,500 pairs of each kind, deviation 48.
    assert all(abs(count - 10_000) < 5 * 87 for count in counts.values())
    pairs = Counter(zip(draws[::2], draws[1::2], strict=True))
    assert all(abs(pairs[a, b] - 1250) < 5 * 35 for a in range(4) for b in range(4))
    assert draws[:1000] == [pg.Random(3).index(step, 4) for step in range(1000)]
    assert draws[:64] != [pg.Random(4).index(step, 4) for step in range(64)]


def test_random_draws_do_not_depend_on_what_was_asked_before() -> None:
    schedule, steps = pg.Random(7), list(range(1500))
    expected = [schedule.index(step, 5) for step in steps]
    shuffled = np.random.default_rng(0).permutation(steps).tolist()
    assert [schedule.index(step, 5) for step in shuffled] == [expected[step] for step in shuffled]


def test_random_draws_stay_what_they_are() -> None:
    """A checkpoint of an older version must go on as it began: for 4 rules, the leading bits of Philox's stream."""
    stream = np.random.Philox(key=5).random_raw(1000) >> np.uint64(62)
    assert [pg.Random(5).index(step, 4) for step in range(1000)] == stream.tolist()
    assert stream[:12].tolist() == [2, 2, 0, 1, 0, 2, 2, 3, 3, 0, 0, 3]


def test_random_leaves_the_global_generators_alone_and_follows_torchs_without_a_seed() -> None:
    torch.manual_seed(5)
    before = torch.get_rng_state()
    rule = pg.get("mas-rand", seed=3)
    rule(J)
    assert torch.equal(torch.get_rng_state(), before)
    seeds = []
    for _ in range(2):
        torch.manual_seed(11)
        seeds.append(pg.Random().seed)
    assert seeds[0] == seeds[1] != pg.Random().seed


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: pg.RoundRobin(0), "n=0: .*whole number of at least 1"),
        (lambda: pg.RoundRobin(2.0), "n=2.0"),  # type: ignore[arg-type]
        (lambda: pg.RoundRobin(True), "n=True"),
        (lambda: pg.Random(-1), "seed=-1: .*at least 0"),
        (lambda: pg.Random(2**64), "below 2\\^64"),
        (lambda: pg.Random("x"), "seed='x'"),  # type: ignore[arg-type]
        (lambda: pg.Sequence([]), r"such as \[0, 0, 1\]; got \[\]"),
        (lambda: pg.Sequence(3), "got 3"),  # type: ignore[arg-type]
        (lambda: pg.Sequence([0, -1]), "index=-1"),
        (lambda: pg.Sequence([0, 0.5]), "index=0.5"),  # type: ignore[list-item]
        (lambda: pg.Mixed(RULES, pg.Sequence([0, 3])), "holds 3, but the pool has 3 rules: positions are 0 to 2"),
        (lambda: pg.Mixed(RULES, pg.RoundRobin), "give RoundRobin"),  # type: ignore[arg-type]
        (lambda: pg.Mixed(RULES, 3), "schedule=3"),  # type: ignore[arg-type]
        (lambda: pg.Mixed([]), r"such as \[MGDA\(\), UPGrad\(\)\]"),
        (lambda: pg.Mixed(pg.MGDA()), "takes a list of aggregators"),  # type: ignore[arg-type]
        (lambda: pg.Mixed([pg.MGDA(), pg.UPGrad]), "takes a list of aggregators"),  # type: ignore[list-item]
    ],
)
def test_wrong_schedules_and_pools(make: Callable[[], object], words: str) -> None:
    with pytest.raises(pg.ParameterError, match=words):
        make()


@pytest.mark.parametrize("answer", [3, -1, 1.0, True, None, "0", torch.tensor(1.5)])
def test_the_answers_of_a_users_schedule_are_checked(answer: object) -> None:
    rule = pg.Mixed(RULES, lambda step: 0 if step < 2 else answer)  # type: ignore[arg-type, return-value]
    rule(J)
    rule(J)
    with pytest.raises(pg.ParameterError, match=r"returned .* at step 2; .* from 0 to 2"):
        rule(J)
    assert rule.position == 2


# ---- what a step is --------------------------------------------------------------------------------------------------


def test_a_batch_is_one_step() -> None:
    batch = torch.stack([G, 2.0 * G, G + torch.eye(3)])
    plain, starred = pg.Mixed(RULES), pg.Mixed(RULES).normalized()
    for member in RULES * 2:
        assert torch.equal(plain.weights(batch), member.weights(batch))
        assert torch.equal(starred.solve(batch).weights, member.normalized().weights(batch))
    assert plain.position == 6
    assert plain.solve(batch[:0]).weights.shape == (0, 3)


@pytest.mark.parametrize(
    "rule",
    [
        pg.Mixed([pg.MGDA(), pg.UPGrad()]),
        pg.Mixed([pg.MGDA(), pg.UPGrad()]).normalized(),
        pg.Mixed([pg.Mixed([pg.UPGrad(), pg.MGDA()]), pg.UPGrad()]),
        pg.Blend([pg.Mixed([pg.Mean(), pg.MGDA()]), pg.UPGrad()]),  # the mean does not mind
    ],
    ids=repr,
)
def test_a_call_that_fails_is_no_step(rule: pg.Aggregator) -> None:
    before = rule.state_dict()
    for call in (rule.weights, rule.solve):
        for wrong in (BAD, torch.stack([torch.eye(2, dtype=torch.float64), BAD])):
            with pytest.raises(pg.NotAGramianError):
                call(wrong)
        with pytest.raises(pg.NonFiniteGradientError):
            call(torch.full((2, 2), math.nan))
        with pytest.raises(pg.ShapeError):
            call(torch.ones(2, 3))
    with pytest.raises(pg.NonFiniteGradientError):
        rule(torch.full((2, 3), math.inf))
    assert rule.state_dict() == before


def test_looking_is_no_step() -> None:
    rule = pg.get("mas-rand", seed=1)
    before = rule.state_dict()
    repr(rule), rule.guarantee, rule.label, rule.normalized().guarantee, rule.member(), rule.member(10)
    assert rule.state_dict() == before


def test_calls_are_joined_to_one_step() -> None:
    rule = pg.Mixed(RULES)
    with rule.one_step():
        first = [rule.weights(G), rule.solve(G).weights]
        with rule.one_step():
            first.append(rule.weights(G))
    assert all(torch.equal(w, RULES[0].weights(G)) for w in first)
    assert rule.position == 1
    with rule.one_step():
        pass  # nothing was aggregated

    def fail_after_a_call() -> None:
        with rule.one_step():
            rule.weights(G)
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail_after_a_call()
    assert rule.position == 1


def test_nested_pools_count_their_own_steps() -> None:
    inner = pg.Mixed([pg.Mean(), pg.UPGrad()])
    outer = pg.Mixed([inner, pg.MGDA()], pg.Sequence([0, 0, 1]))
    names = []
    for _ in range(6):
        member = outer.member()
        names.append((inner.member() if member is inner else member).name)
        batch = torch.stack([G, G])
        assert torch.equal(outer.weights(batch), pg.get(names[-1]).weights(batch))
    assert names == ["mean", "upgrad", "mgda", "mean", "upgrad", "mgda"]
    assert (outer.position, inner.position) == (6, 4)


def test_a_blend_steps_all_its_parts() -> None:
    mixed = pg.Mixed([pg.Mean(), pg.MGDA()])
    blend = pg.Blend([mixed, pg.UPGrad()])
    expected = [pg.Blend([part, pg.UPGrad()]) for part in (pg.Mean(), pg.MGDA(), pg.Mean())]
    for rule in expected:
        assert torch.equal(blend(J), rule(J))
    blend.weights(torch.stack([G, G]))
    assert mixed.position == 4


def test_a_subproblem_in_the_pool_keeps_its_evidence() -> None:
    rule = pg.Mixed([pg.Subproblem(pg.subproblem.WorstCase()), pg.MGDA()])
    assert isinstance(rule.solve(G), pg.SubproblemSolution)
    assert type(rule.solve(G)) is pg.Solution


# ---- in backward -----------------------------------------------------------------------------------------------------


def losses_of(net: nn.Module) -> list[Tensor]:
    x = torch.randn(6, 4, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    out = net(x)
    return [out[:, 0].square().mean(), (out[:, 1] - 1.0).square().mean(), (out.sum(dim=1) + 1.0).square().mean()]


def network() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 2)).double()


def test_a_backward_is_one_step_for_all_groups() -> None:
    net = network()
    groups = [list(net[0].parameters()), list(net[2].parameters())]
    for wrap in (lambda rule: rule, pg.Aggregator.normalized, lambda rule: pg.Mixed([rule])):
        mixed = pg.Mixed(RULES)
        rule = wrap(mixed)
        for member in RULES:
            expected = pg.backward(losses_of(net), member.normalized() if rule.name.endswith("*") else member, groups)
            step = pg.backward(losses_of(net), rule, groups)
            assert torch.equal(step.weights, expected.weights)
            assert step.groups[0].certificate.in_cone
        assert mixed.position == 3


def test_a_backward_that_fails_is_no_step() -> None:
    net, rule = network(), pg.get("mas-rr(1)")
    groups = [list(net[2].parameters()), list(net[0].parameters())]
    with pytest.raises(pg.NonFiniteGradientError):
        pg.backward([*losses_of(net)[:2], (net[0].weight * math.inf).sum()], rule, groups)
    assert rule.position == 0
    step = pg.backward([*losses_of(net)[:2], (net[0].weight * math.inf).sum()], rule, nonfinite="propagate")
    assert step.weights.isnan().all()
    assert rule.position == 0
    pg.backward(losses_of(net), rule)
    assert rule.position == 1


def test_the_certificate_is_for_the_f_of_the_pool() -> None:
    net = network()
    step = pg.backward(losses_of(net), pg.Mixed([pg.Mean(), pg.CAGrad()]))
    assert step.certificate.F == MEAN
    step = pg.backward(losses_of(net), pg.Mixed([pg.Mean(), pg.UPGrad()]))
    assert step.certificate.F == SUM
    assert step.certificate.alignment >= 1.0 - 1e-12


# ---- states ----------------------------------------------------------------------------------------------------------


def stateful() -> pg.Mixed:
    pool = [pg.RGW(seed=1), pg.MGDA(), pg.PCGrad(order="shuffled", seed=2), pg.PIVRG([0.0, 1.0, 5.0])]
    return pg.Mixed([*pool, pg.Mixed([pg.UPGrad(), pg.RGW(seed=3).normalized()])], pg.Random(4))


def test_a_run_goes_on_where_it_was_saved() -> None:
    whole = stateful()
    expected = [whole.weights(G) for _ in range(600)]
    first = stateful()
    for step in range(300):
        assert torch.equal(first.weights(G), expected[step])
        first.state_dict()  # saving changes nothing
    again = stateful()
    again.pool[3].update([9.0, 0.0, 0.0])  # its state brings the scores
    again.load_state_dict(first.state_dict())
    assert again.position == 300
    assert all(torch.equal(again.weights(G), w) for w in expected[300:])


@pytest.mark.parametrize(
    "wrap", [lambda rule: rule, pg.Aggregator.normalized, lambda rule: pg.Blend([rule, pg.Mean()])]
)
def test_a_state_is_plain_data(wrap: Callable[[pg.Aggregator], pg.Aggregator]) -> None:
    rule, again = (wrap(pg.get("mas-rand", seed=3)) for _ in range(2))
    for _ in range(5):
        rule(J)
    again.load_state_dict(json.loads(json.dumps(rule.state_dict())))
    assert again.state_dict() == rule.state_dict()
    assert all(torch.equal(again(J), rule(J)) for _ in range(20))


def test_a_schedule_without_a_seed_takes_the_states() -> None:
    torch.manual_seed(0)
    rule, again = pg.get("mas-rand"), pg.get("mas-rand")
    assert rule.schedule.seed != again.schedule.seed
    assert acted(rule, 300) != acted(again, 300)
    again.load_state_dict(rule.state_dict())
    assert acted(rule, 300) == acted(again, 300)


STATES = {
    "nothing": {},
    "a part": {"position": 3},
    "another rule": pg.Mixed([pg.MGDA(), pg.Mean(), pg.RGW(seed=0)], pg.Random(3)).state_dict(),
    "another order": pg.Mixed([pg.CappedMGDA(cap=0.5), pg.MGDA(), pg.RGW(seed=0)], pg.Random(3)).state_dict(),
    "another parameter": pg.Mixed([pg.MGDA(), pg.CappedMGDA(cap=0.6), pg.RGW(seed=0)], pg.Random(3)).state_dict(),
    "fewer rules": pg.Mixed([pg.MGDA(), pg.CappedMGDA(cap=0.5)], pg.Random(3)).state_dict(),
}


def pooled(schedule: object) -> pg.Mixed:
    return pg.Mixed([pg.MGDA(), pg.CappedMGDA(cap=0.5), pg.RGW(seed=0)], schedule)  # type: ignore[arg-type]


def first_only(step: int) -> int:
    return 0


SCHEDULES = [pg.Random(3), pg.Random(4), pg.RoundRobin(2), pg.RoundRobin(3), pg.Sequence([0, 1]), first_only]


@pytest.mark.parametrize("state", STATES.values(), ids=STATES)
def test_a_state_of_another_pool_is_refused(state: dict[str, object]) -> None:
    rule = pooled(pg.Random(3))
    rule(J)
    before = rule.state_dict()
    with pytest.raises(pg.ParameterError, match=r"another pool|what its state_dict returned"):
        rule.load_state_dict(state)
    assert rule.state_dict() == before


@pytest.mark.parametrize("given", SCHEDULES, ids=lambda schedule: getattr(schedule, "__name__", repr(schedule)))
@pytest.mark.parametrize("own", SCHEDULES, ids=lambda schedule: getattr(schedule, "__name__", repr(schedule)))
def test_a_state_of_another_schedule_is_refused(given: object, own: object) -> None:
    source, rule = pooled(given), pooled(own)
    source(J)
    before = rule.state_dict()
    if given is own:
        rule.load_state_dict(source.state_dict())
        assert rule.state_dict() == source.state_dict()
    else:
        with pytest.raises(pg.ParameterError, match="another schedule"):
            rule.load_state_dict(source.state_dict())
        assert rule.state_dict() == before


@pytest.mark.parametrize("position", [-1, 1.5, True, None, "3"])
def test_a_position_is_a_whole_number(position: object) -> None:
    rule = pg.Mixed(RULES)
    with pytest.raises(pg.ParameterError, match="position="):
        rule.load_state_dict(rule.state_dict() | {"position": position})


def test_a_member_that_refuses_its_state_leaves_all_as_they_were() -> None:
    def make() -> pg.Mixed:
        return pg.Mixed([pg.RGW(seed=0), pg.PCGrad(order="shuffled", seed=1)], pg.Random())

    source, rule = make(), make()
    for _ in range(9):
        source(J), rule(J)
    for broken in ({}, {"rng": 3}):
        state = source.state_dict()
        state["members"]["1"] = broken
        before = copy.deepcopy(rule.state_dict())
        with pytest.raises(pg.ParameterError, match=r"the state of PCGrad.* nothing was changed"):
            rule.load_state_dict(state)
        assert rule.state_dict() == before
