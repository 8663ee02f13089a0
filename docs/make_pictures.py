"""Draws the pictures of the documentation from the runs of the quickstart suite: ``make pictures``."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from PIL import Image

from fedarena.data import load_federation
from fedarena.data.statistics.describe import describe
from fedarena.display import (
    client_spread_figure,
    federation_figure,
    fleet_figure,
    heterogeneity_figure,
    hours_figure,
    write_picture,
)
from fedarena.display.fleets.samplers import few_devices_figure, few_states_figure, grid_figure
from fedarena.fleet import describe_fleet, load_fleet
from fedarena.fleet.heterogeneity import HeterogeneityOptions, in_order, measure_heterogeneity, single_state_metric
from fedarena.fleet.sources.dpgmm import way_speeds
from fedarena.storage.run_data import load_runs

IMAGES = Path(__file__).parent / "images"
CLUSTERS, SIGMAS = (50, 100, 200), (0.1, 0.4, 0.7, 1.1, 1.4, 1.7, 2.0)
START_RANKS, ALPHAS = (0, 100, 350), (1, 2, 3, 4, 5, 10, 100)
BITS_PER_MEGABYTE = 8e6


def draw_contact_sheet(users: int = 7, each: int = 12) -> None:
    """Pictures of the stand-in for FLAIR, a user a row."""
    federation = load_federation("flair_like", {"users": 200, "side": 64, "encoding": "none"})
    everybody = federation.clients("train")
    chosen = everybody[federation.counts(everybody, "train") >= each][:users]
    rows = [federation.samples([user], "train").columns["x"][:each].transpose(2, 0, 3, 1) for user in chosen]
    sheet = np.concatenate([row.reshape(64, -1, 3) for row in rows])
    Image.fromarray(sheet).save(IMAGES / "flair_like.jpg", quality=85)


def draw_samplers() -> None:
    """What DPGMM and DPCSM do, like Fig. S3 and S4 of FLHetBench."""

    def speeds(clients: int, clusters: int, sigma: float) -> np.ndarray:
        fleet = load_fleet({"name": "dpgmm", "clusters": clusters, "sigma": sigma}, clients)
        return way_speeds(fleet.devices) / BITS_PER_MEGABYTE

    def states(clients: int, start_rank: int, alpha: float):
        options = {"name": "dpcsm", "start_rank": start_rank, "alpha": alpha, "seed": 1}
        return load_fleet(options, clients).availability

    grid = {f"K_n = {k}": {f"{sigma:g}": speeds(100, k, sigma) for sigma in SIGMAS} for k in CLUSTERS}
    figure = grid_figure("Speeds of the devices of 100 clients", "sigma", "MB/s", grid)
    write_picture(figure, IMAGES / "dpgmm-speeds.png")
    few = {f"K_n = {k}": {f"sigma = {sigma:g}": speeds(10, k, sigma) for sigma in (0.4, 2.0)} for k in (2, 8)}
    base = way_speeds(load_fleet("flash", 1000).devices) / BITS_PER_MEGABYTE
    write_picture(few_devices_figure("Devices of ten clients", base, few, "MB/s"), IMAGES / "dpgmm-clients.png")
    # Of a base of 710, each with its metric among all of them.
    everybody = load_fleet("flash", 710).availability
    metric = single_state_metric(everybody, HeterogeneityOptions(repetitions=1))
    metric_of = dict(zip(everybody.share(), metric, strict=True))
    metrics = {
        f"start_rank = {rank}": {
            f"{alpha:g}": np.array([metric_of[share] for share in states(100, rank, alpha).share()]) for alpha in ALPHAS
        }
        for rank in START_RANKS
    }
    figure = grid_figure("Single-state metric of 100 clients", "alpha", "single-state metric", metrics)
    write_picture(figure, IMAGES / "dpcsm-metric.png")
    few_states = {
        f"start_rank = {rank}": {f"alpha = {alpha:g}": states(10, rank, alpha) for alpha in (1, 10)}
        for rank in (0, 350)
    }
    write_picture(few_states_figure("Availability of ten clients", few_states), IMAGES / "dpcsm-clients.png")


if __name__ == "__main__":
    runs = load_runs([Path("runs/quickstart")])
    over_time = hours_figure(runs)
    assert over_time is not None
    write_picture(over_time, IMAGES / "quickstart.png")
    write_picture(client_spread_figure(runs), IMAGES / "clients.png")
    skewed = load_federation("digits", {"partition": {"name": "dirichlet", "alpha": 0.1}})
    write_picture(federation_figure(describe(skewed)), IMAGES / "digits-dirichlet.png")
    write_picture(federation_figure(describe(load_federation("chitchat"))), IMAGES / "chitchat.png")
    clients = np.arange(20_000)
    for name in ("fedscale", "flash"):
        phones = load_fleet(name, len(clients)).match(clients, None, seed=0)
        write_picture(fleet_figure(describe_fleet(phones, clients, seed=0)), IMAGES / f"fleet-{name}.png")
    draw_samplers()
    draw_contact_sheet()
    found = measure_heterogeneity(in_order(load_fleet("flash", 100)), np.arange(100))
    write_picture(heterogeneity_figure("flash", found), IMAGES / "heterogeneity-flash.png")
