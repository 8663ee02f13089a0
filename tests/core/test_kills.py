"""Kill -9 at random moments and at every step of a commit, with everything that keeps a state: nothing may be lost."""

from __future__ import annotations

import json
import math
import os
import random
import shutil
import time
from pathlib import Path
from typing import Any

import pytest
from killable_runs import WITH_MEMORY, compacted, start_or_resume
from small_runs import SMALL, content

import warm_processes
from fedarena.simulate.client_states import log as state_log
from fedarena.storage import recorder


@pytest.fixture(autouse=True)
def restored_thresholds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(state_log, "COMPACT_ABOVE_BYTES", state_log.COMPACT_ABOVE_BYTES)
    monkeypatch.setattr(recorder, "_COMMIT_SHARE", recorder._COMMIT_SHARE)


# Phones that leave and crash, protocols under which jobs outlive rounds, and a selector that learns. The
# reference engine is at work sooner in a new process.
ON_PHONES = SMALL | {
    "engine": "reference",
    "algorithm": "killable_runs:VisitCounter",
    "fleet": {"name": "uniform", "seconds_per_sample": [0.01, 0.4], "share": 0.6, "slot_seconds": 300},
    "clock.crash_rate": 0.1,
}
BY_PROTOCOL = {
    "synchronous": {"protocol": "synchronous", "selector": "oort"},
    "deadline": {"protocol": {"name": "deadline", "seconds": 20}, "selector": "by_size"},
    "readiness": {"protocol": {"name": "readiness", "share": 0.7}, "clock.leaving": "pause"},
    "buffered": {"protocol": {"name": "buffered", "buffer_size": 3, "max_staleness": 2}, "selector": "leaving_soon"}
    | {"engine": "cohort"},
    "staleness_aware": {"protocol": {"name": "staleness_aware", "seconds": 4, "minimum_invited": 1}},
    "asynchronous": {"protocol": {"name": "asynchronous", "updates_per_round": 3}, "selector": "power_of_choice"},
}


# Everything on the way of an update that keeps something: at the server, with the clients, or in what they hold.
WITH_STATES = {
    "adaptive clipping": {
        "privacy": {"name": "gaussian", "noise_multiplier": 1.0, "clipping": "adaptive", "quantile_noise": 1.0},
        "selector": "poisson",
        "algorithm": "scaffold",
    },
    "audit": {
        "privacy": {"name": "gaussian", "noise_multiplier": 1.0, "audit": 10},
        "selector": "poisson",
        "algorithm": "fedavg",
    },
    "correlated noise": {
        "privacy": {"name": "correlated_gaussian", "noise_multiplier": 1.0},
        "selector": {"name": "cyclic", "groups": 4},
        "algorithm": "fedavg",
    },
    "error feedback": {
        "transforms": [{"name": "top_k", "k": 40}, {"name": "low_rank", "rank": 1}, "sign"],
        "algorithm": "scaffold",
    },
    "sketch": {"transforms": [{"name": "random_k"}, {"name": "count_sketch", "share": 0.5}], "algorithm": "fedavg"},
    "fools_gold": {"aggregator": {"name": "fools_gold", "memory_bytes": 20_000}, "algorithm": "fedavg", "cohort": 6},
    "centered_clipping": {
        "aggregator": {"name": "centered_clipping", "bound": 0.5},
        "algorithm": "fedavg",
        "cohort": 6,
    },
    "download": {
        "download": {"name": "random_k", "share": 0.1},
        "fleet": {"name": "uniform", "seconds_per_sample": [0.01, 0.4]},
        "protocol": {"name": "buffered", "buffer_size": 3},
        "algorithm": "fedavg",
    },
    **{
        policy: {
            "federation": {**SMALL["federation"], "train_fraction": 0.6, "validation_fraction": 0.2},
            "policy": {"name": policy, "search": {"local.lr": [0.01, 0.1], "local.epochs": [1, 3]}},
            "fleet": {"name": "uniform", "seconds_per_sample": [0.01, 0.4]},
            "protocol": {"name": "buffered", "buffer_size": 3},
            "algorithm": "fedavg",
        }
        for policy in ("fedex", "personalized_fedex", "fts")
    },
    "free rider": {
        "attack": {"name": "free_rider", "share": 0.4, "sends": "previous"},
        "transforms": [{"name": "top_k"}],
        "algorithm": "fedavg",
    },
}


