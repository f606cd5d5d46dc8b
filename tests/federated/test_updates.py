"""Updates that are read in blocks: equal to rows in memory, for every rule, precision and split into arrays."""

from __future__ import annotations

import math
import os
import subprocess
import sys
from collections.abc import Callable
from copy import copy
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch

import paretograd as pg
from paretograd.federated import CoordinateRule, Server, attacks, combine_updates
from paretograd.federated import updates as module
from paretograd.federated.aggregation import Streamed
from paretograd.federated.baselines import BASELINES
from paretograd.federated.updates import Updates

Arrays = dict[str, np.ndarray]

#: Arrays of odd sizes: many of them in a block of 16 columns, and many blocks in one of them.
SHAPES = {"a": (3, 5), "scale": (), "empty": (0, 4), "b": (7, 11), "tail": (2,), "c": (131,)}
#: Functions that make a rule, by name.
RULES: dict[str, Callable[[], object]] = {name: partial(pg.get, name) for name in pg.names()}
RULES |= {"capped-mgda": partial(pg.CappedMGDA, eps=0.5)}
RULES |= {label: partial(copy, rule) for label, rule in BASELINES.items()}


@pytest.fixture(autouse=True)
def _short_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_ENTRIES", 16)
    monkeypatch.setattr(module, "_FEWEST_COLUMNS", 16)


def drawn(seed: int, dtype: str = "f4", shapes: dict[str, tuple[int, ...]] | None = None) -> Arrays:
    rng = np.random.default_rng(seed)
    return {name: np.asarray(rng.normal(size=shape), dtype=dtype) for name, shape in (shapes or SHAPES).items()}


def sent(count: int, dtype: str = "f4") -> list[Arrays]:
    """Models after a step, one of them far longer than the others, and one that is unchanged."""
    start, found = drawn(0, dtype), []
    for node in range(count):
        size = {1: 50.0, 2: 0.0}.get(node, 0.1)
        step = drawn(node + 1, dtype)
        found.append({name: np.asarray(start[name] - size * (step[name] + 0.5), dtype=dtype) for name in start})
    return found


def rows(start: Arrays, replies: list[Arrays]) -> torch.Tensor:
    """The updates as the difference of two arrays in float64."""
    each = [np.concatenate([(start[k].astype("f8") - reply[k]).reshape(-1) for k in start]) for reply in replies]
    return torch.from_numpy(np.stack(each))


def streamed(start: Arrays, replies: list[Arrays], names: list[str] | None = None) -> Updates:
    return Updates(start, replies, list(start) if names is None else names)


# ---- the updates themselves ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", ["f2", "f4", "f8"])
def test_blocks_are_the_rows_to_the_last_bit(dtype: str) -> None:
    """Each number is one subtraction in float64, in both."""
    start, replies = drawn(0, dtype), sent(5, dtype)
    updates, want = streamed(start, replies), rows(start, replies)
    assert updates.shape == want.shape
    assert torch.equal(updates.dense(), want)
    assert torch.equal(torch.cat([block.clone() for block in updates.blocks()], dim=1), want)
    assert {block.shape[1] for block in updates.blocks()} == {16, want.shape[1] % 16}


@pytest.mark.parametrize("dtype", ["f2", "f4", "f8"])
def test_gramian_and_combinations_are_those_of_the_rows(dtype: str) -> None:
    """Sums over blocks are rounded in another order, so they agree to rounding.

    What moves a float32 model is computed in float32: each term is rounded three times.
    """
    start, replies = drawn(0, dtype), sent(5, dtype)
    updates, want = streamed(start, replies), rows(start, replies)
    G, wanted = updates.gramian(), pg.gramian(want)
    scale = wanted.diagonal().sqrt()
    assert ((G - wanted).abs() <= 1e-14 * scale * scale[:, None]).all()
    assert torch.equal(G, G.T)
    weights = torch.tensor([0.3, 0.2, 0.1, 0.4, -0.5], dtype=torch.float64)
    found = torch.cat(list(updates.combine(weights)))
    rounding = 1e-14 if dtype != "f4" else 4 * np.finfo(np.float32).eps
    assert ((found - weights @ want).abs() <= rounding * (weights.abs() @ want.abs())).all()


def test_extreme_weights_and_many_updates_are_combined_in_float64() -> None:
    start, replies = drawn(0), sent(40)
    for count, size in ((3, 1e35), (3, 1e-42), (40, 1.0)):
        weights = torch.full((count,), size, dtype=torch.float64)
        found, want = torch.cat(list(streamed(start, replies[:count]).combine(weights))), rows(start, replies[:count])
        assert ((found - weights @ want).abs() <= 1e-13 * (weights.abs() @ want.abs())).all()


