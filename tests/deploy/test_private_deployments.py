"""Privacy on real devices: what its argument asks of them is seen to, as in a simulation."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("cryptography")
pytest.importorskip("dp_accounting")
import small_deployments
from small_deployments import bits_of, deploy_folder, play, serving, simulated_bits, small_config

from fedarena.core.errors import BadInputError
from fedarena.deploy.admission import Norms, RefusedError
from fedarena.deploy.live import LiveRound
from fedarena.deploy.serving import DeviceClients, open_server
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


@pytest.mark.parametrize(
    ("settings", "counts"),
    [
        ({"privacy": GAUSSIAN, "selector": "poisson"}, True),
        ({"privacy": {"name": "local_laplace"}}, False),  # whose norms are those of noisy updates
        ({}, False),
    ],
    ids=str,
)
def test_under_central_noise_no_update_is_refused_for_the_norms_of_others(settings, counts, tmp_path: Path) -> None:
    folder, _ = deploy_folder(tmp_path / "deploy")
    with serving(folder, small_config(**settings)) as server:
        admission = server.coordinator.admission
        admission.norms = Norms([0.01] * 5)
        if counts:
            assert admission._checked_norm(0.5) == 0.5
        else:
            with pytest.raises(RefusedError, match="30 times the median"):
                admission._checked_norm(0.5)
        assert any("norm_factor is left aside" in one for one in server.run.experiment.warnings) == counts
        server.run._recorder.release()


@pytest.mark.filterwarnings("ignore:Privacy")
def test_a_round_that_draws_nobody_is_a_step_of_noise_alone(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setattr(small_deployments, "open_server", lambda *args: open_server(*args, secret_noise=False))
    waits, really_wait = iter(range(30)), LiveRound._wait

    def wait(self: LiveRound) -> None:
        assert next(waits, None) is not None, "it waits for ever"
        really_wait(self)

    monkeypatch.setattr(LiveRound, "_wait", wait)
    config = small_config(privacy=GAUSSIAN, selector="poisson", cohort=1, seed=5)
    server = play(*deploy_folder(tmp_path / "deploy"), config)[0]
    rounds = server.run.result().rounds
    assert 0 in rounds["invited"].to_pylist()[1:]
    assert bits_of(server.run.snapshot.state) == simulated_bits(config)
