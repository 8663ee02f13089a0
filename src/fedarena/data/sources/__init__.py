"""Where federations come from, one file per source; importing this package registers them."""

from fedarena.data.sources import (
    celeba,
    chitchat,
    diabetes,
    digits,
    femnist,
    leaf,
    mnist_by_writer,
    openml,
    planetoid,
    reddit,
    sent140,
    shakespeare,
    shapes,
    shapes_tags,
    store,
    synthetic,
)

__all__ = [
    "celeba",
    "chitchat",
    "diabetes",
    "digits",
    "femnist",
    "leaf",
    "mnist_by_writer",
    "openml",
    "planetoid",
    "reddit",
    "sent140",
    "shakespeare",
    "shapes",
    "shapes_tags",
    "store",
    "synthetic",
]
