"""What FLAIR's authors counted: Song et al. (2022), section 4.2, and the notebook that comes with the files."""

from __future__ import annotations

from collections.abc import Mapping

from fedarena.data.store.schema import Group

USERS: Mapping[Group, int] = {"train": 41_131, "validation": 5_141, "test": 5_142}
IMAGES: Mapping[Group, int] = {"train": 345_879, "validation": 39_239, "test": 43_960}
COARSE_LABELS = 17
FINE_LABELS = 1_628


def compare(
    users: Mapping[Group, int] | None,
    images: Mapping[Group, int],
    labels: tuple[int, int] | None = None,
    note: str = "",
) -> str:
    """What was counted, in words, and what was published where that differs.

    What is None was not counted: users, or coarse and fine labels.
    """

    def text(people: Mapping[Group, int], photos: Mapping[Group, int], coarse: int, fine: int) -> str:
        counts = f"{_listed(photos)} images for training, validation and test"
        counts = counts if users is None else f"{_listed(people)} users, {counts}"
        return counts if labels is None else f"{counts}, {coarse:,} coarse and {fine:,} fine labels"

    published = text(USERS, IMAGES, COARSE_LABELS, FINE_LABELS)
    found = text(users or {}, images, *(labels or (0, 0)))
    return f"{found}{note}, as published" if found == published else f"{found}{note}, where {published} were published"


def _listed(numbers: Mapping[Group, int]) -> str:
    return " / ".join(f"{numbers[group]:,}" for group in USERS)
