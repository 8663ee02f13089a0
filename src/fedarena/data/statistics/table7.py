"""Table 7 of FedHPO-Bench (Wang et al., 2023): how many samples and classes its datasets have."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from fedarena.data.store.federation import Federation


@dataclass(frozen=True)
class PublishedCounts:
    """A row of the table: samples and classes, or clients where these are given with the data."""

    samples: int | None = None
    classes: int | None = None
    clients: int | None = None
    counted: str = "samples"

    def __str__(self) -> str:
        return (
            f"{self.samples:,} {self.counted} of {self.classes} classes"
            if self.clients is None
            else f"{self.clients:,} clients"
        )


# By the federation here and its option `task`, `graph` or `form`, if it has one.
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
    ("planetoid", "cora"): PublishedCounts(2_708, 7, counted="nodes"),
    ("planetoid", "citeseer"): PublishedCounts(4_230, 6, counted="nodes"),  # of another version than Planetoid's
    ("planetoid", "pubmed"): PublishedCounts(19_717, 3, counted="nodes"),
    ("ratings", "netflix"): PublishedCounts(clients=480_189),
}


def compared_with_table_7(federation: Federation) -> str | None:
    """Whether a federation has as many samples and classes as published, in words; None if nothing was published."""
    source = federation.source
    chosen = [source.options[name] for name in ("task", "graph", "form") if name in source.options]
    published = FEDHPO_TABLE_7.get((source.name, chosen[0] if chosen else None))
    if published is None:
        return None
    found = PublishedCounts(clients=federation.num_clients)
    if published.clients is None:
        found = PublishedCounts(_count(federation), federation.task.classes, counted=published.counted)
    if found == published:
        return f"{published}, as in Table 7 of FedHPO-Bench"
    return f"{found}, where Table 7 of FedHPO-Bench has {published}"


def _count(federation: Federation) -> int:
    """Samples; nodes where a sample is a graph of them."""
    if federation.task.kind != "node_classification":
        return federation.num_samples
    return int(np.sum(federation.attributes(federation.clients())["nodes"]))
