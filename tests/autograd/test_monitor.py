"""`pg.Monitor`: what it records is what the steps knew, also after a crash, a resume, and when the file is full."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import paretograd as pg
from paretograd.autograd import monitor as monitor_module
from paretograd.autograd.recording import file_of, read_recording

NAMES = ("speed", "comfort", "cost")


def same_gramians(found: np.ndarray, step: pg.Step) -> bool:
    """Return True if they differ by no more than the step's own rounding, which may leave its Gramian not symmetric."""
    expected = np.stack([each.gramian.numpy() for each in step.groups or (step,)])
    lengths = np.sqrt(np.einsum("gkk->gk", expected))
    return bool((np.abs(found - expected) <= 16 * step._eps * lengths[:, :, None] * lengths[:, None]).all())


class Task:
    """A trunk with three losses that disagree, trained on batches of its own."""

    def __init__(self, seed: int = 0) -> None:
        self.generator = torch.Generator().manual_seed(seed)
        with torch.random.fork_rng():
            torch.manual_seed(seed)
            self.model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1))
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1)

    def losses(self) -> dict[str, Tensor]:
        x = torch.randn(6, 4, generator=self.generator)
        y = self.model(x)[:, 0]
        targets = (x[:, 0], -x[:, 0] + x[:, 1], x[:, 2])
        return {name: (y - target).square().mean() for name, target in zip(NAMES, targets, strict=True)}

    def step(self, rule=None, named: bool = True, **more) -> tuple[pg.Step, dict[str, Tensor]]:
        losses = self.losses()
        self.optimizer.zero_grad()
        step = pg.backward(losses if named else list(losses.values()), rule or pg.UPGrad(), **more)
        self.optimizer.step()
        return step, losses


def trained(path: Path, steps: int, task: Task | None = None, **more) -> list[pg.Step]:
    task, found = task or Task(), []
    with pg.Monitor(path, budget=None, **more) as monitor:
        for _ in range(steps):
            step, losses = task.step()
            monitor(step, losses)
            found.append(step)
    return found


class TestNumbers:
    def test_records_are_exactly_what_the_steps_knew(self, tmp_path):
        task = Task()
        with pg.Monitor(tmp_path / "mine", budget=None) as monitor:
            pairs = [task.step() for _ in range(5)]
            for step, losses in pairs:
                monitor(step, losses)
        recording = read_recording(tmp_path / "mine")
        assert recording.head.names == NAMES
        assert monitor.path == tmp_path / "mine" / "monitor.jsonl"
        assert [record.step for record in recording.records] == [0, 1, 2, 3, 4]
        for record, (step, losses) in zip(recording.records, pairs, strict=True):
            assert record.rule == "UPGrad"
            assert same_gramians(record.gramians, step)
            assert np.array_equal(record.weights, step.weights[None].numpy())
            assert record.losses.tolist() == [loss.item() for loss in losses.values()]
            assert record.direction is record.update is None

    def test_losses_may_be_left_out_and_have_no_names(self, tmp_path):
        step, losses = Task().step(named=False)
        with pg.Monitor(tmp_path / "a.jsonl", budget=None) as monitor:
            monitor(step)
            monitor(step, list(losses.values()))
            monitor(step, torch.stack(list(losses.values())))
        first, second, third = read_recording(tmp_path / "a.jsonl").records
        assert first.losses is None
        assert np.array_equal(second.losses, third.losses)
        assert read_recording(tmp_path / "a.jsonl").head.labels == ("loss 0", "loss 1", "loss 2")

    def test_updates_groups_and_directions(self, tmp_path):
        task = Task()
        losses = task.losses()
        step = pg.backward(losses, pg.UPGrad(), keep_rows=True)
        with step.of_update() as update:
            task.optimizer.step()
        groups = pg.backward(task.losses(), pg.MGDA(), [list(layer.parameters()) for layer in task.model[::2]])
        dropped = pg.backward(task.losses(), pg.get("graddrop", seed=0))
        with pg.Monitor(tmp_path, budget=None) as monitor:
            for each in (step, groups, dropped):
                monitor(each)
        of_update, of_groups, of_direction = read_recording(tmp_path).records
        assert tuple(of_update.update.slopes) == update.slopes
        assert of_update.update.conflicts == update.conflicts
        assert of_update.update.norm == update.certificate.norm
        assert np.array_equal(of_groups.weights, groups.weights.numpy())
        assert same_gramians(of_groups.gramians, groups)
        assert np.isnan(of_direction.weights).all()
        assert tuple(of_direction.direction.slopes) == dropped.direction.slopes

    def test_rules_that_see_the_losses_have_no_gramian(self, tmp_path):
        step, losses = Task().step(pg.STCH(mu=0.1))
        with pg.Monitor(tmp_path, budget=None) as monitor:
            monitor(step)
        (record,) = read_recording(tmp_path).records
        assert record.gramians is None
        assert record.losses.tolist() == [loss.item() for loss in losses.values()]
        assert np.array_equal(record.weights[0], step.weights.numpy())

    def test_accumulated_captured_and_unusable_steps(self, tmp_path):
        task = Task()
        with pg.accumulate(task.model) as sums:
            sums.add(task.losses())
            accumulated = sums.step(pg.UPGrad())
        with pytest.warns(UserWarning, match="cannot be captured"):
            captured = pg.capture(lambda x: [(task.model(x) - k).square().mean() for k in range(3)], pg.UPGrad())(
                torch.ones(2, 4)
            )
        broken = pg.backward([loss * torch.inf for loss in task.losses().values()], pg.UPGrad(), nonfinite="propagate")
        with pg.Monitor(tmp_path / "a", budget=None) as monitor:
            monitor(accumulated)
        with pg.Monitor(tmp_path / "b", budget=None) as monitor:
            monitor(captured)
            monitor(broken)
        assert np.array_equal(read_recording(tmp_path / "a").records[0].weights[0], accumulated.weights.numpy())
        first, second = read_recording(tmp_path / "b").records
        assert np.array_equal(first.losses, captured.losses.numpy())
        assert np.isnan(second.gramians).all()

    @pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
    def test_numbers_on_a_gpu_are_written_one_call_later(self, tmp_path):
        w = torch.ones(4, device="cuda", requires_grad=True)
        steps = []
        with pg.Monitor(tmp_path, budget=None) as monitor:
            for k in range(3):
                losses = [(w - k).square().sum(), (w * torch.arange(4, device="cuda")).sum()]
                steps.append(pg.backward(losses, pg.UPGrad()))
                monitor(steps[-1], losses)
                assert monitor.records in (k, k + 1)
        for record, step in zip(read_recording(tmp_path).records, steps, strict=True):
            assert np.array_equal(record.weights[0], step.weights.cpu().numpy())

    def test_many_losses_fit(self, tmp_path):
        """The file stays below 32 MB, whatever the number of losses. A Gramian of 128 has 66 kB, in base64 88 kB."""
        w = torch.randn(200, requires_grad=True, generator=torch.Generator().manual_seed(0))
        step = pg.backward(list((w[:128] - 1).square().unbind()), pg.Mean(), [w])
        with pg.Monitor(tmp_path, budget=None) as monitor:
            monitor(step)
            size = monitor.path.stat().st_size
            for _ in range(400):
                monitor(step)
        assert monitor.path.stat().st_size < 32 << 20
        assert monitor.steps == 401
        assert monitor.records < 401
        assert size < 100_000


