"""CelebA: faces of celebrities, each a client (Caldas et al., "LEAF", 2018), from the files its authors give out.

The data is that of Liu et al., "Deep Learning Face Attributes in the Wild" (ICCV 2015): 202,599 pictures that were cut
out and aligned, who is on each, and 40 attributes of each, of which one is to be recognized. As in LEAF, pictures of
178 x 218 pixels become ones of 84 x 84, and people with fewer than five are left out.
"""

from __future__ import annotations

import re
from codecs import BOM_UTF8
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from fedarena.core.errors import BadInputError, DamagedFileError
from fedarena.core.files import read_bytes
from fedarena.core.options import PathOption
from fedarena.core.registry import nearest
from fedarena.data.raw.files import RawFile, RawFiles
from fedarena.data.raw.images import decode_picture, need_pillow
from fedarena.data.raw.trees import RawTree, open_tree
from fedarena.data.registry import FEDERATIONS, StoreBuild, cached_source
from fedarena.data.sampling import Fraction, MinimumSamples, Sampling
from fedarena.data.splits import Seed, Split, SplitKind, TrainFraction, ValidationFraction
from fedarena.data.store.schema import AnyArray, ColumnSpec, TaskSpec

FILES = RawFiles(
    "celeba",
    "CelebA",
    {
        "identities": RawFile("identity_CelebA.txt", "md5:32bd1bd63d3c78cd57e08160ec5ed1e2"),
        "attributes": RawFile("list_attr_celeba.txt", "md5:75e246fa4810816ffd6ee81facbd244c"),
        "pictures": RawFile(
            "img_align_celeba.zip", "md5:00d2c5bc6d35e252742224ab0c1e8fcb", unpacked="img_align_celeba"
        ),
    },
    "https://mmlab.ie.cuhk.edu.hk/projects/CelebA.html says where to get them",
)
_PICTURE = re.compile(r"(?:^|/)[^/.][^/]*\.jpg$")
_NUMBER = re.compile("[0-9]{1,18}")
SIDE = 84
_LABELS = {"-1": 0, "1": 1}


@FEDERATIONS.register("celeba")
@cached_source(version=1, reads=FILES)
def celeba(
    build: StoreBuild,
    *,
    folder: PathOption | None = None,
    attribute: str = "Smiling",
    minimum_samples: MinimumSamples = 5,
    fraction: Fraction = 1.0,
    sampling_seed: Seed = 0,
    split: SplitKind = "within_client",
    train_fraction: TrainFraction = 0.9,
    validation_fraction: ValidationFraction = 0.0,
    split_seed: Seed = 0,
    verify: bool = True,
) -> None:
    """Faces of celebrities, 84 x 84 pixels, who have `attribute` or not, from the published files in `folder`."""
    need_pillow("celeba")
    division = Split(split, train_fraction, validation_fraction, split_seed)
    paths = FILES.find(folder)
    if verify:
        FILES.check(paths, lambda done: build.progress(0.1 * done, "Checking"))
    build.progress(0.1, "Reading attributes")
    labels = _read_attribute(paths["attributes"], attribute)
    build.progress(0.1, "Reading identities")
    people = _read_identities(paths["identities"], labels, paths["attributes"])
    everybody = sorted(people)
    sizes = np.array([len(people[person]) for person in everybody], dtype=np.int64)
    kept = Sampling(fraction=fraction, minimum_samples=minimum_samples, seed=sampling_seed).choose(sizes)
    groups = division.groups(len(kept))
    task = TaskSpec(kind="classification", classes=2, label_names=(f"not {attribute}", attribute))
    columns = {"x": ColumnSpec(dtype="uint8", shape=(3, SIDE, SIDE)), "y": ColumnSpec(dtype="int64")}
    with open_tree(paths["pictures"], _PICTURE, lambda done: build.progress(0.1, "Listing")) as tree:
        places = _places(tree, people, paths["identities"])
        with build.writer(task=task, columns=columns) as writer:
            for client, person in enumerate(everybody[place] for place in kept):
                names = people[person]
                x = np.stack([_picture(tree, places[name]) for name in names])
                y = np.array([labels[name] for name in names], dtype=np.int64)
                divided = division.divide(client, groups[client], {"x": x, "y": y})
                writer.add_client(str(person), group=groups[client], **divided)
                build.progress(0.1 + 0.9 * client / len(kept), "Writing")


