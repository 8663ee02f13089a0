"""Table 7 of FedHPO-Bench (Wang et al., 2023): how many samples and classes its datasets have."""

from __future__ import annotations

from dataclasses import dataclass

from fedarena.data.store.federation import Federation


@dataclass(frozen=True)
class PublishedCounts:
    """A row of the table."""

    samples: int
    classes: int


# By the federation here and its option `task`, if it has one.
FEDHPO_TABLE_7: dict[tuple[str, object], PublishedCounts] = {
    ("openml", 31): PublishedCounts(1_000, 2),
    ("openml", 53): PublishedCounts(846, 4),
    ("openml", 3917): PublishedCounts(2_109, 2),
    ("openml", 10101): PublishedCounts(748, 2),
    ("openml", 146818): PublishedCounts(690, 2),
    ("openml", 146821): PublishedCounts(1_728, 4),
    ("openml", 146822): PublishedCounts(2_310, 7),
}


def compared_with_table_7(federation: Federation) -> str | None:
    """Whether a federation has as many samples and classes as published, in words; None if nothing was published."""
    source = federation.source
    published = FEDHPO_TABLE_7.get((source.name, source.options.get("task")))
    if published is None:
        return None
    row = f"{published.samples:,} samples of {published.classes} classes"
    found = PublishedCounts(federation.num_samples, federation.task.classes)
    if found == published:
        return f"{row}, as in Table 7 of FedHPO-Bench"
    return f"{found.samples:,} samples of {found.classes} classes, where Table 7 of FedHPO-Bench has {row}"