class TestCrash:
    def test_a_file_cut_at_any_byte_of_its_last_record_is_read_and_continued(self, tmp_path):
        trained(tmp_path / "whole", 3)
        whole = file_of(tmp_path / "whole").read_bytes()
        last = len(whole[:-1].rpartition(b"\n")[0]) + 1
        expected = read_recording(tmp_path / "whole").records
        step, losses = Task(1).step()
        path = tmp_path / "cut.jsonl"
        for cut in range(last, len(whole)):
            path.write_bytes(whole[:cut])
            assert [record.step for record in read_recording(path).records] == [0, 1]
            with pg.Monitor(path, budget=None) as monitor:
                assert (monitor.records, monitor.steps) == (2, 2)
                monitor(step, losses)
            records = read_recording(path).records
            assert [record.step for record in records] == [0, 1, 2]
            assert np.array_equal(records[1].gramians, expected[1].gramians)
            assert np.array_equal(records[2].weights[0], step.weights.numpy())

    def test_it_can_be_read_while_it_is_written(self, tmp_path):
        task = Task()
        monitor = pg.Monitor(tmp_path, budget=None)
        for count in range(1, 5):
            monitor(*task.step())
            assert len(read_recording(tmp_path).records) == count

    def test_a_disk_that_fails_does_not_end_the_training(self, tmp_path):
        (tmp_path / "file").write_text("in the way")
        monitor = pg.Monitor(tmp_path / "file" / "run", budget=None)
        task = Task()
        with pytest.warns(UserWarning, match="the monitor stops, and training goes on"):
            monitor(*task.step())
        monitor(*task.step())
        assert monitor.records == 0

    def test_a_file_that_was_deleted_is_not_continued_without_its_head(self, tmp_path):
        monitor, task = pg.Monitor(tmp_path, budget=None), Task()
        monitor(*task.step())
        monitor.path.unlink()
        with pytest.warns(UserWarning, match="the monitor stops"):
            monitor(*task.step())
        assert not monitor.path.exists()


