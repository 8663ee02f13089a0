"""FedScale's Table 5 (Lai et al., ICML 2022): clients and samples of its twenty datasets.

Samples are rounded there (193K), and not always what a sample is here: of texts to be predicted, words are counted.
"""

from __future__ import annotations

from fedarena.data.statistics.published_sizes import PublishedSizes
from fedarena.data.store.federation import Federation

_THOUSAND, _MILLION = 1_000, 1_000_000


def _row(clients: int, samples: float, unit: int, counted: str) -> PublishedSizes:
    return PublishedSizes(clients, round(samples * unit), None, None, counted, paper="FedScale", table="Table 5")


# By the federations here that are made from the same data.
FEDSCALE_TABLE_5: dict[str, PublishedSizes] = {
    "inature": _row(2_295, 193, _THOUSAND, "photos"),
    "fedscale_femnist": _row(3_400, 640, _THOUSAND, "pictures"),
    "openimage": _row(13_771, 1.3, _MILLION, "photos"),
    "landmarks": _row(43_484, 3.6, _MILLION, "photos"),
    "charades": _row(266, 10, _THOUSAND, "videos"),
    "vlog": _row(4_900, 9.6, _THOUSAND, "clips"),
    "waymo": _row(496_358, 32.5, _MILLION, "tracks"),
    "europarl": _row(27_835, 1.2, _MILLION, "sentences"),
    "blog_corpus": _row(19_320, 137, _MILLION, "words"),
    "stackoverflow": _row(342_477, 135, _MILLION, "posts"),
    "reddit_comments": _row(1_660_820, 351, _MILLION, "words"),
    "amazon_review": _row(1_822_925, 166, _MILLION, "reviews"),
    "coqa": _row(7_685, 116, _THOUSAND, "questions"),
    "libritts": _row(2_456, 37, _THOUSAND, "sentences"),
    "google_speech": _row(2_618, 105, _THOUSAND, "recordings"),
    "common_voice": _row(12_976, 1.1, _MILLION, "recordings"),
    "taxi": _row(442, 1.7, _MILLION, "trips"),
    "taobao": _row(182_806, 20.9, _MILLION, "advertisements"),
    "puffer": _row(121_551, 15.4, _MILLION, "pieces of video"),
    "fox_go": _row(150_333, 4.9, _MILLION, "games"),
}

# What a sample is here, where that is something else.
_COUNTED_HERE = {
    "blog_corpus": "sequences of words",
    "reddit_comments": "sequences of words",
    "fox_go": "positions",
    "puffer": "stretches of throughput",
}


def counted_otherwise(name: str) -> str | None:
    """How the samples of a federation differ from those that FedScale counts."""
    if name not in _COUNTED_HERE:
        return None
    return f"FedScale's paper counts {FEDSCALE_TABLE_5[name].counted}; here, samples are {_COUNTED_HERE[name]}"


def compared_with_table_5(federation: Federation) -> str | None:
    """How many clients and samples a federation has beside what FedScale's paper says; None if that is nothing."""
    published = FEDSCALE_TABLE_5.get(federation.source.name)
    if published is None:
        return None
    here = _COUNTED_HERE.get(federation.source.name, published.counted)
    return (
        f"{federation.num_clients:,} clients and {federation.num_samples:,} {here}, where Table 5 of FedScale has "
        f"{published.clients:,} clients and about {published.samples:,} {published.counted}"
    )
