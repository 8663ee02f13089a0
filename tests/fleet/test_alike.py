"""Devices without differences: how long transfers take, on all of them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from scipy.stats import kstest

from fedarena.core import streams
from fedarena.core.errors import BadInputError
from fedarena.fleet import load_fleet

CLIENTS = np.arange(200)


def way_seconds(sent_bytes: int, **options: Any) -> np.ndarray:
    """How long downloads and uploads of many jobs of every client take together."""
    fleet = load_fleet({"name": "alike", **options}, len(CLIENTS)).match(CLIENTS, None, seed=0)
    assert (fleet.fleet.availability.share() == 1).all()
    rows = fleet.device_of[CLIENTS][:, None]
    numbers = np.arange(50)
    down = fleet.fleet.devices.draw_download(rows, streams.bits(0, "down", CLIENTS[:, None], numbers))
    up = fleet.fleet.devices.draw_upload(rows, streams.bits(0, "up", CLIENTS[:, None], numbers))
    return 8 * sent_bytes / down + 8 * sent_bytes / up


def test_the_way_down_and_up_takes_a_normal_time_as_in_the_paper() -> None:
    seconds = way_seconds(343_200_776)
    assert kstest(seconds.ravel(), "norm", args=(120 / 1.05, 12 / 1.05)).pvalue > 0.01
    between_clients = seconds.mean(axis=1).std()
    assert between_clients < 1.3 * 12 / 1.05 / np.sqrt(seconds.shape[1])


def test_options_change_time_and_size() -> None:
    assert way_seconds(500, transfer_seconds=10, variation=0, model_bytes=1000) == pytest.approx(5.0)
    assert load_fleet({"name": "alike", "seconds_per_sample": 0.5}, 3).devices.seconds_per_sample.tolist() == [0.5]
    assert way_seconds(1000, transfer_seconds=10, variation=0.2, model_bytes=1000).min() > 0


def test_too_much_variation_is_refused() -> None:
    with pytest.raises(BadInputError, match=r"fleet.variation: .*less than or equal to 0.2"):
        load_fleet({"name": "alike", "variation": 0.5}, 3)
