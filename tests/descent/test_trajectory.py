"""Trajectories: on disk and back, hostile files, tables and pictures."""

from __future__ import annotations

import builtins
import pickle
import zipfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

import paretograd as pg
from paretograd.descent.trajectory import to_columns
from paretograd.disk import from_json, read_arrays, to_json, write_arrays

ARRAYS = ("losses", "points", "gamma", "weights", "slopes", "norms", "step_sizes", "gradient_norms", "front")


@pytest.fixture
def run() -> pg.Trajectory:
    return pg.descend(pg.problem("vlmop2"), pg.UPGrad(), 0.1, 60, seeds=(24, 42), stop_gamma=0.05)


def test_a_file_holds_all_of_a_trajectory(run: pg.Trajectory, tmp_path: Path) -> None:
    path = run.save(tmp_path / "deep" / "run.npz")
    back = pg.Trajectory.load(path)
    for name in ARRAYS:
        assert np.array_equal(getattr(run, name), getattr(back, name), equal_nan=True)
    for name in (
        "reasons",
        "seeds",
        "lr",
        "aggregator",
        "guarantee",
        "problem",
        "smoothness",
        "least",
        "dtype",
        "convex",
    ):
        assert getattr(run, name) == getattr(back, name)
    assert repr(back) == repr(run)
    assert str(pg.certify_run(back)) == str(pg.certify_run(run))


def test_nothing_is_overwritten_unless_asked_for(run: pg.Trajectory, tmp_path: Path) -> None:
    path = tmp_path / "run.npz"
    path.write_bytes(b"precious")
    with pytest.raises(pg.InputError, match="overwrite=True"):
        run.save(path)
    assert path.read_bytes() == b"precious"
    assert pg.Trajectory.load(run.save(path, overwrite=True)).runs == 2
    assert [file.name for file in tmp_path.iterdir()] == ["run.npz"]
    with pytest.raises(pg.InputError, match=r"\.npz"):
        run.save(tmp_path / "run.pt")
    (tmp_path / "folder.npz").mkdir()
    with pytest.raises(pg.InputError, match="folder"):
        run.save(tmp_path / "folder.npz", overwrite=True)


