"""A federation from a table: a row for every sample, a column that says whose it is, and one with the label."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from fedarena.data.registry import Progress
from fedarena.data.splits import SampleOrder, SplitKind
from fedarena.data.store.federation import Federation
from fedarena.data.tables.features import Categories, Missing, Normalize
from fedarena.data.tables.files import TextForm, files_in, read_file
from fedarena.data.tables.labels import TableTask
from fedarena.data.tables.number_form import NumberForm
from fedarena.data.tables.options import TableOptions, column_names
from fedarena.data.tables.raw_table import gather, shared_beginning, stem
from fedarena.data.tables.storing import SOURCE_NAME, store_table
from fedarena.data.tables.understanding import understand


def from_table(
    table: Any,
    *,
    label: str | Sequence[str],
    client: str | None = None,
    partition: str | Mapping[str, Any] | None = None,
    name: str | None = None,
    path: Path | str | None = None,
    overwrite: bool = False,
    features: Sequence[str] | None = None,
    drop: Sequence[str] = (),
    categorical: Sequence[str] = (),
    categories: Categories = "one_hot",
    task: TableTask = "auto",
    label_separator: str | None = None,
    missing: Missing | Mapping[str, Missing] = "refuse",
    indicators: bool = False,
    na_values: Any = (),
    normalize: Normalize = "global",
    split: SplitKind | None = None,
    train_fraction: float | None = None,
    validation_fraction: float | None = None,
    split_seed: int | None = None,
    order: SampleOrder = "shuffled",
    part: str | None = None,
    group: str | None = None,
    attributes: Sequence[str] = (),
    columns: Sequence[str] | None = None,
    delimiter: str | None = None,
    decimal: str = ".",
    thousands: str | None = None,
    encoding: str = "utf8",
    multiline: bool = False,
    progress: Progress | None = None,
) -> Federation:
    """Makes a federation of a table that has a row for every sample, and opens it.

    `table` is a file (CSV and its relatives, Parquet, JSON lines, Arrow), a pandas data frame, an Arrow table, a
    mapping of names to columns, or a list of records. Several tables with the same columns are one: a folder or a list
    of files, or a mapping of names to tables. Each is a client, unless `client` names a column that says whose a
    sample is. A `partition` makes clients where there are none.

    - `label` names the column to predict, or several. The `task` follows from it: words, booleans and up to 20
      different whole numbers are classes, numbers with a fraction are to be predicted, lists or several columns of 0
      and 1 are many labels; what lists of 0 and 1 are must be said. `label_separator` is what stands between several
      labels in a text.
    - All other columns are inputs, unless `features` names those that are, or `drop` those that are not. Words are
      categories, and so are the numbers in columns that `categorical` names. Each category has an input of its own, or
      if `categories` are ``embedded``, a code that models such as `embedding_mlp` learn a vector for.
    - `missing` says what is done about missing values: ``refuse``, ``drop`` the sample, or take the ``mean``, the
      ``median`` or ``zero``, for all columns or by column (``"*"`` are all others). Of categories, ``mean`` and
      ``median`` take the most frequent, and ``zero`` takes none. With `indicators`, a column that lacks values has
      another input that says where. `na_values` are texts and numbers that stand for a missing value, in all columns
      or by column.
    - `normalize` is by the mean and standard deviation of all training samples (``global``), of each client's own
      (``per_client``), or not at all (``none``).
    - Samples are divided as in other federations: `split`, `train_fraction`, `validation_fraction`, `split_seed`; with
      `order` ``in_order``, earlier rows are for training. Or else the columns `part` and `group` say it: the part of a
      sample, the group of a client.
    - `attributes` are columns that say something about clients, and are no inputs.
    - `columns` names the columns of text files that do not, `delimiter` is what is between values (a blank for any
      number of blanks), `encoding` is that of text files.
      `decimal` is what is before a fraction (a point or a comma), and `thousands` what is between thousands, if
      anything, wherever a column of texts holds numbers. With `multiline`, values in quotation marks may go on over
      several lines.

    The store is written to the folder `path`, or else to the cache; what is there already is not written again, and
    `overwrite` replaces another federation in that folder.

    >>> rows = [{"clinic": c, "age": 30 + n, "ill": n % 2 == 0} for n in range(10) for c in ("north", "south")]
    >>> federation = from_table(rows, client="clinic", label="ill")
    >>> federation.num_clients, federation.task.label_names
    (2, ('false', 'true'))
    """
    say: Progress = progress or (lambda fraction, text: None)
    options = TableOptions.checked(
        label=label,
        client=client,
        partition=partition,
        features=features,
        drop=drop,
        categorical=categorical,
        categories=categories,
        task=task,
        label_separator=label_separator,
        missing=missing,
        indicators=indicators,
        na_values=na_values,
        normalize=normalize,
        split=split,
        train_fraction=train_fraction,
        validation_fraction=validation_fraction,
        split_seed=split_seed,
        order=order,
        part=part,
        group=group,
        attributes=attributes,
    )
    given_names = None if columns is None else column_names(columns, "columns")
    form, numbers = TextForm(given_names, delimiter, encoding, multiline), NumberForm(decimal, thousands)
    say(0.0, "Reading")
    in_index = {column for column in (client, part, group) if column is not None}
    raw = gather(table, lambda file: read_file(file, form), files_in, in_index)
    understood = understand(raw, options, numbers, lambda done: say(0.4 + 0.2 * done, "Looking at columns"))
    called = name or table_name(table)
    return store_table(understood, options, called, path, overwrite, lambda done: say(0.6 + 0.4 * done, "Writing"))


def table_name(table: Any) -> str:
    """What a federation is called if nobody says it: like its file, or like what its files have in common."""
    if isinstance(table, list | tuple) and table and all(isinstance(value, str | os.PathLike) for value in table):
        return shared_beginning([stem(Path(value)) for value in table]).rstrip("-_. ") or SOURCE_NAME
    if not isinstance(table, str | os.PathLike):
        return SOURCE_NAME
    path = Path(table).expanduser()
    return path.absolute().name if path.is_dir() else stem(path)
