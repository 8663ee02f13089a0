"""A device that takes part in a real run: it downloads models, trains on its own samples, and uploads updates."""
