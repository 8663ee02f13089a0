"""CIFAR-100 (Krizhevsky, 2009): 60,000 photos of a hundred kinds of things, divided into clients.

Both forms that its author publishes are read: the one for Python, whose pickles are read without running anything, and
the binary one.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np

from fedarena.core.errors import BadInputError, DamagedFileError
from fedarena.core.options import PathOption
from fedarena.core.registry import Choice
from fedarena.data.by_client.packed import members
from fedarena.data.graphs.pickled_arrays import parse_pickled_arrays
from fedarena.data.labelled_pictures import (
    DEFAULT_PARTITION,
    LabelledPictures,
    check_as_many,
    check_labels,
    write_pictures,
)
from fedarena.data.raw.files import RawFile, RawFiles
from fedarena.data.registry import FEDERATIONS, PARTITIONERS, StoreBuild, cached_source
from fedarena.data.splits import Seed, ValidationFraction
from fedarena.data.store.schema import AnyArray, IntArray

Labels = Literal["fine", "coarse"]
_SHAPE = (3, 32, 32)
_PIXELS = 3 * 32 * 32
_CLASSES: dict[Labels, int] = {"fine": 100, "coarse": 20}
_ADDRESS = "https://www.cs.toronto.edu/~kriz"
_PYTHON, _BINARY = "python", "binary"
FILES = RawFiles(
    "cifar100",
    "CIFAR-100",
    {
        _PYTHON: RawFile(
            "cifar-100-python.tar.gz",
            "md5:eb9058c3a382ffc7106e4002c42a8d85",
            f"{_ADDRESS}/cifar-100-python.tar.gz",
            unpacked="cifar-100-python",
        ),
        _BINARY: RawFile(
            "cifar-100-binary.tar.gz",
            "md5:03b5dce01913d631647c71ecec9e9cb8",
            f"{_ADDRESS}/cifar-100-binary.tar.gz",
            unpacked="cifar-100-binary",
        ),
    },
    "https://www.cs.toronto.edu/~kriz/cifar.html has both",
    one_is_enough=True,
)


@FEDERATIONS.register("cifar100")
@cached_source(version=1, reads=FILES)
def cifar100(
    build: StoreBuild,
    *,
    folder: PathOption | None = None,
    labels: Labels = "fine",
    partition: Annotated[dict[str, Any], Choice(PARTITIONERS)] = DEFAULT_PARTITION,
    validation_fraction: ValidationFraction = 0.0,
    split_seed: Seed = 0,
    verify: bool = True,
) -> None:
    """Photos of 32 x 32 pixels of 100 kinds of things (or 20 coarse ones), from the published archive in `folder`.

    `partition` says which client has which training photos; `validation_fraction` of these are for validation, class by
    class. The published test photos follow: of every class a client has as large a share for testing as for training.
    """
    found = FILES.find(folder)
    form = next(iter(found))
    if verify:
        FILES.check({form: found[form]}, lambda done: build.progress(0.2 * done, "Checking"))
    build.progress(0.2, "Reading")
    training, test = (_read(found[form], form, name, labels) for name in ("train", "test"))
    names = _names(found[form], form, labels)
    pictures = LabelledPictures.of(training, test)
    write_pictures(build, pictures, partition, validation_fraction, split_seed, names)


def _content(path: Path, name: str) -> bytes:
    for member in members(path, re.compile(rf"(?:^|/){re.escape(name)}$")):
        return member.content
    raise BadInputError(f"{path} lacks {name}")


def _read(path: Path, form: str, name: str, labels: Labels) -> tuple[AnyArray, IntArray]:
    file = name if form == _PYTHON else f"{name}.bin"
    content, where = _content(path, file), f"{file} in {path}"
    pixels, codes = _pickled(content, where, labels) if form == _PYTHON else _binary(content, where, labels)
    return pixels.reshape(-1, *_SHAPE), check_labels(codes, _CLASSES[labels], where)


def _pickled(content: bytes, where: str, labels: Labels) -> tuple[AnyArray, AnyArray]:
    found = parse_pickled_arrays(content, where)
    by_name = found if isinstance(found, dict) else {}
    data, codes = (by_name.get(name, by_name.get(name.encode())) for name in ("data", f"{labels}_labels"))
    if (
        not (isinstance(data, np.ndarray) and data.dtype == np.uint8 and data.shape[1:] == (_PIXELS,))
        or not isinstance(codes, list)
        or not all(type(code) is int and abs(code) < 2**31 for code in codes)
    ):
        raise BadInputError(f"{where} must hold data, {_PIXELS} bytes for every photo, and {labels}_labels")
    check_as_many(data, codes, where, where)
    return data, np.array(codes)


def _binary(content: bytes, where: str, labels: Labels) -> tuple[AnyArray, AnyArray]:
    if not content or len(content) % (2 + _PIXELS):
        raise DamagedFileError(f"{where} is damaged: {len(content):,} bytes are not {2 + _PIXELS} for every photo")
    rows = np.frombuffer(content, dtype=np.uint8).reshape(-1, 2 + _PIXELS)
    return rows[:, 2:], rows[:, int(labels == "fine")]


def _names(path: Path, form: str, labels: Labels) -> list[str]:
    """What the classes are called."""
    if form == _BINARY:
        names = _content(path, f"{labels}_label_names.txt").decode("utf-8", "replace").split()
    else:
        found = parse_pickled_arrays(_content(path, "meta"), f"meta in {path}")
        by_name = found if isinstance(found, dict) else {}
        listed = by_name.get(f"{labels}_label_names", by_name.get(f"{labels}_label_names".encode(), []))
        names = [name.decode() if isinstance(name, bytes) else str(name) for name in listed or []]
    if len(names) != _CLASSES[labels]:
        raise BadInputError(f"{path} has names of {len(names)} {labels} classes; there are {_CLASSES[labels]}")
    return names