@pytest.mark.parametrize(
    ("settings", "kills_wanted"),
    [
        pytest.param(SMALL, 6, id="fedyogi", marks=pytest.mark.slow),
        pytest.param(WITH_MEMORY, 6, id="with memory", marks=pytest.mark.slow),
        *(
            pytest.param(ON_PHONES | settings, 4, id=name, marks=pytest.mark.slow)
            for name, settings in BY_PROTOCOL.items()
        ),
        *(
            pytest.param(SMALL | {"engine": "reference"} | settings, 4, id=name, marks=pytest.mark.slow)
            for name, settings in WITH_STATES.items()
        ),
    ],
)
def test_killed_at_random_moments_and_resumed(tmp_path: Path, settings: dict[str, Any], kills_wanted: int) -> None:
    settings = settings | {"rounds": 5 * kills_wanted}
    start_or_resume(settings, tmp_path / "uninterrupted")
    if "client_states_ram_bytes" in settings:
        assert compacted(tmp_path / "uninterrupted" / "small")
    moments = random.Random(0)
    kills, rounds_at_kill = 0, set()
    while kills < kills_wanted:
        share = (math.inf, 1.0)[kills % 2]  # every round is committed, or a few rounds at a time
        process = warm_processes.CONTEXT.Process(target=start_or_resume, args=(settings, tmp_path / "killed", share))
        process.start()
        goal = committed_round(tmp_path / "killed") + moments.randint(0, 6)
        while process.is_alive() and committed_round(tmp_path / "killed") < goal:
            time.sleep(0.005)
        process.join(moments.uniform(0, 0.05))
        if process.exitcode is None:
            kills += 1
            process.kill()
            process.join()
            rounds_at_kill.add(committed_round(tmp_path / "killed"))
        elif (tmp_path / "killed" / "small" / "summary.json").exists():
            assert process.exitcode == 0
            compare_and_remove(tmp_path)
    start_or_resume(settings, tmp_path / "killed")
    compare_and_remove(tmp_path)
    assert len(rounds_at_kill) > kills_wanted // 3


def committed_round(folder: Path) -> int:
    """-1 before the first commit."""
    state = folder / "small" / "checkpoint" / "state.json"
    return json.loads(state.read_text())["round"] if state.exists() else -1


def compare_and_remove(folder: Path) -> None:
    assert content(folder / "killed" / "small") == content(folder / "uninterrupted" / "small")
    (folder / "killed").rename(folder / f"done-{random.random()}")


@pytest.mark.sampled(1)
@pytest.mark.parametrize("first", range(4))
def test_killed_at_every_step_of_a_commit(first: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A copy of the folder before a step is what a process would leave that is killed there; every fourth is tried."""
    # In the last round the log of memories is compacted.
    settings = WITH_MEMORY | {"rounds": 3, "engine": "reference", "local.steps": 1, "evaluation.max_clients": 3}
    running, left = tmp_path / "uninterrupted", {}
    running.mkdir()

    def after_a_copy(function):
        def wrapped(*args, **kwargs):
            state = tuple((path.relative_to(running), path.read_bytes()) for path in files_of(running))
            if state not in left:  # where a file is only made durable, the next step finds the same
                left[state] = shutil.copytree(running, tmp_path / f"killed-{len(left)}")
            return function(*args, **kwargs)

        return wrapped

    with monkeypatch.context() as patch:
        for owner, name in ((os, "replace"), (os, "fsync"), (Path, "unlink")):
            patch.setattr(owner, name, after_a_copy(getattr(owner, name)))
        patch.setattr(os, "getpid", lambda: 1)  # those that go on are other processes
        start_or_resume(settings, running, commit_share=math.inf)
    assert compacted(running / "small")
    assert len(left) > 20
    for killed in [*left.values()][first::4]:
        start_or_resume(settings, killed)
        assert content(killed / "small") == content(running / "small")
        assert len(list((killed / "small" / "checkpoint").glob("client_states-*"))) == 1
        assert not list(killed.rglob(".*"))  # nothing half-written, of the folder or in it


def files_of(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("*") if path.is_file())
