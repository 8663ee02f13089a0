"""Pictures of labels: many at once, layer by layer."""

from __future__ import annotations

import io
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from fedarena.core.streams import generator, uniform
from fedarena.data.flair_like.arrays import Floats, Pixels
from fedarena.data.flair_like.looks import looks, styles
from fedarena.data.store.schema import Encoding, IntArray
from fedarena.data.store.side_by_side import for_each

_CHUNK_PIXELS = 1 << 18  # that are drawn at a time, for processors' caches
_GRAIN_NUMBERS = 1 << 20  # of random numbers of which pictures show stretches as their grain
_JPEG_QUALITY = 90
_DRAWS = 10  # random numbers for a form
_CLUTTER, _CLUTTER_CHANCE = 2, 0.5  # how many forms may be there that are not labelled, and how often each is


@dataclass(frozen=True)
class Images:
    """Some images: whose they are, their numbers among their user's, and what they show as pairs of row and label."""

    users: IntArray
    numbers: IntArray
    row: IntArray
    label: IntArray  # fine, with no pair twice


def draw(seed: int, images: Images, side: int, noise: float) -> npt.NDArray[np.uint8]:
    """Pictures ``[images, 3, side, side]``; `noise` is the mean deviation that pixels from 0 to 1 have as grain."""
    result = np.empty((len(images.users), 3, side, side), dtype=np.uint8)
    order = np.lexsort((images.label, looks().layer[images.label], images.row))
    row, label = images.row[order], images.label[order]
    starts = np.searchsorted(row, np.arange(len(images.users) + 1))
    step = max(1, _CHUNK_PIXELS // (side * side))

    def work(chunk: int) -> None:
        start, stop = chunk * step, min((chunk + 1) * step, len(result))
        mine = slice(starts[start], starts[stop])
        one = Images(images.users[start:stop], images.numbers[start:stop], row[mine] - start, label[mine])
        result[start:stop] = _draw(seed, one, side, noise)

    for_each(work, -(-len(result) // step))
    return result


def _draw(seed: int, images: Images, side: int, noise: float) -> npt.NDArray[np.uint8]:
    users, numbers = images.users, images.numbers
    whole, different = np.unique(users, return_inverse=True)
    style = styles(seed, whole)
    x, y = _grid(side)
    canvas = _ground(seed, images, style.ground[different], y)
    zoom = style.zoom[different]

    def add(rows: IntArray, outline: IntArray, paint: IntArray, draws: Floats) -> None:
        cover, colour = _form(outline, paint, draws, zoom[rows], x, y)
        colour -= canvas[rows]
        colour *= cover[:, None]
        canvas[rows] += colour

    # Clutter, which is not labelled: it has the outline of one label and the colour of another, so that neither tells.
    for number in range(_CLUTTER):
        draws = uniform(seed, f"flair_like/clutter/{number}", users[:, None], numbers[:, None], np.arange(_DRAWS + 3))
        rows = np.flatnonzero(draws[:, -1] < _CLUTTER_CHANCE)
        outline, paint = (draws[rows, -3:-1] * len(looks().coarse)).astype(np.int64).T
        add(rows, outline, paint, draws[rows, :_DRAWS])

    first = np.searchsorted(images.row, np.arange(len(users) + 1))
    for depth in range(int(np.diff(first).max(initial=0))):
        rows = np.flatnonzero(np.diff(first) > depth)
        label = images.label[first[rows] + depth]
        keys = users[rows, None], numbers[rows, None], label[:, None]
        add(rows, label, label, uniform(seed, "flair_like/form", *keys, np.arange(_DRAWS)))

    canvas -= 0.5
    canvas *= (style.contrast[different, None] * style.cast[different]).astype(np.float32)[:, :, None, None]
    canvas += (0.5 + style.brightness[different]).astype(np.float32)[:, None, None, None]
    if noise:
        offset = uniform(seed, "flair_like/grain", users, numbers) * _GRAIN_NUMBERS
        size = canvas[0].size
        source = _grain(seed, size)
        strength = (noise * style.grain[different]).astype(np.float32)
        for picture, begin, strong in zip(canvas, offset.astype(np.int64).tolist(), strength.tolist(), strict=True):
            picture += strong * source[begin : begin + size].reshape(picture.shape)
    np.clip(canvas, 0, 1, out=canvas)
    canvas *= 255
    return np.rint(canvas, out=canvas).astype(np.uint8)


def encode(pictures: npt.NDArray[np.uint8], encoding: Encoding) -> list[bytes]:
    """The files of pictures ``[images, 3, side, side]``; of a JPEG the bytes are those of this machine's library."""
    from PIL import Image

    files = [b""] * len(pictures)

    def work(number: int) -> None:
        file = io.BytesIO()
        picture = Image.fromarray(np.ascontiguousarray(pictures[number].transpose(1, 2, 0)))
        picture.save(file, encoding, **({"quality": _JPEG_QUALITY} if encoding == "jpeg" else {}))
        files[number] = file.getvalue()

    for_each(work, len(pictures))
    return files


def _grid(side: int) -> tuple[Pixels, Pixels]:
    """The middles of pixels from -1 to 1, to the right ``[1, side]`` and down ``[side, 1]``."""
    along = ((2 * np.arange(side) + 1) / side - 1).astype(np.float32)
    return along[None, :], along[:, None]


def _ground(seed: int, images: Images, user_hue: Floats, y: Pixels) -> Pixels:
    """What is behind everything: a colour near that of the user that changes downwards."""
    draws = uniform(seed, "flair_like/ground", images.users[:, None], images.numbers[:, None], np.arange(4))
    colour = _rgb(user_hue + 0.25 * (draws[:, 0] - 0.5), 0.35 * draws[:, 1], 0.35 + 0.4 * draws[:, 2])
    slope = (0.5 * (draws[:, 3] - 0.5)).astype(np.float32)
    side = len(y)
    ground = colour.astype(np.float32)[:, :, None, None] + slope[:, None, None, None] * y
    return np.broadcast_to(ground, (len(colour), 3, side, side)).copy()


def _form(
    outline: IntArray, paint: IntArray, draws: Floats, zoom: Floats, x: Pixels, y: Pixels
) -> tuple[Pixels, Pixels]:
    """How much forms cover of each pixel, ``[forms, side, side]``, and their colours, ``[forms, 3, side, side]``.

    They have the outlines of these labels, and the textures and colours of those.
    """
    look = looks()
    place = look.places[outline]
    middle = place[..., 0] + (place[..., 1] - place[..., 0]) * draws[:, :2]
    radius = look.radius[outline] * zoom * (0.6 + 0.8 * draws[:, 2])
    height = look.height[outline] * (0.8 + 0.4 * draws[:, 3])
    angle = 0.5 * (draws[:, 4] - 0.5)
    # From the picture to a square in which the form is 1 large.
    cos, sin = np.cos(angle) / radius, np.sin(angle) / radius
    u = _each(cos) * (x - _each(middle[:, 0])) + _each(sin) * (y - _each(middle[:, 1]))
    v = _each(-sin / height) * (x - _each(middle[:, 0])) + _each(cos / height) * (y - _each(middle[:, 1]))

    slant = look.slant[paint]
    wave = _each(np.pi * look.stripes[paint] * np.cos(slant)) * u
    wave += _each(np.pi * look.stripes[paint] * np.sin(slant)) * v
    wave += _each(2 * np.pi * draws[:, 5])
    np.sin(wave, out=wave)
    brightness = look.brightness[paint] * (0.75 + 0.4 * draws[:, 6])
    wave *= _each(look.texture[paint] * brightness)
    hue = look.hue[paint] + 0.06 * (draws[:, 7] - 0.5)
    colour = _rgb(hue, look.saturation[paint] * (0.7 + 0.4 * draws[:, 8]), brightness).astype(np.float32)

    cover = 1 - _distance(u, v, outline)
    cover *= _each(radius * x.shape[1] / 2)  # so that the edge is about a pixel wide
    cover += np.float32(0.5)
    np.clip(cover, 0, 1, out=cover)
    cover *= _each(0.6 + 0.4 * draws[:, 9])
    return cover, colour[:, :, None, None] + wave[:, None]


def _distance(u: Pixels, v: Pixels, outline: IntArray) -> Pixels:
    """How far points are from the middle of these labels' outlines, which are at distance 1."""
    look = looks()
    distance: Pixels = u * u
    distance += v * v
    np.sqrt(distance, out=distance)
    bulging = np.flatnonzero(look.corners[outline] > 0)
    if len(bulging):
        turn = np.arctan2(v[bulging], u[bulging])
        turn *= _each(look.corners[outline[bulging]])
        np.cos(turn, out=turn)
        turn *= _each(look.bulge[outline[bulging]])
        turn += np.float32(1)
        distance[bulging] /= turn
    square = np.flatnonzero((look.corners[outline] == 0) & (look.squareness[outline] != 2))
    if len(square):
        power = _each(look.squareness[outline[square]])
        sides = np.abs(u[square]) ** power
        sides += np.abs(v[square]) ** power
        distance[square] = sides ** (1 / power)
    return distance


def _each(numbers: Floats) -> Pixels:
    """A number for all pixels of each form."""
    return numbers.astype(np.float32)[:, None, None]


def _rgb(hue: Floats, saturation: Floats, value: Floats) -> Floats:
    """Red, green and blue, ``[colours, 3]``, of colours by hue (any number, of which whole ones are red)."""
    sector = (np.array([5, 3, 1]) + 6 * hue[:, None]) % 6
    found: Floats = value[:, None] * (1 - saturation[:, None] * np.clip(np.minimum(sector, 4 - sector), 0, 1))
    return found


@lru_cache(maxsize=2)
def _grain(seed: int, size: int) -> Pixels:
    """Random numbers, with as many more behind them as one picture takes."""
    return generator(seed, "flair_like/grain/numbers").standard_normal(_GRAIN_NUMBERS + size, dtype=np.float32)
