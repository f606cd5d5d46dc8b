"""The number by which processes tell each other the kind of their step, without any processes."""

from __future__ import annotations

from itertools import product

import pytest

from paretograd.distributed.agreement import View, _Code, _Memory

#: Samples of all processes that the number must hold, at least.
MOST_SAMPLES = 2**31 - 1


def view(number: int) -> View:
    return View(params=(number,), m=2, names=None, reached=(3,), shapes=((),), compiled=False, options={})


@pytest.mark.parametrize("size", [1, 2, 3, 4])
def test_all_notice_that_they_mean_different_kinds(size: int) -> None:
    """Every process comes to the same conclusion, for every combination of kinds, with and without samples."""
    code = _Code(size)
    slots = [None, *range(16)] if size < 4 else [None, 0, 1, 2, 3, 7, 14, 15]
    for chosen in product(slots, repeat=size):
        total = sum(code.encode(slot, 5 * number) for number, slot in enumerate(chosen))
        same = len(set(chosen)) == 1
        assert all(code.agrees(slot, total) == same for slot in chosen if slot is not None), chosen
        assert code.samples(total) == 5 * sum(range(size))


@pytest.mark.parametrize("size", [1, 2, 8, 512, 1023, 1024, 4096, 20_000, 65_535])
def test_many_processes_fit_in_eight_bytes(size: int) -> None:
    """Nothing overflows, nor spills into the samples; one process that differs is noticed by all."""
    code = _Code(size)
    assert code.kinds == 16 if size < 1024 else 1 <= code.kinds < 16
    last = code.kinds - 1
    total = size * code.encode(last, 0) + code.encode(0, MOST_SAMPLES) - code.encode(0, 0)
    assert total < 2**63
    assert code.samples(total) == MOST_SAMPLES
    assert code.agrees(last, total)
    for odd in [None, *range(last)]:
        mixed = (size - 1) * code.encode(last, 0) + code.encode(odd, 0)
        assert size == 1 or not code.agrees(last, mixed)
        assert odd is None or size == 1 or not code.agrees(odd, mixed)


def test_the_least_recently_used_kind_is_forgotten() -> None:
    memory = _Memory(2)
    for number in range(16):
        memory.keep(view(number), number, "rule")
    assert [memory.find(view(number), "rule") for number in range(16)] == list(range(16))
    assert memory.use(0) == 0
    memory.keep(view(16), 16, "rule")
    assert memory.find(view(1), "rule") is None
    assert memory.find(view(16), "rule") == 1
    assert memory.find(view(0), "rule") == 0
    assert memory.find(view(0), "another rule") is None


def test_kinds_that_share_a_rule_share_its_state() -> None:
    """A step of one kind changes the state that the next step of another kind starts from."""
    memory = _Memory(2)
    memory.keep(view(0), 0, "state 0")
    memory.advance("state 1")
    memory.keep(view(1), 1, "state 1")
    memory.keep(view(2), 2, "of another rule")
    memory.advance("of another rule, later")
    memory.use(1)
    memory.advance("state 2")
    assert memory.find(view(0), "state 2") == 0
    assert memory.find(view(1), "state 2") == 1
    assert memory.find(view(0), "state 1") is None
    assert memory.find(view(2), "of another rule, later") == 2
