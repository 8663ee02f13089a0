"""Draws the pictures of the documentation from the runs of the quickstart suite: ``make pictures``."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from fedarena.data import load_federation
from fedarena.data.statistics import describe
from fedarena.fleet import describe_fleet, load_fleet
from fedarena.report import client_accuracy_figure, federation_figure, fleet_figure, hours_figure, write_picture
from fedarena.rundata import load_runs

IMAGES = Path(__file__).parent / "images"

if __name__ == "__main__":
    runs = load_runs([Path("runs/quickstart")])
    over_time = hours_figure(runs)
    assert over_time is not None
    write_picture(over_time, IMAGES / "quickstart.png")
    write_picture(client_accuracy_figure(runs), IMAGES / "clients.png")
    skewed = load_federation("digits", {"partition": {"name": "dirichlet", "alpha": 0.1}})
    write_picture(federation_figure(describe(skewed)), IMAGES / "digits-dirichlet.png")
    write_picture(federation_figure(describe(load_federation("chitchat"))), IMAGES / "chitchat.png")
    clients = np.arange(20_000)
    for name in ("fedscale", "flash"):
        phones = load_fleet(name, len(clients)).match(clients, None, seed=0)
        write_picture(fleet_figure(describe_fleet(phones, clients, seed=0)), IMAGES / f"fleet-{name}.png")
