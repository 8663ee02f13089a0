"""Where federations come from, one file per source; importing this package registers them."""

from fedarena.data.sources import chitchat, digits, store, synthetic

__all__ = ["chitchat", "digits", "store", "synthetic"]
