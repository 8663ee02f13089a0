"""What labels look like, and what users' photos have in common.

The look of a label never depends on a seed: a model that was trained on the pictures of one seed knows the labels of
another. Every coarse label is a form with a texture and a colour; its fine labels vary all three a little.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

import numpy as np

from fedarena.core.streams import generator, uniform
from fedarena.data.flair_like.arrays import Floats
from fedarena.data.flair_like.labels import fine_per_coarse
from fedarena.data.flair_like.published import coarse_labels
from fedarena.data.store.schema import IntArray


@dataclass(frozen=True)
class Look:
    """A form: its outline, where it is, its texture and its colour."""

    layer: int  # what has a higher one lies in front
    radius: float  # of half the picture's side
    height: float  # the vertical extent, beside the horizontal one
    corners: int  # of the outline: bulges in every direction
    bulge: float  # how far they stick out
    squareness: float  # 2 is a circle, more is a square, less is a star
    stripes: float  # waves of the texture in half the picture's side
    texture: float  # how strong it is
    hue: float  # from 0 to 1: red, yellow, green, cyan, blue, magenta, red
    saturation: float
    brightness: float
    x: tuple[float, float] = (-0.6, 0.6)  # where its middle may be, the picture reaching from -1 to 1
    y: tuple[float, float] = (-0.6, 0.6)  # downwards


LOOKS: dict[str, Look] = {
    "structure": Look(2, 0.62, 1.2, 0, 0.0, 8.0, 4.0, 0.25, 0.06, 0.25, 0.6, y=(-0.3, 0.2)),
    "equipment": Look(5, 0.36, 0.7, 0, 0.0, 5.0, 7.0, 0.3, 0.6, 0.15, 0.35),
    "material": Look(1, 0.8, 0.8, 3, 0.12, 3.0, 10.0, 0.3, 0.1, 0.35, 0.5),
    "outdoor": Look(0, 2.2, 0.36, 0, 0.0, 8.0, 1.0, 0.1, 0.57, 0.45, 0.85, (-0.1, 0.1), (-0.9, -0.7)),
    "plant": Look(4, 0.45, 1.0, 9, 0.22, 2.0, 8.0, 0.3, 0.32, 0.6, 0.4, y=(-0.1, 0.7)),
    "food": Look(6, 0.38, 0.75, 5, 0.1, 2.0, 6.0, 0.3, 0.08, 0.7, 0.75, y=(0.0, 0.6)),
    "animal": Look(6, 0.34, 0.7, 2, 0.35, 2.0, 9.0, 0.35, 0.07, 0.45, 0.4, y=(0.0, 0.6)),
    "liquid": Look(1, 2.2, 0.3, 0, 0.0, 6.0, 5.0, 0.2, 0.55, 0.55, 0.5, (-0.1, 0.1), (0.5, 0.95)),
    "art": Look(5, 0.34, 1.3, 0, 0.0, 12.0, 3.0, 0.6, 0.85, 0.5, 0.6),
    "interior_room": Look(0, 1.5, 0.9, 0, 0.0, 1.2, 2.0, 0.25, 0.1, 0.2, 0.75, (-0.2, 0.2), (-0.2, 0.2)),
    "light": Look(8, 0.22, 1.0, 8, 0.45, 2.0, 0.0, 0.0, 0.14, 0.3, 1.0, y=(-0.8, 0.0)),
    "recreation": Look(7, 0.24, 1.0, 0, 0.0, 2.0, 3.0, 0.7, 0.0, 0.8, 0.7),
    "celebration": Look(7, 0.26, 1.2, 6, 0.3, 2.0, 5.0, 0.6, 0.92, 0.75, 0.8),
    "fire": Look(8, 0.26, 1.7, 3, 0.4, 2.0, 4.0, 0.4, 0.04, 0.95, 0.95, y=(0.0, 0.6)),
    "music": Look(7, 0.26, 1.6, 2, 0.3, 3.0, 12.0, 0.5, 0.09, 0.7, 0.45),
    "games": Look(7, 0.24, 1.0, 0, 0.0, 10.0, 8.0, 0.8, 0.4, 0.2, 0.7),
    "religion": Look(7, 0.3, 1.5, 4, 0.6, 1.5, 2.0, 0.2, 0.75, 0.4, 0.55, y=(-0.5, 0.2)),
}
# How far fine labels are from their coarse one.
_HUE, _BULGE, _STRIPES, _SIZE = 0.07, 0.15, 0.45, 0.2


@dataclass(frozen=True)
class Looks:
    """The looks of all fine labels as arrays; a coarse label's begin where it is the first of its fine ones."""

    coarse: IntArray
    layer: IntArray
    radius: Floats
    height: Floats
    corners: Floats
    bulge: Floats
    squareness: Floats
    stripes: Floats
    texture: Floats
    slant: Floats  # of the stripes
    hue: Floats
    saturation: Floats
    brightness: Floats
    places: Floats  # labels, x and y, least and most


@cache
def looks() -> Looks:
    """Those of the fine labels, in their order."""
    coarse = np.repeat(np.arange(len(coarse_labels())), fine_per_coarse())
    each = [LOOKS[name] for name in coarse_labels()]
    random = generator(0, "flair_like/looks")
    vary = random.uniform(-1, 1, (6, len(coarse)))

    def of(name: str) -> Floats:
        return np.array([float(getattr(look, name)) for look in each])[coarse]

    return Looks(
        coarse=coarse,
        layer=of("layer").astype(np.int64),
        radius=of("radius") * (1 + _SIZE * vary[0]),
        height=of("height") * (1 + _SIZE * vary[1]),
        corners=of("corners"),
        bulge=of("bulge") * (1 + vary[2] * _BULGE / 0.3),
        squareness=of("squareness"),
        stripes=of("stripes") * (1 + _STRIPES * vary[3]),
        texture=of("texture"),
        slant=np.pi * vary[4],
        hue=(of("hue") + _HUE * vary[5]) % 1,
        saturation=of("saturation"),
        brightness=of("brightness"),
        places=np.array([[look.x, look.y] for look in each])[coarse],
    )


@dataclass(frozen=True)
class Styles:
    """What the photos of each of some users have in common: the camera, and how it is held."""

    cast: Floats  # factors of red, green and blue, [users, 3]
    brightness: Floats
    contrast: Floats
    grain: Floats  # of the noise, beside others'
    zoom: Floats
    ground: Floats  # the hue of what is behind everything


def styles(seed: int, users: IntArray) -> Styles:
    """The styles of these users."""
    draws = uniform(seed, "flair_like/style", users[:, None], np.arange(8))
    return Styles(
        cast=np.exp(0.35 * (draws[:, :3] - 0.5)),
        brightness=0.25 * (draws[:, 3] - 0.5),
        contrast=0.7 + 0.5 * draws[:, 4],
        grain=0.4 + 1.2 * draws[:, 5] ** 2,
        zoom=0.8 + 0.4 * draws[:, 6],
        ground=draws[:, 7],
    )
