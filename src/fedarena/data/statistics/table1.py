"""What authors counted, by federation: LEAF's Table 1 (Caldas et al., 2019), FLAIR's sizes, FedScale's Table 5."""

from __future__ import annotations

from fedarena.data.statistics.published_sizes import PublishedSizes
from fedarena.data.statistics.table5 import FEDSCALE_TABLE_5, counted_otherwise
from fedarena.data.store.schema import SourceSpec

# By the federations here that are made from the same data.
LEAF_TABLE_1 = {
    "femnist": PublishedSizes(3_550, 805_263, 226.83, 88.94, "pictures"),
    "sent140": PublishedSizes(660_120, 1_600_498, 2.42, 4.71, "tweets"),
    "shakespeare": PublishedSizes(1_129, 4_226_158, 3_743.28, 6_212.26, "windows"),
    "celeba": PublishedSizes(9_343, 200_288, 21.44, 7.63, "pictures"),
    "reddit": PublishedSizes(1_660_820, 56_587_343, 34.07, 62.95, "comments"),
}

# Section 4.2 and the notebook explore_labels of FLAIR (Song et al., 2022).
FLAIR_SIZES = PublishedSizes(
    51_414, 429_078, 8.35, 51.28, "photos", "all of the data, before max_samples", "FLAIR", "paper"
)


def published_sizes(source: SourceSpec) -> PublishedSizes | None:
    """The row to compare a federation with; none where its samples are sequences of what LEAF counts as windows."""
    if source.name == "flair":
        return FLAIR_SIZES
    if source.name in FEDSCALE_TABLE_5:
        return FEDSCALE_TABLE_5[source.name]
    return None if _has_sequences_for_windows(source) else LEAF_TABLE_1.get(source.name)


def counting_note(source: SourceSpec) -> str | None:
    """How the samples of a federation differ from those that a paper counts."""
    if _has_sequences_for_windows(source):
        return "LEAF's paper counts windows of characters, as shakespeare samples=windows does"
    if source.name == "reddit":
        return "LEAF's paper counts comments; here, a long comment is several samples"
    return counted_otherwise(source.name)


def _has_sequences_for_windows(source: SourceSpec) -> bool:
    return source.name == "shakespeare" and source.options.get("samples") != "windows"