def test_a_write_that_fails_leaves_the_old_file(
    run: pg.Trajectory, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = run.save(tmp_path / "run.npz")
    before = path.read_bytes()

    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(np, "savez", full)
    with pytest.raises(pg.InputError, match="No space left"):
        run.save(path, overwrite=True)
    assert path.read_bytes() == before
    assert [file.name for file in tmp_path.iterdir()] == ["run.npz"]


def test_objects_are_not_written(tmp_path: Path) -> None:
    with pytest.raises(pg.ParetogradError, match="losses is an array of type object"):
        write_arrays(tmp_path / "run.npz", {"losses": [1.0, None]}, overwrite=False)
    assert not list(tmp_path.iterdir())


def _objects(values: dict[str, object], path: Path) -> None:
    class Bomb:
        def __reduce__(self) -> tuple[object, ...]:
            return (exec, ("raise SystemExit('executed')",))

    np.savez(path, **values | {"losses": np.array([Bomb()], dtype=object)})  # type: ignore[arg-type]


def _bare_pickle(_: dict[str, object], path: Path) -> None:
    path.write_bytes(pickle.dumps({"losses": 1}))


def _huge(values: dict[str, object], path: Path) -> None:
    """A header that claims a terabyte."""
    write_arrays(path, values, overwrite=True)
    with zipfile.ZipFile(path) as old:
        members = {name: old.read(name) for name in old.namelist()}
    header = members["gamma.npy"].index(b"'shape': (")
    raw = bytearray(members["gamma.npy"])
    raw[header : header + 30] = b"'shape': (999999, 999999), }  "
    with zipfile.ZipFile(path, "w") as new:
        for name, content in members.items():
            new.writestr(name, bytes(raw) if name == "gamma.npy" else content)


def _changed(**changes: object) -> Callable[[dict[str, object], Path], None]:
    def make(values: dict[str, object], path: Path) -> None:
        kept = {name: value for name, value in (values | changes).items() if value is not None}
        write_arrays(path, kept, overwrite=True)

    return make


HOSTILE: dict[str, Callable[[dict[str, object], Path], None]] = {
    "objects": _objects,
    "pickle": _bare_pickle,
    "huge": _huge,
    "empty": lambda _, path: path.write_bytes(b"") and None,
    "cut": lambda values, path: path.write_bytes(write_arrays(path, values, True).read_bytes()[:-500]) and None,
    "compressed": lambda values, path: np.savez_compressed(path, **values),  # type: ignore[arg-type]
    "no losses": _changed(losses=None),
    "another key": _changed(extra=np.ones(3)),
    "another format": _changed(format="paretograd trajectory 99"),
    "shape": _changed(gamma=np.ones(3)),
    "flat": _changed(losses=np.ones(3)),
    "kind": _changed(gamma=np.ones((61, 2), dtype=np.int64)),
    "lengths": _changed(lengths=np.array([1, 10**6])),
    "negative": _changed(lengths=np.array([1, -1])),
    "no words": _changed(words="{}"),
    "broken words": _changed(words="{"),
    "list of words": _changed(words="[]"),
    "deep words": _changed(words="[" * 100_000),
}


@pytest.mark.parametrize("kind", HOSTILE)
def test_hostile_files_are_refused(kind: str, run: pg.Trajectory, tmp_path: Path) -> None:
    values = read_arrays(run.save(tmp_path / "good.npz"))
    HOSTILE[kind](values, tmp_path / "bad.npz")
    with pytest.raises(pg.InputError):
        pg.Trajectory.load(tmp_path / "bad.npz")


@pytest.mark.parametrize("key", ["reasons", "guarantee", "seeds", "least", "lr", "dtype", "smoothness"])
@pytest.mark.parametrize("value", [["NO SUCH"], {"a": 1}, 3, "text", None])
def test_words_of_another_type_are_refused(key: str, value: object, run: pg.Trajectory, tmp_path: Path) -> None:
    if (key, value) in (("smoothness", None), ("smoothness", 3), ("lr", "text")):
        pytest.skip("allowed")
    values = read_arrays(run.save(tmp_path / "good.npz"))
    words = from_json(values["words"]) | {key: value}
    write_arrays(tmp_path / "bad.npz", values | {"words": to_json(words)}, overwrite=False)
    with pytest.raises(pg.InputError):
        pg.Trajectory.load(tmp_path / "bad.npz")


def test_a_missing_file() -> None:
    with pytest.raises(pg.InputError, match="there is no file"):
        pg.Trajectory.load("nowhere.npz")


def test_plain_data_survives_json() -> None:
    state = {"bytes": b"\x00\xff", "tensor": torch.arange(3), "array": np.array([[0.1], [np.inf]]), "big": 2**100}
    back = from_json(to_json(state | {"nested": {"list": [1, 2.5, None, "x"], "number": np.float64(0.1)}}))
    assert back["bytes"] == state["bytes"]
    assert back["big"] == state["big"]
    assert torch.equal(back["tensor"], torch.arange(3))
    assert np.array_equal(back["array"], np.array([[0.1], [np.inf]]))
    assert back["nested"] == {"list": [1, 2.5, None, "x"], "number": 0.1}
    with pytest.raises(TypeError, match="not plain data"):
        to_json({"function": print})


def test_columns(run: pg.Trajectory) -> None:
    columns = to_columns(run)
    assert set(columns) >= {"run", "seed", "step", "gamma", "norm", "step_size", "loss_0", "weight_1", "slope_0", "x_3"}
    rows = int((run.lengths + 1).sum())
    assert {len(column) for column in columns.values()} == {rows}
    last = columns["step"] == run.lengths[columns["run"]]
    assert np.array_equal(np.isnan(columns["norm"]), last)
    assert not np.isnan(columns["gamma"]).any()
    assert columns["gamma"][: run.lengths[0] + 1] == pytest.approx(run.run(0).gamma[:, 0])


def test_a_data_frame(run: pg.Trajectory) -> None:
    pytest.importorskip("pandas")
    frame = run.to_pandas()
    assert len(frame) == int((run.lengths + 1).sum())
    assert (frame.groupby("seed")["step"].max().to_numpy() == run.lengths).all()


@pytest.mark.parametrize(("package", "call"), [("pandas", "to_pandas"), ("matplotlib", "plot")])
def test_extras_are_asked_for_by_name(
    package: str, call: str, run: pg.Trajectory, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = builtins.__import__

    def without(name: str, *rest: object) -> object:
        if name.split(".")[0] == package:
            raise ModuleNotFoundError(f"No module named {package!r}", name=package)
        return real(name, *rest)  # type: ignore[arg-type]

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(pg.MissingExtraError, match="pip install"):
        getattr(run, call)()


@pytest.mark.parametrize("m", [1, 2, 3, 5])
def test_pictures(m: int) -> None:
    pytest.importorskip("matplotlib")
    run = pg.descend(pg.problem("quadratic", m=m), pg.MGDA(), 0.1, 20, seeds=(0, 1))
    figure = run.plot(pg.certify_run(run).curve())
    left, right = figure.axes
    assert left.get_xlabel()
    assert left.get_ylabel()
    assert right.get_yscale() == "log"
    assert right.get_ylabel() == "gamma"
    shown = {text.get_text() for axes in figure.axes for text in axes.get_legend().get_texts()}
    assert shown >= {"start", "end", "seed 0", "seed 1"}
    assert ("Pareto front" in shown) == (m > 1)
    figure.canvas.draw()


def test_runs_are_numbered(run: pg.Trajectory) -> None:
    assert run.run(1).seeds == (42,)
    with pytest.raises(pg.ParameterError, match="numbered 0 to 1"):
        run.run(2)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("rule", ["mgda", "upgrad*", "nash-mtl", "mean"])
def test_a_step_has_its_certificate(rule: str, dtype: torch.dtype) -> None:
    """It agrees with what was recorded, and says what the rule promises."""
    problem, aggregator = pg.problem("quadratic", m=3), pg.get(rule)
    found = pg.descend(problem, aggregator, 0.1, 20, seeds=(1, 2), dtype=dtype)
    near = 1e-5 if dtype is torch.float32 else 1e-9
    for step, run in ((0, 0), (7, 1)):
        certificate = found.certificate(problem, step, run)
        assert certificate.gamma == pytest.approx(found.gamma[step, run], rel=near)
        assert certificate.norm == pytest.approx(found.norms[step, run], rel=near)
        assert certificate.slopes == pytest.approx(found.slopes[step, run], rel=near, abs=near)
        assert certificate.alignment == pytest.approx(found.alignment[step, run], rel=near)
        assert certificate.in_hull or not aggregator.guarantee.in_hull
        assert certificate.non_conflicting or not aggregator.guarantee.non_conflicting


def test_a_certificate_needs_the_problem_of_the_run() -> None:
    found = pg.descend(pg.problem("quadratic"), pg.MGDA(), 0.1, 5, seeds=(1,))
    with pytest.raises(pg.ParameterError, match="made on quadratic"):
        found.certificate(pg.problem("vlmop2"), 0)
    with pytest.raises(pg.ParameterError, match="took 5 steps"):
        found.certificate(pg.problem("quadratic"), 5)
    with pytest.raises(pg.ParameterError, match="there is no run 1"):
        found.certificate(pg.problem("quadratic"), 0, run=1)
