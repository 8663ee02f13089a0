"""Where fleets come from, one file per source; importing this package registers them."""

from fedarena.fleet.sources import fedscale, flash, ideal, uniform

__all__ = ["fedscale", "flash", "ideal", "uniform"]
