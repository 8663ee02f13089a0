"""FEMNIST: handwritten digits and letters by who wrote them (Caldas et al., "LEAF", 2018), from NIST's own files.

Special Database 19 has the same 814,255 pictures twice: by_class says which character one is (the folder 4a holds J,
whose ASCII code that is), by_write who wrote it (by_write/hsf_0/f0000_14/d0000_14/d0000_14_00000.png). As in LEAF,
equal files belong together. LEAF's code counts the first picture of every writer but one twice, and so has 817,851;
here each counts once.

Pictures have 128 x 128 pixels, black on white. They are shrunk as in LEAF, or prepared as in EMNIST, and inverted: ink
is high and paper 0, as in MNIST, so that the zeros around a picture in a convolution look like paper. LEAF's values are
1 minus these.
"""

from __future__ import annotations

import hashlib
import re
from typing import TYPE_CHECKING, Literal

import numpy as np

from fedarena.core.errors import BadInputError
from fedarena.core.options import PathOption
from fedarena.data.raw.files import RawFile, RawFiles
from fedarena.data.raw.images import decode_picture, need_pillow
from fedarena.data.raw.trees import RawTree, open_tree
from fedarena.data.registry import FEDERATIONS, StoreBuild, cached_source
from fedarena.data.sampling import Fraction, MinimumSamples, Sampling
from fedarena.data.splits import Seed, Split, SplitKind, TrainFraction, ValidationFraction
from fedarena.data.store.schema import AnyArray, ColumnSpec, IntArray, TaskSpec

if TYPE_CHECKING:
    from PIL.Image import Image

FILES = RawFiles(
    "femnist",
    "FEMNIST",
    {
        "by_class": RawFile(
            "by_class.zip",
            "md5:79572b1694a8506f2b722c7be54130c4",
            "https://s3.amazonaws.com/nist-srd/SD19/by_class.zip",
            unpacked="by_class",
        ),
        "by_write": RawFile(
            "by_write.zip",
            "md5:a29f21babf83db0bb28a2f77b2b456cb",
            "https://s3.amazonaws.com/nist-srd/SD19/by_write.zip",
            unpacked="by_write",
        ),
    },
    "they are the second edition of https://www.nist.gov/srd/nist-special-database-19",
)
CHARACTERS = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
# by_class also has folders train_xx, with copies of most of what is in the folders hsf_n.
_BY_CLASS = re.compile(r"(?:^|/)(3\d|[46][1-9a-f]|[57][\da])/hsf_\d/[^/.][^/]*\.png$")
_BY_WRITE = re.compile(r"(?:^|/)(hsf_\d)/(f\d+_\d+)/[^/]+/[^/.][^/]*\.png$")
_LABELS = {f"{ord(character):x}": label for label, character in enumerate(CHARACTERS)}
SIDE, SIDE_AT_NIST = 28, 128
BLUR, BORDER = 1, 2  # EMNIST's, in pixels of NIST's pictures

Preprocessing = Literal["leaf", "emnist"]


@FEDERATIONS.register("femnist")
@cached_source(version=1, reads=FILES)
def femnist(
    build: StoreBuild,
    *,
    folder: PathOption | None = None,
    preprocessing: Preprocessing = "leaf",
    minimum_samples: MinimumSamples = 1,
    fraction: Fraction = 1.0,
    sampling_seed: Seed = 0,
    split: SplitKind = "within_client",
    train_fraction: TrainFraction = 0.9,
    validation_fraction: ValidationFraction = 0.0,
    split_seed: Seed = 0,
    verify: bool = True,
) -> None:
    """Handwritten digits and letters (62 classes) of 3,597 people, from by_class.zip and by_write.zip in `folder`.

    `preprocessing` is LEAF's (all of the picture, shrunk) or EMNIST's (blurred, cut out, centred, shrunk). A client's
    attribute hsf is the part of NIST's collection it belongs to.
    """
    need_pillow("femnist")
    division = Split(split, train_fraction, validation_fraction, split_seed)
    paths = FILES.find(folder)
    if verify:
        FILES.check(paths, lambda done: build.progress(0.05 * done, "Checking"))
    shrink = {"leaf": _shrink_like_leaf, "emnist": _shrink_like_emnist}[preprocessing]

    def listing(done: float) -> None:
        build.progress(0.05 + 0.05 * done, "Listing")

    with open_tree(paths["by_write"], _BY_WRITE, lambda done: listing(done / 2)) as pictures:
        with open_tree(paths["by_class"], _BY_CLASS, lambda done: listing((1 + done) / 2)) as classes:
            labels = _match(build, pictures, classes)
        build.progress(0.2, "Comparing")
        writers, parts, starts, sizes = _writers(pictures)
        kept = Sampling(fraction=fraction, minimum_samples=minimum_samples, seed=sampling_seed).choose(sizes)
        groups = division.groups(len(kept))
        task = TaskSpec(kind="classification", classes=len(CHARACTERS), label_names=tuple(CHARACTERS))
        columns = {"x": ColumnSpec(dtype="uint8", shape=(1, SIDE, SIDE)), "y": ColumnSpec(dtype="int64")}
        with build.writer(task=task, columns=columns, attributes={"hsf": "string"}) as writer:
            for client, place in enumerate(kept):
                rows = range(starts[place], starts[place] + sizes[place])
                x = np.stack([shrink(_picture(pictures, row)) for row in rows])[:, None]
                divided = division.divide(client, groups[client], {"x": x, "y": labels[rows.start : rows.stop]})
                writer.add_client(writers[place], group=groups[client], attributes={"hsf": parts[place]}, **divided)
                build.progress(0.2 + 0.8 * client / len(kept), "Writing")


