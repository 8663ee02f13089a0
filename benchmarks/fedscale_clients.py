"""FedScale's Fig. 3 for what is at hand: how many samples clients have, and how far apart the labels of two are."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import numpy as np

from fedarena.core.pickles import parse_pickle
from fedarena.data import load_federation
from fedarena.data.statistics.describe import describe, describe_sizes
from fedarena.data.statistics.divergence import PairStatistics, describe_pairs, labels_by_chance, table_rows
from real_pieces import folder_of, is_there

PERCENTS = (0, 10, 25, 50, 75, 90, 100)
SIZE_EDGES = tuple(dict.fromkeys(round(10 ** (step / 8)) for step in range(34)))  # of a histogram, 1 to 13,335
# Federations and the piece of data that each is made from.
FEDERATIONS = {
    "mnist_by_writer": "mnist_by_writer",
    "amazon_review": "amazon_reviews",
    "reddit_comments": "reddit_comments",
    "blog_corpus": "blog_corpus",
    "fox_go": "fox_go_pro",
    "puffer": "puffer_traces",
}
FEMNIST_SIZES = "fedscale_femnist_stats/femnist_train_client_sizes.json"
SPEECH_MAP = "fedscale_trace_samples/speech_commands_clientDataMap.pkl.gz"


def look_at_clients(data: Path, work: Path) -> dict[str, dict[str, Any]]:
    """Everything that is there, by name."""
    found = {}
    if (data / SPEECH_MAP).exists():
        found["google_speech, FedScale's map"] = speech_map(data / SPEECH_MAP)
    if (data / FEMNIST_SIZES).exists():
        sizes = json.loads((data / FEMNIST_SIZES).read_text(encoding="utf-8"))["size"]
        found["fedscale_femnist, FedScale's map"] = clients_of(np.array(sizes), None)
    for name, piece in FEDERATIONS.items():
        if is_there(piece, data):
            federation = load_federation(name, {"folder": str(folder_of(piece, data, work))})
            pairs = None if federation.task.predicts_numbers else describe(federation).labels.pairs
            found[name] = clients_of(federation.counts(federation.clients()), pairs)
    return found


def speech_map(path: Path) -> dict[str, Any]:
    """FedScale's map of Speech Commands, in which file names (``yes_742d6431_nohash_1.wav``) begin with the word."""
    owners = parse_pickle(gzip.decompress(path.read_bytes()), path)
    words = {word: number for number, word in enumerate(sorted({name.partition("_")[0] for name in owners}))}
    counts = np.zeros((max(owners.values()) + 1, len(words)), dtype=np.int64)
    for name, owner in owners.items():
        counts[owner, words[name.partition("_")[0]]] += 1
    some = counts[np.random.default_rng(0).permutation(len(counts))[: table_rows(len(words))]]
    pairs = describe_pairs(some, labels_by_chance(some, counts.sum(0) / counts.sum()))
    return clients_of(counts.sum(1), pairs)


def clients_of(sizes: Any, pairs: PairStatistics | None) -> dict[str, Any]:
    """Sizes of clients, and Jensen–Shannon distances of pairs of them where samples have labels."""
    return {
        "clients": len(sizes),
        "samples": int(sizes.sum()),
        "size_percentiles": np.percentile(sizes, PERCENTS).tolist(),
        "half_share": describe_sizes(sizes).half_share,
        "sizes": np.histogram(sizes, bins=SIZE_EDGES)[0].tolist(),
        "distance": None if pairs is None else pairs.distances.mean,
        "distance_by_chance": None if pairs is None else pairs.distances_by_chance.mean,
        "distances": None if pairs is None else pairs.histogram.tolist(),
    }
