"""Where federations come from, one file per source; importing this package registers them."""

from fedarena.data.sources import chitchat, digits, mnist_by_writer, shakespeare, shapes, store, synthetic

__all__ = ["chitchat", "digits", "mnist_by_writer", "shakespeare", "shapes", "store", "synthetic"]
