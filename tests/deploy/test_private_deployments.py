"""Privacy on real devices: what its argument asks of them is seen to, as in a simulation."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("cryptography")
pytest.importorskip("dp_accounting")
from small_deployments import small_config

from fedarena.core.errors import BadInputError
from fedarena.deploy.serving import DeviceClients
from fedarena.runs.building import Experiment, GivenParts, prepare
from fedarena.runs.observer import Observer

DEVICES = 6
GAUSSIAN: dict[str, Any] = {"name": "gaussian", "noise_multiplier": 1.0}


def with_devices(**settings: Any) -> Experiment:
    """A run of real devices, as its server builds it."""
    devices = DeviceClients({number: f"phone{number}" for number in range(DEVICES)})
    return prepare(small_config(**settings), Observer(), GivenParts(devices=devices))


@pytest.mark.parametrize(
    ("privacy", "chosen", "sentence"),
    [
        (GAUSSIAN, {"selector": "uniform"}, "among those who are available, which are fewer than the population"),
        (GAUSSIAN, {"selector": "poisson"}, "privacy.public_timing=true"),
        (
            {"name": "correlated_gaussian", "noise_multiplier": 1.0},
            {"selector": {"name": "cyclic", "groups": 2}},
            "privacy.public_timing=true",
        ),
    ],
    ids=str,
)
def test_devices_that_may_not_be_there_are_drawn_in_no_way_that_is_not_accounted_for(privacy, chosen, sentence) -> None:
    with pytest.raises(BadInputError, match=sentence):
        with_devices(privacy=privacy, protocol="readiness", **chosen)


def test_devices_may_be_away_where_that_changes_nobodys_chances() -> None:
    with_devices(privacy=GAUSSIAN | {"public_timing": True}, protocol="readiness", selector="poisson")
    with_devices(privacy=GAUSSIAN, selector="uniform")  # which waits for whomever it drew