def _lines(path: Path) -> Iterator[tuple[int, list[str]]]:
    """The number and the words of every line that has any."""
    for number, line in enumerate(read_bytes(path).removeprefix(BOM_UTF8).split(b"\n"), start=1):
        try:
            words = line.decode().split()
        except UnicodeDecodeError:
            raise BadInputError(f"{path}, line {number}: this is not UTF-8 text") from None
        if words:
            yield number, words


def _read_attribute(path: Path, attribute: str) -> dict[str, int]:
    """Whether each picture has the attribute. The first line says how many there are, the second names attributes."""
    lines = _lines(path)
    _, first = next(lines, (1, []))
    if len(first) != 1 or not _NUMBER.fullmatch(first[0]):
        raise BadInputError(f"{path}, line 1 must be the number of pictures, not {' '.join(first)[:40]!r}")
    _, names = next(lines, (2, []))
    if attribute not in names:
        raise BadInputError(
            f"federation.attribute is {attribute!r}, but {path} has no such attribute; {nearest(attribute, names)}"
        )
    column = 1 + names.index(attribute)
    labels: dict[str, int] = {}
    for number, words in lines:
        if len(words) != 1 + len(names):
            raise BadInputError(
                f"{path}, line {number} has {len(words)} columns; it must have the name of a picture and "
                f"{len(names)} attributes"
            )
        if words[column] not in _LABELS:
            raise BadInputError(f"{path}, line {number}: {attribute} must be 1 or -1, not {words[column]!r}")
        if words[0] in labels:
            raise BadInputError(f"{path}, line {number}: there was a line on {words[0]} before")
        labels[words[0]] = _LABELS[words[column]]
    if len(labels) != int(first[0]):
        raise DamagedFileError(f"{path} is damaged: line 1 promises {first[0]} pictures, and {len(labels)} follow")
    return labels


def _read_identities(path: Path, labels: dict[str, int], attributes: Path) -> dict[int, list[str]]:
    """The names of everybody's pictures."""
    people: dict[int, list[str]] = {}
    seen: set[str] = set()
    for number, words in _lines(path):
        if len(words) != 2 or not _NUMBER.fullmatch(words[1]):
            raise BadInputError(
                f"{path}, line {number} must have the name of a picture and the number of a person, not "
                f"{' '.join(words)[:40]!r}"
            )
        name, person = words
        if name in seen:
            raise BadInputError(f"{path}, line {number}: there was a line on {name} before")
        if name not in labels:
            raise BadInputError(f"{path}, line {number}: {attributes} has no line on {name}")
        seen.add(name)
        people.setdefault(int(person), []).append(name)
    return people


def _places(tree: RawTree, people: dict[int, list[str]], identities: Path) -> dict[str, int]:
    """Where each picture is in the archive, all of which must be there."""
    places: dict[str, int] = {}
    for index, path in enumerate(tree.names):
        first = places.setdefault(path.rpartition("/")[2], index)
        if first != index:
            raise BadInputError(f"{tree.path} has two pictures of the same name, {tree.names[first]} and {path}")
    missing = sorted(name for names in people.values() for name in names if name not in places)
    if missing:
        raise BadInputError(
            f"{tree.path} lacks {len(missing):,} of the pictures that {identities} names: {missing[0]} is the first"
        )
    return places


def _picture(tree: RawTree, index: int) -> AnyArray:
    """Stretched without regard to its shape, as in LEAF, with the filter that is Pillow's default since 2020."""
    from PIL.Image import Resampling

    picture = decode_picture(tree.read(index), "RGB", tree.where(index))
    return np.asarray(picture.resize((SIDE, SIDE), Resampling.BICUBIC)).transpose(2, 0, 1)
