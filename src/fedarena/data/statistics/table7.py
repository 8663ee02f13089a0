"""Table 7 of FedHPO-Bench (Wang et al., 2023): how many samples and classes its datasets have."""

from __future__ import annotations

from dataclasses import dataclass

from fedarena.data.store.federation import Federation


@dataclass(frozen=True)
class PublishedCounts:
    """A row of the table: samples and classes, or clients where these are given with the data."""

    samples: int | None = None
    classes: int | None = None
    clients: int | None = None

    def __str__(self) -> str:
        return (
            f"{self.samples:,} samples of {self.classes} classes"
            if self.clients is None
            else f"{self.clients:,} clients"
        )


# By the federation here and its option `task` or `form`, if it has one.
FEDHPO_TABLE_7: dict[tuple[str, object], PublishedCounts] = {
    ("openml", 31): PublishedCounts(1_000, 2),
    ("openml", 53): PublishedCounts(846, 4),
    ("openml", 3917): PublishedCounts(2_109, 2),
    ("openml", 10101): PublishedCounts(748, 2),
    ("openml", 146818): PublishedCounts(690, 2),
    ("openml", 146821): PublishedCounts(1_728, 4),
    ("openml", 146822): PublishedCounts(2_310, 7),
    ("glue", "sst2"): PublishedCounts(70_042, 2),  # with the 1,821 sentences that GLUE publishes no labels of
    ("glue", "cola"): PublishedCounts(10_657, 2),  # the same, 1,063
    ("cifar10", None): PublishedCounts(60_000, 10),
    ("ratings", "netflix"): PublishedCounts(clients=480_189),
}


def compared_with_table_7(federation: Federation) -> str | None:
    """Whether a federation has as many samples and classes as published, in words; None if nothing was published."""
    source = federation.source
    published = FEDHPO_TABLE_7.get((source.name, source.options.get("task", source.options.get("form"))))
    if published is None:
        return None
    found = PublishedCounts(clients=federation.num_clients)
    if published.clients is None:
        found = PublishedCounts(federation.num_samples, federation.task.classes)
    if found == published:
        return f"{published}, as in Table 7 of FedHPO-Bench"
    return f"{found}, where Table 7 of FedHPO-Bench has {published}"
