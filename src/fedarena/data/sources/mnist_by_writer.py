"""MNIST with its writers: a stand-in for FEMNIST that fits into a few megabytes.

LeCun's 70,000 handwritten digits, and the labels of QMNIST (Yadav and Bottou, "Cold Case: The Lost MNIST Digits",
NeurIPS 2019), which found out for every digit who had written it. Row i of QMNIST's labels belongs to picture i of
MNIST; its first column is the digit, its third the writer. Those who wrote the test digits wrote none of the training
digits.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from fedarena.core.errors import BadInputError
from fedarena.core.options import PathOption
from fedarena.data.raw.files import RawFile, RawFiles, read_idx
from fedarena.data.registry import FEDERATIONS, StoreBuild, cached_source
from fedarena.data.sampling import Fraction, MinimumSamples, Sampling
from fedarena.data.splits import PublishedSplit, Seed, TrainFraction, ValidationFraction, split_anew
from fedarena.data.store.schema import AnyArray, ColumnSpec, Group, IntArray, TaskSpec

_MNIST = "https://ossci-datasets.s3.amazonaws.com/mnist"
_QMNIST = "https://raw.githubusercontent.com/facebookresearch/qmnist/master"
FILES = RawFiles(
    "mnist_by_writer",
    "MNIST by writer",
    {
        "train_images": RawFile(
            "train-images-idx3-ubyte",
            "sha256:ba891046e6505d7aadcbbe25680a0738ad16aec93bde7f9b65e87a2fc25776db",
            f"{_MNIST}/train-images-idx3-ubyte.gz",
        ),
        "train_writers": RawFile(
            "qmnist-train-labels-idx2-int",
            "sha256:bb1b6e1ec7b04fd5696f1ed50b5f58f8ef195118edd5c93c81783df9740b8ac5",
            f"{_QMNIST}/qmnist-train-labels-idx2-int.gz",
        ),
        "test_images": RawFile(
            "t10k-images-idx3-ubyte",
            "sha256:0fa7898d509279e482958e8ce81c8e77db3f2f8254e26661ceb7762c4d494ce7",
            f"{_MNIST}/t10k-images-idx3-ubyte.gz",
        ),
        "test_writers": RawFile(
            "qmnist-test-labels-idx2-int",
            "sha256:92d0ccb8c25f9c6534270fb4be7e1d24a1c6d315edfc8a638bfbd31c70f362dd",
            f"{_QMNIST}/qmnist-test-labels-idx2-int.gz",
        ),
    },
    "the pictures are MNIST's, the labels are in https://github.com/facebookresearch/qmnist",
)
LABEL_COLUMN, WRITER_COLUMN = 0, 2
SIDE = 28


@FEDERATIONS.register("mnist_by_writer")
@cached_source(version=1, reads=FILES)
def mnist_by_writer(
    build: StoreBuild,
    *,
    folder: PathOption | None = None,
    minimum_samples: MinimumSamples = 1,
    fraction: Fraction = 1.0,
    sampling_seed: Seed = 0,
    split: PublishedSplit = "published",
    train_fraction: TrainFraction | None = None,
    validation_fraction: ValidationFraction | None = None,
    split_seed: Seed | None = None,
    verify: bool = True,
) -> None:
    """MNIST's handwritten digits by the 836 people who wrote them, from the published files in `folder`.

    Without a folder they are looked for in the cache; `fedarena data list` says where. Writers are taken at random
    until they have `fraction` of the digits; those with fewer than `minimum_samples` are left out. `verify` compares
    the files with the published ones. The published `split` has strangers in its test set; the others divide all
    writers anew, 80 % of the data for training and none for validation unless fractions are given.
    """
    division = split_anew(split, train_fraction, validation_fraction, split_seed)
    paths = FILES.find(folder)
    if verify:
        FILES.check(paths, lambda fraction: build.progress(0.2 * fraction, "Checking"))
    images, labels, writers, is_test = _read_digits(build, paths)
    order = np.argsort(writers, kind="stable")
    ids, firsts, counts = np.unique(writers[order], return_index=True, return_counts=True)
    kept = Sampling(fraction=fraction, minimum_samples=minimum_samples, seed=sampling_seed).choose(counts)
    published: list[Group] = ["test" if is_test[order[firsts[place]]] else "train" for place in kept]
    groups = division.groups(len(kept)) if division else published
    task = TaskSpec(kind="classification", classes=10, label_names=tuple("0123456789"))
    columns = {"x": ColumnSpec(dtype="uint8", shape=(1, SIDE, SIDE)), "y": ColumnSpec(dtype="int64")}
    with build.writer(task=task, columns=columns) as writer:
        for client, place in enumerate(kept):
            rows = order[firsts[place] : firsts[place] + counts[place]]
            group, samples = groups[client], {"x": images[rows], "y": labels[rows]}
            parts = division.divide(client, group, samples) if division else {str(group): samples}
            writer.add_client(f"writer-{ids[place]:04d}", group=group, **parts)
            build.progress(0.5 + 0.5 * client / len(kept), "Writing")


def _read_digits(build: StoreBuild, paths: dict[str, Path]) -> tuple[AnyArray, IntArray, IntArray, AnyArray]:
    """Pictures, digits and writers of both sets one after the other, and who is of the test set."""
    images, labels, writers, of_test = [], [], [], []
    for number, part in enumerate(("train", "test")):
        build.progress(0.2 + 0.15 * number, f"Reading {part}")
        pictures_path, labels_path = paths[f"{part}_images"], paths[f"{part}_writers"]
        pictures = read_idx(pictures_path, dimensions=3)
        table = read_idx(labels_path, dimensions=2)
        if pictures.shape[1:] != (SIDE, SIDE):
            raise BadInputError(f"{pictures_path} must hold pictures of {SIDE} x {SIDE}, not of {pictures.shape[1:]}")
        if table.shape[1] <= WRITER_COLUMN or len(table) < len(pictures):
            raise BadInputError(
                f"{labels_path} has {len(table):,} rows of {table.shape[1]} columns for the {len(pictures):,} pictures "
                f"of {pictures_path}; it needs a row for each, with the writer in column {WRITER_COLUMN + 1}"
            )
        table = table[: len(pictures)].astype(np.int64)  # QMNIST's test set is longer than MNIST's
        wrong = np.flatnonzero((table[:, LABEL_COLUMN] < 0) | (table[:, LABEL_COLUMN] > 9))
        if len(wrong):
            raise BadInputError(f"{labels_path}: row {wrong[0] + 1} says {table[wrong[0], LABEL_COLUMN]}, not a digit")
        images.append(pictures[:, None])
        labels.append(table[:, LABEL_COLUMN])
        writers.append(table[:, WRITER_COLUMN])
        of_test.append(np.full(len(table), part == "test"))
    both = np.intersect1d(writers[0], writers[1])
    if len(both):
        raise BadInputError(
            f"Writer {both[0]} is in the training and in the test set of {paths['train_writers'].parent}"
        )
    return np.concatenate(images), np.concatenate(labels), np.concatenate(writers), np.concatenate(of_test)
