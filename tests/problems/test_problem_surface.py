"""Problems as a user meets them: by name, with starts, batches, dtypes, mistakes, and on the command line."""

from __future__ import annotations

import pytest
import torch
from typer.testing import CliRunner

import paretograd as pg
from paretograd.cli.app import app

NAMES = [
    *("vlmop1", "vlmop2", "fonseca", "omnitest", "quadratic"),
    *("zdt1", "zdt2", "zdt3", "zdt4", "zdt6"),
    *("dtlz1", "dtlz2", "dtlz3", "dtlz4", "maf1"),
]


def test_names() -> None:
    assert pg.problems() == NAMES


@pytest.mark.parametrize("name", NAMES)
def test_by_name(name: str) -> None:
    problem = pg.problem(f" {name.upper()} ")
    assert problem.name == name
    assert problem.label
    assert problem.formula
    assert problem.source
    again = pg.problem(name, **problem.parameters)
    assert (again.n, again.m, repr(again)) == (problem.n, problem.m, repr(problem))
    assert eval(repr(problem), {"problem": pg.problem}).parameters == problem.parameters


def test_sizes() -> None:
    assert (pg.problem("vlmop2").n, pg.problem("omnitest").n) == (4, 3)  # the paper's
    assert pg.problem("vlmop2", n=7).n == 7
    assert (pg.problem("dtlz1", m=5).m, pg.problem("dtlz1", m=5).n) == (5, 9)
    assert (pg.problem("dtlz2", m=5).n, pg.problem("dtlz2", m=5, n=8).n) == (14, 8)
    assert repr(pg.problem("dtlz2", m=4)) == "problem('dtlz2', m=4, n=13)"


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("seed", [24, 42, 48, 100, 123, 0, -1])
def test_starts_are_the_protocols_bit_by_bit(name: str, seed: int) -> None:
    problem = pg.problem(name)
    low, high = (bound.float() for bound in (problem.lower, problem.upper))
    if name == "quadratic":
        low, high = -torch.ones(problem.n), torch.ones(problem.n)
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        expected = low + (high - low) / 4 + (high - low) / 2 * torch.rand(problem.n)
        before = torch.get_rng_state()
        start = problem.start(seed)
        assert torch.equal(torch.get_rng_state(), before)
    assert start.dtype == torch.float32
    assert torch.equal(start, expected)
    assert torch.equal(problem.start(seed, torch.float64), expected.double())
    assert problem.inside(start)


def test_starts_with_the_papers_numbers() -> None:
    """As the authors write it, with plain numbers for the box."""
    torch.manual_seed(100)
    assert torch.equal(pg.problem("vlmop2").start(100), -2 + 4 / 4 + 4 / 2 * torch.rand(4))
    torch.manual_seed(48)
    assert torch.equal(pg.problem("omnitest").start(48), 0 + 6 / 4 + 6 / 2 * torch.rand(3))


def test_starts_of_several_seeds() -> None:
    problem = pg.problem("vlmop2")
    starts = problem.starts([24, 42], dtype=torch.float64)
    assert torch.equal(starts, torch.stack([problem.start(24, torch.float64), problem.start(42, torch.float64)]))
    assert problem.starts([]).shape == (0, 4)


def own(lower: list[float], upper: list[float], **fields) -> pg.Problem:
    declared = {"m": 1, "least": (0.0,), "objectives": lambda x: x.square().sum(-1, keepdim=True), **fields}
    return pg.Problem(name="mine", label="Mine", lower=torch.tensor(lower), upper=torch.tensor(upper), **declared)


def test_starts_where_the_box_is_open() -> None:
    inf = torch.inf
    starts = own([3.0, -inf, -inf], [inf, 3.0, inf]).starts(range(200))
    middle = torch.tensor([4.0, 2.0, 0.0])
    assert ((starts - middle).abs() <= 0.5).all()
    assert ((starts - middle).abs().amax(0) > 0.45).all()


