"""CIFAR-10 (Krizhevsky, 2009): 60,000 photos of ten kinds of things, divided into a few clients as in FedHPO-Bench.

Both forms that its author publishes are read: the one for Python, whose pickles are read without running anything, and
the binary one.
"""

from __future__ import annotations

import tarfile
import zlib
from pathlib import Path

import numpy as np

from fedarena.core.errors import BadInputError, DamagedFileError
from fedarena.core.files import read_bytes
from fedarena.core.options import PathOption
from fedarena.data.divided_by_labels import clients_by_labels, stratified_parts, write_divided
from fedarena.data.graphs.pickled_arrays import parse_pickled_arrays
from fedarena.data.partitioners.checks import Alpha, Clients, MinSamples
from fedarena.data.raw.files import RawFile, RawFiles
from fedarena.data.registry import FEDERATIONS, StoreBuild, cached_source
from fedarena.data.splits import Seed, Split, ValidationFraction
from fedarena.data.store.schema import PARTS, AnyArray, ColumnSpec, IntArray, TaskSpec

LABEL_NAMES = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
SHAPE = (3, 32, 32)
_PIXELS = 3 * 32 * 32
_ADDRESS = "https://www.cs.toronto.edu/~kriz"
_TRAINING = tuple(f"data_batch_{number}" for number in (1, 2, 3, 4, 5))
_TEST = "test_batch"
_PYTHON, _BINARY = "python", "binary"

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
    },
    "https://www.cs.toronto.edu/~kriz/cifar.html has both",
    one_is_enough=True,
)


@FEDERATIONS.register("cifar10")
@cached_source(version=1, reads=FILES)
def cifar10(
    build: StoreBuild,
    *,
    folder: PathOption | None = None,
    clients: Clients = 5,
    alpha: Alpha = 0.5,
    min_samples: MinSamples = 10,
    seed: Seed = 0,
    validation_fraction: ValidationFraction = 0.2,
    verify: bool = True,
) -> None:
    """Photos of 32 x 32 pixels of ten kinds of things, from the published archive in `folder` (python or binary).

    Of the 50,000 training photos, `validation_fraction` are for validation, class by class; the 10,000 test photos stay
    as published. Clients are made as in `openml`.
    """
    division = Split("within_client", 1 - validation_fraction, validation_fraction, seed)
    found = FILES.find(folder)
    form = _PYTHON if _PYTHON in found else _BINARY
    if verify:
        FILES.check({form: found[form]}, lambda done: build.progress(0.2 * done, "Checking"))
    x, y, is_test = _read(build, found[form], form)
    parts = np.full(len(y), PARTS.index("test"), dtype=np.int64)
    parts[~is_test] = stratified_parts(y[~is_test], division.fractions, seed)
    owners = clients_by_labels(y, parts, clients=clients, alpha=alpha, min_samples=min_samples, seed=seed)
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
        file = name if form == _PYTHON else f"{name}.bin"
        content, where = _content(path, file), f"{file} in {path}"
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
