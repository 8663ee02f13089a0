"""The labels of images: a scene for each, its coarse labels, and fine labels inside these.

What a user photographs repeats itself: a user has a list of scenes, and an image shows one of them, mostly an early
one. The scenes on the list are drawn with FLAIR's frequencies, so that these hold over all users, whatever is repeated.
In the same way a user has a list of fine labels for every coarse one.
"""

from __future__ import annotations

from functools import cache

import numpy as np

from fedarena.core.streams import uniform
from fedarena.data.flair_like.arrays import Flags, Floats
from fedarena.data.flair_like.published import coarse_labels, label_frequencies, published
from fedarena.data.flair_like.scenes import scene_labels
from fedarena.data.store.schema import IntArray

# The mean place on a user's list: the higher it is, the more varied is what a user photographs.
_SCENE_PLACE = 2.2
_FINE_PLACE = 2.0
# How often a label is as in the user's other photos of the same entry of the list, if so many of all images have it.
_ALIKE, _FREQUENT = 0.9, 0.1
_SECOND_FINE = 0.15  # how often an image shows two fine labels of one coarse label
# Inside a coarse label, the fine one of rank r is as frequent as (r + _ZIPF_SHIFT) ** -_ZIPF_EXPONENT, plus what rare
# ones have: so many images of all of FLAIR's, by the share of labels of lower rank.
_ZIPF_SHIFT, _ZIPF_EXPONENT = 1.0, 2.05
_RARE_RANK, _RARE_IMAGES = (0.0, 0.95, 0.98, 1.0), (62.0, 42.0, 2.0, 0.4)


def scenes_of(seed: int, users: IntArray, images: IntArray) -> IntArray:
    """The scene that each image shows, given its user and its number among the user's images."""
    place = _place(uniform(seed, "flair_like/scene/place", users, images), _SCENE_PLACE)
    return _chosen(uniform(seed, "flair_like/scene", users, place), scene_labels().shares)


def coarse_of(seed: int, users: IntArray, images: IntArray, sizes: IntArray, scenes: IntArray) -> Flags:
    """Which coarse labels each image has, ``[images, labels]``; `sizes` is how many images its user has."""
    fitted = scene_labels()
    users, images, labels = users[:, None], images[:, None], np.arange(len(coarse_labels()))
    draws = uniform(seed, "flair_like/label", users, images, labels)
    # A user's photos of one thing are alike: some labels are as in all photos of the same entry of the user's list.
    chance = np.where(label_frequencies() > _FREQUENT, _ALIKE, 0)
    alike = uniform(seed, "flair_like/label/alike", users, images, labels) < chance
    entries = _place(uniform(seed, "flair_like/scene/place", users, images), _SCENE_PLACE)
    draws = np.where(alike, uniform(seed, "flair_like/label/entry", users, entries, labels), draws)
    rich = uniform(seed, "flair_like/richness", users[:, 0], images[:, 0])
    found: Flags = draws < fitted.probabilities(scenes, np.log(sizes), rich)
    empty = np.flatnonzero(~found.any(axis=1))
    found[empty, fitted.main[scenes[empty]]] = True
    return found


def fine_names() -> tuple[str, ...]:
    """Names of the fine labels, which FLAIR has other ones for: those of a coarse label are numbered."""
    return tuple(
        f"{name}_{number:03d}"
        for name, labels in zip(coarse_labels(), fine_per_coarse(), strict=True)
        for number in range(labels)
    )


@cache
def fine_per_coarse() -> IntArray:
    """How many fine labels each coarse label has: more where it is more frequent, and all together FLAIR's number."""
    # Every coarse label is worth telling apart into some kinds at least.
    least, weight = 12, np.sqrt(label_frequencies())
    left = int(published()["fine_labels"]) - least * len(weight)
    ends = np.rint(np.cumsum(weight) / weight.sum() * left).astype(np.int64)
    numbers: IntArray = least + np.diff(ends, prepend=0)
    return numbers


def fine_of(seed: int, users: IntArray, images: IntArray, coarse: Flags) -> tuple[IntArray, IntArray]:
    """The fine labels of images that have these coarse ones: rows, and labels, with no pair twice."""
    row, label = np.nonzero(coarse)
    first = _fine(seed, "flair_like/fine", users[row], images[row], label)
    two = uniform(seed, "flair_like/fine/two", users[row], images[row], label) < _SECOND_FINE
    second = _fine(seed, "flair_like/fine/second", users[row[two]], images[row[two]], label[two])
    differ = second != first[two]
    return np.concatenate([row, row[two][differ]]), np.concatenate([first, second[differ]])


def _fine(seed: int, purpose: str, users: IntArray, images: IntArray, coarse: IntArray) -> IntArray:
    place = _place(uniform(seed, purpose, users, images, coarse), _FINE_PLACE)
    draws = uniform(seed, "flair_like/fine/list", users, coarse, place)
    starts, cumulative = _fine_frequencies()
    # Frequencies of the labels of all coarse ones follow each other, each coarse one's from its number up to the next.
    found: IntArray = np.searchsorted(cumulative, coarse + draws, side="right")
    return np.clip(found, starts[coarse], starts[coarse + 1] - 1)


@cache
def _fine_frequencies() -> tuple[IntArray, Floats]:
    """Where the labels of each coarse label begin, and cumulative frequencies, counted on from the coarse label."""
    numbers, cumulative = fine_per_coarse(), []
    for coarse, (labels, images) in enumerate(zip(numbers, published()["images_with_label"].values(), strict=True)):
        frequent = (np.arange(labels) + _ZIPF_SHIFT) ** -_ZIPF_EXPONENT
        rare = np.exp(np.interp((np.arange(labels) + 0.5) / labels, _RARE_RANK, np.log(_RARE_IMAGES)))
        rare = rare * min(1, images / 2 / rare.sum())
        each = rare + frequent * ((images - rare.sum()) / frequent.sum())
        cumulative.append(coarse + np.cumsum(each) / each.sum())
    return np.concatenate([[0], np.cumsum(numbers)]), np.concatenate(cumulative)


def _place(draws: Floats, mean: float) -> IntArray:
    """Places on a list of any length, of which each is less frequent than the one before by the same factor."""
    places: IntArray = np.floor(np.log1p(-draws) / np.log1p(-1 / (1 + mean))).astype(np.int64)
    return places


def _chosen(draws: Floats, shares: Floats) -> IntArray:
    return np.searchsorted(np.cumsum(shares)[:-1], draws, side="right").astype(np.int64)
