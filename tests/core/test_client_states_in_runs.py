"""Runs of methods with memory: it is for those who took part alone, written once, and survives interruptions."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from small_candidates import select_uniform
from small_runs import StopAfter, client_states, config, content, interrupt

from fedarena.core.errors import BadInputError
from fedarena.data import ColumnSpec, FederationWriter, TaskSpec
from fedarena.runs.config import RunConfig, resolve
from fedarena.runs.merging import merge
from fedarena.runs.observer import Observer
from fedarena.runs.run import resume_run, start_run
from fedarena.simulate import RoundOutcome
from fedarena.storage import checkpoint, recorder

HEADER_BYTES = 28  # of a record in the log
POPULATION = 100_000
COHORT = 100
ROUNDS = 5
FEATURES, CLASSES = 4, 2
MEMORY_BYTES = 64 + 4 * CLASSES  # weights, which are filled up to 64 bytes, and biases


@pytest.fixture(scope="module")
def crowd(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A hundred thousand clients with two samples each."""
    path = tmp_path_factory.mktemp("crowd") / "store"
    generator = np.random.default_rng(0)
    columns = {"x": ColumnSpec(dtype="float32", shape=(FEATURES,)), "y": ColumnSpec(dtype="int64")}
    with FederationWriter(
        path, name="crowd", task=TaskSpec(kind="classification", classes=CLASSES), columns=columns
    ) as writer:
        writer.add_clients(
            [f"client {n}" for n in range(POPULATION)],
            counts=np.tile([1, 0, 1], (POPULATION, 1)),
            columns={
                "x": generator.normal(size=(2 * POPULATION, FEATURES)).astype(np.float32),
                "y": generator.integers(CLASSES, size=2 * POPULATION),
            },
        )
    return path


def scaffold(crowd: Path, **changes: Any) -> RunConfig:
    chosen = {
        "name": "run",
        "federation": {"name": "store", "path": str(crowd)},
        "model": "logistic_regression",
        "algorithm": "scaffold",
        "cohort": COHORT,
        "rounds": ROUNDS,
        "evaluation.max_clients": 10,
        "evaluation.every": 1000,
    }
    return resolve(merge({}, chosen | changes))


class Watching(Observer):
    """Looks at the memories after every round."""

    def __init__(self) -> None:
        self.most_bytes_in_ram = 0
        self.clients = 0

    def finished_round(self, outcome: RoundOutcome) -> None:
        self.most_bytes_in_ram = max(self.most_bytes_in_ram, outcome.snapshot.client_states.bytes_in_ram)
        self.clients = len(outcome.snapshot.client_states)


def test_memory_is_for_those_who_took_part(tmp_path: Path, crowd: Path) -> None:
    watching = Watching()
    start_run(scaffold(crowd), tmp_path, watching)
    cohorts = [select_uniform(np.arange(POPULATION), COHORT, 0, round + 1) for round in range(ROUNDS)]
    took_part = set(np.concatenate(cohorts).tolist())
    assert len(took_part) > 490
    assert set(client_states(tmp_path / "run")) == took_part
    assert watching.clients == len(took_part)
    assert watching.most_bytes_in_ram == len(took_part) * MEMORY_BYTES
    size = (tmp_path / "run" / "checkpoint" / "client_states-0.log").stat().st_size
    assert COHORT * ROUNDS * MEMORY_BYTES < size < COHORT * ROUNDS * (MEMORY_BYTES + 32)


def test_a_small_limit_gives_the_same_bits(tmp_path: Path, crowd: Path) -> None:
    """Among twenty clients many come again, and what they remember has to be read back."""
    for name, make, memory_bytes in (("crowd", scaffold, MEMORY_BYTES), ("digits", digits, 2600)):
        ample, tight = Watching(), Watching()
        start_run(make(crowd), tmp_path / name / "ample", ample)
        start_run(make(crowd, client_states_ram_bytes=3 * memory_bytes), tmp_path / name / "tight", tight)
        assert tight.most_bytes_in_ram <= 3 * memory_bytes < 5 * memory_bytes < ample.most_bytes_in_ram
        found, expected = (content(tmp_path / name / limit / "run") for limit in ("tight", "ample"))
        for what in ("tensors", "client states", "rounds.parquet", "clients.parquet"):
            assert found[what] == expected[what], what


