"""Where fleets come from, one file per source; importing this package registers them."""
