"""MNIST (LeCun et al., 1998): 70,000 handwritten digits, divided into clients.

`mnist_by_writer` has the same pictures by the people who wrote them.
"""

from __future__ import annotations

from typing import Annotated, Any

from fedarena.core.options import PathOption
from fedarena.core.registry import Choice
from fedarena.data.labelled_pictures import DEFAULT_PARTITION, read_four_idx_files, write_pictures
from fedarena.data.raw.files import RawFile, RawFiles
from fedarena.data.registry import FEDERATIONS, PARTITIONERS, StoreBuild, cached_source
from fedarena.data.splits import Seed, ValidationFraction

LABEL_NAMES = tuple("0123456789")
_ADDRESS = "https://ossci-datasets.s3.amazonaws.com/mnist"
FILES = RawFiles(
    "mnist",
    "MNIST",
    {
        "train_images": RawFile(
            "train-images-idx3-ubyte",
            "sha256:ba891046e6505d7aadcbbe25680a0738ad16aec93bde7f9b65e87a2fc25776db",
            f"{_ADDRESS}/train-images-idx3-ubyte.gz",
        ),
        "train_labels": RawFile(
            "train-labels-idx1-ubyte",
            "sha256:65a50cbbf4e906d70832878ad85ccda5333a97f0f4c3dd2ef09a8a9eef7101c5",
            f"{_ADDRESS}/train-labels-idx1-ubyte.gz",
        ),
        "test_images": RawFile(
            "t10k-images-idx3-ubyte",
            "sha256:0fa7898d509279e482958e8ce81c8e77db3f2f8254e26661ceb7762c4d494ce7",
            f"{_ADDRESS}/t10k-images-idx3-ubyte.gz",
        ),
        "test_labels": RawFile(
            "t10k-labels-idx1-ubyte",
            "sha256:ff7bcfd416de33731a308c3f266cc351222c34898ecbeaf847f06e48f7ec33f2",
            f"{_ADDRESS}/t10k-labels-idx1-ubyte.gz",
        ),
    },
    "also compressed (.gz)",
)


@FEDERATIONS.register("mnist")
@cached_source(version=1, reads=FILES)
def mnist(
    build: StoreBuild,
    *,
    folder: PathOption | None = None,
    partition: Annotated[dict[str, Any], Choice(PARTITIONERS)] = DEFAULT_PARTITION,
    validation_fraction: ValidationFraction = 0.0,
    split_seed: Seed = 0,
    verify: bool = True,
) -> None:
    """Handwritten digits of 28 x 28 pixels, from the published files in `folder`.

    `partition` says which client has which training pictures; `validation_fraction` of these are for validation, class
    by class. The published test pictures follow: of every class a client has as large a share for testing as for
    training.
    """
    pictures = read_four_idx_files(build, FILES, folder, len(LABEL_NAMES), verify)
    write_pictures(build, pictures, partition, validation_fraction, split_seed, LABEL_NAMES)
