"""Which coarse labels go together: an image shows a scene, and a scene has its labels with certain probabilities.

FLAIR's authors published how frequent labels are and how many an image has, but not which go together. The table below
says so in rough numbers, from what photos show. Some photos show more than others, so all logits of an image are
shifted by its richness, whose spread is fitted to the deviation of labels per image; and every label's logits are
shifted by a number, such that its frequency is exactly the published one.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

import numpy as np

from fedarena.data.flair_like.arrays import Floats
from fedarena.data.flair_like.published import coarse_labels, label_frequencies
from fedarena.data.flair_like.users import size_quantiles
from fedarena.data.store.schema import IntArray

# How frequent a scene is beside the others, and how many of a hundred photos of it show a label, roughly.
SCENES: dict[str, tuple[float, dict[str, float]]] = {
    "city": (
        14,
        {"structure": 97, "equipment": 55, "outdoor": 60, "material": 35, "light": 6, "art": 5, "religion": 1},
    ),
    "house": (9, {"structure": 95, "plant": 80, "outdoor": 45, "material": 40, "animal": 5, "religion": 1}),
    "landscape": (11, {"outdoor": 97, "plant": 80, "structure": 30, "liquid": 12, "animal": 5, "recreation": 3}),
    "water": (8, {"liquid": 97, "outdoor": 80, "structure": 40, "equipment": 35, "plant": 20, "recreation": 3}),
    "meal": (15, {"food": 98, "equipment": 60, "material": 40, "plant": 10, "structure": 20, "celebration": 2}),
    "drink": (6, {"liquid": 90, "food": 75, "equipment": 85, "material": 35, "structure": 20, "celebration": 2}),
    "pet": (7, {"animal": 97, "structure": 45, "material": 50, "equipment": 35, "interior_room": 4, "games": 1}),
    "wildlife": (6, {"animal": 95, "plant": 55, "outdoor": 60, "liquid": 20}),
    "flower": (6, {"plant": 98, "outdoor": 20, "material": 20, "animal": 8, "food": 8}),
    "room": (7, {"interior_room": 92, "structure": 85, "equipment": 90, "material": 45, "light": 18, "art": 8}),
    "vehicle": (9, {"equipment": 98, "structure": 55, "outdoor": 55, "material": 30, "plant": 10}),
    "gadget": (10, {"equipment": 98, "material": 60, "structure": 25, "music": 4, "games": 2, "light": 3}),
    "exhibit": (8, {"art": 92, "structure": 50, "material": 70, "equipment": 25, "religion": 1, "light": 3}),
    "event": (
        4,
        {
            "equipment": 75,
            "structure": 60,
            "recreation": 20,
            "celebration": 15,
            "fire": 15,
            "music": 8,
            "light": 20,
            "games": 3,
        },
    ),
}
_ELSEWHERE = 0.1  # of a hundred photos, how many show a label that the table does not have for their scene

_SHARPNESS = 0.8
_MOST_RICHNESS = 1.15  # of an image's logits
# How the logit of a label changes where a user has e times the images. Structure is on 53 % of images and on 87 % of
# users, most of whom have one image or two, so these must show it more often than users with many images; and as users
# have 4.6 labels on average, they must show others less often.
_BY_SIZE = {"structure": -0.37}
_FREQUENT_BY_SIZE, _OTHERS_BY_SIZE, _FREQUENT = 0.19, 0.03, 0.1  # for labels that more than this share of images has
_PLACES = (np.arange(16) + 0.5) / 16


@dataclass(frozen=True)
class SceneLabels:
    """The scenes with their shares of images, and the logits of their labels, ``[scenes, labels]``."""

    shares: Floats
    logits: Floats
    by_log_size: Floats  # what the logits change by where a user has e times the images
    main: IntArray  # the label of each scene that an image has if it has no other

    def probabilities(self, scenes: IntArray, log_sizes: Floats, draws: Floats) -> Floats:
        """How probable each label is in images of these scenes, of users whose number of images has this logarithm.

        Random numbers from 0 to 1 make out how rich the images are.
        """
        shift = _richness(draws)[:, None] + self.by_log_size * log_sizes[:, None]
        return _sigmoid(self.logits[scenes] + shift)


@cache
def scene_labels() -> SceneLabels:
    """The table, fitted to the published frequencies."""
    names = coarse_labels()
    percent = np.array([[labels.get(name, _ELSEWHERE) for name in names] for _, labels in SCENES.values()])
    weights = np.array([weight for weight, _ in SCENES.values()], dtype=np.float64)
    shares = weights / weights.sum()
    base = _SHARPNESS * np.log(percent / (100 - percent))
    others = np.where(label_frequencies() > _FREQUENT, _FREQUENT_BY_SIZE, _OTHERS_BY_SIZE)
    by_log_size = np.array([_BY_SIZE.get(name, other) for name, other in zip(names, others, strict=True)])
    main = percent.argmax(axis=1)
    of_size = np.log(size_quantiles(_PLACES))[:, None, None] * by_log_size
    # Numbers of images, 1, labels; with every richness.
    of_size = np.concatenate([of_size + richness for richness in _richness(_PLACES)])

    shift: Floats = np.zeros(len(names))
    none_else: Floats = np.zeros(len(names))
    for _ in range(6):  # images without a label get the main one of their scene, which depends on all shifts
        low, high = np.full(len(names), -30.0), np.full(len(names), 30.0)
        for _ in range(32):
            shift = (low + high) / 2
            found = np.einsum("s,nsl->l", shares, _sigmoid(base + shift + of_size)) / len(of_size)
            too_many = found + none_else > label_frequencies()
            low, high = np.where(too_many, low, shift), np.where(too_many, shift, high)
        empty = (1 - _sigmoid(base + shift + of_size)).prod(axis=-1).mean(axis=0) * shares
        none_else = np.bincount(main, empty, len(names)).astype(np.float64)
    return SceneLabels(shares, base + shift, by_log_size, main)


def _richness(draws: Floats) -> Floats:
    return _MOST_RICHNESS * (2 * draws - 1)


def _sigmoid(logits: Floats) -> Floats:
    found: Floats = 1 / (1 + np.exp(-logits))
    return found
