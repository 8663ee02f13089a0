"""Rounds that a policy changes: participants, deadlines, and local steps by how fast phones are."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from small_runs import StopAfter, content

import fedarena
from fedarena.algorithms import LocalHead
from fedarena.core.errors import BadInputError
from fedarena.runs.config import resolve
from fedarena.runs.merging import merge
from fedarena.runs.run import Run, resume_run
from fedarena.simulate.phones import Speeds
from fedarena.simulate.policies import BySpeed, RoundSettings
from fedarena.simulate.policies.base import PolicyFacts
from fedarena.train import Algorithm, LocalTraining

SMALL: dict[str, Any] = {
    "federation": {"name": "digits", "partition": {"name": "iid", "clients": 12}},
    "model": "logistic_regression",
    "fleet": {"name": "uniform", "seconds_per_sample": 0.1},
    "protocol": {"name": "deadline", "seconds": 500.0},
    "rounds": 3,
    "cohort": 3,
    "engine": "reference",
}


class Growing(BySpeed):
    """More participants from round to round, who have less and less time."""

    def __init__(self, *, first: int = 2, seconds_of_first: float = 1000.0):
        super().__init__(usual=4)
        self.first, self.seconds_of_first = first, seconds_of_first

    def round_settings(self, server: Any, round: int) -> RoundSettings:
        return RoundSettings(cohort=self.first * round, deadline_seconds=self.seconds_of_first / round)


def run(folder: Path, **settings: Any) -> Any:
    return fedarena.run(merge(merge({}, SMALL), settings), name="run", runs_folder=folder, progress=False)


def speeds(clients: Any, numbers: Any) -> Speeds:
    each = np.array([0.1, 0.2, 0.4, 0.8])[clients]
    return Speeds(np.full(len(clients), 1.0), each, np.full(len(clients), 2.5), np.full(len(clients), 0.5))


def by_speed(samples: int = 1000, algorithm: Algorithm | None = None, **options: Any) -> BySpeed:
    policy, algorithm = BySpeed(**options), algorithm or Algorithm()
    local = LocalTraining(batch_size=5)
    policy.prepare(PolicyFacts(0, np.arange(4), algorithm, local, {}, lambda clients: np.full(len(clients), samples)))
    policy.speeds = speeds
    return policy


def test_everybody_is_done_at_about_the_same_time() -> None:
    clients = np.arange(4)
    steps = by_speed(usual=10, most=40, seconds=44.0).decide({}, clients, clients, [{}] * 4)[:, 0]
    assert steps.tolist() == [40, 40, 20, 10]  # (44 - 4) / (5 samples a step): 80, 40, 20, 10
    by_half = by_speed(usual=10, most=40, share=0.5).decide({}, clients, clients, [{}] * 4)[:, 0]
    assert by_half.tolist() == [40, 20, 10, 5]  # as long as the third takes for 10 steps
    hasty = by_speed(least=2, usual=3, seconds=4.5).decide({}, clients, clients, [{}] * 4)[:, 0]
    assert hasty.tolist() == [2, 2, 2, 2]
    # Of six samples, every second step is on a single one.
    small = by_speed(6, usual=10, most=1000, seconds=44.0).decide({}, clients, clients, [{}] * 4)[:, 0]
    assert small.tolist() == [132, 66, 32, 16]  # there is time for 400, 200, 100 and 50 samples


def test_steps_that_a_method_takes_besides_have_their_time() -> None:
    """Of so many steps as there is time for, six train the head."""
    clients, method = np.arange(4), LocalHead(head_steps=6)
    steps = by_speed(algorithm=method, usual=10, most=40, seconds=44.0).decide({}, clients, clients, [{}] * 4)[:, 0]
    assert steps.tolist() == [40, 40 - 6, 20 - 6, 10 - 6]
    by_half = by_speed(algorithm=method, usual=10, most=40, share=0.5).decide({}, clients, clients, [{}] * 4)[:, 0]
    assert by_half.tolist() == [40, 32 - 6, 16 - 6, 8 - 6]


@pytest.mark.filterwarnings("ignore:On average")
def test_jobs_have_the_steps_that_were_decided(tmp_path: Path) -> None:
    policy = {"name": "by_speed", "usual": 4, "most": 9}
    found = run(tmp_path, fleet="fedscale", protocol="synchronous", policy=policy)
    jobs = found.jobs
    decided, samples = (np.array(jobs[name].to_pylist()) for name in ("local.steps", "samples"))
    assert len(set(decided.tolist())) > 1
    assert decided.min() >= 1
    assert decided.max() <= 9
    assert (samples > 0).all()


def test_rounds_have_the_participants_and_the_deadline_that_were_decided(tmp_path: Path) -> None:
    slow = {"name": "uniform", "seconds_per_sample": 600 / (4 * 16)}  # steps and samples of each
    found = run(tmp_path, policy=Growing, fleet=slow)
    assert found.rounds["invited"].to_pylist()[1:] == [2, 4, 6]
    ends = np.array(found.rounds["end_seconds"].to_pylist())
    assert 600 <= ends[1] < 1000
    np.testing.assert_allclose(np.diff(ends)[1:], [500.0, 1000.0 / 3])
    assert found.rounds["clients"].to_pylist()[1:] == [2, 0, 0]


def test_such_a_run_goes_on_as_if_it_had_not_stopped(tmp_path: Path) -> None:
    whole = resolve({**merge(merge({}, SMALL), {"policy": Growing}), "name": "whole"})
    Run.create(whole, tmp_path / "a", StopAfter(9, lambda: None)).advance().close()
    stopped = Run.create(whole, tmp_path / "b", StopAfter(9, lambda: None))
    stopped.advance(1)
    stopped.close()
    resume_run(tmp_path / "b" / "whole", StopAfter(9, lambda: None))
    assert content(tmp_path / "a" / "whole") == content(tmp_path / "b" / "whole")


@pytest.mark.parametrize(
    ("settings", "complaint"),
    [
        ({"policy": Growing, "protocol": "buffered"}, "jobs of protocol=buffered go on when a round ends"),
        (
            {"policy": Growing, "protocol": "synchronous"},
            "a deadline of 1000 seconds, and the protocol Synchronous has",
        ),
        ({"policy": {"name": Growing, "first": 13}}, "wants 13 clients in round 1, and there are from 1 to 12"),
        ({"policy": {"name": Growing, "seconds_of_first": 0}}, "deadline of 0 seconds in round 1; it must be above 0"),
        ({"policy": Growing, "privacy": {"name": "gaussian", "epsilon": 8.0}}, "changes how many take part"),
        ({"policy": {"name": "by_speed", "usual": 50}}, "must rise from 1, not be 1, 50 and 40"),
        ({"policy": {"name": "by_speed", "seconds": 0}}, "policy.seconds must be above 0, not 0"),
        ({"policy": {"name": "by_speed", "share": 1.5}}, "policy.share must be from 0 to 1, not 1.5"),
    ],
)
def test_what_does_not_fit_is_refused(tmp_path: Path, settings: dict[str, Any], complaint: str) -> None:
    with pytest.raises(BadInputError, match=complaint):
        run(tmp_path, **settings)
