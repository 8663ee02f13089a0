"""Where federations come from, one file per source; importing this package registers them."""

from fedarena.data.sources import chitchat, digits, shapes, store, synthetic

__all__ = ["chitchat", "digits", "shapes", "store", "synthetic"]