class TestSize:
    def test_a_full_file_drops_every_second_record_and_doubles_the_stride(self, tmp_path):
        steps = trained(tmp_path, 100, keep=16)
        recording = read_recording(tmp_path)
        assert recording.head.stride == 8
        assert [record.step for record in recording.records] == list(range(0, 100, 8))
        for record in recording.records:
            assert same_gramians(record.gramians, steps[record.step])

    def test_a_resumed_monitor_keeps_the_stride_and_the_count(self, tmp_path):
        trained(tmp_path, 40, keep=16)
        trained(tmp_path, 40, Task(1), keep=16)
        recording = read_recording(tmp_path)
        assert recording.head.stride == 8
        found = [record.step for record in recording.records]
        assert found[:5] == [0, 8, 16, 24, 32]
        assert len(found) <= 16
        assert found[-1] >= 64
        assert all(np.diff(found) > 0)

    def test_the_budget_leaves_steps_out(self, tmp_path):
        """Recording may take a millionth of the time here, so that after the second record none is affordable."""
        task = Task()
        with pg.Monitor(tmp_path, budget=1e-6) as monitor:
            for _ in range(50):
                monitor(*task.step())
        assert (monitor.steps, monitor.records) == (50, 2)

    def test_the_budget_is_kept_and_a_pause_pays_for_few_records(self, tmp_path, monkeypatch):
        """By a clock on which a step takes 10 ms and a look at it 0.1 ms: a record costs 0.2 ms, another call 0.1."""
        now = 0.0

        def clock() -> float:
            nonlocal now
            now += 1e-4
            return now

        monkeypatch.setattr(monitor_module, "perf_counter", clock)
        step, losses = Task().step()
        with pg.Monitor(tmp_path, budget=0.015) as monitor:
            for _ in range(1000):
                monitor(step, losses)
                now += 1e-2
            assert 0.012 * 10.0 < monitor.spent <= 0.015 * 10.5
            before = monitor.records
            now += 1e4  # as long as a million steps
            for _ in range(100):
                monitor(step, losses)
                now += 1e-2
        # The pause pays for four records of 0.2 ms, which are eight times the 0.1 ms by which they exceed another call.
        assert monitor.records - before <= 100 * before // 1000 + 9


class TestWrongUse:
    def test_other_losses_than_those_of_the_file(self, tmp_path):
        trained(tmp_path, 2)
        before = file_of(tmp_path).read_bytes()
        monitor = pg.Monitor(tmp_path, budget=None)
        with pytest.raises(
            pg.ParameterError, match=r"has 3 losses \(speed, comfort, cost\), and this step has 3 \(loss 0"
        ):
            monitor(Task().step(named=False)[0])
        assert file_of(tmp_path).read_bytes() == before

    def test_losses_of_another_number(self, tmp_path):
        step, losses = Task().step()
        with pytest.raises(pg.ShapeError, match=r"must be the 3 losses of the step; got shape \(2,\)"):
            pg.Monitor(tmp_path, budget=None)(step, list(losses.values())[:2])

    @pytest.mark.parametrize(("text", "message"), [
        ("", "is not a file of paretograd.Monitor"),
        ("hello", "is not a file of paretograd.Monitor"),
        ("[1]\n", "is not a file of paretograd.Monitor"),
        ('{"format": "paretograd monitor"', "is not a file of paretograd.Monitor"),
        ('{"format": "paretograd monitor", "version": 2}\n', "has version 2 of the format"),
        ('{"format": "paretograd monitor", "version": 1, "m": 2, "names": ["a"], "stride": 1}\n', "is damaged"),
        ('{"format": "paretograd monitor", "version": 1, "m": 1e9, "names": null, "stride": 1}\n', "is damaged"),
        ('{"format": "paretograd monitor", "version": 1, "m": 2, "names": null, "stride": 0}\n', "is damaged"),
    ])  # fmt: skip
    def test_files_of_others_are_refused_and_stay_as_they_are(self, tmp_path, text, message):
        path = tmp_path / "a.jsonl"
        path.write_text(text)
        for use in (pg.Monitor, read_recording):
            with pytest.raises(pg.DataError, match=message):
                use(path)
        assert path.read_text() == text

    @pytest.mark.parametrize("change", [
        {"weights": [1.0]},
        {"weights": None},
        {"step": -1},
        {"step": "0"},
        {"rule": 3},
        {"eps": "x"},
        {"update": {"slopes": [1.0, 1.0, 1.0], "norm": 1.0, "conflicts": [3]}},
        {"losses": [1.0, 2.0]},
        {"gramian": {"__array__": "AAAA", "dtype": "<f8", "shape": [1]}},
        {"gramian": {"__array__": "AAAAAAAAAAA=", "dtype": "|O", "shape": [1]}},
    ])  # fmt: skip
    def test_damaged_records_are_named_by_their_line(self, tmp_path, change):
        trained(tmp_path, 3)
        lines = file_of(tmp_path).read_text().splitlines()
        lines[2] = json.dumps(json.loads(lines[2]) | change)
        file_of(tmp_path).write_text("\n".join(lines) + "\n")
        with pytest.raises(pg.DataError, match="line 3: this is no record of 3 losses"):
            read_recording(tmp_path)

    def test_there_is_nothing_to_read(self, tmp_path):
        with pytest.raises(pg.DataError, match="there is no recording"):
            read_recording(tmp_path)

    @pytest.mark.parametrize("more", [{"budget": 0.0}, {"budget": 2.0}, {"budget": "x"}, {"keep": 2}, {"keep": 16.5}])
    def test_wrong_options(self, tmp_path, more):
        with pytest.raises(pg.ParameterError, match=r"give|needed"):
            pg.Monitor(tmp_path, **more)
