"""Pictures by map: files that a table names, brought to one size, with a class each."""

from __future__ import annotations

import io
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import numpy as np
import pyarrow as pa
from pydantic import Field

from fedarena.core.errors import DamagedFileError
from fedarena.data.by_client.building import GROUP_COLUMNS, Form, build_from_rows, numbers
from fedarena.data.by_client.clients import Choices
from fedarena.data.by_client.maps import MapRow, existing, groups_of_maps, map_records
from fedarena.data.by_client.packed import read_whole
from fedarena.data.by_client.rows import Records
from fedarena.data.images.forms import Fit
from fedarena.data.images.forms import Form as PixelForm
from fedarena.data.images.resizing import resize
from fedarena.data.many_users.clients import PublishedGroups
from fedarena.data.raw.images import decode_picture, need_pillow
from fedarena.data.registry import StoreBuild
from fedarena.data.store.encoding import EncodedRows
from fedarena.data.store.schema import AnyArray, ColumnSpec, Encoding, Group, TaskSpec
from fedarena.data.store.side_by_side import for_each

Size = Annotated[int, Field(ge=1, le=4096)]
Compressed = Literal["jpeg", "png"] | None
JPEG_QUALITY = 95
_MODES = {1: ("L", "grey"), 3: ("RGB", "rgb")}
_FORMATS = {"jpeg": ("JPEG", "MPO"), "png": ("PNG",)}


@dataclass(frozen=True)
class PictureForm:
    """What pictures become: their size and channels, and whether the store keeps pixels or files."""

    size: int
    channels: int = 3
    fit: Fit = "stretch"
    compressed: Encoding | None = None

    @property
    def column(self) -> ColumnSpec:
        """The column that holds them."""
        shape = (self.channels, self.size, self.size)
        return ColumnSpec(dtype="uint8", shape=shape, encoding=self.compressed)

    def read(self, content: bytes, where: str) -> AnyArray:
        """The pixels ``[channels, height, width]`` of a file."""
        mode, kind = _MODES[self.channels]
        picture = decode_picture(content, mode, where)
        pixels = np.asarray(resize(picture, PixelForm(self.size, self.size, self.channels, kind), self.fit))
        return pixels[None] if pixels.ndim == 2 else pixels.transpose(2, 0, 1)

    def file(self, content: bytes, where: str) -> bytes:
        """A file of the column's kind and size: as it is if it is one, and otherwise made anew."""
        from PIL import Image

        assert self.compressed is not None
        mode, kind = _MODES[self.channels]
        try:
            with Image.open(io.BytesIO(content)) as picture:
                as_it_is = picture.format in _FORMATS[self.compressed] and picture.mode == mode
                if as_it_is and picture.size == (self.size, self.size):
                    picture.load()
                    return content
                changed = resize(picture.convert(mode), PixelForm(self.size, self.size, self.channels, kind), self.fit)
        except (OSError, SyntaxError, ValueError, Image.DecompressionBombError):
            raise DamagedFileError(f"{where} is not a picture that can be read") from None
        made = io.BytesIO()
        changed.save(made, self.compressed.upper(), **({"quality": JPEG_QUALITY} if self.compressed == "jpeg" else {}))
        return made.getvalue()

    def values(self, root: Path, names: Sequence[str]) -> AnyArray | EncodedRows:
        """The column of some files, which all cores decode."""
        paths = [f"{root}/{name}" for name in names]
        if self.compressed is None:
            pixels = np.empty((len(paths), *self.column.shape), dtype=np.uint8)

            def decode(place: int) -> None:
                pixels[place] = self.read(read_whole(paths[place]), paths[place])

            for_each(decode, len(paths))
            return pixels
        files = [b""] * len(paths)

        def encode(place: int) -> None:
            files[place] = self.file(read_whole(paths[place]), paths[place])

        for_each(encode, len(paths))
        return EncodedRows(files, paths, checked=True)


@dataclass(frozen=True)
class PictureRows:
    """Files that name pictures below `root`, and their records: path and class, of groups with group and line first."""

    root: Path
    files: Sequence[Path]
    records: Records
    published: PublishedGroups | None = None


def pictures_of_maps(
    maps: Mapping[Group, Path],
    root: Path,
    candidates: Callable[[MapRow], Sequence[str]],
    label: Callable[[MapRow], int],
) -> PictureRows:
    """The pictures that maps name; `candidates` says where the file of a row may be below `root`."""
    files, records = map_records(maps, lambda row: (existing(root, row, candidates(row)), label(row)))
    return PictureRows(root, files, records, groups_of_maps(maps))


def build_pictures(
    build: StoreBuild,
    pictures: PictureRows,
    form: PictureForm,
    choices: Choices,
    classes: int,
    label_names: tuple[str, ...] | None = None,
) -> None:
    """A federation of pictures of so many classes."""
    need_pillow(build.source.name)

    def samples(rows: pa.Table) -> dict[str, AnyArray | EncodedRows]:
        return {"x": form.values(pictures.root, rows.column("path").to_pylist()), "y": numbers(rows, "label", "int64")}

    columns = {"path": pa.string(), "label": pa.int64()}
    build_from_rows(
        build,
        pictures.files,
        pictures.records,
        columns if pictures.published is None else {**GROUP_COLUMNS, **columns},
        choices,
        Form(
            TaskSpec(kind="classification", classes=classes, label_names=label_names),
            {"x": form.column, "y": ColumnSpec(dtype="int64")},
            samples,
        ),
        pictures.published,
    )