def test_inside() -> None:
    problem = pg.problem("vlmop2", n=2)
    points = torch.tensor([[2.0, -2.0], [0.0, 2.1], [torch.nan, 0.0], [-3.0, 0.0]])
    assert problem.inside(points).tolist() == [True, False, False, False]
    assert problem.inside(points.reshape(2, 2, 2)).shape == (2, 2)
    assert pg.problem("quadratic").inside(torch.full((4,), 1e30)).item() is True


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16, torch.bfloat16])
def test_any_dtype_and_any_leading_dimensions(name: str, dtype: torch.dtype) -> None:
    problem = pg.problem(name)
    points = problem.starts(range(6), torch.float64).to(dtype)
    losses, jacobian = problem.jacobian(points)
    assert (losses.dtype, jacobian.dtype) == (dtype, dtype)
    assert (losses.shape, jacobian.shape) == ((6, problem.m), (6, problem.m, problem.n))
    assert not losses.requires_grad
    assert not jacobian.requires_grad
    exact, slopes = problem.jacobian(points.double())
    # Of ZDT4's and DTLZ's waves a rounded argument changes the phase.
    loose = 40.0 if name in ("zdt4", "dtlz1", "dtlz3") else 10.0
    scale = loose * torch.finfo(dtype).eps
    assert ((losses - exact).abs() <= scale * (1.0 + exact.abs().amax())).all()
    assert ((jacobian - slopes).abs() <= 4 * scale * (1.0 + slopes.abs().amax())).all()
    for shape in ((), (2, 3), (0,), (1, 1, 6)):
        batch = points[0] if shape == () else points[: torch.Size(shape).numel()].reshape(*shape, problem.n)
        some, rows = problem.jacobian(batch)
        assert (some.shape, rows.shape) == ((*shape, problem.m), (*shape, problem.m, problem.n))
        torch.testing.assert_close(rows.reshape(-1, *jacobian.shape[1:]), jacobian[: some[..., 0].numel()])


@pytest.mark.parametrize("name", NAMES)
def test_jacobian_leaves_its_points_alone(name: str) -> None:
    problem = pg.problem(name)
    points = problem.starts(range(3)).requires_grad_()
    kept = points.detach().clone()
    with torch.no_grad():
        expected = problem.jacobian(points)
    assert torch.equal(points.detach(), kept)
    assert points.grad is None
    strided = kept.T.contiguous().T
    with torch.inference_mode():
        for found, wanted in zip(problem.jacobian(strided), expected, strict=True):
            torch.testing.assert_close(found, wanted)
    problem(points).sum().backward()  # after a first call in inference mode, too
    torch.testing.assert_close(points.grad, expected[1].sum(-2))


def test_constants_made_in_inference_mode_serve_autograd() -> None:
    problem = pg.problem("vlmop2")
    points = problem.start(0)
    with torch.inference_mode():
        problem(points)
    leaf = points.clone().requires_grad_()
    problem(leaf).sum().backward()
    assert leaf.grad.isfinite().all()


def test_a_problem_of_ones_own() -> None:
    problem = own([-1.0, -1.0], [1.0, 1.0])
    losses, jacobian = problem.jacobian(torch.tensor([[1.0, 2.0]]))
    assert losses.tolist() == [[5.0]]
    assert jacobian.tolist() == [[[2.0, 4.0]]]
    assert problem.pareto_front is None
    assert problem.smoothness is None


@pytest.mark.parametrize(
    ("name", "parameters", "message"),
    [
        ("vlmop2", {"n": 0}, "vlmop2: n=0 is too small; the smallest is 1"),
        ("vlmop2", {"n": 2.5}, "n=2.5 must be a whole number"),
        ("vlmop2", {"n": True}, "n=True must be a whole number"),
        ("vlmop2", {"m": 3}, "unexpected keyword argument 'm'. Its parameters are n"),
        ("zdt1", {"n": 1}, "zdt1: n=1 is too small; the smallest is 2"),
        ("dtlz1", {"m": 1}, "dtlz1: m=1 is too small; the smallest is 2"),
        ("dtlz1", {"m": 4, "n": 3}, "dtlz1: n=3 is too small; the smallest is 4"),
        ("quadratic", {"angle": 200.0}, "angle=200 must lie between 0 and 180 degrees"),
        ("quadratic", {"angle": "wide"}, "angle='wide': a real number is needed"),
        ("quadratic", {"n": 1, "angle": 90.0}, "with n = 1 the angle is 0 or 180 degrees"),
        ("quadratic", {"spectrum": [1.0, 2.0]}, r"give n = 4 eigenvalues, or 2 rows of 4"),
        ("quadratic", {"n": 2, "spectrum": [1.0, 0.0]}, "must be finite and above 0"),
        ("quadratic", {"n": 2, "spectrum": "steep"}, "must be n numbers, or m rows of them"),
        ("quadratic", {"seed": 0.5}, "seed=0.5 must be a whole number"),
    ],
)
def test_wrong_parameters(name: str, parameters: dict, message: str) -> None:
    with pytest.raises(pg.ParameterError) as caught:
        pg.problem(name, **parameters)
    assert message in str(caught.value)


