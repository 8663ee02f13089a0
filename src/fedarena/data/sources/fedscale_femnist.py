"""FEMNIST as FedScale gives it out (Lai et al., ICML 2022): pictures of characters, and maps of who wrote them.

`femnist` is made from NIST's own files, as LEAF does it; here, FedScale's choice of writers and pictures is kept. Its
training map has 2,800 writers with 637,877 pictures.
"""

from __future__ import annotations

from fedarena.core.options import PathOption
from fedarena.data.by_client.clients import choices
from fedarena.data.by_client.maps import MapFiles, label_below
from fedarena.data.by_client.pictures import PictureForm, Size, build_pictures, pictures_of_maps
from fedarena.data.images.forms import Fit
from fedarena.data.raw.files import RawFile
from fedarena.data.registry import FEDERATIONS, StoreBuild, cached_source
from fedarena.data.sampling import Fraction, MinimumSamples
from fedarena.data.splits import PublishedSplit, Seed, TrainFraction, ValidationFraction

CLASSES = 62
FILES = MapFiles(
    "fedscale_femnist",
    "FedScale's FEMNIST",
    {"map": RawFile("client_data_mapping/train.csv")},
    "with val.csv and test.csv beside it, and the pictures that they name; they are in FedScale's femnist.tar.gz",
    one_is_enough=True,
    tarballs=("femnist.tar.gz",),
)


@FEDERATIONS.register("fedscale_femnist")
@cached_source(version=1, reads=FILES)
def fedscale_femnist(
    build: StoreBuild,
    *,
    folder: PathOption | None = None,
    size: Size = 28,
    fit: Fit = "stretch",
    minimum_samples: MinimumSamples = 1,
    fraction: Fraction = 1.0,
    sampling_seed: Seed = 0,
    split: PublishedSplit = "published",
    train_fraction: TrainFraction | None = None,
    validation_fraction: ValidationFraction | None = None,
    split_seed: Seed | None = None,
) -> None:
    """Handwritten digits and letters by those who wrote them, from FedScale's files in `folder`."""
    FILES.find(folder)
    root = FILES.root(folder)
    pictures = pictures_of_maps(FILES.maps(folder), root, lambda row: [row.sample], label_below(CLASSES))
    build_pictures(
        build,
        pictures,
        PictureForm(size, 1, fit),
        choices(minimum_samples, fraction, sampling_seed, split, train_fraction, validation_fraction, split_seed),
        CLASSES,
    )
