"""``paretograd run`` and ``paretograd reproduce``: studies in folders."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated

import typer

from paretograd.cli import fairness, federated, trained
from paretograd.cli.console import console, errors_in_words
from paretograd.cli.options import read_methods, read_parameters, read_seeds
from paretograd.cli.summary import places, summary
from paretograd.errors import InputError, MissingExtraError
from paretograd.experiments import PAPER, Results, Study, paper_study, run_study
from paretograd.experiments.fairness import read_results as read_fairness
from paretograd.experiments.federated import read_results as read_federated
from paretograd.experiments.folder import read_config, versions
from paretograd.experiments.progress import Bars
from paretograd.experiments.synthetic.run import read_study
from paretograd.experiments.synthetic.study import command_of, title_of
from paretograd.experiments.synthetic.table import ends, for_page

Out = Annotated[Path | None, typer.Option(metavar="FOLDER", help="Where to write; runs/NAME if not given.")]
Resume = Annotated[
    bool, typer.Option("--resume", help="Go on with what is in the folder; methods that are done are not run again.")
]
Overwrite = Annotated[bool, typer.Option("--overwrite", help="Remove the study in the folder and start anew.")]
CheckpointEvery = Annotated[
    float, typer.Option(metavar="SECONDS", min=0.0, help="Work between two checkpoints: what a kill can lose.")
]
MetricsEvery = Annotated[
    int | None,
    typer.Option(
        metavar="K", min=1, help="metrics.csv has every K-th step, and the last of each run; 10 if not given."
    ),
]
Report = Annotated[bool, typer.Option("--report/--no-report", help="Draw the figures and write report.html.")]


def reproduce(
    name: Annotated[
        str | None, typer.Argument(help=f"{', '.join(PAPER)}, fairness, federated. Without a name: what they are.")
    ] = None,
    out: Out = None,
    resume: Resume = False,
    overwrite: Overwrite = False,
    checkpoint_every: CheckpointEvery = 5.0,
    report: Report = True,
    authors_lr: Annotated[
        bool,
        typer.Option(
            "--authors-lr",
            help="Nash-MTL* with lr 0.005, as in the authors' runs; the others 0.001.",
            rich_help_panel="For vlmop2, omnitest and mas",
        ),
    ] = False,
    metrics_every: Annotated[
        int | None,
        typer.Option(
            metavar="K",
            min=1,
            help="metrics.csv has every K-th step, and the last of each run; 10 if not given.",
            rich_help_panel="For vlmop2, omnitest and mas",
        ),
    ] = None,
    data_dir: trained.DataDir = None,
    methods: trained.Methods = None,
    seeds: trained.Seeds = None,
    device: trained.Device = None,
    tf32: trained.Tf32 = None,
    steps: fairness.Steps = None,
    gaps: fairness.Gaps = None,
    scaling: fairness.Scaling = None,
    small: federated.Small = False,
    parts: federated.Parts = None,
    epochs: federated.Epochs = None,
    lr: federated.Lr = None,
    noise: federated.Noise = None,
) -> None:
    """Reproduce a study of the paper: figures, table and report, by the authors' protocol."""
    with errors_in_words():
        if name is None:
            for key, paper in PAPER.items():
                typer.echo(f"{key:10}{paper.title}" + f" (figure {paper.figure})" * bool(paper.figure))
            typer.echo("fairness  Fair classification on Adult (table fairness_table)")
            typer.echo("federated Adversarial federated learning on CIFAR-10 (table adv_fl_accuracy)")
            typer.echo("\nNext: paretograd reproduce vlmop2")
            return
        both: dict[str, object] = {"data_dir": data_dir, "methods": methods, "seeds": seeds}
        both |= {"device": device, "tf32": tf32}
        for_fairness: dict[str, object] = {"steps": steps, "gaps": gaps, "scaling": scaling}
        for_federated: dict[str, object] = {"small": small or None, "parts": parts, "epochs": epochs}
        for_federated |= {"lr": lr, "noise": noise}
        for_synthetic = {"authors_lr": authors_lr or None, "metrics_every": metrics_every}
        plain = name.strip().lower()
        folder = out or Path("runs") / plain
        if plain == "fairness":
            _refuse(name, for_synthetic | for_federated)
            fairness.run(folder, both | for_fairness, resume, overwrite, checkpoint_every, report)
        elif plain == "federated":
            _refuse(name, for_synthetic | for_fairness)
            federated.run(folder, both | for_federated | {"small": small}, resume, overwrite, checkpoint_every, report)
        else:
            study = paper_study(name, authors_lr)
            _refuse(name, both | for_fairness | for_federated)
            _run(study, folder, resume, overwrite, checkpoint_every, metrics_every, report)


def _refuse(name: str, options: Mapping[str, object]) -> None:
    """Options that a study does not have."""
    given = [f"--{key.replace('_', '-')}" for key, value in options.items() if value is not None]
    if given:
        raise InputError(f"reproduce {name} has no {', '.join(given)}; see paretograd reproduce --help")


