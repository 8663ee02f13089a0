"""A round with many workers, played through from what was measured."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from small_clusters import MANY_SHARDS, Silent
from typer.testing import CliRunner

from fedarena.cli import main
from fedarena.core.errors import BadInputError
from fedarena.runs.cluster.estimate import RoundCost, estimate_round, measure_round
from fedarena.runs.config import resolve, to_yaml
from fedarena.runs.merging import merge

COST = RoundCost(
    steps=np.array([10] * 32),
    seconds_per_step=0.1,
    planning_seconds=0.01,
    merging_seconds=0.001,
    down_bytes=10**6,
    message_bytes=1000,
    up_bytes=10**6,
)


def test_one_worker_takes_as_long_as_the_work() -> None:
    assert estimate_round(COST, 1).seconds == pytest.approx(32, rel=0.01)
    assert estimate_round(COST, 1, speed=4).seconds == pytest.approx(8, rel=0.02)


def test_workers_share_until_there_are_no_more_shards() -> None:
    eight, many = estimate_round(COST, 8), estimate_round(COST, 1000)
    assert eight.speedup == pytest.approx(8, rel=0.05)
    assert eight.waits_for == "training"
    assert many.seconds == pytest.approx(1, rel=0.2)
    assert many.waits_for == "largest shard"
    assert estimate_round(COST, 32).seconds == pytest.approx(many.seconds)


def test_a_slow_link_holds_everybody_up() -> None:
    slow = estimate_round(COST, 32, machines=4, gigabits_per_second=0.01)
    assert slow.waits_for == "link"
    assert slow.seconds >= (36 * 10**6) / (0.01e9 / 8)


def test_machines_without_a_shard_cost_nothing() -> None:
    few, many = (estimate_round(COST, 1000, machines=machines) for machines in (32, 1000))
    assert many.seconds == few.seconds
    assert many.waits_for == few.waits_for


def test_the_driver_may_be_what_is_slow() -> None:
    from dataclasses import replace

    assert estimate_round(replace(COST, merging_seconds=0.5), 32).waits_for == "driver"


def test_a_round_is_measured() -> None:
    cost = measure_round(resolve(merge({}, MANY_SHARDS)), Silent())
    assert len(cost.steps) > 2
    assert cost.seconds_per_step > 0
    assert cost.up_bytes >= cost.down_bytes == 4 * (64 * 12 + 12 + 12 * 10 + 10)  # both are the model
    with pytest.raises(BadInputError, match="engine=reference has no shards"):
        measure_round(resolve(merge({}, MANY_SHARDS | {"engine": "reference"})), Silent())


def test_what_clients_keep_goes_both_ways() -> None:
    """Nobody has anything in a first round, but in all others."""
    plain = measure_round(resolve(merge({}, MANY_SHARDS)), Silent())
    cost = measure_round(resolve(merge({}, MANY_SHARDS | {"algorithm": "scaffold"})), Silent())
    model = 4 * (64 * 12 + 12 + 12 * 10 + 10)
    clients = MANY_SHARDS["cohort"] / len(cost.steps)  # of a shard
    assert plain.kept_bytes == 0
    assert cost.kept_bytes == pytest.approx(clients * (model + 8), abs=1)  # a control variate, and whose
    assert cost.message_bytes - plain.message_bytes == pytest.approx(cost.kept_bytes, rel=0.05)
    assert cost.up_bytes >= cost.kept_bytes + 2 * model  # and the sums of the updates and of the control variates


def test_a_round_for_gpus_has_their_shards() -> None:
    few = resolve(merge({}, MANY_SHARDS | {"engine": "cohort", "cohort": 24}))
    assert len(measure_round(few, Silent(), for_gpus=True).steps) == 6  # of four clients at least
    own = resolve(merge({}, MANY_SHARDS | {"engine": {"name": "ray", "shards": 1}}))
    assert len(measure_round(own, Silent(), for_gpus=True).steps) == 1


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (["--workers", "9", "--gpus", "8"], "a worker has one to itself"),
        (["--json", "no/such/folder.json"], "is in no folder that is there"),
    ],
)
def test_bad_options_are_told_before_anything_is_measured(options: list[str], sentence: str) -> None:
    said = CliRunner().invoke(main, ["estimate", "federation=digits", *options])
    assert said.exit_code == 2
    assert sentence in " ".join(said.output.split())
    assert "Measured" not in said.output


def test_gpus_that_are_not_here(tmp_path: Path) -> None:
    config = tmp_path / "config.yaml"
    config.write_text(to_yaml(MANY_SHARDS | {"engine": {"lanes": 2, "device": "cpu"}}))
    said = CliRunner().invoke(main, ["estimate", str(config), "--workers", "4", "--gpus", "4"])
    assert said.exit_code == 0, said.output
    assert "--speed says how many times as fast a GPU is" in " ".join(said.output.split())


def test_the_command(tmp_path: Path) -> None:
    config, numbers = tmp_path / "config.yaml", tmp_path / "numbers.json"
    config.write_text(to_yaml(MANY_SHARDS))
    said = CliRunner().invoke(main, ["estimate", str(config), "--workers", "6", "--json", str(numbers)])
    assert said.exit_code == 0, said.output
    assert "With 6 workers a round waits for the" in said.output
    assert [one["workers"] for one in json.loads(numbers.read_text())["rounds"]] == [1, 2, 4, 6]
