"""Pictures that the tool draws itself, with several shapes each: which ones are there is to be predicted."""

from __future__ import annotations

from typing import Annotated

import numpy as np
from pydantic import Field

from fedarena.core.errors import BadInputError
from fedarena.core.streams import generator
from fedarena.data.registry import FEDERATIONS, StoreBuild, cached_source
from fedarena.data.sources.shapes import SHAPES, draw
from fedarena.data.splits import Seed, Split, SplitKind, TrainFraction, ValidationFraction
from fedarena.data.store.schema import ColumnSpec, TaskSpec

FAVOURITES = 2.0  # the larger, the more alike is what clients draw


@FEDERATIONS.register("shapes_tags")
@cached_source(version=1)
def shapes_tags(
    build: StoreBuild,
    *,
    clients: Annotated[int, Field(ge=1)] = 60,
    samples_per_client: Annotated[int, Field(ge=1)] = 60,
    size: Annotated[int, Field(ge=8, le=256)] = 16,
    classes: Annotated[int, Field(ge=2, le=len(SHAPES))] = 8,
    most_shapes: Annotated[int, Field(ge=1)] = 3,
    noise: Annotated[float, Field(ge=0, le=1)] = 0.05,
    seed: Seed = 0,
    split: SplitKind = "within_client",
    train_fraction: TrainFraction = 0.8,
    validation_fraction: ValidationFraction = 0.0,
    split_seed: Seed = 0,
) -> None:
    """Grey pictures of `size` x `size` pixels with 1 to `most_shapes` different ones of the first `classes` shapes.

    Every client has a pen, a slant and favourite shapes of its own. `noise` is the deviation that is added to pixels
    from 0 to 1.
    """
    if most_shapes > classes:
        raise BadInputError(f"A picture cannot have {most_shapes} of {classes} shapes; most_shapes must not be above.")
    division = Split(split, train_fraction, validation_fraction, split_seed)
    task = TaskSpec(kind="multi_label", classes=classes, label_names=tuple(SHAPES)[:classes])
    columns = {"x": ColumnSpec(dtype="uint8", shape=(1, size, size)), "y": ColumnSpec(dtype="uint8", shape=(classes,))}
    with build.writer(task=task, columns=columns) as writer:
        for client, group in enumerate(division.groups(clients)):
            random = generator(seed, "shapes_tags/client", client)
            # Shapes with the smallest of these times come first: a race in which favourites are faster.
            speed = random.dirichlet(np.full(classes, FAVOURITES))
            times = random.exponential(size=(samples_per_client, classes)) / speed
            chosen = np.argsort(times, axis=1)[:, :most_shapes]
            shown = np.arange(most_shapes) < random.integers(1, most_shapes + 1, samples_per_client)[:, None]
            drawn = draw(chosen.ravel(), size, 20, random).reshape(samples_per_client, most_shapes, size, size)
            pictures = (drawn * shown[:, :, None, None]).max(axis=1)
            pictures = pictures + noise * random.standard_normal(pictures.shape)
            y = np.zeros((samples_per_client, classes), dtype=np.uint8)
            np.maximum.at(y, (np.arange(samples_per_client)[:, None], chosen), shown.astype(np.uint8))
            x = np.rint(255 * pictures.clip(0, 1)).astype(np.uint8)[:, None]
            parts = division.divide(client, group, {"x": x, "y": y})
            writer.add_client(f"client-{client:06d}", group=group, **parts)
            if client % 10 == 0:
                build.progress(client / clients, "drawing pictures")