def report(
    folder: Annotated[Path, typer.Argument(help="The folder of a study, finished or not: runs/fairness")],
) -> None:
    """Draw the figures and the page of a study from its folder; nothing is run."""
    with errors_in_words():
        experiment = read_config(folder / "config.json")["study"].get("experiment")
        if experiment == "fairness":
            written = fairness.draw(read_fairness(folder))
        elif experiment == "federated":
            written = federated.draw(read_federated(folder))
        else:
            written = _write_report(read_study(folder))
        for path in written:
            typer.echo(path)


def run(
    problem: Annotated[str, typer.Argument(help="A problem of paretograd problems, such as vlmop2 or dtlz2.")],
    aggregators: Annotated[
        str,
        typer.Option(metavar="RULES", help="Rules separated by commas; quote them: 'mgda,upgrad*,mas-rr(100)'."),
    ] = "mgda,upgrad,dualproj,nash-mtl",
    seeds: Annotated[
        str, typer.Option(metavar="SEEDS", help="How many (5 means 0 to 4), or which: 24,42,48. One seed alone: 100,")
    ] = "1",
    lr: Annotated[
        str,
        typer.Option(
            metavar="LR",
            help="Step size: a number, or smooth, aligned, monotone (the theorems', which need the problem's "
            "smoothness constant) or armijo (line search). Parameters in parentheses: 'armijo(start=0.5)'.",
        ),
    ] = "0.001",
    steps: Annotated[int, typer.Option(min=1, help="Take at most this many steps.")] = 10_000,
    param: Annotated[
        list[str] | None,
        typer.Option("--param", metavar="KEY=VALUE", help="A parameter of the problem: n=6, m=3. Repeat it."),
    ] = None,
    lr_for: Annotated[
        list[str] | None,
        typer.Option(
            "--lr-for", metavar="RULE=LR", help="Another step size for one rule: 'nash-mtl*=0.005'. Repeat it."
        ),
    ] = None,
    figure_seed: Annotated[int | None, typer.Option(help="The seed that figures show; the first if not given.")] = None,
    stop_gamma: Annotated[float, typer.Option(min=0.0, help="Stop a run at a smaller gamma; 0: never.")] = 0.01,
    stop_norm: Annotated[float, typer.Option(min=0.0, help="Stop a run at a shorter direction; 0: never.")] = 0.01,
    dtype: Annotated[str, typer.Option(help="Precision: float64 or float32.")] = "float64",
    out: Out = None,
    resume: Resume = False,
    overwrite: Overwrite = False,
    checkpoint_every: CheckpointEvery = 5.0,
    metrics_every: MetricsEvery = None,
    report: Report = True,
) -> None:
    """Compare rules on a test problem: whole runs, with checkpoints, a table, figures and a report."""
    with errors_in_words():
        name, parameters = read_parameters(problem, param or [])
        study = Study(
            problem=name,
            parameters=parameters,
            methods=read_methods(aggregators, lr, lr_for or []),
            seeds=read_seeds(seeds),
            steps=steps,
            figure_seed=figure_seed,
            stop_gamma=stop_gamma,
            stop_norm=stop_norm,
            dtype=dtype,
        )
        _run(study, out or Path("runs") / name, resume, overwrite, checkpoint_every, metrics_every, report)


def _run(
    study: Study,
    folder: Path,
    resume: bool,
    overwrite: bool,
    checkpoint_every: float,
    metrics_every: int | None,
    report: bool,
) -> None:
    try:
        with Bars() as bars:
            results = run_study(
                study,
                folder,
                resume=resume,
                overwrite=overwrite,
                checkpoint_every=checkpoint_every,
                metrics_every=metrics_every,
                watch=bars,
            )
        console().print(summary(results))
        written = _report(results) if report else []
        console().print(places(folder, written, results.metrics_every))
    except KeyboardInterrupt:
        go_on = f"{command_of(study)} --out {shlex.quote(str(folder))} --resume"
        typer.echo(f"interrupted; what was done is in {folder}. Go on with:\n  {go_on}", err=True)
        raise typer.Exit(130) from None


def _report(results: Results) -> list[Path]:
    """Figures and page; without the extras they need, a sentence about it, since all numbers are there."""
    try:
        return _write_report(results)
    except MissingExtraError as error:
        typer.echo(f"no report: {error}; then run the command again with --resume", err=True)
        return []


def _write_report(results: Results) -> list[Path]:
    from paretograd.reports.study import write_study

    study = results.study
    return write_study(
        results.folder,
        title_of(study),
        results.trajectories,
        study.make_problem(),
        study.shown_seed,
        for_page(study, results.rows),
        _details(study),
        stop_gamma=study.stop_gamma or None,
    )


def _details(study: Study) -> Mapping[str, str]:
    """The configuration as the report shows it."""
    return {
        "problem": repr(study.make_problem()),
        "seeds": ", ".join(map(str, study.seeds)),
        "step size": study.lr,
        "a run ends at the first of": ends(study),
        "precision": study.dtype,
        "versions": ", ".join(f"{name} {version}" for name, version in versions().items()),
        "command": command_of(study),
    }
