"""A stand-in for FLAIR: pictures that the tool draws itself, with the numbers of FLAIR's users and labels.

FLAIR (Song, Granqvist, Talwar, "FLAIR: Federated Learning Annotated Image Repository", 2022) has 429,078 photos of
51,414 users. What its authors published about them holds here, too: how many images users have, how frequent labels
are, how many an image and a user has, and how many users have a label. What the pictures show is made up: every label
is a form with a texture and a colour, and every user's pictures have a cast, a brightness and a grain in common. So
results on it say how methods compare on such a federation, and nothing about FLAIR's photos.
"""

from __future__ import annotations

from typing import Annotated, Literal

import numpy as np
from pydantic import Field

from fedarena.data.flair_like.drawing import Images, draw, encode
from fedarena.data.flair_like.labels import coarse_of, fine_names, fine_of, scenes_of
from fedarena.data.flair_like.published import coarse_labels
from fedarena.data.flair_like.users import groups, sizes
from fedarena.data.raw.images import need_pillow
from fedarena.data.registry import FEDERATIONS, StoreBuild, cached_source
from fedarena.data.splits import (
    PublishedSplit,
    Seed,
    Split,
    TrainFraction,
    ValidationFraction,
    apportion,
    split_anew,
)
from fedarena.data.store.schema import GROUPS, PARTS, AnyArray, ColumnSpec, Encoding, IntArray, TaskSpec

Labels = Literal["coarse", "fine", "structure"]

NOTE = (
    "A stand-in for FLAIR: the pictures are drawn by FedArena and no photos; users and labels have the numbers that "
    "FLAIR's authors published."
)
_LEAST_JPEG_SIDE = 64
_BATCH_BYTES = 1 << 26  # of pictures that are drawn before they are written


@FEDERATIONS.register("flair_like")
@cached_source(version=3)
def flair_like(
    build: StoreBuild,
    *,
    users: Annotated[int, Field(ge=10, le=10_000_000)] = 1000,
    labels: Labels = "coarse",
    side: Annotated[int, Field(ge=8, le=1024)] = 32,
    max_samples: Annotated[int, Field(ge=1)] | None = 512,
    noise: Annotated[float, Field(ge=0, le=1)] = 0.08,
    encoding: Literal["none", "png", "jpeg"] | None = None,
    split: PublishedSplit = "published",
    train_fraction: TrainFraction | None = None,
    validation_fraction: ValidationFraction | None = None,
    split_seed: Seed | None = None,
    seed: Seed = 0,
) -> None:
    """A stand-in for FLAIR: pictures of `side` x `side` pixels that the tool draws, with FLAIR's numbers.

    Of every ten `users` eight are in train, one in validation and one in test, and the first ones are the same however
    many there are; FLAIR has 51,414. With ``split="within_client"`` everybody trains and is tested, as personal models
    need it; fractions are 0.8 and 0 unless they are given. `labels` are the 17 coarse ones, the 1,628 fine ones inside
    these, or whether an image shows a structure. Users who train have at most `max_samples` images for it, as in the
    paper, which tests on all. `noise` is the deviation of the grain of pixels from 0 to 1. From a `side` of 64 on the
    store holds JPEGs, like FLAIR; smaller pictures are stored as pixels, because decoding would take longer than
    training on them. `encoding` overrules that.
    """
    names = {"coarse": coarse_labels(), "fine": fine_names(), "structure": ("structure",)}[labels]
    task = TaskSpec(kind="multi_label", classes=len(names), label_names=names)
    encoded: Encoding | None = "jpeg" if side >= _LEAST_JPEG_SIDE else None
    if encoding is not None:
        encoded = None if encoding == "none" else encoding
    if encoded is not None:
        need_pillow("flair_like")
    columns = {
        "x": ColumnSpec(dtype="uint8", shape=(3, side, side), encoding=encoded),
        "y": ColumnSpec(dtype="uint8", shape=(len(names),)),
    }
    everybody = np.arange(users)
    images_of = sizes(seed, everybody)
    division = split_anew(split, train_fraction, validation_fraction, split_seed)
    group_of, counts = _divided(images_of, groups(seed, everybody), division, max_samples)
    stored = counts.sum(axis=1)
    ends = np.cumsum(stored)
    batch = max(1, _BATCH_BYTES // (3 * side * side))
    with build.writer(task=task, columns=columns, notes=[NOTE]) as writer:
        start = 0
        while start < users:
            before = int(ends[start - 1]) if start else 0
            stop = max(start + 1, int(np.searchsorted(ends, before + batch, side="right")))
            some = everybody[start:stop]
            x, y = _samples(seed, some, images_of[some], stored[some], labels, side, noise)
            writer.add_clients(
                [f"user-{user:08d}" for user in some],
                counts=counts[some],
                columns={"x": x if encoded is None else encode(x, encoded), "y": y},
                groups=[GROUPS[group] for group in group_of[some]],
            )
            start = stop
            build.progress(int(ends[stop - 1]) / int(ends[-1]), "drawing pictures")


def _divided(
    sizes: IntArray, group_of: IntArray, division: Split | None, max_samples: int | None
) -> tuple[IntArray, IntArray]:
    """Every user's group, and how many images of each are stored for training, validation and test."""
    if division is not None:
        group_of = np.array([GROUPS.index(group) for group in division.groups(len(sizes))])
    if division is not None and division.kind == "within_client":
        counts = apportion(sizes, division.fractions)  # a user's images come in no particular order
    else:
        counts = np.zeros((len(sizes), len(PARTS)), dtype=np.int64)
        counts[np.arange(len(sizes)), group_of] = sizes
    train = PARTS.index("train")
    counts[:, train] = np.minimum(counts[:, train], max_samples or sizes.max())
    return group_of, counts


def _samples(
    seed: int, users: IntArray, sizes: IntArray, stored: IntArray, labels: Labels, side: int, noise: float
) -> tuple[AnyArray, AnyArray]:
    """The first `stored` pictures of these users, of whom each has `sizes`, and their labels."""
    user = np.repeat(users, stored)
    number = np.arange(len(user)) - np.repeat(np.cumsum(stored) - stored, stored)
    scenes = scenes_of(seed, user, number)
    coarse = coarse_of(seed, user, number, np.repeat(sizes, stored), scenes)
    row, fine = fine_of(seed, user, number, coarse)
    x = draw(seed, Images(user, number, row, fine), side, noise)
    if labels == "fine":
        y = np.zeros((len(user), len(fine_names())), dtype=np.uint8)
        y[row, fine] = 1
    else:
        y = coarse.astype(np.uint8)
    return x, y[:, :1] if labels == "structure" else y
