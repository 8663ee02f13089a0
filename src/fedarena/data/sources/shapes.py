"""Pictures that the tool draws itself: strokes, arcs, circles, crosses and what can be made of them.

They need no download and there can be any number of them, so a model can be pretrained on them (`training=centralized`)
before it is used on something else. A picture shows one shape, which is its label, at a random place, size and angle,
drawn by an unsteady hand, with noise. Every client has a pen and a slant of its own.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated

import numpy as np
import numpy.typing as npt
from pydantic import Field

from fedarena.core.streams import generator
from fedarena.data.registry import FEDERATIONS, StoreBuild, cached_source
from fedarena.data.splits import Seed, Split, SplitKind, TrainFraction, ValidationFraction
from fedarena.data.store.schema import ColumnSpec, IntArray, TaskSpec

Array = npt.NDArray[np.float64]

# Of half the picture's side.
SMALLEST, LARGEST = 0.5, 0.95
UNSTEADINESS = 0.15
# Of the picture's side.
THINNEST, THICKEST = 0.09, 0.22
MOST_SLANTED = 0.3  # horizontal shift of a vertical unit


def _path(*points: tuple[float, float]) -> Array:
    return np.array(points, dtype=np.float64)


def _arc(x: float, y: float, radius: float, begin: float, end: float) -> Array:
    """Part of a circle between two angles in degrees, as corners that lie close to each other."""
    angles = np.radians(np.linspace(begin, end, 2 + int(abs(end - begin) / 30)))
    return np.stack([x + radius * np.cos(angles), y + radius * np.sin(angles)], 1)


# Strokes in a square from -1 to 1, x to the right and y down.
SHAPES: Mapping[str, tuple[Array, ...]] = {
    "stroke": (_path((0, -1), (0, 1)),),
    "circle": (_arc(0, 0, 1, 0, 360),),
    "cross": (_path((-1, -1), (1, 1)), _path((-1, 1), (1, -1))),
    "arc": (_arc(0, 0, 1, 90, 270),),
    "corner": (_path((-1, -1), (-1, 1), (1, 1)),),
    "triangle": (_path((0, -1), (1, 1), (-1, 1), (0, -1)),),
    "square": (_path((-1, -1), (1, -1), (1, 1), (-1, 1), (-1, -1)),),
    "zigzag": (_path((-1, -1), (1, -1), (-1, 1), (1, 1)),),
    "wave": (_arc(0, -0.5, 0.5, 0, -270), _arc(0, 0.5, 0.5, -90, 180)),
    "loop": (_arc(0, 0.4, 0.6, 0, 360), _path((-0.6, 0.4), (0.3, -1))),
    "tee": (_path((-1, -1), (1, -1)), _path((0, -1), (0, 1))),
    "wedge": (_path((-1, -1), (0, 1), (1, -1)),),
    "fork": (_path((-1, -1), (0, 0), (1, -1)), _path((0, 0), (0, 1))),
    "hook": (_path((0.6, -1), (0.6, 0.4)), _arc(0, 0.4, 0.6, 0, 180)),
    "chain": (_arc(0, -0.5, 0.5, 0, 360), _arc(0, 0.5, 0.5, 0, 360)),
    "ladder": (_path((-1, -1), (-1, 1)), _path((1, -1), (1, 1)), _path((-1, 0), (1, 0))),
}


@FEDERATIONS.register("shapes")
@cached_source(version=2)
def shapes(
    build: StoreBuild,
    *,
    clients: Annotated[int, Field(ge=1, le=10_000_000)] = 100,
    samples_per_client: Annotated[int, Field(ge=1, le=1_000_000)] = 100,
    size: Annotated[int, Field(ge=8, le=256)] = 8,
    classes: Annotated[int, Field(ge=2, le=len(SHAPES))] = len(SHAPES),
    rotation: Annotated[float, Field(ge=0, le=180)] = 20,
    noise: Annotated[float, Field(ge=0, le=1)] = 0.1,
    seed: Seed = 0,
    split: SplitKind = "within_client",
    train_fraction: TrainFraction = 0.8,
    validation_fraction: ValidationFraction = 0.0,
    split_seed: Seed = 0,
) -> None:
    """Grey pictures of `size` x `size` pixels of the first `classes` shapes.

    Shapes are turned by up to `rotation` degrees either way; `noise` is the deviation that is added to pixels from 0 to
    1.
    """
    names = tuple(SHAPES)[:classes]
    division = Split(split, train_fraction, validation_fraction, split_seed)
    task = TaskSpec(kind="classification", classes=classes, label_names=names)
    columns = {"x": ColumnSpec(dtype="uint8", shape=(1, size, size)), "y": ColumnSpec(dtype="int64")}
    with build.writer(task=task, columns=columns) as writer:
        for client, group in enumerate(division.groups(clients)):
            random = generator(seed, "shapes/client", client)
            labels = random.integers(classes, size=samples_per_client)
            pictures = draw(labels, size, rotation, random) + noise * random.standard_normal(
                (samples_per_client, size, size)
            )
            x = np.rint(255 * pictures.clip(0, 1)).astype(np.uint8)[:, None]
            parts = division.divide(client, group, {"x": x, "y": labels})
            writer.add_client(f"client-{client:06d}", group=group, **parts)
            if client % 10 == 0:
                build.progress(client / clients, "drawing pictures")


def draw(labels: IntArray, size: int, rotation: float, random: np.random.Generator) -> Array:
    """Pictures ``[samples, size, size]`` of these shapes from one client's hand, white (1) on black (0)."""
    samples = len(labels)
    pen, slant = random.uniform(THINNEST, THICKEST), random.uniform(-MOST_SLANTED, MOST_SLANTED)
    segments = _SEGMENTS[labels]  # samples, segments, both ends, x and y
    phases = random.uniform(0, 2 * np.pi, (samples, 1, 1, 2))
    segments = segments + UNSTEADINESS * np.sin(2 * segments[..., ::-1] + phases)
    segments = segments * random.uniform(SMALLEST, LARGEST, (samples, 1, 1, 2))
    angles = np.radians(random.uniform(-rotation, rotation, samples))
    turn = np.array([[np.cos(angles), np.sin(angles)], [-np.sin(angles), np.cos(angles)]]).transpose(2, 0, 1)
    segments = segments @ (np.array([[1, 0], [slant, 1]]) @ turn)[:, None]
    thickness = pen * random.uniform(0.8, 1.2, (samples, 1))
    # Anywhere in the picture, as long as no more of the shape than necessary is outside.
    reach = np.stack([segments.min((1, 2)), segments.max((1, 2))])
    room = np.maximum(0, 1 - thickness - (reach[1] - reach[0]) / 2)
    middle = random.uniform(-1, 1, (samples, 2)) * room
    segments = segments + (middle - reach.mean(0))[:, None, None]
    distances = _distances(segments, _pixels(size)) * size / 2
    return np.clip(0.5 + thickness * size / 2 - distances, 0, 1).reshape(samples, size, size)