def _match(build: StoreBuild, pictures: RawTree, classes: RawTree) -> IntArray:
    """The label of every picture of by_write: that of the equal file in by_class, the first if there are several."""
    for tree, example in (
        (pictures, "hsf_0/f0000_14/d0000_14/d0000_14_00000.png"),
        (classes, "30/hsf_0/hsf_0_00000.png"),
    ):
        if not tree.names:
            raise BadInputError(f"{tree.path} holds no pictures with names like {example}")
    build.progress(0.1, "Comparing")
    labels = np.array([_LABELS[name.rsplit("/", 3)[-3]] for name in classes.names])
    class_keys = classes.keys(lambda done: build.progress(0.1 + 0.05 * done, "Comparing"))
    keys = pictures.keys(lambda done: build.progress(0.15 + 0.04 * done, "Comparing"))
    build.progress(0.19, "Comparing")
    order = np.argsort(class_keys, kind="stable")
    sorted_keys = class_keys[order]
    first = np.searchsorted(sorted_keys, keys)
    unknown = np.flatnonzero(sorted_keys[np.minimum(first, len(order) - 1)] != keys)
    if len(unknown):
        raise _unmatched(pictures, classes, unknown)
    found = labels[order[first]]

    # Different files may have the same key, if very rarely: where labels differ, contents are compared.
    last = np.searchsorted(sorted_keys, keys, side="right")
    same_as_next = np.append(np.diff(sorted_keys) == 0, False) & np.append(np.diff(labels[order]) != 0, False)
    doubts = np.concatenate([[0], np.cumsum(same_as_next)])
    for row in np.flatnonzero(doubts[last] > doubts[first]).tolist():
        content = _digest(pictures, row)
        equal = [index for index in order[first[row] : last[row]].tolist() if _digest(classes, index) == content]
        if not equal:
            raise _unmatched(pictures, classes, np.array([row]))
        found[row] = labels[equal[0]]
    return found


def _digest(tree: RawTree, index: int) -> bytes:
    return hashlib.sha256(tree.read(index)).digest()


def _unmatched(pictures: RawTree, classes: RawTree, rows: IntArray) -> BadInputError:
    return BadInputError(
        f"{len(rows):,} of the {len(pictures.names):,} pictures in {pictures.path} are not in {classes.path}, which "
        f"must have them all: {pictures.names[rows[0]]} is the first"
    )


def _writers(pictures: RawTree) -> tuple[list[str], list[str], IntArray, IntArray]:
    """Everybody's name, part of the collection, first picture and number of pictures."""
    owners = [name.rsplit("/", 2)[0] for name in pictures.names]  # by_write/hsf_0/f0000_14
    starts = np.array([0, *(row for row in range(1, len(owners)) if owners[row] != owners[row - 1])])
    parts, writers = zip(*(owners[start].split("/")[-2:] for start in starts), strict=True)
    seen: dict[str, str] = {}
    for part, writer in zip(parts, writers, strict=True):
        if writer in seen:
            raise BadInputError(f"{pictures.path} has the writer {writer} twice, in {seen[writer]} and in {part}")
        seen[writer] = part
    return list(writers), list(parts), starts, np.diff(starts, append=len(owners))


def _picture(pictures: RawTree, row: int) -> Image:
    where = pictures.where(row)
    picture = decode_picture(pictures.read(row), "L", where)
    if picture.size != (SIDE_AT_NIST, SIDE_AT_NIST):
        width, height = picture.size
        raise BadInputError(f"{where} must have {SIDE_AT_NIST} x {SIDE_AT_NIST} pixels, not {width} x {height}")
    return picture


def _shrink_like_leaf(picture: Image) -> AnyArray:
    from PIL.Image import Resampling

    return 255 - np.asarray(picture.resize((SIDE, SIDE), Resampling.LANCZOS))


def _shrink_like_emnist(picture: Image) -> AnyArray:
    """As section II.B of Cohen et al., "EMNIST: an extension of MNIST to handwritten letters" (2017), describes it."""
    from PIL import Image, ImageChops, ImageFilter

    ink = ImageChops.invert(picture).filter(ImageFilter.GaussianBlur(BLUR))
    box = ink.getbbox()
    if box is None:
        return np.zeros((SIDE, SIDE), np.uint8)
    left, top, right, bottom = box
    side = max(right - left, bottom - top) + 2 * BORDER
    square = Image.new("L", (side, side))
    square.paste(ink.crop(box), ((side - (right - left)) // 2, (side - (bottom - top)) // 2))
    shrunk = np.asarray(square.resize((SIDE, SIDE), Image.Resampling.BICUBIC), np.float32)
    scaled: AnyArray = np.rint(shrunk * (255 / max(float(shrunk.max()), 1.0))).astype(np.uint8)
    return scaled
