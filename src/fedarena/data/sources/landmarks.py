"""Google Landmark: photos of sights by who took them, as divided for federated learning.

The division is that of Hsu, Qi and Brown, "Federated Visual Classification with Real-World Data Distribution" (2020),
of Google Landmarks v2: ``user_id,image_id,class``. FedScale's landmark.tar.gz has maps of its own and a script that
downloads the photos.
"""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from fedarena.core.options import PathOption
from fedarena.data.by_client.clients import choices
from fedarena.data.by_client.maps import MapFiles, MapRow, label_below
from fedarena.data.by_client.pictures import Compressed, PictureForm, Size, build_pictures, pictures_of_maps
from fedarena.data.images.forms import Fit
from fedarena.data.raw.files import RawFile
from fedarena.data.registry import FEDERATIONS, StoreBuild, cached_source
from fedarena.data.sampling import Fraction, MinimumSamples
from fedarena.data.splits import PublishedSplit, Seed, TrainFraction, ValidationFraction

FILES = MapFiles(
    "landmarks",
    "Google Landmark",
    {"map": RawFile("client_data_mapping/train.csv")},
    "with val.csv and test.csv beside it (FedScale's landmark.tar.gz, or Google's federated_train.csv renamed), "
    "and the photos that they name (https://github.com/cvdfoundation/google-landmark)",
    one_is_enough=True,
)


@FEDERATIONS.register("landmarks")
@cached_source(version=1, reads=FILES)
def landmarks(
    build: StoreBuild,
    *,
    folder: PathOption | None = None,
    classes: Annotated[int, Field(ge=2)] = 2_028,
    size: Size = 224,
    fit: Fit = "stretch",
    compressed: Compressed = "jpeg",
    minimum_samples: MinimumSamples = 1,
    fraction: Fraction = 1.0,
    sampling_seed: Seed = 0,
    split: PublishedSplit = "published",
    train_fraction: TrainFraction | None = None,
    validation_fraction: ValidationFraction | None = None,
    split_seed: Seed | None = None,
) -> None:
    """Photos of landmarks by who took them, from maps and photos in `folder`.

    A photo is looked for
    under its name, and as Google's archives have it, ``train/0/a/1/0a1….jpg``.
    """
    FILES.find(folder)
    pictures = pictures_of_maps(
        FILES.maps(folder), FILES.root(folder), _candidates, label_below(classes, "; federation.classes says how many")
    )
    build_pictures(
        build,
        pictures,
        PictureForm(size, 3, fit, compressed),
        choices(minimum_samples, fraction, sampling_seed, split, train_fraction, validation_fraction, split_seed),
        classes,
    )


def _candidates(row: MapRow) -> list[str]:
    name = row.sample
    if "." in name or len(name) < 3:
        return [name, f"{name}.jpg"]
    return [f"train/{name[0]}/{name[1]}/{name[2]}/{name}.jpg", f"{name}.jpg", f"train/{name}.jpg"]
