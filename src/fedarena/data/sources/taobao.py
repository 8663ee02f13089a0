"""Taobao: whether a user clicked on an advertisement (Alibaba's Ali_Display_Ad_Click); a client is a user.

The publisher's three tables are put together: ``raw_sample.csv`` has what was shown to whom, ``ad_feature.csv`` what is
known of advertisements, ``user_profile.csv`` of users. One table with all of these columns and a heading, as a branch
of FedScale has it, is read as well, and so is the joined form that recommenders use (PaddleRec's: 267 columns without a
heading, of which those from 250 on are read).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated

import numpy as np
import pyarrow as pa
from pydantic import Field

from fedarena.core.errors import BadInputError
from fedarena.core.options import PathOption
from fedarena.core.outside_text import quoted
from fedarena.data.by_client.building import Form, build_from_rows, numbers, vectors
from fedarena.data.by_client.clients import choices, look_through
from fedarena.data.by_client.packed import csv_rows, number, table_rows
from fedarena.data.by_client.rows import Record, Records
from fedarena.data.many_users.buckets import Buckets
from fedarena.data.raw.files import RawFile, RawFiles
from fedarena.data.registry import FEDERATIONS, StoreBuild, cached_source
from fedarena.data.sampling import Fraction, MinimumSamples
from fedarena.data.splits import PublishedSplit, Seed, TrainFraction, ValidationFraction
from fedarena.data.store.schema import AnyArray, ColumnSpec, TaskSpec

# FedScale's DLRM has an embedding for each of these, and takes the others as numbers; its eighth code is the user.
CODES = ("adgroup_id", "cms_segid", "cate_id", "campaign_id", "customer", "brand")
NUMBERS = (
    *("final_gender_code", "pid", "age_level", "cms_group_id", "shopping_level", "occupation"),
    *("new_user_class_level", "price", "pvalue_level"),
)
_USER, _CLICK = "userid", "clk"
_OTHER_NAMES = {"userid": ("userid", "user"), "new_user_class_level": ("new_user_class_level", "new_user_class_level ")}
# The columns of the joined form from 250 on.
_JOINED = (
    *("userid", "cms_segid", "cms_group_id", "final_gender_code", "age_level", "pvalue_level", "shopping_level"),
    *("occupation", "new_user_class_level", "adgroup_id", "cate_id", "campaign_id", "customer", "brand", "price"),
    *("pid", "clk"),
)
_JOINED_COLUMNS, _JOINED_BEGIN = 267, 250
_BETWEEN = "\n"  # values, none of which has one
_SAMPLES, _ADS, _USERS = "raw_sample.csv", "ad_feature.csv", "user_profile.csv"
_TABLES = (".csv", ".csv.gz", ".txt", ".txt.gz")


class ClickFiles(RawFiles):
    """The three tables, or tables in which they are joined."""

    def found(self, given: str | None) -> dict[str, Path]:
        """The three, or all others."""
        known = super().found(given)
        if known or not self.folder(given).is_dir():
            return known
        paths = sorted(self.folder(given).iterdir())
        return {path.name: path for path in paths if path.name.endswith(_TABLES) and path.name != "SOURCE.txt"}


FILES = ClickFiles(
    "taobao",
    "Taobao's advertisements",
    {name: RawFile(name) for name in (_SAMPLES, _ADS, _USERS)},
    "or one table in which they are joined; https://tianchi.aliyun.com/dataset/56 has them",
    one_is_enough=True,
)


@FEDERATIONS.register("taobao")
@cached_source(version=1, reads=FILES)
def taobao(
    build: StoreBuild,
    *,
    folder: PathOption | None = None,
    buckets: Annotated[int, Field(ge=2)] | None = None,
    minimum_samples: MinimumSamples = 1,
    fraction: Fraction = 1.0,
    sampling_seed: Seed = 0,
    split: PublishedSplit = "published",
    train_fraction: TrainFraction | None = None,
    validation_fraction: ValidationFraction | None = None,
    split_seed: Seed | None = None,
) -> None:
    """Advertisements that were shown to a user, who clicked on them or not, from the tables in `folder`.

    Of an advertisement and of the user there are codes (numbered by their values in the files, or, with `buckets`, by
    what is left when they are divided by that number) and numbers, of which the logarithm of 1 plus the value is taken;
    what is missing is 0.
    """
    found = FILES.find(folder)
    missing = [name for name in (_SAMPLES, _ADS, _USERS) if name not in found]
    if len(missing) in (1, 2):
        raise BadInputError(f"{FILES.folder(folder)} lacks {', '.join(missing)}; all three tables are needed")
    columns = {**{name: pa.int64() for name in CODES}, "numbers": pa.binary(), "label": pa.int8()}
    records: Records = _joined if missing else _publisher(found[_ADS], found[_USERS])
    files = list(found.values()) if missing else [found[_SAMPLES]]
    build_from_rows(
        build,
        files,
        records,
        columns,
        choices(minimum_samples, fraction, sampling_seed, split, train_fraction, validation_fraction, split_seed),
        lambda rows: _form(rows, buckets),
    )


def _form(rows: Buckets, buckets: int | None) -> Form:
    """Codes as places among all that there are."""
    known: dict[str, AnyArray] = {name: np.zeros(0, dtype=np.int64) for name in CODES}

    def look(table: pa.Table) -> None:
        for name in CODES:
            known[name] = np.union1d(known[name], table.column(name).to_numpy())

    if buckets is None:
        look_through(rows, look)
    values = {name: buckets or len(known[name]) for name in CODES}

    def samples(table: pa.Table) -> dict[str, AnyArray]:
        made: dict[str, AnyArray] = {}
        for name in CODES:
            codes = table.column(name).to_numpy()
            made[name] = (codes % buckets if buckets else np.searchsorted(known[name], codes)).astype(np.int32)
        made["numbers"] = vectors(table, "numbers", "float32", (len(NUMBERS),))
        return {**made, "y": numbers(table, "label", "int64")}

    columns = {name: ColumnSpec(dtype="int32") for name in CODES}
    columns["numbers"] = ColumnSpec(dtype="float32", shape=(len(NUMBERS),), names=NUMBERS)
    columns["y"] = ColumnSpec(dtype="int64")
    inputs: dict[str, int | None] = {**values, "numbers": None}
    task = TaskSpec(kind="classification", classes=2, label_names=("not clicked", "clicked"), inputs=inputs)
    return Form(task, columns, samples)


def _record(user: str, values: Mapping[str, str], where: str, done: float) -> Record:
    if not user:
        raise BadInputError(f"{where} has no user")
    clicked = values[_CLICK]
    if clicked not in ("0", "1"):
        raise BadInputError(f"{where}: {_CLICK} must be 0 or 1, not {quoted(clicked)}")
    codes = [_code(values.get(name, ""), name, where) for name in CODES]
    floats = [_number(values.get(name, ""), name, where) for name in NUMBERS]
    small = np.sign(floats) * np.log1p(np.abs(floats))  # prices are up to a hundred million
    return Record(user, (*codes, small.astype(np.float32).tobytes(), int(clicked)), done)


def _code(text: str, name: str, where: str) -> int:
    return 0 if text in ("", "NULL") else int(number(text, name, where))


def _number(text: str, name: str, where: str) -> float:
    if text in ("", "NULL"):
        return 0.0
    # In the publisher's table the place of an advertisement is a text such as 430548_1007.
    return number(text.rpartition("_")[2] if name == "pid" else text, name, where)


def _joined(path: Path) -> Iterator[Record]:
    """One table, with a heading or in the form of 267 columns."""
    places: dict[str, int] = {}
    for line, values, done in csv_rows(path):
        where = f"{path}, line {line:,}"
        if line == 1 and not values[0].isdecimal():
            places = _places(path, values)
            width = len(values)
            continue
        if not places:
            width = _JOINED_COLUMNS
            places = {name: _JOINED_BEGIN + place for place, name in enumerate(_JOINED)}
        if len(values) != width:
            raise BadInputError(f"{where} has {len(values)} columns; it must have {width}")
        yield _record(values[places[_USER]], {name: values[place] for name, place in places.items()}, where, done)


def _places(path: Path, heading: Sequence[str]) -> dict[str, int]:
    names = [name.strip() for name in heading]
    places = {}
    for name in (_USER, *CODES, *NUMBERS, _CLICK):
        found = [names.index(other) for other in _OTHER_NAMES.get(name, (name,)) if other in names]
        if not found:
            raise BadInputError(f"{path}, line 1 has no column {name}")
        places[name] = found[0]
    return places


def _publisher(ads: Path, users: Path) -> Records:
    def records(path: Path) -> Iterator[Record]:
        of_ads, of_users = _Known(ads, "adgroup_id"), _Known(users, _USER)
        heading, rows = table_rows(path)
        user, ad = heading.place("user", _USER), heading.place("adgroup_id")
        own = {name: heading.place(name) for name in ("adgroup_id", "pid", _CLICK)}
        for row in rows:
            values = {name: row.values[place] for name, place in own.items()}
            known = {**of_ads.about(row.values[ad]), **of_users.about(row.values[user]), **values}
            yield _record(row.values[user], known, f"{path}, line {row.line:,}", row.done)

    return records


class _Known:
    """What a table knows of each of its keys, kept as texts: a million dictionaries would be a gigabyte."""

    def __init__(self, path: Path, key: str):
        heading, rows = table_rows(path)
        place = heading.place(key)
        wanted = {name: at for at, name in enumerate(heading.names) if name in (*CODES, *NUMBERS)}
        self._names = list(wanted)
        self._rows = {row.values[place]: _BETWEEN.join(row.values[at] for at in wanted.values()) for row in rows}

    def about(self, key: str) -> dict[str, str]:
        """The values of a key; none if there is no such key."""
        row = self._rows.get(key)
        return {} if row is None else dict(zip(self._names, row.split(_BETWEEN), strict=True))
