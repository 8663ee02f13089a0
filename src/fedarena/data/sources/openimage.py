"""OpenImage: photos of Open Images by the Flickr user who took them (Kuznetsova et al., 2020).

FedScale's tarball has photos and maps of 596 classes. The publisher's files have several labels of a photo; the first
one that people confirmed (its Confidence is 1) is its class here, among all that the publisher describes.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from fedarena.core.errors import BadInputError
from fedarena.core.options import PathOption
from fedarena.core.outside_text import quoted
from fedarena.data.by_client.clients import choices
from fedarena.data.by_client.maps import MAPS, MapFiles, MapRow, label_below
from fedarena.data.by_client.packed import csv_rows, table_rows
from fedarena.data.by_client.pictures import (
    Compressed,
    PictureForm,
    PictureRows,
    Size,
    build_pictures,
    pictures_of_maps,
)
from fedarena.data.by_client.rows import Record
from fedarena.data.images.forms import Fit
from fedarena.data.raw.files import RawFile
from fedarena.data.registry import FEDERATIONS, StoreBuild, cached_source
from fedarena.data.sampling import Fraction, MinimumSamples
from fedarena.data.splits import PublishedSplit, Seed, TrainFraction, ValidationFraction
from fedarena.data.store.schema import GROUPS

CLASSES = 596
_CLASS_NAMES = "class-descriptions-boxable.csv"
_IMAGES = {f"{part}-images-boxable-with-rotation.csv": part for part in ("train", "validation", "test")}
_LABELS = {part: f"{part}-annotations-human-imagelabels-boxable.csv" for part in ("train", "validation", "test")}
FILES = MapFiles(
    "openimage",
    "OpenImage",
    {
        "map": RawFile("client_data_mapping/train.csv"),
        "classes": RawFile(_CLASS_NAMES),
        **{name: RawFile(name, other_names=(f"{part}-images-boxable.csv",)) for name, part in _IMAGES.items()},
        **{name: RawFile(name) for name in _LABELS.values()},
    },
    "the first of them, with val.csv and test.csv beside it and the folders train, val and test, is in FedScale's "
    "openImage.tar.gz; the others and the photos, as folders train, validation and test, are at "
    "https://storage.googleapis.com/openimages/web/download_v7.html",
    one_is_enough=True,
    tarballs=("openImage.tar.gz",),
)


@FEDERATIONS.register("openimage")
@cached_source(version=1, reads=FILES)
def openimage(
    build: StoreBuild,
    *,
    folder: PathOption | None = None,
    size: Size = 256,
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
    """Photos of things of several hundred classes by the Flickr user who took them, from the files in `folder`.

    JPEGs of `size` x `size` pixels stay as they are; others are brought to that size.
    """
    found = FILES.find(folder)
    root, maps = FILES.root(folder), FILES.maps(folder)
    classes, names = CLASSES, None
    if maps:
        pictures = pictures_of_maps(maps, root, _in_folder_of_group, label_below(CLASSES))
    else:
        described = _described(FILES.folder(folder) / _CLASS_NAMES)
        classes, names = len(described), tuple(name for name, _ in described.values())
        pictures = _published(root, found, {code: place for code, (_, place) in described.items()})
    build_pictures(
        build,
        pictures,
        PictureForm(size, 3, fit, compressed),
        choices(minimum_samples, fraction, sampling_seed, split, train_fraction, validation_fraction, split_seed),
        classes,
        names,
    )


def _in_folder_of_group(row: MapRow) -> list[str]:
    folders = [name.removesuffix(".csv") for name in MAPS[GROUPS[row.group]]]
    return [*(f"{folder}/{row.sample}" for folder in folders), row.sample]


def _described(path: Path) -> dict[str, tuple[str, int]]:
    """By its code, the name of every class and its number."""
    if not path.is_file():
        raise BadInputError(f"{path.parent} lacks {path.name}, which says what the codes of labels mean")
    found: dict[str, tuple[str, int]] = {}
    for line, values, _ in csv_rows(path):
        if len(values) != 2 or values[0] in found:
            raise BadInputError(f"{path}, line {line:,} must be the code of a class, which is there once, and its name")
        if values[0] != "LabelName":
            found[values[0]] = (values[1], len(found))
    return found


def _published(root: Path, found: dict[str, Path], classes: dict[str, int]) -> PictureRows:
    tables = {found[name]: part for name, part in _IMAGES.items() if name in found}
    if not tables:
        raise BadInputError(f"{root} lacks a table of photos such as {next(iter(_IMAGES))}")

    def records(path: Path) -> Iterator[Record]:
        part = tables[path]
        labels = _labels(root / _LABELS[part], classes)
        heading, rows = table_rows(path)
        image, author = heading.place("ImageID"), heading.place("AuthorProfileURL")
        for row in rows:
            name, person = row.values[image], row.values[author]
            if name not in labels or not person:
                continue  # nobody confirmed what is on it, or nobody knows whose it is
            if not (root / part / f"{name}.jpg").is_file():
                raise BadInputError(
                    f"{path}, line {row.line:,} names the photo {quoted(name)}, but there is no file "
                    f"{root / part / name}.jpg"
                )
            yield Record(person, (f"{part}/{name}.jpg", labels[name]), row.done)

    return PictureRows(root, list(tables), records)


def _labels(path: Path, classes: dict[str, int]) -> dict[str, int]:
    """The first class of every photo that people confirmed."""
    if not path.is_file():
        raise BadInputError(f"{path.parent} lacks {path.name}, which says what is on the photos")
    heading, rows = table_rows(path)
    image, label, confidence = (heading.place(name) for name in ("ImageID", "LabelName", "Confidence"))
    found: dict[str, int] = {}
    for row in rows:
        if row.values[confidence] not in ("1", "1.0"):
            continue
        if row.values[label] not in classes:
            raise BadInputError(f"{path}, line {row.line:,}: {_CLASS_NAMES} has no class {quoted(row.values[label])}")
        found.setdefault(row.values[image], classes[row.values[label]])
    return found
