"""LEAF's synthetic federation: every client has a linear model of its own, near one of some cluster means.

Caldas et al., "LEAF: A Benchmark for Federated Settings" (2019), appendix A. The released code differs from
the paper, and ``variant="code"`` makes the same choices as it does:

====================================  =========================  ========================================
what                                  paper                      code
====================================  =========================  ========================================
centres B of clusters, C of features  a vector from N(0, I)      one number from N(0, 1) for all entries
a client's u around its cluster mean  variance 1                 variance 0.01
noise on the scores of the classes    variance 0.1               variance 0.01
label of a sample                     class of the largest score after a softmax over the *samples*, which
                                                                 looks like a mistake
====================================  =========================  ========================================

The paper leaves open how a vector of d + 1 weights chooses among several classes, and how many dimensions s
the models have. As in the code, Q has a slice for every class, and s is the number of clusters unless told
otherwise.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

import numpy as np
import numpy.typing as npt
from pydantic import Field

from fedarena.core.errors import BadInputError
from fedarena.core.streams import generator
from fedarena.data.registry import FEDERATIONS, StoreBuild, cached_source
from fedarena.data.splits import Seed, Split, SplitKind, TrainFraction, ValidationFraction
from fedarena.data.store.schema import ColumnSpec, IntArray, TaskSpec

FloatArray = npt.NDArray[np.float64]
Variant = Literal["paper", "code"]

MIN_SAMPLES = 5
MAX_SAMPLES = 1000
COVARIANCE_DECAY = 1.2


@FEDERATIONS.register("synthetic")
@cached_source(version=2)
def synthetic(
    build: StoreBuild,
    *,
    clients: Annotated[int, Field(ge=1, le=10_000_000)] = 1000,
    cluster_probabilities: Annotated[tuple[float, ...], Field(min_length=1)] = (1.0,),
    features: Annotated[int, Field(ge=1, le=1_000_000)] = 60,
    classes: Annotated[int, Field(ge=2, le=1_000_000)] = 5,
    model_dimensions: Annotated[int, Field(ge=1, le=1_000_000)] | None = None,
    variant: Variant = "paper",
    seed: Seed = 0,
    split: SplitKind = "within_client",
    train_fraction: TrainFraction = 0.6,
    validation_fraction: ValidationFraction = 0.2,
    split_seed: Seed = 0,
) -> None:
    """Linear models with noise; the defaults are the setting of the paper's appendix B.

    A client's attribute ``cluster`` says around which mean its model was drawn, where means are drawn with
    `cluster_probabilities`. `model_dimensions` is the paper's s.
    """
    probabilities = np.array(cluster_probabilities, dtype=np.float64)
    if (probabilities <= 0).any() or not np.isclose(probabilities.sum(), 1):
        raise BadInputError(
            f"cluster_probabilities must be above 0 and add up to 1, not {list(cluster_probabilities)}."
        )
    world = World.draw(probabilities, features, classes, model_dimensions, variant, seed)
    division = Split(split, train_fraction, validation_fraction, split_seed)
    task = TaskSpec(kind="classification", classes=classes)
    columns = {"x": ColumnSpec(dtype="float32", shape=(features,)), "y": ColumnSpec(dtype="int64")}
    with build.writer(task=task, columns=columns, attributes={"cluster": "int64"}) as writer:
        for client, group in enumerate(division.groups(clients)):
            cluster, x, y = world.draw_client(client)
            parts = division.divide(client, group, {"x": x.astype(np.float32), "y": y})
            writer.add_client(f"client-{client:06d}", group=group, attributes={"cluster": cluster}, **parts)
            if client % 100 == 0:
                build.progress(client / clients, "drawing clients")


@dataclass(frozen=True)
class World:
    """What all clients share. Letters are the paper's: Q maps a client's u to its weights."""

    probabilities: FloatArray  # [clusters]
    cluster_means: FloatArray  # mu, [clusters, s]
    Q: FloatArray  # [features + 1, classes, s]
    feature_deviations: FloatArray  # square root of the diagonal of Sigma, [features]
    variant: Variant
    seed: int

    @classmethod
    def draw(
        cls,
        probabilities: FloatArray,
        features: int,
        classes: int,
        model_dimensions: int | None,
        variant: Variant,
        seed: int,
    ) -> World:
        """The paper's preparation steps 1 to 3."""
        clusters = len(probabilities)
        s = clusters if model_dimensions is None else model_dimensions
        random = generator(seed, "synthetic/clusters")
        B = random.standard_normal((clusters, s if variant == "paper" else 1))
        cluster_means = B + random.standard_normal((clusters, s))
        Q = generator(seed, "synthetic/Q").standard_normal((features + 1, classes, s))
        feature_deviations = np.arange(1, features + 1, dtype=np.float64) ** (-COVARIANCE_DECAY / 2)
        return cls(probabilities, cluster_means, Q, feature_deviations, variant, seed)

    def draw_client(self, client: int) -> tuple[int, FloatArray, IntArray]:
        """The paper's steps 1 to 6 for one client: its cluster, its features and its labels."""
        paper = self.variant == "paper"
        features, classes, s = len(self.feature_deviations), self.Q.shape[1], self.Q.shape[2]
        random = generator(self.seed, "synthetic/client", client)
        cluster = int(random.choice(len(self.probabilities), p=self.probabilities))
        u = self.cluster_means[cluster] + random.standard_normal(s) * (1.0 if paper else 0.1)
        w = self.Q @ u
        num_samples = min(int(random.lognormal(mean=3, sigma=2)) + MIN_SAMPLES, MAX_SAMPLES)
        C = random.standard_normal(features if paper else 1)
        v = C + random.standard_normal(features)
        x = v + random.standard_normal((num_samples, features)) * self.feature_deviations
        noise = random.standard_normal((num_samples, classes)) * (np.sqrt(0.1) if paper else 0.1)
        scores = w[0] + x @ w[1:] + noise
        if not paper:
            scores -= np.logaddexp.reduce(scores, axis=0)
        # The paper's sigmoid does not change which score is the largest.
        return cluster, x, np.argmax(scores, axis=1)
