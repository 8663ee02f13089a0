"""Files that people publish, as they are: reviews as JSON lines, sentences with tabs, digits as arrays."""

from __future__ import annotations

import gzip
import json
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from fedarena.data.images.own import from_images
from fedarena.data.text.own import from_texts

SHARED = Path(__file__).parents[3] / "shared" / "data"
REVIEWS = SHARED / "amazon_reviews" / "Gift_Cards_5.json.gz"
SENTENCES = SHARED / "glue" / "cola_in_domain_train.tsv"
DIGITS = SHARED / "mnist_by_writer" / "mnist_100writers.npz"


@pytest.mark.skipif(not REVIEWS.exists(), reason="needs published reviews")
def test_reviews_by_customer_and_stars() -> None:
    with gzip.open(REVIEWS, "rt", encoding="utf-8") as file:
        reviews = [review for review in map(json.loads, file) if review.get("reviewText") is not None]
    federation = from_texts(REVIEWS, client="reviewerID", text="reviewText", label="overall", missing="drop")
    assert federation.task.label_names == ("1", "2", "3", "4", "5")
    sizes = Counter(review["reviewerID"] for review in reviews)
    clients = federation.clients()
    found = dict(zip(federation.client_ids(clients), federation.counts(clients).tolist(), strict=True))
    assert found == sizes
    stars = Counter(int(review["overall"]) - 1 for review in reviews)
    assert Counter(federation.samples(clients).columns["y"].tolist()) == stars


@pytest.mark.skipif(not SENTENCES.exists(), reason="needs published sentences")
def test_sentences_by_the_paper_they_are_from() -> None:
    lines = SENTENCES.read_text(encoding="utf-8").splitlines()
    names = ["paper", "acceptable", "mark", "sentence"]
    federation = from_texts(SENTENCES, client="paper", text="sentence", label="acceptable", columns=names, quotes=False)
    assert federation.num_samples == len(lines)
    assert federation.num_clients == len({line.split("\t")[0] for line in lines}) == 17


@pytest.mark.skipif(not DIGITS.exists(), reason="needs digits by writer")
def test_digits_by_writer() -> None:
    with np.load(DIGITS) as arrays:
        pictures, labels, writers = arrays["x"], arrays["y"], arrays["writer"]
    federation = from_images(pictures, client=writers, label=labels, name="digits by writer")
    assert (federation.num_clients, federation.num_samples) == (100, len(pictures))
    assert federation.columns["x"].shape == (1, 28, 28)
    assert federation.samples(federation.clients()).columns["x"].sum() == pictures.sum()
