"""What FLAIR's authors counted: Song et al. (2022), section 4.2, and the notebook that comes with the files."""

from __future__ import annotations

from collections.abc import Mapping

from fedarena.data.store.schema import Group

USERS: Mapping[Group, int] = {"train": 41_131, "validation": 5_141, "test": 5_142}
IMAGES: Mapping[Group, int] = {"train": 345_879, "validation": 39_239, "test": 43_960}
COARSE_LABELS = 17
FINE_LABELS = 1_628


def compare(users: Mapping[Group, int] | None, images: Mapping[Group, int], labels: str = "") -> str:
    """What was counted, in words, and what was published where that differs; `users` are left out if they are None."""

    def text(users: Mapping[Group, int] | None, images: Mapping[Group, int]) -> str:
        people = "" if users is None else f"{_listed(users)} users, "
        return f"{people}{_listed(images)} images for training, validation and test"

    published = text(None if users is None else USERS, IMAGES)
    found = text(users, images)
    if found == published:
        return f"{found}{labels}, as published"
    return f"{found}{labels}, where {published} were published"


def _listed(numbers: Mapping[Group, int]) -> str:
    return " / ".join(f"{numbers[group]:,}" for group in USERS)
