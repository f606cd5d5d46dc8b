"""Attacks as functions, and replies of every odd kind: no rule breaks, no server stops, and no NaN gets through."""

from __future__ import annotations

import functools
import warnings
from collections.abc import Iterator
from copy import deepcopy

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import paretograd as pg
from paretograd.experiments.federated.study import LITERAL, NOISE
from paretograd.federated import Server, TrustedMGDA, attacks, buffer_names, combine_updates
from paretograd.federated.baselines import BASELINES
from paretograd.federated.replies import fault

Arrays = dict[str, np.ndarray]


def drawn(m: int, n: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(m, n, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def generator() -> torch.Generator:
    return torch.Generator().manual_seed(5)


# ---- the functions ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", attacks.ON_UPDATES)
def test_attacks_on_updates_add_one_row(name: str) -> None:
    updates = drawn(9, 300).float()
    found = attacks.ON_UPDATES[name](updates, generator())
    assert (found.shape, found.dtype) == ((10, 300), torch.float32)
    assert torch.equal(found[:9], updates)
    assert torch.equal(found, attacks.ON_UPDATES[name](updates, generator())) or name == "nan"
    with pytest.raises(pg.ShapeError, match="one row for each client"):
        attacks.ON_UPDATES[name](updates[0], generator())


def test_what_the_rows_are() -> None:
    updates = drawn(9, 300) + 1.0
    last = {name: attack(updates, generator())[-1] for name, attack in attacks.ON_UPDATES.items()}
    mean = updates.mean(dim=0)
    assert torch.equal(last["zero"], torch.zeros(300, dtype=torch.float64))
    assert torch.allclose(last["scaled"], -1e3 * mean)
    assert torch.isnan(last["nan"]).all()
    assert float((last["collude"] + mean).norm()) == pytest.approx(1e-3 * float(mean.norm()))
    assert float((last["sign-flip"] + updates[0]).norm()) == pytest.approx(0.15 * float(updates[0].norm()))
    assert float((last["sign-flip-literal"] + updates[0]).std()) == pytest.approx(0.01, rel=0.1)


def test_noise_where_none_is_given_is_that_of_the_study() -> None:
    updates = drawn(9, 300)
    for kind, noise in (("relative", NOISE), ("literal", LITERAL)):
        found = attacks.sign_flip(updates, 3, generator(), kind=kind)
        assert torch.equal(found, attacks.sign_flip(updates, 3, generator(), kind=kind, noise=noise))


def test_colluders_say_almost_the_same() -> None:
    updates = drawn(8, 200)
    found = attacks.colluding(updates, generator(), count=3, factor=2.0)[8:]
    assert len({tuple(row.tolist()) for row in found}) == 3
    for row in found:
        assert torch.allclose(row, -2.0 * updates.mean(dim=0), atol=1e-2)


def apart(updates: torch.Tensor) -> torch.Tensor:
    """Distances between the updates, ``(m, m)``."""
    return (updates[:, None] - updates[None]).norm(dim=2)


HIDDEN = {
    "mimic": lambda updates, count: attacks.mimic(updates, 2, count),
    "little": lambda updates, count: attacks.little_is_enough(updates, count),
    "min-max": attacks.min_max,
    "min-sum": attacks.min_sum,
    "adaptive": lambda updates, count: attacks.adaptive(updates, pg.MGDA(), generator(), count, steps=4),
}


@pytest.mark.parametrize("name", HIDDEN)
def test_attacks_that_hide_append_rows(name: str) -> None:
    """Also to one update, and to updates that are all alike or zero."""
    attack = HIDDEN[name]
    updates = drawn(7, 50).float()
    found = attack(updates, 3)
    assert (found.shape, found.dtype) == ((10, 50), torch.float32)
    assert torch.equal(found[:7], updates)
    for alike in (updates[:1].expand(3, -1), torch.zeros(3, 50)):
        assert attack(alike, 2).isfinite().all()
    with pytest.raises(pg.ShapeError, match="one row for each client"):
        attack(updates[0], 1)
    with pytest.raises(pg.ParameterError, match="count=-1"):
        attack(updates, -1)


def test_noise_is_as_long_as_said() -> None:
    updates = drawn(7, 5000)
    found = attacks.gaussian_noise(updates, generator(), factor=3.0, count=2)[7:]
    assert (found.norm(dim=1) / updates.norm(dim=1).mean()).tolist() == pytest.approx([3.0, 3.0], rel=0.05)
    assert abs(float(torch.cosine_similarity(found[0], found[1], dim=0))) < 0.1


def test_a_mimic_copies_its_target() -> None:
    updates = drawn(7, 50)
    assert torch.equal(attacks.mimic(updates, 4, 2)[7:], updates[[4, 4]])
    with pytest.raises(pg.ParameterError, match="numbered 0 to 6"):
        attacks.mimic(updates, 7)


@pytest.mark.parametrize(("honest", "count", "share"), [(7, 3, 4 / 7), (6, 4, 4 / 6), (40, 10, 24 / 40)])
def test_a_little_is_enough(honest: int, count: int, share: float) -> None:
    """The normal distribution has this share of its mass below the paper's number of deviations."""
    updates = drawn(honest, 50)
    mean, spread = updates.mean(dim=0), updates.std(dim=0, correction=0)
    deviations = float(torch.special.ndtri(torch.tensor(share, dtype=torch.float64)))
    for found, wanted in (
        (attacks.little_is_enough(updates, count), deviations),
        (attacks.little_is_enough(updates, count, deviations=1.5), 1.5),
    ):
        assert torch.allclose(found[honest:], (mean - wanted * spread).expand(count, -1), atol=1e-12)


def test_a_little_is_nothing_for_one_attacker() -> None:
    """It would need more honest clients than half as supporters."""
    updates = drawn(9, 50)
    assert torch.allclose(attacks.little_is_enough(updates)[-1], updates.mean(dim=0))


@pytest.mark.parametrize("attack", [attacks.min_max, attacks.min_sum])
@pytest.mark.parametrize("seed", range(4))
def test_limits_of_distances_are_reached(attack: object, seed: int) -> None:
    """A little farther from the mean would violate the limit."""
    updates = drawn(7, 50, seed) * torch.linspace(0.2, 3.0, 50) + 0.5
    mean = updates.mean(dim=0)
    row = attack(updates, 2)[-1]
    assert torch.nn.functional.cosine_similarity(mean - row, updates.std(dim=0), dim=0) > 1.0 - 1e-12

    def used(row: torch.Tensor) -> float:
        """Share of the limit."""
        distances, honest = (updates - row).norm(dim=1), apart(updates)
        if attack is attacks.min_max:
            return float(distances.max() / honest.max())
        return float(distances.square().sum() / honest.square().sum(dim=1).max())

    assert used(row) == pytest.approx(1.0, abs=1e-12)
    assert used(mean + 1.01 * (row - mean)) > 1.0


@pytest.mark.parametrize("rule", [*BASELINES.values(), pg.Mean(), pg.CappedMGDA(eps=0.67), pg.RGW(), TrustedMGDA()])
def test_the_adaptive_attack_is_the_worst_of_what_it_tries(rule: pg.Aggregator) -> None:
    """It gains at least what simpler attacks do, more with more steps, and leaves the rule's state alone."""
    updates = drawn(8, 40) + 0.4
    mean = updates.mean(dim=0)
    middle = updates.norm(dim=1).median()
    spread = updates.std(dim=0, correction=0)

    def progress(attacked: torch.Tensor) -> float:
        return float(combine_updates(attacked, deepcopy(rule)).direction @ mean)

    def sent(row: torch.Tensor) -> torch.Tensor:
        return torch.cat([updates, row.expand(2, -1)])

    tried = [attacks.zero_update(updates, 2)]
    for away in (-mean, -spread, -mean.sign() * spread):
        shift = away / away.norm() * middle
        tried += [sent(base + size * shift) for base in (0.0 * mean, mean) for size in (0.25, 1.0, 4.0, 1000.0)]
    before = rule.state_dict() if isinstance(rule, pg.Aggregator) else {}
    found = [progress(attacks.adaptive(updates, rule, generator(), 2, steps=steps)) for steps in (0, 10, 60)]
    assert str(before) == str(rule.state_dict() if isinstance(rule, pg.Aggregator) else {})
    slack = 1e-9 * float(middle * mean.norm())
    assert found[0] <= min(progress(each) for each in tried) + slack
    assert found[2] <= found[1] + slack
    assert found[1] <= found[0] + slack
    again = attacks.adaptive(updates, rule, generator(), 2, steps=60)
    assert progress(again) == found[2]


def test_the_adaptive_attack_knows_the_bound() -> None:
    """Without one, a single long update is the worst."""
    updates = drawn(9, 40) + 0.4
    mean = updates.mean(dim=0)
    longest = float(updates.norm(dim=1).max())
    free = attacks.adaptive(updates, pg.Mean(), generator(), bound="none")
    assert float(free[-1].norm()) > 100.0 * longest
    assert float(combine_updates(free, pg.Mean(), "none").direction @ mean) < 0.0


def test_the_adaptive_attack_takes_a_function() -> None:
    updates = drawn(5, 12) + 0.4
    found = attacks.adaptive(updates, lambda rows: rows.mean(dim=0), generator(), 2)
    assert torch.equal(found, attacks.adaptive(updates, lambda rows: rows.mean(dim=0), generator(), 2))
    assert torch.allclose(found, attacks.adaptive(updates, pg.Mean(), generator(), 2))


def test_flipped_labels() -> None:
    labels = torch.tensor([[0, 1, 9], [5, 4, 0]])
    assert attacks.flip_labels(labels, 10).tolist() == [[9, 8, 0], [4, 5, 9]]
    assert torch.equal(attacks.flip_labels(attacks.flip_labels(labels, 10), 10), labels)
    assert attacks.flip_labels(labels[:0], 10).shape == (0, 3)
    with pytest.raises(pg.ParameterError, match="labels go from 0 to 9"):
        attacks.flip_labels(labels, 9)


@pytest.mark.parametrize("name", attacks.ON_ARRAYS)
def test_attacks_on_arrays(name: str) -> None:
    """Of torch or numpy; the honest reply stays as it is, and the server drops the other."""
    honest = torch.nn.Sequential(torch.nn.Linear(3, 2), torch.nn.BatchNorm1d(2)).state_dict()
    spoiled = attacks.ON_ARRAYS[name](honest)
    assert list(honest)[-1] == "1.num_batches_tracked"
    numbers, numbered = ({k: v.numpy() for k, v in found.items()} for found in (honest, spoiled))
    assert fault(numbers, numbers) is None
    assert "num_batches_tracked" in str(fault(numbers, numbered))
    assert fault(numbers, attacks.ON_ARRAYS[name](numbers)) == fault(numbers, numbered)
    with pytest.raises(pg.ShapeError, match="no arrays to corrupt"):
        attacks.ON_ARRAYS[name]({})


def test_attacks_on_metrics() -> None:
    honest = {"loss": 0.5, "num-examples": 320}
    assert attacks.huge_examples(honest) == {"loss": 0.5, "num-examples": 10**12}
    assert attacks.huge_examples(honest, "n", 7)["n"] == 7
    assert honest["num-examples"] == 320


def test_names_are_those_of_one_client() -> None:
    assert len(set(attacks.names())) == len(attacks.names()) == 11


# ---- any numbers -----------------------------------------------------------------------------------------------------

#: To be copied: some keep numbers from round to round.
RULES = [
    *(pg.get(name) for name in pg.names() if name != "capped-mgda"),
    *(pg.get(f"{name}*") for name in ("upgrad", "dualproj", "nash-mtl")),
    pg.CappedMGDA(eps=0.5),
    *BASELINES.values(),
]
KINDS = ("honest", "opposite", "same", "zero", "huge", "alternating", "denormal", "tiny", "spike", "sum")


def rows(kinds: list[str], n: int, dtype: type, seed: int) -> np.ndarray:
    """Updates of these kinds, ``(m, n)``."""
    rng = np.random.default_rng(seed)
    first, largest = rng.normal(size=n) + 0.3, min(float(np.finfo(dtype).max), 1e100)
    found: list[np.ndarray] = []
    for kind in kinds:
        found.append(
            {
                "honest": rng.normal(size=n) + 0.3,
                "opposite": -first,
                "same": first,
                "zero": np.zeros(n),
                "huge": np.full(n, largest),
                "alternating": largest * (-1.0) ** np.arange(n),
                "denormal": np.full(n, float(np.finfo(dtype).smallest_subnormal)),
                "tiny": first * (1e-160 if dtype is np.float64 else 1e-7),
                "spike": largest * np.eye(n)[0],
                "sum": -np.sum(found, axis=0) if found else -first,
            }[kind]
        )
    return np.clip(np.array(found), -largest, largest).astype(dtype)


@given(
    kinds=st.lists(st.sampled_from(KINDS), min_size=1, max_size=10),
    n=st.integers(1, 12),
    dtype=st.sampled_from([np.float16, np.float32, np.float64]),
    bound=st.sampled_from(["none", "normalize", "clip"]),
    seed=st.integers(0, 99),
)
@settings(deadline=None, max_examples=60)
def test_no_numbers_break_a_round(kinds: list[str], n: int, dtype: type, bound: str, seed: int) -> None:
    """Whatever is finite: each rule gives a finite model of the same form, or leaves the one that there is."""
    model = {"w": np.zeros(n, dtype=dtype)}
    replies = {node: {"w": -row} for node, row in enumerate(rows(kinds, n, dtype, seed))}
    for rule in RULES:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # numpy's are RuntimeWarnings, and stay errors
            found = Server(deepcopy(rule), bound=bound, momentum=0.5).step(model, replies)
        assert fault(model, found.model) is None
        assert found.moved or np.array_equal(found.model["w"], model["w"])


@pytest.mark.parametrize("bound", ["none", "normalize", "clip"])
@pytest.mark.parametrize("length", [1e-120, 1e-139, 1e-141, 1e-150, 1e-160, 1e-161, 1e-162, 1e-170, 1e-320])
def test_lengths_whose_squares_lose_their_digits(length: float, bound: str) -> None:
    """A Gramian with such a row, made as long as the others, would be none; it counts as zero."""
    updates = rows(["honest"] * 9, 7, np.float64, 3)
    replies = {node: {"w": -row} for node, row in enumerate([*updates, length * updates[0]])}
    for rule in RULES:
        found = Server(deepcopy(rule), bound=bound).step({"w": np.zeros(7)}, replies)
        assert found.moved
        assert len(found.nodes) == 10


@given(kinds=st.lists(st.sampled_from(KINDS), min_size=4, max_size=4), n=st.integers(2, 12), seed=st.integers(0, 99))
@settings(deadline=None, max_examples=60)
def test_no_minority_takes_the_capped_rule_far(kinds: list[str], n: int, seed: int) -> None:
    """Five honest clients of nine decide how long a step may be."""
    updates = torch.from_numpy(rows(["honest"] * 5 + kinds, n, np.float64, seed))
    longest = float(updates[:5].norm(dim=1).max())
    for bound in ("normalize", "clip"):
        found = combine_updates(updates, pg.CappedMGDA(cap=0.2), bound)
        assert float(found.direction.norm()) <= longest * (1.0 + 1e-9)


# ---- any objects -----------------------------------------------------------------------------------------------------


class Unreadable(dict):
    def __getitem__(self, name: str) -> object:
        raise RuntimeError("no")


class MuteError(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no")


@functools.cache
def network() -> torch.nn.Module:
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.BatchNorm1d(3))


def reply(seed: int) -> Arrays:
    rng = np.random.default_rng(seed)
    return {
        name: np.asarray(
            tensor.numpy() + (np.abs(rng.normal(size=tensor.shape)) if tensor.is_floating_point() else 1)
        ).astype(tensor.numpy().dtype)
        for name, tensor in network().state_dict().items()
    }


def odd() -> Iterator[tuple[str, object]]:
    """Names, and replies that cannot be used."""
    good, key = reply(99), "0.weight"
    tensor = torch.from_numpy(good[key])
    hidden = np.where(np.eye(3, 4) > 0, np.nan, good[key]).astype(np.float32)
    arrays: dict[str, object] = {
        "float16": good[key].astype(np.float16),
        "longdouble": good[key].astype(np.longdouble),
        "integers": good[key].astype(np.int64),
        "booleans": good[key] > 0,
        "complex": good[key].astype(np.complex64),
        "dates": np.zeros((3, 4), dtype="M8[s]"),
        "records": np.zeros((3, 4), dtype=[("a", "f4")]),
        "a tensor": tensor,
        "a tensor with a gradient": tensor.clone().requires_grad_(),
        "a sparse tensor": tensor.to_sparse(),
        "bfloat16": tensor.bfloat16(),
        "a number": np.float32(1.0),
        "no dimensions": np.array(1.0, dtype=np.float32),
        "many dimensions": np.ones((1,) * 30, dtype=np.float32),
        "terabytes of one number": np.broadcast_to(np.float32(1.0), (10**6, 10**6)),
        "nothing in it": np.ones((3, 0), dtype=np.float32),
        "NaN behind a mask": np.ma.masked_invalid(hidden),
    }
    yield from ((name, good | {key: array}) for name, array in arrays.items())
    statistics = {
        "NaN statistics": {"1.running_mean": np.full(3, np.nan, dtype=np.float32)},
        "infinite variance": {"1.running_var": np.full(3, np.inf, dtype=np.float32)},
        "a count of NaN": {"1.num_batches_tracked": np.array(np.nan)},
        "an unsigned count": {"1.num_batches_tracked": np.array(2**64 - 1, dtype=np.uint64)},
    }
    yield from ((name, good | changed) for name, changed in statistics.items())
    yield "bytes", b"model"
    yield "a list", [good]
    yield "another key", good | {5: np.ones(1)}
    yield "many keys", {str(number): None for number in range(10**4)}
    yield "unreadable", Unreadable(good)
    yield "a crash", RuntimeError("first line\n\x1b[2Jsecond line" * 100)
    yield "a mute crash", MuteError()


ODD = dict(odd())


@pytest.mark.parametrize("name", ODD)
def test_odd_replies_are_dropped(name: str) -> None:
    state = {key: tensor.numpy() for key, tensor in network().state_dict().items()}
    honest = {node: reply(node) for node in range(9)}

    def server() -> Server:
        return Server(pg.CappedMGDA(eps=0.5), averaged=buffer_names(network()))

    want = server().step(state, honest)
    with pytest.warns(UserWarning, match="node 9 is not used"):
        found = server().step(state, honest | {9: ODD[name]})
    ((node, reason),) = found.dropped
    assert node == 9
    assert reason.isprintable()
    assert len(reason) < 1500
    assert all(np.array_equal(found.model[key], want.model[key]) for key in state)


def test_counts_of_batches_are_the_median_whatever_one_claims() -> None:
    state = {key: tensor.numpy() for key, tensor in network().state_dict().items()}
    for claim in (-(2**63), 2**63 - 1):
        hostile = reply(9) | {"1.num_batches_tracked": np.array(claim)}
        found = Server(pg.Mean()).step(state, {node: reply(node) for node in range(9)} | {9: hostile})
        assert found.model["1.num_batches_tracked"] == 1


def test_a_thousand_clients_of_which_some_attack() -> None:
    updates = drawn(900, 40).float() + 1.0
    attacked = attacks.scaled_update(attacks.colluding(updates, generator(), 50, factor=10.0), -1e20, 50)
    replies = {node: {"w": -row} for node, row in enumerate(attacked.numpy())}
    found = Server(pg.CappedMGDA(eps=0.8)).step({"w": np.zeros(40, dtype=np.float32)}, replies)
    assert len(found.nodes) == 1000
    assert float(found.model["w"].mean()) < -0.3
