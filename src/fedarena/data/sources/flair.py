"""FLAIR: photos of Flickr users with several labels each (Song, Granqvist and Talwar, NeurIPS 2022).

429,078 photos of 51,414 users, of 256 x 256 pixels, with labels of 17 coarse and 1,628 fine classes. Users are divided
into train, validation and test as published. Photos stay the JPEGs that they are. At most 512 photos of a user are
trained on; the paper draws them at random, pfl-research's code takes the first ones (``kept=first``). The binary task
of the paper's appendix has the label `structure` alone.
"""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from fedarena.core.options import PathOption
from fedarena.data.flair.building import build_flair
from fedarena.data.flair.clients import Choice, Kept, Sizes, deal
from fedarena.data.flair.files import FILES
from fedarena.data.flair.photos import Labels
from fedarena.data.registry import FEDERATIONS, StoreBuild, cached_source
from fedarena.data.sampling import Fraction, MinimumSamples, Sampling
from fedarena.data.splits import PublishedSplit, Seed, TrainFraction, ValidationFraction, split_anew

MaxSamples = Annotated[int, Field(ge=1)] | None


@FEDERATIONS.register("flair")
@cached_source(version=1, reads=FILES)
def flair(
    build: StoreBuild,
    *,
    folder: PathOption | None = None,
    labels: Labels = "coarse",
    max_samples: MaxSamples = 512,
    kept: Kept = "random",
    minimum_samples: MinimumSamples = 1,
    fraction: Fraction = 1.0,
    sampling_seed: Seed = 0,
    split: PublishedSplit = "published",
    train_fraction: TrainFraction | None = None,
    validation_fraction: ValidationFraction | None = None,
    split_seed: Seed | None = None,
) -> None:
    """Photos with several labels each, from the published files in `folder`; a client is a Flickr user.

    Of those who train, at most `max_samples` photos are taken (None: all), drawn at random or the first ones.
    """
    division = split_anew(split, train_fraction, validation_fraction, split_seed)
    choice = Choice(Sampling(fraction, minimum_samples, sampling_seed), max_samples, kept)
    build_flair(build, FILES.find(folder), labels, lambda photos: choice.clients(photos, division))


@FEDERATIONS.register("flair_iid")
@cached_source(version=1, reads=FILES)
def flair_iid(
    build: StoreBuild,
    *,
    folder: PathOption | None = None,
    labels: Labels = "coarse",
    clients: Annotated[int, Field(ge=1)] | None = None,
    sizes: Sizes = "users",
    max_samples: MaxSamples = 512,
    kept: Kept = "random",
    fraction: Fraction = 1.0,
    sampling_seed: Seed = 0,
    partition_seed: Seed = 0,
) -> None:
    """The photos of `flair`, dealt at random to clients of the same `sizes` as users have, or of equal ones.

    Photos for training, validation and test stay what they are. `clients` is how many train (None: as many as users).
    """
    choice = Choice(Sampling(fraction, seed=sampling_seed), max_samples, kept)
    build_flair(
        build,
        FILES.find(folder),
        labels,
        lambda photos: deal(choice.clients(photos, None), clients, sizes, partition_seed),
    )
