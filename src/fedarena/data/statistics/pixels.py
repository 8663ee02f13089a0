"""How different clients' pictures are: the earth mover's distance between a client's histogram of pixels and all's.

Fig. 2 (right) of FLAIR (Song et al., 2022). The mean histogram of a client's pictures is compared with that of all
pictures. Only pictures of the most common label count, so that the distance is not one of labels. Two lines show what
chance would give: the same pictures dealt out at random, to clients of the same sizes and to clients of equal sizes.

A histogram has 256 levels and puts all channels together, which the paper leaves open. The distance is how far an
average pixel would have to move, as a share of the range from black to white.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from fedarena.data.statistics.divergence import FloatArray, Spread
from fedarena.data.statistics.label_statistics import label_chunks, random_order
from fedarena.data.store.federation import Federation
from fedarena.data.store.labels import has_label
from fedarena.data.store.schema import AnyArray, IntArray

LEVELS = 256
# So many clients are asked for pictures of the label, and so many pictures are looked at.
MAX_CLIENTS = 20_000
MAX_IMAGES = 20_000
MAX_BYTES = 1 << 28
MAX_DECODED_BYTES = 1 << 31  # of pictures that are stored compressed, which are read faster than they are decoded
FEWEST_CLIENTS = 20  # of clients with very many pictures, some are looked at rather than all pictures of one client
CHUNK_PIXELS = 1 << 21


@dataclass(frozen=True)
class PixelStatistics:
    """Earth mover's distances from clients' pixels to all pixels, 0 to 1, in pictures of one label."""

    label: int
    clients: int
    images: int
    distances: Spread
    distances_by_chance: Spread  # the pictures dealt out at random to clients of the same sizes
    distances_of_equal_sizes: Spread  # … to clients of equal sizes


def has_images(federation: Federation) -> bool:
    """Whether samples are pictures: channels, height and width, in grey or in colours."""
    x = federation.columns.get("x")
    return x is not None and len(x.shape) == 3 and x.shape[0] in (1, 3)


def describe_pixels(federation: Federation, sizes: IntArray, label: int) -> PixelStatistics | None:
    """Distances of the pictures that have `label`; None where there are none, or pixels that are no numbers."""
    if not has_images(federation):
        return None
    clients, positions = _images_of(federation, sizes, label)
    limits = _limits(federation, clients, positions)
    if limits is None:
        return None
    owners, counts = np.unique(clients, return_counts=True)
    histograms = _histograms(federation, clients, positions, *limits)
    dealt = histograms[random_order(len(histograms), "statistics/dealing pictures")]
    equal = np.full(len(owners), len(histograms) // len(owners))
    equal[: len(histograms) % len(owners)] += 1
    return PixelStatistics(
        label=label,
        clients=len(owners),
        images=len(histograms),
        distances=Spread.of(pixel_distances(histograms, counts)),
        distances_by_chance=Spread.of(pixel_distances(dealt, counts)),
        distances_of_equal_sizes=Spread.of(pixel_distances(dealt, equal)),
    )


def pixel_distances(histograms: AnyArray, images: IntArray) -> FloatArray:
    """The distance of every client, who has so many `images` of those whose ``[images, levels]`` histograms follow."""
    totals = np.add.reduceat(histograms, np.cumsum(images) - images, axis=0, dtype=np.int64)
    mixes = totals / totals.sum(axis=1, keepdims=True)
    overall = totals.sum(axis=0) / totals.sum()
    moved: FloatArray = np.abs(np.cumsum(mixes - overall, axis=1)).sum(axis=1)
    return moved / (LEVELS - 1)


def _images_of(federation: Federation, sizes: IntArray, label: int) -> tuple[IntArray, IntArray]:
    """Clients, ascending, and positions of the pictures to look at."""
    x = federation.columns["x"]
    most_bytes = MAX_BYTES if x.encoding is None else MAX_DECODED_BYTES
    limit = max(1, min(MAX_IMAGES, most_bytes // x.bytes_per_sample))
    asked = random_order(federation.num_clients, "statistics/pictures")[:MAX_CLIENTS]
    chosen: list[tuple[int, IntArray]] = []
    room = limit
    for client, positions in _with_label(federation, asked, sizes, label):
        most = max(1, limit // FEWEST_CLIENTS)
        if len(positions) > most:
            positions = positions[np.linspace(0, len(positions) - 1, most).astype(np.int64)]
        room -= len(positions)
        if room < 0:
            break
        chosen.append((client, positions))
    chosen.sort(key=lambda one: one[0])
    clients = np.repeat([client for client, _ in chosen], [len(positions) for _, positions in chosen])
    return clients.astype(np.int64), np.concatenate([np.empty(0, np.int64), *(positions for _, positions in chosen)])


def _with_label(
    federation: Federation, clients: IntArray, sizes: IntArray, label: int
) -> Iterator[tuple[int, IntArray]]:
    """Each client that has samples of the label, and their positions."""
    for chunk, samples in label_chunks(federation, clients, sizes):
        values = samples.columns[federation.task.label_column]
        wanted = has_label(federation.task, values, label)
        for client, start, stop in zip(chunk, samples.offsets[:-1], samples.offsets[1:], strict=True):
            positions = np.flatnonzero(wanted[start:stop])
            if len(positions):
                yield int(client), positions


def _chunks(federation: Federation, clients: IntArray, positions: IntArray) -> Iterator[tuple[int, AnyArray]]:
    """Some pictures at a time, as rows of pixels, and the number of the first of them."""
    pixels = int(np.prod(federation.columns["x"].shape))
    per_chunk = max(1, CHUNK_PIXELS // pixels)
    for start in range(0, len(clients), per_chunk):
        chunk = slice(start, start + per_chunk)
        images = federation.samples_at(clients[chunk], positions[chunk])["x"]
        yield start, images.reshape(len(images), pixels)


def _limits(federation: Federation, clients: IntArray, positions: IntArray) -> tuple[float, float] | None:
    """Black and white: those of bytes, 0 and 1, or the smallest and the largest that there is."""
    if len(clients) == 0:
        return None
    if federation.columns["x"].dtype == "uint8":
        return 0.0, LEVELS - 1.0
    found = np.array([(images.min(), images.max()) for _, images in _chunks(federation, clients, positions)], float)
    low, high = float(found[:, 0].min()), float(found[:, 1].max())
    if not np.isfinite(high - low):
        return None
    return (0.0, 1.0) if low >= 0 and high <= 1 else (low, high)


def _histograms(federation: Federation, clients: IntArray, positions: IntArray, low: float, high: float) -> AnyArray:
    """How many pixels of each picture have each level: ``[images, levels]``."""
    steps = (LEVELS - 1) / (high - low) if high > low else 0.0
    histograms = np.empty((len(clients), LEVELS), dtype=np.int32)  # half of what 64 bits would take
    for start, images in _chunks(federation, clients, positions):
        if images.dtype == np.uint8:
            levels = images.astype(np.int64)  # bytes are levels
        else:
            levels = np.rint((images.astype(np.float64) - low) * steps).astype(np.int64)
        bins = levels + LEVELS * np.arange(len(images))[:, None]
        counts = np.bincount(bins.ravel(), minlength=LEVELS * len(images))
        histograms[start : start + len(images)] = counts.reshape(len(images), LEVELS)
    return histograms
