"""Pictures of any kind, read one at a time: told apart by size and channels, and brought to one form."""

from __future__ import annotations

import io
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from fedarena.core.errors import BadInputError
from fedarena.core.user_warnings import warn_user
from fedarena.data.images.arrays import form_of_array, load_array, pixels_of_array
from fedarena.data.images.decoding import form_of_file, pixels_of_file
from fedarena.data.images.forms import KINDS, Form, Wanted
from fedarena.data.raw.trees import RawTree
from fedarena.data.store.schema import AnyArray
from fedarena.data.tables.raw_table import known_to_numpy

ENDINGS = (".png", ".jpg", ".jpeg", ".bmp", ".gif", ".tif", ".tiff", ".webp", ".ppm", ".pgm", ".pbm", ".npy")


class Pictures(ABC):
    """Any number of pictures, which are read one at a time."""

    @abstractmethod
    def __len__(self) -> int: ...

    @abstractmethod
    def where(self, index: int) -> str:
        """Words for error messages."""

    @abstractmethod
    def source(self, index: int) -> AnyArray | bytes | Path:
        """An array, or a file or its content."""


class PicturesInTree(Pictures):
    """The pictures of a folder or an archive."""

    def __init__(self, tree: RawTree):
        self._tree = tree

    def __len__(self) -> int:
        return len(self._tree.names)

    def where(self, index: int) -> str:
        """Words for error messages."""
        return self._tree.where(index)

    def source(self, index: int) -> AnyArray | bytes | Path:
        """The file, or its content in an archive."""
        name = self._tree.names[index]
        if self._tree.path.is_dir() and not name.lower().endswith(".npy"):
            return self._tree.path / name
        content = self._tree.read(index)
        return load_array(io.BytesIO(content), self.where(index)) if name.lower().endswith(".npy") else content


class PictureFiles(Pictures):
    """The pictures of some files."""

    def __init__(self, paths: Sequence[Path]):
        self._paths = paths

    def __len__(self) -> int:
        return len(self._paths)

    def where(self, index: int) -> str:
        """Words for error messages."""
        return str(self._paths[index])

    def source(self, index: int) -> AnyArray | bytes | Path:
        """The file, or what is in it if it is an array."""
        path = self._paths[index]
        return load_array(path, str(path)) if path.suffix.lower() == ".npy" else path


class ArrayOfPictures(Pictures):
    """The pictures of one array, or of a list of arrays."""

    def __init__(self, arrays: Sequence[AnyArray] | AnyArray):
        self._arrays = arrays

    def __len__(self) -> int:
        return len(self._arrays)

    def where(self, index: int) -> str:
        """Words for error messages."""
        return f"picture {index}"

    def source(self, index: int) -> AnyArray | bytes | Path:
        """One of them."""
        found = self._arrays[index]
        if np.ma.is_masked(found):
            raise BadInputError(
                f"{self.where(index)} has masked pixels, which are missing; fill them in, or leave it out."
            )
        return np.asarray(known_to_numpy(found))


def common_form(pictures: Pictures, wanted: Wanted, progress: Callable[[float], None]) -> Form:
    """The form that all pictures have or are brought to; where they differ, a sentence names two of them."""
    first: Form | None = None
    of_several_frames: list[int] = []
    for index in range(len(pictures)):
        form = _as_wanted(_form(pictures, index, wanted), wanted, pictures.where(index))
        if form.has_more_frames:
            of_several_frames.append(index)
        if first is None:
            first = form
        elif form != first:
            raise _differ(pictures.where(0), first, pictures.where(index), form)
        if index % 256 == 0:
            progress(index / len(pictures))
    if first is None:
        raise BadInputError("There are no pictures.")
    if of_several_frames:
        warn_user(
            f"Pictures with several frames or pages: {len(of_several_frames):,}, such as "
            f"{pictures.where(of_several_frames[0])}; only the first one of each is read"
        )
    return first


def read_picture(pictures: Pictures, index: int, form: Form, wanted: Wanted) -> AnyArray:
    """A picture ``[channels, height, width]`` of this form."""
    source, where = pictures.source(index), pictures.where(index)
    if isinstance(source, np.ndarray):
        return pixels_of_array(source, form, wanted, where)
    return pixels_of_file(source, form, wanted, where)


def _form(pictures: Pictures, index: int, wanted: Wanted) -> Form:
    source, where = pictures.source(index), pictures.where(index)
    if isinstance(source, np.ndarray):
        return form_of_array(source, wanted.layout, where)
    return form_of_file(source, where)


def _as_wanted(form: Form, wanted: Wanted, where: str) -> Form:
    if wanted.size is not None:
        form = replace(form, height=wanted.size[0], width=wanted.size[1])
    if wanted.channels is None:
        return form
    if form.kind in KINDS:
        return replace(form, channels=KINDS[wanted.channels], kind=wanted.channels, dtype="uint8")
    if form.channels != KINDS[wanted.channels]:
        raise BadInputError(
            f"{where} is {form.kind}; arrays are taken as they are, so channels={wanted.channels!r} cannot change them."
        )
    return form


def _differ(where: str, first: Form, other_where: str, other: Form) -> BadInputError:
    if (first.height, first.width) != (other.height, other.width):
        return BadInputError(
            f"Pictures differ in size: {where} has {first.height} x {first.width} pixels (height x width) and "
            f"{other_where} {other.height} x {other.width}; say size={max(first.height, first.width)}, or "
            "size=(height, width), to bring all to one size."
        )
    return BadInputError(
        f"Pictures differ in their channels: {where} is {first.kind} and {other_where} {other.kind}; say "
        "channels='grey', 'rgb' or 'rgba' to make them alike."
    )