def test_unknown_names() -> None:
    with pytest.raises(pg.UnknownNameError, match="Did you mean 'vlmop2'"):
        pg.problem("vlmpo2")
    with pytest.raises(pg.UnknownNameError, match="Known names: vlmop1"):
        pg.problem("frobnicate")


@pytest.mark.parametrize("method", ["__call__", "jacobian", "inside"])
def test_wrong_points(method: str) -> None:
    function = getattr(pg.problem("vlmop2"), method)
    with pytest.raises(pg.DTypeError, match="as a torch tensor; got list"):
        function([0.0] * 4)
    with pytest.raises(pg.DTypeError, match=r"floating-point dtype; got torch\.int64"):
        function(torch.zeros(4, dtype=torch.int64))
    for points in (torch.zeros(3), torch.zeros(4, 1), torch.tensor(1.0)):
        with pytest.raises(pg.ShapeError, match=r"n = 4 variables, so points have shape \(\.\.\., 4\)"):
            function(points)


def test_wrong_seeds_and_counts() -> None:
    with pytest.raises(pg.ParameterError, match="seed='one' must be a whole number"):
        pg.problem("vlmop2").start("one")
    for name in NAMES:
        with pytest.raises(pg.ParameterError, match="count=0 is too small"):
            pg.problem(name).pareto_set(0)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"m": 0}, "m=0 is too small"),
        ({"least": (0.0, 0.0)}, "least has 2 numbers for m = 1"),
        ({"smoothness": 0.0}, "smoothness=0.0 must be above 0"),
        ({"upper": torch.tensor([1.0])}, "vectors of one length n, lower below upper"),
        ({"upper": torch.tensor([1.0, -1.0])}, "vectors of one length n, lower below upper"),
    ],
)
def test_wrong_declarations(fields: dict, message: str) -> None:
    upper = fields.pop("upper", torch.ones(2)).tolist()
    with pytest.raises(pg.ParameterError, match=message):
        own([-1.0, -1.0], upper, **fields)


def test_wrong_objectives() -> None:
    with pytest.raises(pg.ShapeError, match=r"returned losses of shape \(5, 2\)"):
        own([0.0, 0.0], [1.0, 1.0], objectives=lambda x: x).jacobian(torch.zeros(5, 2))
    with pytest.raises(pg.InputError, match="the losses have no graph"):
        own([0.0, 0.0], [1.0, 1.0], objectives=lambda x: x.detach()[..., :1]).jacobian(torch.zeros(5, 2))


class TestCommand:
    def run(self, *arguments: str):
        return CliRunner().invoke(app, ["problems", *arguments], env={"COLUMNS": "140"})

    def test_lists_every_problem(self) -> None:
        result = self.run()
        assert result.exit_code == 0, result.output
        rows = {words[0]: line for line in result.stdout.splitlines() if (words := line.split())}
        for name in NAMES:
            problem = pg.problem(name)
            assert f" {problem.m} " in rows[name]
            assert f" {problem.n} " in rows[name]
        assert "[-2, 2]" in rows["vlmop2"]
        assert "R^4" in rows["quadratic"]
        assert "[0, 1] x [-5, 5]^9" in rows["zdt4"]

    @pytest.mark.parametrize("name", NAMES)
    def test_says_all_about_one(self, name: str) -> None:
        result = self.run(name)
        assert result.exit_code == 0, result.output
        words, problem = " ".join(result.stdout.split()), pg.problem(name)
        for text in (problem.label, problem.formula, problem.note, problem.source, f"pg.{problem!r}"):
            assert " ".join(text.split()) in words

    def test_unknown_name_gets_a_suggestion(self) -> None:
        result = self.run("vlmop3")
        assert result.exit_code == 2
        assert result.stderr.startswith("error: no problem is called 'vlmop3'. Did you mean")