def test_the_split_into_arrays_changes_no_bit() -> None:
    """Neither do the layout of a reply's arrays in memory, nor arrays that are read from disk."""
    start, replies = drawn(0), sent(5)

    def joined(arrays: Arrays) -> Arrays:
        return {"all": np.concatenate([array.reshape(-1) for array in arrays.values()])}

    def strange(arrays: Arrays) -> Arrays:
        shifted = {name: np.frombuffer(b"x" + array.tobytes(), "f4", offset=1) for name, array in arrays.items()}
        return {name: np.asfortranarray(array.reshape(arrays[name].shape)) for name, array in shifted.items()}

    weights = torch.linspace(-1.0, 1.0, 5, dtype=torch.float64)
    want = streamed(start, replies)
    direction = torch.cat(list(want.combine(weights)))
    moved = want.moved(want.combine(weights))
    for change in (joined, strange):
        found = streamed(change(start), [change(reply) for reply in replies])
        assert torch.equal(found.gramian(), want.gramian())
        assert torch.equal(torch.cat(list(found.combine(weights))), direction)
        again = found.moved(found.combine(weights))
        assert joined(again)["all"].tobytes() == joined(moved)["all"].tobytes()


@pytest.mark.parametrize("count", [0, 1, 2, 3, 10, 16, 17, 40])
def test_gramians_of_any_number_of_updates(count: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """A block has several parts. Copies have one length, up to the rounding of a sum."""
    monkeypatch.setattr(module, "_FEWEST_COLUMNS", 10_000)
    assert module._PART < 10_000
    rng = np.random.default_rng(count)
    start = {"w": np.zeros(10_000)}
    sent = [{"w": rng.normal(size=10_000)} for _ in range(count)]
    sent[1:] = [sent[0], *sent[2:]] if count > 1 else []
    found = Updates(start, sent, ["w"]).gramian().numpy()
    wanted = np.array([[math.fsum(one["w"] * other["w"]) for other in sent] for one in sent]).reshape(count, count)
    assert np.array_equal(found, found.T)
    assert np.allclose(found, wanted, rtol=0.0, atol=1e-14 * 10_000)
    if count > 1:
        assert found[0, 1] == pytest.approx(found[0, 0], rel=1e-14)


def test_constants_that_are_infinite_in_both_do_not_move() -> None:
    start, replies = drawn(0), sent(3)
    for arrays in (start, *replies):
        arrays["b"][2, 3:6] = -np.inf
    updates = streamed(start, replies)
    assert torch.isfinite(updates.dense()).all()
    assert torch.isfinite(updates.gramian()).all()
    (piece,) = updates.dense()[0][None]
    moved = updates.moved(torch.split(piece, updates.columns))
    assert np.isneginf(moved["b"][2, 3:6]).all()


# ---- rules -----------------------------------------------------------------------------------------------------------


class Absolute(CoordinateRule):
    """The entry of each column that is largest in size."""

    def __call__(self, updates: torch.Tensor) -> torch.Tensor:
        return updates.gather(0, updates.abs().argmax(dim=0)[None])[0]


def largest(updates: torch.Tensor) -> torch.Tensor:
    return Absolute()(updates)


RULES |= {"of one's own, by coordinate": Absolute, "a function": lambda: largest}


@pytest.mark.parametrize("name", RULES)
@pytest.mark.parametrize("bound", ["none", "normalize", "clip"])
def test_every_rule_gives_what_it_gives_for_rows(name: str, bound: str) -> None:
    """The Gramians differ by rounding, which rules amplify where they must choose between nearly equal answers."""
    start, replies = drawn(0), [reply for k, reply in enumerate(sent(8)) if k != 2]
    torch.manual_seed(0)  # a random rule draws its seed from torch
    updates = streamed(start, replies)
    found = Streamed(updates, updates.gramian(), RULES[name](), bound)
    direction = torch.cat(list(found.pieces()))
    torch.manual_seed(0)
    want = combine_updates(rows(start, replies), RULES[name](), bound)
    assert torch.allclose(direction, want.direction, rtol=1e-7, atol=1e-7 * float(want.direction.norm()))
    assert torch.allclose(found.weighed.norms, want.norms, rtol=1e-13)
    assert found.weighed.gamma == pytest.approx(want.gamma, rel=1e-6, abs=1e-9)
    assert found.conflicts == want.conflicts
    if found.weighed.weights is None:
        assert want.weights.isnan().all()
    else:
        assert torch.allclose(found.weighed.weights, want.weights, rtol=1e-7, atol=1e-9)


@pytest.mark.parametrize("rule", BASELINES.values(), ids=BASELINES)
def test_a_baseline_called_on_rows_gives_the_same(rule: Callable[[torch.Tensor], torch.Tensor]) -> None:
    start, replies = drawn(0), sent(8)
    updates = streamed(start, replies)
    found = torch.cat(list(Streamed(updates, updates.gramian(), rule, "none").pieces()))
    assert torch.allclose(
        found, rule(rows(start, replies)), rtol=1e-6, atol=1e-6
    )  # of numbers of order one, in float32


def test_krum_and_the_geometric_median_have_weights() -> None:
    updates = attacks.colluding(torch.eye(7, 9, dtype=torch.float64) + 1.0, torch.Generator().manual_seed(0))
    for label, support in (("Krum", 1), ("Multi-Krum", 8), ("Geometric median", 9)):
        found = combine_updates(updates, BASELINES[label], "none")
        assert int((found.weights > 0).sum()) == support
        assert torch.allclose(found.weights @ updates, found.direction, rtol=1e-12)
    assert combine_updates(updates, BASELINES["Median"]).weights.isnan().all()


def test_conflicts_of_a_rule_without_weights_are_found_in_blocks() -> None:
    start = {"w": np.zeros(50)}
    replies = [{"w": np.full(50, value)} for value in (-1.0, -1.0, -1.0, 0.9)]
    updates = streamed(start, replies)
    found = Streamed(updates, updates.gramian(), BASELINES["Median"], "clip")
    assert found.conflicts == ()
    list(found.pieces())
    assert found.conflicts == (3,)


# ---- the server ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", ["f2", "f4", "f8"])
@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_the_server_takes_the_step_of_the_rows(dtype: str, momentum: float) -> None:
    start, replies = drawn(0, dtype), sent(6, dtype)
    server, rule = Server(pg.CappedMGDA(eps=0.5), lr=0.5, momentum=momentum, averaged=()), pg.CappedMGDA(eps=0.5)
    current, velocity = start, 0.0
    for _ in range(3):
        found = server.step(current, dict(enumerate(replies)))
        velocity = momentum * velocity + combine_updates(rows(current, replies), rule).direction
        first = 0
        for name, array in current.items():
            step = 0.5 * velocity[first : first + array.size].numpy().reshape(array.shape)
            want = (array.astype("f8") - step).astype(dtype)
            assert found.model[name].dtype == array.dtype
            assert np.allclose(found.model[name].astype("f8"), want, rtol=2 * np.finfo(dtype).eps, atol=1e-9)
            first += array.size
        current = found.model


def test_replies_may_lie_on_disk(tmp_path: Path) -> None:
    start, replies = drawn(0), dict(enumerate(sent(6)))
    mapped = {}
    for node, reply in replies.items():
        for name, array in reply.items():
            np.save(tmp_path / f"{node}-{name}.npy", array)
        mapped[node] = {name: np.load(tmp_path / f"{node}-{name}.npy", mmap_mode="r") for name in reply}
    want = Server(pg.CappedMGDA(eps=0.5)).step(start, replies)
    found = Server(pg.CappedMGDA(eps=0.5)).step(start, mapped)
    assert all(found.model[name].tobytes() == array.tobytes() for name, array in want.model.items())
    assert found[1:] == want[1:]


def test_a_rule_that_fails_on_a_later_block_leaves_the_model_alone() -> None:
    class Late(CoordinateRule):
        calls = 0

        def __call__(self, updates: torch.Tensor) -> torch.Tensor:
            self.calls += 1
            if self.calls == 7:
                raise RuntimeError("no")
            return updates.mean(dim=0)

    start, server = drawn(0), Server(Late(), momentum=0.9)
    with pytest.warns(UserWarning, match="leaves the model unchanged: the rule failed with RuntimeError: no"):
        found = server.step(start, dict(enumerate(sent(4))))
    assert not found.moved
    assert all(found.model[name].tobytes() == array.tobytes() for name, array in start.items())
    assert server.state_dict()["velocity"] is None


# ---- memory ----------------------------------------------------------------------------------------------------------


MEMORY = """
import sys
from pathlib import Path
import numpy as np
import paretograd as pg
from paretograd.federated import Server
from paretograd.federated.baselines import BASELINES

def kilobytes(what):
    (line,) = (line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith(what))
    return int(line.split()[1])

def replies(model):
    return {k: {name: array - rng.random(array.shape, "f4") for name, array in model.items()} for k in range(10)}

rng = np.random.default_rng(0)
small = {"w": np.zeros((200, 300), "f4"), "b": np.ones(500, "f4")}
model = {"w": np.zeros((2000, 2000), "f4"), "b": np.ones(500, "f4")}
few, sent = replies(small), replies(model)
for rule in (pg.Mean(), pg.CappedMGDA(eps=0.67), *BASELINES.values()):
    Server(rule).step(small, few)
    Path("/proc/self/clear_refs").write_text("5")  # forget the peak
    before = kilobytes("VmRSS")
    Server(rule).step(model, sent)
    size = 10 * sum(array.nbytes for array in model.values()) / 1024
    print(rule.label, (kilobytes("VmHWM") - before) / size, sep=":")
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")
def test_a_round_needs_little_more_memory_than_the_replies() -> None:
    """Of ten clients: the next model is a tenth of the replies, and a block takes 2 MB of 160."""
    returned = os.environ | {"MALLOC_MMAP_THRESHOLD_": "65536"}  # what is freed does not stay with the process
    done = subprocess.run([sys.executable, "-c", MEMORY], capture_output=True, text=True, check=True, env=returned)
    shares = {line.partition(":")[0]: float(line.partition(":")[2]) for line in done.stdout.splitlines()}
    assert len(shares) == 7
    assert all(0.08 < share < 0.3 for share in shares.values()), shares
