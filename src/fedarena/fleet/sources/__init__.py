"""Where fleets come from, one file per source; importing this package registers them."""

from fedarena.fleet.sources import ideal, uniform

__all__ = ["ideal", "uniform"]
