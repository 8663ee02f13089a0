"""iNature, FedScale's name for iNaturalist 2019 by who took the photos: 1,010 species.

FedScale's tarball has maps alone; the photos are those of the iNaturalist competition of 2019 (``train_val2019``, one
folder per group of species and in it one per species). Google's iNaturalist-User-120k is in the same form:
``user_id,image_id,class`` in a train.csv and test.csv, with `classes` 1,203.
"""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from fedarena.core.options import PathOption
from fedarena.data.by_client.clients import choices
from fedarena.data.by_client.maps import MapFiles, MapRow, label_below
from fedarena.data.by_client.packed import whole_number
from fedarena.data.by_client.pictures import Compressed, PictureForm, Size, build_pictures, pictures_of_maps
from fedarena.data.images.forms import Fit
from fedarena.data.raw.files import RawFile
from fedarena.data.registry import FEDERATIONS, StoreBuild, cached_source
from fedarena.data.sampling import Fraction, MinimumSamples
from fedarena.data.splits import PublishedSplit, Seed, TrainFraction, ValidationFraction

_CLASS_FOLDER = 2  # in the path of a photo: train_val2019/Birds/123/name.jpg
FILES = MapFiles(
    "inature",
    "iNature",
    {"map": RawFile("client_data_mapping/train.csv")},
    "with val.csv and test.csv beside it (FedScale's inaturalist.tar.gz), and the photos that they name (of the "
    "competition iNaturalist 2019, https://github.com/visipedia/inat_comp)",
    one_is_enough=True,
)


@FEDERATIONS.register("inature")
@cached_source(version=1, reads=FILES)
def inature(
    build: StoreBuild,
    *,
    folder: PathOption | None = None,
    classes: Annotated[int, Field(ge=2)] = 1_010,
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
    """Photos of plants and animals by who took them, from FedScale's maps and the photos in `folder`.

    What is on a photo is the number in column label_id or class, or, where a map has none, the third folder of its
    path. JPEGs of `size` x `size` pixels stay as they are; others are brought to that size.
    """
    FILES.find(folder)
    numbered = label_below(classes, "; federation.classes says how many")

    def label(row: MapRow) -> int:
        if row.label_id:
            return numbered(row)
        parts = row.sample.split("/")
        code = whole_number(parts[_CLASS_FOLDER] if len(parts) > _CLASS_FOLDER else "", "the third folder", row.where)
        return numbered(row._replace(label_name="", label_id=str(code)))

    pictures = pictures_of_maps(
        FILES.maps(folder), FILES.root(folder), lambda row: [row.sample, f"{row.sample}.jpg"], label
    )
    build_pictures(
        build,
        pictures,
        PictureForm(size, 3, fit, compressed),
        choices(minimum_samples, fraction, sampling_seed, split, train_fraction, validation_fraction, split_seed),
        classes,
    )