def _pixels(size: int) -> Array:
    """The middles of all pixels, row by row."""
    along = (2 * np.arange(size) + 1) / size - 1
    return np.stack(np.meshgrid(along, along), -1).reshape(-1, 2)


def _distances(segments: Array, points: Array) -> Array:
    """How far every point is from the nearest segment, ``[samples, points]``."""
    x, y = points.T
    nearest = np.full((len(segments), len(points)), np.inf)  # squared
    for number in range(segments.shape[1]):
        (x1, y1), (x2, y2) = (segments[:, number, end].T[:, :, None] for end in (0, 1))
        along_x, along_y, from_x, from_y = x2 - x1, y2 - y1, x - x1, y - y1
        squared_length = np.maximum(along_x**2 + along_y**2, 1e-12)
        place = np.clip((from_x * along_x + from_y * along_y) / squared_length, 0, 1)
        squared = (from_x - place * along_x) ** 2 + (from_y - place * along_y) ** 2
        np.minimum(nearest, squared, out=nearest)
    distances: Array = np.sqrt(nearest)
    return distances


def _all_segments() -> Array:
    """The segments of all shapes; those with fewer have the first one several times."""
    each = [
        np.concatenate([np.stack([stroke[:-1], stroke[1:]], 1) for stroke in strokes]) for strokes in SHAPES.values()
    ]
    most = max(len(segments) for segments in each)
    return np.stack([np.concatenate([segments, segments[:1].repeat(most - len(segments), 0)]) for segments in each])


_SEGMENTS = _all_segments()