def digits(_: Path, **changes: Any) -> RunConfig:
    return config(**{"name": "run", "algorithm": "scaffold", "cohort": 15, "rounds": 8} | changes)


def test_memories_survive_resumption(tmp_path: Path, crowd: Path) -> None:
    start_run(scaffold(crowd), tmp_path / "uninterrupted")
    with pytest.raises(KeyboardInterrupt):
        start_run(scaffold(crowd), tmp_path, StopAfter(3, interrupt))
    assert len(client_states(tmp_path / "run")) > 290
    watching = Watching()
    resume_run(tmp_path / "run", watching)
    assert watching.most_bytes_in_ram <= 2 * COHORT * MEMORY_BYTES  # those before come back when they are asked for
    assert content(tmp_path / "run") == content(tmp_path / "uninterrupted" / "run")


def test_an_algorithm_without_memory_writes_no_log(tmp_path: Path) -> None:
    run = start_run(config(rounds=2), tmp_path)
    assert list((run.path / "checkpoint").glob("client_states-*")) == []
    assert checkpoint.read_state(run.path).client_states.bytes == 0


class WrittenBytes(Observer):
    """How many bytes this process wrote in each round."""

    def __init__(self) -> None:
        self.until = [self.now()]

    def finished_round(self, outcome: RoundOutcome) -> None:
        self.until.append(self.now())

    def now(self) -> int:
        lines = Path("/proc/self/io").read_text().splitlines()
        return int(next(line for line in lines if line.startswith("wchar:")).split()[1])


@pytest.mark.skipif(not Path("/proc/self/io").exists(), reason="the system does not count written bytes")
def test_a_commit_costs_as_much_as_the_cohort(tmp_path: Path, crowd: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """After thirty rounds it writes what it wrote after three, though ten times as many clients remember something."""
    monkeypatch.setattr(recorder, "_COMMIT_SHARE", math.inf)  # every round is committed
    written = WrittenBytes()
    start_run(scaffold(crowd, rounds=31), tmp_path, written)
    each = np.diff(written.until)
    cohort_bytes = COHORT * (MEMORY_BYTES + HEADER_BYTES)
    assert len(client_states(tmp_path / "run")) > 28 * COHORT
    assert (each[2:31] > cohort_bytes).all()
    assert each[26:31].max() < each[2:7].max() + 200  # numbers with more digits
    assert each[30] < cohort_bytes + 26_000  # the model, and a batch of each table


@pytest.mark.parametrize("value", [-1, 0.5, "2 GB", None])
def test_a_limit_is_a_number_of_bytes(value: Any) -> None:
    with pytest.raises(BadInputError, match="client_states_ram_bytes"):
        config(client_states_ram_bytes=value)


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/io").exists(), reason="the system does not count written bytes")
def test_small_benchmark(tmp_path: Path, run_benchmark) -> None:
    script, output = Path(__file__).parents[2] / "benchmarks" / "client_states.py", tmp_path / "result.json"
    arguments = ["--few", "20", "--many", "60", "--output", str(output)]
    finished = run_benchmark(script, *arguments)
    assert finished.stderr == ""
    result = json.loads(output.read_text())
    targets, facts = result["targets"], result["facts"]
    assert [row["ok"] for row in targets] == [row["measured"] < row["target"] for row in targets]
    assert finished.returncode == (0 if all(row["ok"] for row in targets) else 1)
    assert targets[0]["ok"]  # bytes depend on no machine
    memory_megabytes = 0.1 + HEADER_BYTES / 1e6
    assert facts["stored_megabytes_at_many"] == pytest.approx((60 + 5 * 10) * memory_megabytes, rel=1e-3)
    assert facts["commit_megabytes_at_few"] > 10 * memory_megabytes
