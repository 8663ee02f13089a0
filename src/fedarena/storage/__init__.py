"""How a run is stored: its folder, tables and checkpoint, and how they are read."""
