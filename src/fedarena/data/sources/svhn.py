"""Street View House Numbers (Netzer et al., 2011): digits on houses, 32 x 32 pixels, divided into clients.

The publisher's cropped digits are Matlab's files train_32x32.mat, test_32x32.mat and extra_32x32.mat, in which the
label of a 0 is 10.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import numpy as np

from fedarena.core.errors import BadInputError
from fedarena.core.options import PathOption
from fedarena.core.registry import Choice
from fedarena.data.labelled_pictures import (
    DEFAULT_PARTITION,
    LabelledPictures,
    check_as_many,
    check_labels,
    write_pictures,
)
from fedarena.data.raw.files import RawFile, RawFiles
from fedarena.data.raw.matlab import read_matlab
from fedarena.data.registry import FEDERATIONS, PARTITIONERS, StoreBuild, cached_source
from fedarena.data.splits import Seed, ValidationFraction
from fedarena.data.store.schema import AnyArray, IntArray

LABEL_NAMES = tuple("0123456789")
_SHAPE = (32, 32, 3)
_ADDRESS = "http://ufldl.stanford.edu/housenumbers"
FILES = RawFiles(
    "svhn",
    "Street View House Numbers",
    {
        "train": RawFile("train_32x32.mat", "md5:e26dedcc434d2e4c54c9b2d4a06d8373", f"{_ADDRESS}/train_32x32.mat"),
        "test": RawFile("test_32x32.mat", "md5:eb5a983be6a315427106f1b164d9cef3", f"{_ADDRESS}/test_32x32.mat"),
    },
    "http://ufldl.stanford.edu/housenumbers has them",
)


@FEDERATIONS.register("svhn")
@cached_source(version=1, reads=FILES)
def svhn(
    build: StoreBuild,
    *,
    folder: PathOption | None = None,
    extra: bool = False,
    partition: Annotated[dict[str, Any], Choice(PARTITIONERS)] = DEFAULT_PARTITION,
    validation_fraction: ValidationFraction = 0.0,
    split_seed: Seed = 0,
    verify: bool = True,
) -> None:
    """Digits on photos of houses, from the published files in `folder`; with `extra`, those of extra_32x32.mat as well.

    `partition` says which client has which training pictures; `validation_fraction` of these are for validation, class
    by class. The published test pictures follow: of every class a client has as large a share for testing as for
    training.
    """
    found = FILES.find(folder)
    if verify:
        FILES.check(found, lambda done: build.progress(0.2 * done, "Checking"))
    build.progress(0.2, "Reading")
    training, test = (_read(found[name]) for name in ("train", "test"))
    if extra:
        more = _read(FILES.folder(folder) / "extra_32x32.mat")
        training = (np.concatenate([training[0], more[0]]), np.concatenate([training[1], more[1]]))
    pictures = LabelledPictures.of(training, test)
    write_pictures(build, pictures, partition, validation_fraction, split_seed, LABEL_NAMES)


def _read(path: Path) -> tuple[AnyArray, IntArray]:
    arrays = read_matlab(path)
    x, y = arrays.get("X"), arrays.get("y")
    if not (isinstance(x, np.ndarray) and x.dtype == np.uint8 and x.ndim == 4 and x.shape[:3] == _SHAPE):
        raise BadInputError(f"{path} must hold X, pictures of {' x '.join(map(str, _SHAPE))} bytes")
    if not (isinstance(y, np.ndarray) and np.issubdtype(y.dtype, np.number)):
        raise BadInputError(f"{path} must hold y, the labels of the pictures")
    labels = y.reshape(-1).astype(np.int64)
    check_as_many(np.moveaxis(x, 3, 0), labels, str(path), str(path))
    codes = check_labels(np.where(labels == 10, 0, labels), len(LABEL_NAMES), str(path))
    return np.ascontiguousarray(x.transpose(3, 2, 0, 1)), codes
