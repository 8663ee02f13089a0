"""Somebody's own pictures as a federation: a folder, an archive, a table of paths, or arrays."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from fedarena.core.errors import BadInputError
from fedarena.core.outside_text import quoted
from fedarena.data.images.compressed import Compressed, check_compressed, column_of, compressed_picture
from fedarena.data.images.forms import Channels, Fit, Layout, Wanted
from fedarena.data.images.pattern import NamePattern
from fedarena.data.images.pictures import (
    ENDINGS,
    ArrayOfPictures,
    PictureFiles,
    Pictures,
    PicturesInTree,
    common_form,
    read_picture,
)
from fedarena.data.own.labels import LabelClasses, as_texts
from fedarena.data.own.parts import DivisionOptions, Missing, Samples, arrange, part_codes, with_classes_of
from fedarena.data.own.stores import StorePlace, build_once, name_of
from fedarena.data.own.tables import OwnTable, TextForm, without_missing
from fedarena.data.own.who import Partition, clients_of
from fedarena.data.own.writing import write_samples
from fedarena.data.raw.folders import left_out_note
from fedarena.data.raw.images import need_pillow
from fedarena.data.raw.trees import open_tree
from fedarena.data.registry import Progress, StoreBuild, state_of
from fedarena.data.splits import SplitKind
from fedarena.data.store.federation import Federation
from fedarena.data.store.schema import AnyArray
from fedarena.data.tables.raw_table import array_of, known_to_numpy

_PICTURE = re.compile(rf"(?:{'|'.join(re.escape(ending) for ending in ENDINGS)})$", re.IGNORECASE)
_ARCHIVES = (".zip",)
_USUAL_COLUMNS = ("path", "file", "filename", "file_name", "image", "image_path")
_LOOKING = 0.25  # of the work


@dataclass(frozen=True)
class PictureRows:
    """Pictures, what is known of each (columns client, label and part, as texts), and what changes when they do."""

    pictures: Pictures
    columns: Mapping[str, pa.Array]
    state: list[Any]
    where: str  # for sentences
    options: Mapping[str, Any]  # to be recorded
    label_names: tuple[str, ...] | None = None  # where classes have an order of their own
    notes: tuple[str, ...] = ()  # what was done to them, in sentences


@dataclass(frozen=True)
class PictureOptions:
    """What becomes of pictures and of their clients."""

    wanted: Wanted
    division: DivisionOptions
    partition: Partition | None
    minimum_samples: int
    compressed: Compressed | None = None

    @property
    def recorded(self) -> dict[str, Any]:
        """What a store notes of them."""
        own: dict[str, Any] = {"partition": self.partition, "minimum_samples": self.minimum_samples}
        if self.compressed is not None:  # stores from before there was this option keep their names
            own["compressed"] = self.compressed
        return {**vars(self.wanted), **own, **vars(self.division)}


def from_images(
    data: Any,
    *,
    pattern: str | None = None,
    client: Any = None,
    label: Any = None,
    image: str | None = None,
    part: Any = None,
    folder: Path | str | None = None,
    partition: Partition | None = None,
    size: int | tuple[int, int] | None = None,
    fit: Fit = "stretch",
    channels: Channels | None = None,
    layout: Layout | None = None,
    compressed: Compressed | None = None,
    missing: Missing = "refuse",
    minimum_samples: int = 1,
    split: SplitKind | None = None,
    train_fraction: float | None = None,
    validation_fraction: float | None = None,
    split_seed: int | None = None,
    columns: Sequence[str] | None = None,
    delimiter: str | None = None,
    encoding: str = "utf8",
    quotes: bool = True,
    line_breaks: bool = False,
    name: str | None = None,
    path: Path | str | None = None,
    overwrite: bool = False,
    progress: Progress | None = None,
) -> Federation:
    """A federation of pictures.

    - A folder or a .zip: `pattern` says what names mean, such as ``"{client}/{label}"`` or
      ``"{label}/{label}/*_{client}"``; fields are client, label and part (train, validation or test).
    - A table (file, DataFrame, …): `client`, `label` and `part` are columns, and `image` is the one with the paths of
      pictures, from `folder` or else from where the table is.
    - An array ``[pictures, …]`` or a list of arrays or of files: `client`, `label` and `part` have a value for each.

    Without `client`, a `partition` makes clients. Pictures of different sizes need a `size`: a number of pixels or
    height and width; `fit` says what happens to other proportions. Bytes stay bytes. `channels` makes pictures alike
    (grey, rgb, rgba), and `layout` (HWC or CHW) says how arrays of three dimensions are meant.

    The store has every pixel, which is quick to read but can take ten times what the files take. With `compressed` it
    has files, which are decoded when they are read: ``"jpeg"`` keeps JPEGs as they are, if none has to be changed;
    ``"png"`` stores any pictures without loss.

    The store is kept in the cache, or written to the folder `path`, where `overwrite` lets it replace another one. It
    is built again when names, sizes or times of files change.

    >>> pictures = np.zeros((6, 8, 8), dtype=np.uint8)
    >>> from_images(pictures, client=list("aabbcc"), label=[0, 1] * 3).columns["x"].shape
    (1, 8, 8)
    """
    if missing not in ("refuse", "drop"):
        raise BadInputError(f"missing must be 'refuse' or 'drop', not {quoted(missing)}.")
    if isinstance(minimum_samples, bool) or not isinstance(minimum_samples, int) or minimum_samples < 1:
        raise BadInputError(f"minimum_samples must be a whole number from 1, not {quoted(minimum_samples)}.")
    check_compressed(compressed)
    options = PictureOptions(
        Wanted.checked(size, channels, layout, fit),
        DivisionOptions(split, train_fraction, validation_fraction, split_seed),
        partition,
        minimum_samples,
        compressed,
    )
    place = Path(data).expanduser() if isinstance(data, str | Path) else None
    with ExitStack() as opened:
        if place is not None and (place.is_dir() or (place.is_file() and place.suffix.lower() in _ARCHIVES)):
            of_tables = {"client": client, "label": label, "part": part, "image": image, "folder": folder}
            _refuse_given("in a folder, whose names a pattern explains", **of_tables)
            rows = _in_tree(place, pattern, opened)
        else:
            if place is not None and not place.exists():
                raise BadInputError(f"There is no {place}: it must be a folder, a .zip, or a table of paths.")
            _refuse_given("not in a folder", pattern=pattern)
            if client is None and partition is None:
                raise BadInputError("Say whose the pictures are with client=…, or how to make clients: partition=….")
            if label is None:
                raise BadInputError("Say what the pictures show with label=….")
            known = {"client": client, "label": label, "part": part}
            known = {what: values for what, values in known.items() if values is not None}
            if isinstance(data, np.ndarray | list | tuple) or getattr(data, "ndim", 0) > 2:
                _refuse_given("not in a table", image=image)
                rows = _in_list(data, known, folder)
            else:
                rows = _in_table(
                    OwnTable(data, TextForm(columns, delimiter, encoding, quotes, line_breaks)),
                    image,
                    known,
                    folder,
                    missing,
                )
        return write_pictures(rows, options, name_of(place, name, "images"), StorePlace(path, overwrite, progress))


def _in_tree(place: Path, pattern: str | None, opened: ExitStack) -> PictureRows:
    """The pictures of a folder or an archive."""
    tree = opened.enter_context(open_tree(place, _PICTURE))
    for name in tree.gone:
        raise BadInputError(f"{place / name} is a link to a file that is not there; fetch it, or remove the link.")
    if not tree.names:
        raise BadInputError(f"{place} holds no pictures: no file with one of the endings {', '.join(ENDINGS)}.")
    if pattern is None:
        raise BadInputError(
            f"Say with pattern=… what the names of pictures in {place} mean, such as '{{client}}/{{label}}' or "
            f"'{{label}}/*_{{client}}'; the first is {tree.names[0]}."
        )
    names = NamePattern.parse(pattern)
    if "label" not in names.fields:
        raise BadInputError(f"pattern is {pattern!r}, but without a field {{label}} there is nothing to learn.")
    columns = {field: pa.array(values, pa.string()) for field, values in names.read_all(tree.names, place).items()}
    options = {"data": str(place.absolute()), "pattern": pattern}
    state = [str(place.absolute()), *state_of(place)]
    notes = left_out_note(tree.others, "picture that is read here")
    return PictureRows(PicturesInTree(tree), columns, state, str(place), options, notes=notes)


def _in_list(pictures: Any, known: Mapping[str, Any], folder: Path | str | None) -> PictureRows:
    """The pictures of one array or several, or those in files whose names are given."""
    columns = {}
    for what, values in known.items():
        if isinstance(values, str) or len(values) != len(pictures):
            many = f"the text {quoted(values)}" if isinstance(values, str) else f"{len(values)} values"
            raise BadInputError(f"{what} must have a value for each of the {len(pictures)} pictures, not {many}.")
        columns[what] = as_texts(array_of(what, values).combine_chunks(), what)
        if columns[what].null_count:
            lacking = columns[what].is_null().index(True).as_py()
            raise BadInputError(f"{what} has no value for picture {lacking}.")
    if all(isinstance(picture, str | Path) for picture in pictures):
        files = [Path(folder or ".").expanduser() / picture for picture in pictures]
        state = [texts_digest(columns), *_states(files, "The list")]
        return PictureRows(PictureFiles(files), columns, state, "the list", {"data": "a list of files"})
    _refuse_given("arrays", folder=folder)
    digest = hashlib.blake2b(digest_size=16)
    for picture in pictures:
        values = np.ascontiguousarray(known_to_numpy(picture))
        digest.update(f"{values.dtype.str}{values.shape}".encode())
        digest.update(values.tobytes())
    state = [digest.hexdigest(), texts_digest(columns)]
    return PictureRows(ArrayOfPictures(pictures), columns, state, "the arrays", {"data": "arrays"})


def _states(files: Sequence[Path], who: str) -> list[str]:
    """What changes when one of these files does; all of them must be there."""
    digest = hashlib.blake2b(digest_size=16)
    for file in files:
        if not file.is_file():
            raise BadInputError(f"{who} names the picture {file}, which is not there (folder=… says where).")
        digest.update(f"{file.absolute()}{state_of(file)}".encode())
    return [digest.hexdigest()]


def _in_table(
    table: OwnTable, image: str | None, known: Mapping[str, Any], folder: Path | str | None, missing: Missing
) -> PictureRows:
    """The pictures whose paths a table has."""
    used = {**known, "image": _image_column(table, image)}
    for what, column in used.items():
        table.require(what, column)
    base = Path(folder).expanduser() if folder is not None else table.path.parent if table.path else Path()
    pieces = list(without_missing(table.read(list(used.values())), used, table.start, missing == "drop"))
    if not pieces:
        raise BadInputError(f"{table.start} has no rows.")
    columns = {
        what: pa.concat_arrays([as_texts(piece.column(column), f"Column {column!r}") for piece in pieces])
        for what, column in used.items()
    }
    files = [base / file for file in columns["image"].to_pylist()]
    options = {"data": str(table.path or "a table in memory"), "folder": str(base.absolute()), **used}
    state = [texts_digest(columns), *_states(files, table.start)]
    del columns["image"]
    return PictureRows(PictureFiles(files), columns, state, table.name, options)


def write_pictures(rows: PictureRows, options: PictureOptions, name: str, place: StorePlace) -> Federation:
    """The federation of these pictures, which is written unless the cache has it."""

    def build(target: StoreBuild) -> None:
        wanted = options.wanted
        if not isinstance(rows.pictures, ArrayOfPictures) or wanted.size is not None or options.compressed:
            need_pillow(target.name)
        samples = samples_of(rows.columns, options.partition, rows.where, rows.label_names)
        division = options.division.division(samples.parts is not None)
        arranged = arrange(samples, division, options.minimum_samples, "shuffled")
        if rows.label_names is None:
            samples = with_classes_of(samples, arranged.rows)
        form = common_form(rows.pictures, wanted, lambda done: target.progress(_LOOKING * done, "Looking at pictures"))

        def load(row: int) -> AnyArray | bytes:
            if options.compressed is None:
                return read_picture(rows.pictures, row, form, wanted)
            return compressed_picture(rows.pictures, row, form, wanted, options.compressed)

        write_samples(
            target,
            samples,
            arranged,
            column_of(form, options.compressed),
            load,
            lambda done: target.progress(_LOOKING + (1 - _LOOKING) * done, "Writing"),
            rows.pictures.where,
            rows.notes,
        )

    return build_once("images", {**rows.options, **options.recorded}, rows.state, name, place, build)


def texts_digest(columns: Mapping[str, pa.Array]) -> str:
    """A hash of columns of texts."""
    digest = hashlib.blake2b(digest_size=16)
    for what, values in columns.items():
        digest.update(what.encode())
        for text in values.to_pylist():
            digest.update(f"{len(text)}:{text}".encode())
    return digest.hexdigest()


def samples_of(
    columns: Mapping[str, pa.Array], partition: Partition | None, where: str, names: tuple[str, ...] | None = None
) -> Samples:
    """Who has which label, from columns of texts; classes that are known by their `names` keep their order."""
    labels = columns["label"]
    if names is not None:
        classes = LabelClasses.named(names)
    else:
        classes = LabelClasses.of(labels.unique().to_pylist(), f"The label of {where}")
    codes = classes.codes(labels)
    natural = columns["client"].to_pylist() if "client" in columns else None
    ids, clients = clients_of(natural, codes, partition)
    parts = part_codes(columns["part"].to_pylist(), where) if "part" in columns else None
    return Samples(ids, clients, codes, classes.names, parts)


def _image_column(table: OwnTable, given: str | None) -> str:
    if given is not None:
        return given
    usual = [column for column in table.columns if column.lower() in _USUAL_COLUMNS]
    if len(usual) == 1:
        return usual[0]
    raise BadInputError(
        f"Say which column of {table.name} has the paths of pictures: image=…; it has {', '.join(table.columns)}."
    )


def _refuse_given(what: str, **options: Any) -> None:
    for option, value in options.items():
        if value is not None:
            raise BadInputError(f"{option} is given, but the pictures are {what}; leave it out.")
