"""Commands about problems of hyperparameter search."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from fedarena.cli.base import hpo_command, screen
from fedarena.cli.federations import progress_bar, say
from fedarena.core.console import as_markup
from fedarena.core.errors import BadInputError

if TYPE_CHECKING:
    from fedarena.hpo.problem import Result
    from fedarena.hpo.problems.declared import Declared

ProblemName = Annotated[
    str, typer.Argument(metavar="PROBLEM", help="A name such as lr@31, or a configuration file with search:.")
]
DataFolder = Annotated[Path | None, typer.Option("--folder", help="Where the files of the federation are.")]
Epsilon = Annotated[float | None, typer.Option("--epsilon", help="Train with NbAFL under this privacy budget.")]
ProblemSettings = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="KEY=VALUE", help="A setting of the runs, such as federation.alpha=0.1; repeatable."),
]
GridValues = Annotated[
    list[str] | None,
    typer.Option("--grid", metavar="KEY=[VALUES]", help="Other values than the bins, such as model.width=[16,64]."),
]


@hpo_command
def list_() -> None:
    """Show all problems, how large their grids are, and how much of it the tables have that come with FedArena."""
    from rich import box
    from rich.table import Table

    from fedarena.hpo.problems import declared_names, find_declared
    from fedarena.hpo.tables.finding import shipped_tables
    from fedarena.hpo.tables.table import describe_table

    sizes_of_tables = {name: _grid_size(describe_table(path)) for name, path in shipped_tables().items()}
    found: dict[str, list[Declared]] = {}
    for name in declared_names():
        found.setdefault(name.partition("-")[0], []).append(find_declared(name))
    table = Table(box=box.SIMPLE_HEAD)
    table.add_column("problem", style="bold", no_wrap=True)
    table.add_column("what")
    for title in ("with", "grid", "in table"):
        table.add_column(title, no_wrap=True, justify="left" if title == "with" else "right")
    for name, declared in found.items():
        sizes = [sum(1 for _ in one.space.grid()) for one in declared]
        algorithms, grids = "\n".join(one.algorithm for one in declared), "\n".join(f"{size:,}" for size in sizes)
        in_tables = [f"{sizes_of_tables[one.name]:,}" if one.name in sizes_of_tables else "" for one in declared]
        table.add_row(as_markup(name), declared[0].title, algorithms, grids, "\n".join(in_tables))
    screen.print(table)
    say("NAME is with fedavg, NAME-fedopt and NAME-fedprox with the others; fedarena hpo show NAME describes one")


@hpo_command
def show(name: ProblemName) -> None:
    """Describe a problem: its space, its fidelities, its runs, and its table if there is one."""
    from rich import box
    from rich.table import Table

    from fedarena.hpo.problems import find_declared
    from fedarena.hpo.tables.finding import shipped_tables
    from fedarena.hpo.tables.table import describe_table
    from fedarena.runs.config import to_yaml

    declared = find_declared(name)
    path = shipped_tables().get(declared.name)
    about = None if path is None else describe_table(path)
    say(f"{declared.name}: {declared.title}")
    table = Table(box=box.SIMPLE_HEAD)
    table.add_column("hyperparameter", style="bold")
    for title in ("range", "bins", *([] if about is None else ["in its table"])):
        table.add_column(title)
    for one in declared.space:
        spread = "one of " + ", ".join(map(str, one.choices))
        if one.kind != "choice":
            spread = f"{one.low:g} to {one.high:g}{', log' if one.log else ''}{', whole' if one.kind == 'int' else ''}"
        try:
            bins = _listed(one.grid())
        except BadInputError:
            bins = "none"
        has = [] if about is None else [_listed(about["grid"][one.name])]
        table.add_row(*map(as_markup, (one.name, spread, bins, *has)))
    screen.print(table)
    rates = ", ".join(f"{rate:g}" for rate in declared.sample_rates) or "as cohort says"
    say(f"Fidelities: 1 to {declared.rounds} rounds; client sample rates {rates}")
    if declared.budget_s is not None:
        say(f"Budget: {declared.budget_s:,.0f} simulated seconds")
    say("Settings of its runs:")
    screen.print(to_yaml(declared.settings).rstrip(), highlight=False, soft_wrap=True, markup=False)
    if about is not None:
        rounds = about["rounds"]
        say(f"Table: {path}")
        say(
            f"It has {_grid_size(about):,} configurations at client sample rates {_listed(about['rates'])}, means over "
            f"the seeds {_listed(about['seeds'])}, and {len(rounds)} noted rounds up to {rounds[-1]}"
        )
        say(f"Made by: {' '.join(about['about']['command'])}")


@hpo_command
def query(
    name: ProblemName,
    configuration: Annotated[
        list[str] | None, typer.Argument(metavar="[KEY=VALUE]...", help="Hyperparameters, such as local.lr=0.1.")
    ] = None,
    mode: Annotated[
        Literal["tabular", "surrogate", "raw"], typer.Option("--mode", help="Where the answer comes from.")
    ] = "tabular",
    rounds: Annotated[int | None, typer.Option("--rounds", help="How long it is trained. [all rounds]")] = None,
    rate: Annotated[float | None, typer.Option("--rate", help="Client sample rate. [the usual one]")] = None,
    seed: Annotated[int, typer.Option("--seed", help="Of the training, in mode raw.")] = 0,
    objective: Annotated[str, typer.Option("--objective", help="The score that is the value.")] = "validation_loss",
    table: Annotated[Path | None, typer.Option("--table", help="A table of your own.")] = None,
    surrogate: Annotated[Path | None, typer.Option("--surrogate", help="A surrogate of your own.")] = None,
    folder: DataFolder = None,
    epsilon: Epsilon = None,
    settings: ProblemSettings = None,
    runs: Annotated[Path, typer.Option("--runs", help="Where the runs of mode raw lie.")] = Path("runs"),
) -> None:
    """Ask how good a configuration is after so much training, and what that costs."""
    from dataclasses import replace

    from fedarena.hpo.problems import problem
    from fedarena.runs.config import parse_overrides

    asked = problem(
        name,
        mode,
        objective=objective,
        table=table,
        surrogate=surrogate,
        folder=folder,
        epsilon=epsilon,
        settings=parse_overrides(settings or []),
        runs_folder=runs,
    )
    fidelity = asked.full
    fidelity = fidelity if rounds is None else replace(fidelity, rounds=rounds)
    fidelity = fidelity if rate is None else replace(fidelity, client_sample_rate=rate)
    given = parse_overrides(configuration or [])
    if asked.mode == "raw":  # in pieces, between which it can be seen how far it is
        asked.check(given, fidelity)
        with progress_bar() as advance:
            for done in _pieces(fidelity.rounds):
                advance(done, fidelity.rounds, f"Training, round {done} of {fidelity.rounds}")
                asked.query(given, replace(fidelity, rounds=done), seed)
    _say_result(asked.query(given, fidelity, seed), objective)


@hpo_command
def table(
    name: ProblemName,
    output: Annotated[Path | None, typer.Option("-o", "--output", help="The file to write. [PROBLEM.parquet]")] = None,
    seeds: Annotated[str, typer.Option("--seeds", help="Seeds to average over, with commas.")] = "0,1,2",
    rates: Annotated[
        str | None, typer.Option("--rates", help="Client sample rates, with commas. [the problem's]")
    ] = None,
    rounds: Annotated[int | None, typer.Option("--rounds", help="The largest fidelity. [the problem's]")] = None,
    noted: Annotated[int | None, typer.Option("--noted", help="How many rounds are noted. [about 40]")] = None,
    grid: GridValues = None,
    bits: Annotated[int, typer.Option("--bits", help="Bits of mantissa that scores are rounded to.")] = 12,
    at_once: Annotated[
        int, typer.Option("--at-once", help="Trials that are stored at a time; a kill costs as many.")
    ] = 2_000,
    training: Annotated[
        Literal["auto", "lanes", "one_by_one"], typer.Option("--training", help="Many trials at once, or one by one.")
    ] = "auto",
    device: Annotated[Literal["auto", "cpu", "cuda"], typer.Option("--device", help="Where lanes compute.")] = "auto",
    carry: Annotated[
        Path | None,
        typer.Option("--carry", help="Train nothing; write the trials to this file, for a machine with torch alone."),
    ] = None,
    trained: Annotated[
        Path | None, typer.Option("--trained", help="Train nothing; take what that machine made of the trials.")
    ] = None,
    folder: DataFolder = None,
    epsilon: Epsilon = None,
    settings: ProblemSettings = None,
) -> None:
    """Make the table of a problem by training its whole grid; the same command goes on with one that was cut short."""
    from fedarena.core.outside_text import as_file_name
    from fedarena.hpo.tables.making import carry_table, make_table
    from fedarena.hpo.tables.recipe import make_recipe

    declared = _declared(name, folder, epsilon, settings)
    recipe = make_recipe(
        declared,
        seeds=numbers_of(seeds, "--seeds"),
        rates=None if rates is None else numbers_of(rates, "--rates"),
        rounds=rounds,
        noted=noted,
        grid=grid_of(grid),
        bits=bits,
        at_once=at_once,
    )
    if carry is not None:
        trials = carry_table(recipe, carry)
        say(f"Trials: {carry} ({trials:,} trials, {carry.stat().st_size:,} bytes)")
        say(f"To train them: python -m fedarena.hpo.tables.elsewhere {carry.name} trained.npz")
        return
    path = output or Path(f"{as_file_name(declared.name)}.parquet")
    with progress_bar() as advance:
        made = make_table(
            recipe,
            path,
            training=training,
            device=device,
            trained=trained,
            progress=lambda done, total: advance(done, total, f"Training {done:,} of {total:,} trials"),
        )
    size = path.stat().st_size
    say(f"Table: {path} ({len(made.values):,} configurations, {recipe.trials():,} trials, {size:,} bytes)")


@hpo_command
def surrogate(
    name: ProblemName,
    output: Annotated[Path | None, typer.Option("-o", "--output", help="The file to write. [PROBLEM.npz]")] = None,
    table: Annotated[Path | None, typer.Option("--table", help="A table of your own.")] = None,
    objective: Annotated[
        str, typer.Option("--objective", help="The score by whose error forests are compared.")
    ] = "validation_loss",
    seed: Annotated[int, typer.Option("--seed", help="Of folds and forests.")] = 0,
    epsilon: Epsilon = None,
    settings: ProblemSettings = None,
) -> None:
    """Fit a surrogate to a table, and show the errors of the forests that were compared, as in Table 12."""
    from rich import box
    from rich.table import Table

    from fedarena.core.outside_text import as_file_name
    from fedarena.hpo.surrogate import fit_surrogate, write_surrogate
    from fedarena.hpo.tables.finding import find_table

    declared = _declared(name, None, epsilon, settings)
    found, _ = find_table(declared, table)
    with progress_bar() as advance:
        fitted = fit_surrogate(
            found,
            objective=objective,
            seed=seed,
            progress=lambda done, total: advance(done, total, f"Fitting forests {done} of {total}"),
        )
    path = output or Path(f"{as_file_name(declared.name)}.npz")
    write_surrogate(fitted, path)
    shown = Table(title=f"Mean absolute errors of {objective}", title_justify="left", box=box.SIMPLE_HEAD)
    for title in ("trees", "depth", "train", "test"):
        shown.add_column(title, justify="right")
    for one in fitted.errors:
        shown.add_row(str(one.trees), str(one.depth), f"{one.train:.5f}", f"{one.test:.5f}")
    screen.print(shown)
    say(f"Surrogate: {path} ({fitted.errors[0].trees} trees, depth {fitted.errors[0].depth})")


def _grid_size(about: dict[str, Any]) -> int:
    """How many configurations a table has."""
    return math.prod(len(values) for values in about["grid"].values())


def _listed(values: Sequence[Any]) -> str:
    return ", ".join(f"{value:g}" if isinstance(value, float) else str(value) for value in values)


def _pieces(rounds: int) -> range:
    """Rounds after which a bar moves on, a hundred at most."""
    return range(1, rounds + 1, max(1, rounds // 100))


def _declared(name: str, folder: Path | None, epsilon: float | None, settings: list[str] | None) -> Declared:
    from fedarena.hpo.problems.making import declare
    from fedarena.runs.config import parse_overrides

    return declare(name, folder=folder, epsilon=epsilon, settings=parse_overrides(settings or []))


def grid_of(options: list[str] | None) -> dict[str, list[Any]]:
    """Values of hyperparameters, as they are given on the command line."""
    from fedarena.runs.config import parse_overrides

    found = parse_overrides(options or [])
    return {key: value if isinstance(value, list) else [value] for key, value in found.items()}


def numbers_of(text: str, option: str) -> list[Any]:
    """Numbers with commas, or spaces, between them."""
    try:
        return [float(word) if "." in word else int(word) for word in text.replace(",", " ").split()]
    except ValueError:
        raise BadInputError(f"{option} must be numbers with commas between them, not {text!r}") from None


def _say_result(result: Result, objective: str) -> None:
    from rich import box
    from rich.table import Table

    from fedarena.hpo.scores import EPSILON, PARTS, info_of, score_name

    fidelity = result.fidelity
    say(f"{objective}: {info_of(objective).text(result.metrics[objective])}")
    say(f"Cost: {result.cost_s:,.1f} simulated seconds for {fidelity.rounds} rounds at {fidelity.client_sample_rate:g}")
    plain = [name.removeprefix("validation_") for name in result.metrics if name.startswith("validation_")]
    names = [name for name in plain if score_name("test", name) in result.metrics or not _is_over_clients(name)]
    table = Table(box=box.SIMPLE_HEAD)
    table.add_column("best so far", style="bold")
    for part in PARTS:
        table.add_column(part, justify="right")
    for name in names:
        scores = [score_name(part, name) for part in PARTS]
        values = [info_of(score).text(result.metrics.get(score)) for score in scores]
        table.add_row(name.replace("_", " "), *values)
    screen.print(table)
    if EPSILON in result.metrics:
        say(f"ε: {result.metrics[EPSILON]:.4g}")


def _is_over_clients(name: str) -> bool:
    from fedarena.metrics import summary_names

    endings = tuple(one.removeprefix("x") for one in summary_names("x")[1:])
    return name.endswith(endings)
