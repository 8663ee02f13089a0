"""Fashion-MNIST (Xiao, Rasul and Vollgraf, 2017): 70,000 pictures of clothes, divided into clients."""

from __future__ import annotations

from typing import Annotated, Any

from fedarena.core.options import PathOption
from fedarena.core.registry import Choice
from fedarena.data.labelled_pictures import DEFAULT_PARTITION, read_four_idx_files, write_pictures
from fedarena.data.raw.files import RawFile, RawFiles
from fedarena.data.registry import FEDERATIONS, PARTITIONERS, StoreBuild, cached_source
from fedarena.data.splits import Seed, ValidationFraction

LABEL_NAMES = (
    *("T-shirt", "trouser", "pullover", "dress", "coat"),
    *("sandal", "shirt", "sneaker", "bag", "ankle boot"),
)
_ADDRESS = "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com"
FILES = RawFiles(
    "fashion_mnist",
    "Fashion-MNIST",
    {
        "train_images": RawFile(
            "train-images-idx3-ubyte",
            "sha256:c59f468a2f672dc815687fe0f83887768d799fd8a3f3276145d20f83aa44d888",
            f"{_ADDRESS}/train-images-idx3-ubyte.gz",
        ),
        "train_labels": RawFile(
            "train-labels-idx1-ubyte",
            "sha256:bad3541b69d912435c50bb6ba87bec294ff4f6a2e1246121d8633921760443d9",
            f"{_ADDRESS}/train-labels-idx1-ubyte.gz",
        ),
        "test_images": RawFile(
            "t10k-images-idx3-ubyte",
            "sha256:5b4141f0afbad91edebe8549f8fcffe087ea10ca49f1dbef5c9a5cd8815ce37b",
            f"{_ADDRESS}/t10k-images-idx3-ubyte.gz",
        ),
        "test_labels": RawFile(
            "t10k-labels-idx1-ubyte",
            "sha256:0402a96d92fd2663957122ceb108a494c5af83dab82d92729df917d7dec38c34",
            f"{_ADDRESS}/t10k-labels-idx1-ubyte.gz",
        ),
    },
    "also compressed (.gz); https://github.com/zalandoresearch/fashion-mnist has them, and Debian's package "
    "dataset-fashion-mnist",
)


@FEDERATIONS.register("fashion_mnist")
@cached_source(version=1, reads=FILES)
def fashion_mnist(
    build: StoreBuild,
    *,
    folder: PathOption | None = None,
    partition: Annotated[dict[str, Any], Choice(PARTITIONERS)] = DEFAULT_PARTITION,
    validation_fraction: ValidationFraction = 0.0,
    split_seed: Seed = 0,
    verify: bool = True,
) -> None:
    """Clothes of ten kinds, 28 x 28 pixels, from the published files in `folder`.

    `partition` says which client has which training pictures; `validation_fraction` of these are for validation, class
    by class. The published test pictures follow: of every class a client has as large a share for testing as for
    training.
    """
    pictures = read_four_idx_files(build, FILES, folder, len(LABEL_NAMES), verify)
    write_pictures(build, pictures, partition, validation_fraction, split_seed, LABEL_NAMES)
