"""The command that makes a federation of somebody's own table."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer

from fedarena.cli.base import data_command
from fedarena.cli.federations import progress_bar, say
from fedarena.core.errors import BadInputError
from fedarena.core.outside_text import as_file_name

STORES = Path("stores")
ALL_COLUMNS = "*"  # as `from_table` has it


class Task(StrEnum):
    """What is to be predicted."""

    AUTO = "auto"
    CLASSIFICATION = "classification"
    MULTI_LABEL = "multi_label"
    REGRESSION = "regression"


class Categories(StrEnum):
    """What models are given of categories."""

    ONE_HOT = "one_hot"
    EMBEDDED = "embedded"


class Normalize(StrEnum):
    """By whose training samples numbers are normalized."""

    GLOBAL = "global"
    PER_CLIENT = "per_client"
    NONE = "none"


class SplitBy(StrEnum):
    """What is divided into samples for training and for testing."""

    WITHIN_CLIENT = "within_client"
    BY_CLIENT = "by_client"


class Order(StrEnum):
    """Which samples of a client are for training."""

    SHUFFLED = "shuffled"
    IN_ORDER = "in_order"


def _columns(help: str) -> Any:
    return typer.Option(metavar="COLUMN,…", help=help)


@data_command
def import_(
    files: Annotated[
        list[Path],
        typer.Argument(
            metavar="FILE...", help="CSV, Parquet, JSON lines or Arrow; several with the same columns, or a folder."
        ),
    ],
    label: Annotated[list[str], _columns("What is to be predicted.")],
    client: Annotated[
        str | None, typer.Option(metavar="COLUMN", help="Whose a sample is; without it, every file is a client.")
    ] = None,
    output: Annotated[
        Path | None, typer.Option("-o", "--output", metavar="FOLDER", help="Where to; by default stores/NAME.")
    ] = None,
    name: Annotated[str | None, typer.Option(help="What to call it; by default like the file or folder.")] = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace another federation in the folder.")] = False,
    partition: Annotated[
        str | None, typer.Option(metavar="NAME[,KEY=VALUE]…", help="How to make clients, if there are none.")
    ] = None,
    features: Annotated[list[str] | None, _columns("The only inputs; by default all columns left over.")] = None,
    drop: Annotated[list[str] | None, _columns("Columns to leave out.")] = None,
    categorical: Annotated[list[str] | None, _columns("Numbers that are categories.")] = None,
    categories: Annotated[
        Categories, typer.Option(help="An input of 0 and 1 for each category, or codes to embed.")
    ] = Categories.ONE_HOT,
    task: Annotated[Task, typer.Option(help="What is predicted, if the label does not tell.")] = Task.AUTO,
    label_separator: Annotated[
        str | None, typer.Option(metavar="TEXT", help="What is between several labels in one text.")
    ] = None,
    missing: Annotated[
        list[str] | None,
        typer.Option(
            metavar="[COLUMN=]HOW", help="refuse, drop, mean, median or zero: what is done about missing values."
        ),
    ] = None,
    indicators: Annotated[
        bool, typer.Option("--indicators", help="Add an input that says where a value is missing.")
    ] = False,
    na: Annotated[
        list[str] | None,
        typer.Option(
            "--na", "--na-values", metavar="[COLUMN=]VALUE", help="What stands for a missing value, such as ? or -9."
        ),
    ] = None,
    normalize: Annotated[
        Normalize, typer.Option(help="By whose training samples numbers are normalized.")
    ] = Normalize.GLOBAL,
    split: Annotated[SplitBy | None, typer.Option(help="What is divided: samples or clients.")] = None,
    train_fraction: Annotated[float | None, typer.Option(help="How much is for training (0.8).")] = None,
    validation_fraction: Annotated[float | None, typer.Option(help="How much is for validation (0).")] = None,
    split_seed: Annotated[int | None, typer.Option(help="Other seeds divide otherwise (0).")] = None,
    order: Annotated[Order, typer.Option(help="Whether earlier rows are for training.")] = Order.SHUFFLED,
    part: Annotated[
        str | None, typer.Option(metavar="COLUMN", help="Says train, validation or test of every sample.")
    ] = None,
    group: Annotated[
        str | None, typer.Option(metavar="COLUMN", help="Says train, validation or test of every client.")
    ] = None,
    attributes: Annotated[list[str] | None, _columns("What is known of clients; no inputs.")] = None,
    columns: Annotated[list[str] | None, _columns("Names of columns, if the files have none.")] = None,
    delimiter: Annotated[
        str | None, typer.Option(metavar="CHARACTER", help="What is between values; ' ' is any number of blanks.")
    ] = None,
    decimal: Annotated[str, typer.Option(metavar="CHARACTER", help="What is before a fraction: . or ,")] = ".",
    thousands: Annotated[
        str | None, typer.Option(metavar="CHARACTER", help="What is between thousands, such as , in 1,234.")
    ] = None,
    encoding: Annotated[str, typer.Option(help="Of text files, such as utf8, latin1 or cp1252.")] = "utf8",
    multiline: Annotated[
        bool, typer.Option("--multiline", help="Values in quotation marks may go on over several lines.")
    ] = False,
) -> None:
    """Make a federation of your own table: a row for every sample, a column for clients, and one for labels."""
    from fedarena.data.tables import from_table, table_name
    from fedarena.display.drawing.units import count

    table = files[0] if len(files) == 1 else files
    called = name or table_name(table)
    folder = output or STORES / as_file_name(called)
    with progress_bar() as advance:
        federation = from_table(
            table,
            label=_listed(label),
            client=client,
            partition=None if partition is None else _partition(partition),
            name=called,
            path=folder,
            overwrite=overwrite,
            features=None if features is None else _listed(features),
            drop=_listed(drop or ()),
            categorical=_listed(categorical or ()),
            categories=categories.value,
            task=task.value,
            label_separator=label_separator,
            missing=_treatments(missing or ()),
            indicators=indicators,
            na_values=_marks(na or ()),
            normalize=normalize.value,
            split=None if split is None else split.value,
            train_fraction=train_fraction,
            validation_fraction=validation_fraction,
            split_seed=split_seed,
            order=order.value,
            part=part,
            group=group,
            attributes=_listed(attributes or ()),
            columns=None if columns is None else _listed(columns),
            delimiter=delimiter,
            decimal=decimal,
            thousands=thousands,
            encoding=encoding,
            multiline=multiline,
            progress=lambda fraction, text: advance(fraction, 1.0, text),
        )
    clients, samples = count(federation.num_clients, "client"), count(federation.num_samples, "sample")
    inputs = count(sum(spec.shape[0] for key, spec in federation.columns.items() if key != "y"), "input")
    say(f"Imported: {folder} has {federation.name} with {clients}, {samples} and {inputs} ({_task(federation)})")
    for note in federation.notes:
        say(f"Note: {note}")
    say(f"Next: fedarena run federation={shlex.quote(str(folder))}")


def _task(federation: Any) -> str:
    task = federation.task
    kind = task.kind.replace("_", "-")
    return f"{kind} of {task.classes} classes" if task.kind == "classification" else kind


def _listed(values: Sequence[str]) -> list[str]:
    """Names of columns, given one by one or with commas between them; an empty text is a column without one."""
    return [name.strip() for value in values for name in value.split(",") if name.strip() or not value.strip()]


def _treatments(values: Sequence[str]) -> Any:
    """``mean`` for all columns, ``chol=zero`` for one."""
    if len([value for value in values if "=" not in value]) > 1:
        raise BadInputError(f"--missing is given twice for all columns: {', '.join(values)}")
    return dict(_for_columns(value) for value in values) if values else "refuse"


def _marks(values: Sequence[str]) -> dict[str, list[str]]:
    """``-9`` for all columns, ``chol=0`` for one."""
    marks: dict[str, list[str]] = {}
    for column, mark in map(_for_columns, values):
        marks.setdefault(column, []).append(mark)
    return marks


def _for_columns(value: str) -> tuple[str, str]:
    column, equals, what = value.partition("=")
    return (column, what) if equals and column else (ALL_COLUMNS, value)


def _partition(text: str) -> dict[str, Any]:
    from fedarena.runs.config import parse_overrides

    name, *options = text.split(",")
    return {"name": name, **parse_overrides(options)}
