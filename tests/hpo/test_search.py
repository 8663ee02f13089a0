"""One optimizer on one problem under a budget: what is paid, who is the incumbent, what survives a kill."""

from __future__ import annotations

import json
import math
import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import ClassVar

import numpy as np
import pyarrow.parquet as pq
import pytest
from analytic_problem import Halves, Uniform, Valley

from fedarena.core.errors import BadInputError, DamagedFileError
from fedarena.hpo import Fidelity, Result, Space
from fedarena.hpo import search as search_module
from fedarena.hpo.optimizers import Proposal
from fedarena.hpo.search import SearchObserver, run_search
from fedarena.hpo.trajectory import NOT_YET, incumbent_places, read_trajectory, write_trajectory


class KilledError(Exception):
    """Stands for the end of a process."""


class Slow(Uniform):
    """Takes a second to ask and half of one to learn, on a clock of its own."""

    ticks: ClassVar[list[float]] = []

    def ask(self) -> Proposal:
        self.ticks.append(1.0)
        return super().ask()

    def tell(self, proposal: Proposal, value: float) -> None:
        self.ticks.append(0.5)


class Listening(Uniform):
    told: ClassVar[list[tuple[float, float]]] = []

    def tell(self, proposal: Proposal, value: float) -> None:
        self.told.append((proposal.configuration["local.lr"], value))


class Killing(Valley):
    """Ends the process when it has answered so often."""

    answers = 10**9

    def _answer(self, configuration, fidelity, seed):
        self.answers -= 1
        if self.answers < 0:
            raise KilledError
        return super()._answer(configuration, fidelity, seed)


def test_longer_training_comes_first_and_the_incumbent_is_never_given_up_for_shorter() -> None:
    # The published code reports 2.0 here.
    assert incumbent_places([81, 3, 9], [0.50, 0.45, 2.0]).tolist() == [0, 0, 0]
    assert incumbent_places([3, 9, 27, 9], [0.4, 0.9, 0.7, 0.1]).tolist() == [0, 1, 2, 2]
    assert incumbent_places([9, 9, 9], [0.9, 0.9, 0.8]).tolist() == [0, 0, 2]  # a tie changes nothing
    assert incumbent_places([27, 9, 81], [math.inf, 0.3, math.nan]).tolist() == [NOT_YET, 1, 1]
    assert incumbent_places([], []).tolist() == []


def test_every_course_pays_from_its_start_and_the_budget_is_never_exceeded() -> None:
    problem = Valley()
    found = run_search(problem, Uniform, 500.0, seed=3)
    costs = [27 * one.configuration["local.steps"] for one in found]
    assert [one.cost_s for one in found] == costs
    assert found.simulated_s.tolist() == np.cumsum(costs).tolist()
    assert found.is_complete
    assert found.simulated_s[-1] <= 500
    next_configuration, _ = problem.asked[-1]  # was asked for, and cost too much
    assert found.simulated_s[-1] + 27 * next_configuration["local.steps"] > 500
    assert len(problem.asked) == len(found) + 1


def test_a_course_that_goes_on_pays_the_difference() -> None:
    found = run_search(Valley(), Halves, 800.0, seed=1)
    continued = [one for one in found if one.rounds == 27]
    assert continued
    for one in continued:
        begun = next(other for other in found if other.course == one.course)
        assert (begun.rounds, begun.configuration) == (9, one.configuration)
        assert begun.cost_s == 9 * one.configuration["local.steps"]
        assert (one.cost_s, one.course_s) == (18 * one.configuration["local.steps"], begun.cost_s + one.cost_s)
    assert found.simulated_s[-1] == sum(one.cost_s for one in found)


def test_real_seconds_of_the_optimizer_are_kept_apart(monkeypatch) -> None:
    monkeypatch.setattr(search_module.time, "perf_counter", lambda: sum(Slow.ticks))
    found = run_search(Valley(), Slow, 400.0)
    assert [one.overhead_s for one in found] == [1.5] * len(found)
    assert found.overhead_s == 1.5 * len(found)
    assert [one.simulated_s for one in found] == [one.simulated_s for one in run_search(Valley(), Uniform, 400.0)]


def test_same_seed_same_search_and_another_seed_another_one() -> None:
    one, again, other = (run_search(Valley(), Halves, 800.0, seed=seed) for seed in (0, 0, 1))
    assert [(e.configuration, e.value) for e in one] == [(e.configuration, e.value) for e in again]
    assert [e.configuration for e in one] != [e.configuration for e in other]


def test_what_diverges_is_told_as_infinite_and_is_never_the_best() -> None:
    found = run_search(Valley(), Listening, 3_000.0, seed=0)
    diverged = [value for lr, value in Listening.told if lr > 0.9]
    assert diverged
    assert all(value == math.inf for value in diverged)
    assert found.best is not None
    assert math.isfinite(found.best.value)


def test_the_best_at_a_time_is_that_of_the_last_evaluation_before_it() -> None:
    found = run_search(Valley(), Halves, 800.0, seed=1)
    times = found.simulated_s
    assert found.best_at([0.0, times[0] - 1e-6]).tolist() == [math.inf, math.inf]
    at_ends = found.best_at(times)
    for place, incumbent in enumerate(found.incumbents):
        expected = math.inf if incumbent == NOT_YET else found.values[incumbent]
        assert at_ends[place] == expected
    assert found.best_at([1e9])[0] == found.best.value


def test_a_file_gives_back_everything(tmp_path: Path) -> None:
    written = run_search(Valley(on_grid=False), Halves, 500.0, file=tmp_path / "deep" / "one.parquet")
    read = read_trajectory(tmp_path / "deep" / "one.parquet")
    assert list(read) == list(written)
    assert read.searched == written.searched
    assert (read.budget_s, read.is_complete) == (500.0, True)
    assert read.incumbents.tolist() == written.incumbents.tolist()
    columns = pq.read_table(tmp_path / "deep" / "one.parquet").column_names
    assert {"config:local.lr", "metric:test_accuracy", "incumbent", "simulated_s", "overhead_s"} <= set(columns)


def test_choices_of_any_kind_survive_a_file(tmp_path: Path) -> None:
    space = {"a.b": [True, False], "c": ["x", None, 3], "d": [1, 2.5], "e": [4, 16]}

    class Odd(Valley):
        def __init__(self):
            super().__init__()
            self.space = Space.parse(space)

        def _answer(self, configuration, fidelity, seed):
            return Result(1.0, {}, 10.0, fidelity)

    written = run_search(Odd(), Uniform, 200.0, file=tmp_path / "odd.parquet")
    read = read_trajectory(tmp_path / "odd.parquet")
    for one, other in zip(written, read, strict=True):
        assert one.configuration == other.configuration
        assert [type(v) for v in one.configuration.values()] == [type(v) for v in other.configuration.values()]


@pytest.mark.parametrize("optimizer", [Uniform, Halves])
def test_a_search_that_was_killed_goes_on_to_the_same_end(tmp_path: Path, monkeypatch, optimizer) -> None:
    monkeypatch.setattr(search_module, "_SECONDS_BETWEEN_WRITES", 0.0)
    monkeypatch.setattr(search_module, "_WRITING_SHARE", math.inf)
    whole = run_search(Valley(), optimizer, 900.0, seed=5)
    file = tmp_path / "killed.parquet"
    problem = Killing()
    for answers in (4, 3, 10**6):
        problem.answers = answers
        asked = len(problem.asked)
        try:
            found = run_search(problem, optimizer, 900.0, seed=5, file=file)
        except KilledError:
            assert not read_trajectory(file).is_complete
        assert len(problem.asked) > asked
    assert [replace(one, overhead_s=0) for one in found] == [replace(one, overhead_s=0) for one in whole]
    assert len(problem.asked) == len(whole) + 1  # nothing was asked for twice
    assert found.is_complete


class Garbling(Uniform):
    """Asks for something that there is not, after a while."""

    def ask(self) -> Proposal:
        proposal = super().ask()
        return proposal if self.courses < 4 else replace(proposal, rounds=999)


def test_what_was_evaluated_before_an_error_is_kept(tmp_path: Path) -> None:
    file = tmp_path / "garbled.parquet"
    with pytest.raises(BadInputError, match="asks for 999 rounds, but only 1 to 27"):
        run_search(Valley(), Garbling, 900.0, file=file)
    kept = read_trajectory(file)
    assert (len(kept), kept.is_complete) == (3, False)


def test_a_complete_search_is_read_and_a_larger_budget_goes_on(tmp_path: Path) -> None:
    file = tmp_path / "kept.parquet"
    short = run_search(Valley(), Halves, 400.0, seed=2, file=file)
    problem = Valley()
    assert list(run_search(problem, Halves, 400.0, seed=2, file=file)) == list(short)
    assert problem.asked == []
    longer = run_search(problem, Halves, 900.0, seed=2, file=file)
    assert list(longer)[: len(short)] == list(short)
    assert len(problem.asked) == len(longer) - len(short) + 1
    # and the smaller budget is still a part of it
    asked = len(problem.asked)
    assert list(run_search(problem, Halves, 400.0, seed=2, file=file)) == list(short)
    assert len(problem.asked) == asked
    assert read_trajectory(file).budget_s == 900


def test_an_unfinished_search_with_a_larger_budget_is_enough_for_a_smaller_one(tmp_path: Path) -> None:
    file = tmp_path / "part.parquet"
    whole = run_search(Valley(), Uniform, 900.0)
    write_trajectory(type(whole)(whole.searched, 900.0, list(whole)[:5], False), file)
    enough = whole.simulated_s[4] - 1
    assert len(run_search(Valley(), Uniform, enough, file=file)) == 4
    assert len(run_search(Valley(), Uniform, 900.0, file=file)) == len(whole)


def test_another_search_in_the_file_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "kept.parquet"
    run_search(Valley(), Uniform, 400.0, seed=2, file=file)
    with pytest.raises(BadInputError, match="holds another search: its seed is 2, not 3"):
        run_search(Valley(), Uniform, 400.0, seed=3, file=file)
    with pytest.raises(BadInputError, match="its problem is 'valley', not 'hill'"):
        run_search(Valley("hill"), Uniform, 400.0, seed=2, file=file)
    with pytest.raises(BadInputError, match="its space is"):
        run_search(Valley(on_grid=False), Uniform, 400.0, seed=2, file=file)
    other = Valley()
    other.fingerprint = "another table"
    with pytest.raises(BadInputError, match=r"holds a search of another valley: its table, .* changed since"):
        run_search(other, Uniform, 400.0, seed=2, file=file)
    assert len(read_trajectory(file)) > 0


def test_an_optimizer_that_goes_another_way_cannot_go_on(tmp_path: Path, monkeypatch) -> None:
    file = tmp_path / "kept.parquet"
    whole = run_search(Valley(), Uniform, 400.0)
    write_trajectory(type(whole)(whole.searched, 400.0, list(whole)[:2], False), file)
    monkeypatch.setattr(Space, "sample", lambda self, generator: dict(next(self.grid())))
    with pytest.raises(
        BadInputError,
        match=r"kept\.parquet: The search cannot go on: proposal 1 was .*; remove the file to search again",
    ):
        run_search(Valley(), Uniform, 400.0, file=file)


def test_damaged_files_are_named(tmp_path: Path) -> None:
    file = tmp_path / "kept.parquet"
    run_search(Valley(), Uniform, 400.0, file=file)
    whole = file.read_bytes()
    for damaged in (whole[: len(whole) // 2], b"", b"PAR1 nonsense PAR1"):
        file.write_bytes(damaged)
        with pytest.raises(DamagedFileError, match=r"kept\.parquet is damaged"):
            run_search(Valley(), Uniform, 400.0, file=file)
    table = read_bytes_as_table(whole, tmp_path)
    pq.write_table(table.drop_columns("value"), file)
    with pytest.raises(DamagedFileError, match=r"kept\.parquet is damaged"):
        read_trajectory(file)
    about = json.loads(table.schema.metadata[b"fedarena.search"])
    pq.write_table(table.replace_schema_metadata({b"fedarena.search": json.dumps(about | {"format": 99})}), file)
    with pytest.raises(DamagedFileError, match="another version"):
        read_trajectory(file)


def test_no_changed_bit_of_a_file_is_another_search(tmp_path: Path) -> None:
    file = tmp_path / "kept.parquet"
    run_search(Valley(), Uniform, 400.0, file=file)
    whole, kept = file.read_bytes(), read_trajectory(file)
    about = json.loads(pq.read_schema(file).metadata[b"fedarena.search"])
    for place in range(0, len(whole), 17):
        changed = bytearray(whole)
        changed[place] ^= 1 << (place % 8)
        file.write_bytes(changed)
        with suppress(DamagedFileError):
            found = read_trajectory(file)
            assert (list(found), found.searched, found.budget_s) == (list(kept), kept.searched, kept.budget_s)
    table = read_bytes_as_table(whole, tmp_path)
    for key, value in (("seed", 7), ("budget_s", 500.0), ("is_complete", False)):
        pq.write_table(table.replace_schema_metadata({b"fedarena.search": json.dumps(about | {key: value})}), file)
        with pytest.raises(DamagedFileError, match="do not match its checksum"):
            read_trajectory(file)
    about.pop("checksum")
    pq.write_table(table.replace_schema_metadata({b"fedarena.search": json.dumps(about)}), file)
    assert list(read_trajectory(file)) == list(kept), "earlier versions wrote none"


def read_bytes_as_table(data: bytes, folder: Path):
    (folder / "whole.parquet").write_bytes(data)
    return pq.read_table(folder / "whole.parquet")


@pytest.mark.parametrize("budget", [0, -1, math.nan, math.inf, True, "10"])
def test_budgets_that_are_none(budget) -> None:
    with pytest.raises(BadInputError, match="A budget must be a number of simulated seconds above 0"):
        run_search(Valley(), Uniform, budget)


def test_the_budget_of_the_problem_is_the_default() -> None:
    problem = Valley()
    assert run_search(problem, Uniform).budget_s == 2_000
    problem.budget_s = None
    with pytest.raises(BadInputError, match="valley has no budget of its own"):
        run_search(problem, Uniform)


def test_a_budget_too_small_for_anything_gives_an_empty_search() -> None:
    found = run_search(Valley(), Uniform, 5.0)
    assert (len(found), found.best, found.is_complete) == (0, None, True)
    assert found.best_at([5.0]).tolist() == [math.inf]


def test_problems_whose_costs_make_no_sense_are_refused() -> None:
    class Free(Valley):
        def _answer(self, configuration, fidelity, seed):
            return replace(super()._answer(configuration, fidelity, seed), cost_s=0.0)

    class Cheaper(Valley):
        def _answer(self, configuration, fidelity, seed):
            return replace(super()._answer(configuration, fidelity, seed), cost_s=100.0 / fidelity.rounds)

    class Unknown(Valley):
        def _answer(self, configuration, fidelity, seed):
            return replace(super()._answer(configuration, fidelity, seed), cost_s=math.nan)

    with pytest.raises(BadInputError, match="training costs no time"):
        run_search(Free(), Uniform, 10.0)
    for problem in (Cheaper(), Unknown()):
        with pytest.raises(BadInputError, match="must be a number of seconds and not less than"):
            run_search(problem, Halves, 1_000.0)


def test_the_sample_rate_is_that_of_every_query() -> None:
    problem = Valley()
    run_search(problem, Halves, 300.0, client_sample_rate=0.2)
    assert {fidelity.client_sample_rate for _, fidelity in problem.asked} == {0.2}
    with pytest.raises(BadInputError, match=r"client sample rates 0\.2, 1, not 0\.3"):
        run_search(problem, Halves, 300.0, client_sample_rate=0.3)


def test_the_incumbent_is_told_while_it_goes_on() -> None:
    told = []

    class Watching(SearchObserver):
        def evaluated(self, spent_s, budget_s, incumbent):
            told.append((spent_s, budget_s, incumbent))

    found = run_search(Valley(), Halves, 800.0, observer=Watching())
    assert [spent for spent, _, _ in told] == found.simulated_s.tolist()
    for place, (_, budget, incumbent) in zip(found.incumbents, told, strict=True):
        assert budget == 800
        assert incumbent == (None if place == NOT_YET else found[int(place)])


def test_optimizers_are_named_with_their_options() -> None:
    found = run_search(Valley(), {"name": "analytic_problem:Halves", "width": 2}, 300.0)
    assert found.searched.optimizer == {"name": "analytic_problem:Halves", "width": 2}
    assert run_search(Valley(), "analytic_problem:Halves", 300.0).searched.optimizer["width"] == 3
    with pytest.raises(BadInputError, match="no option 'widht'; did you mean 'width'"):
        run_search(Valley(), {"name": "analytic_problem:Halves", "widht": 2}, 300.0)
    with pytest.raises(BadInputError, match="There is no optimizer called 'randon'"):
        run_search(Valley(), "randon", 300.0)


def test_a_fidelity_is_asked_as_proposed() -> None:
    problem = Valley()
    found = run_search(problem, Halves, 300.0)
    asked = [(configuration, fidelity) for configuration, fidelity in problem.asked][: len(found)]
    assert asked == [(one.configuration, Fidelity(one.rounds, 1.0)) for one in found]


class Slowly(Valley):
    """Takes its time, as training does."""

    def _answer(self, configuration, fidelity, seed):
        time.sleep(0.02)
        return super()._answer(configuration, fidelity, seed)


@pytest.mark.slow
def test_a_process_that_is_killed_leaves_a_search_that_goes_on(tmp_path: Path) -> None:
    file = tmp_path / "killed.parquet"
    script = (
        "from test_search import *\n"
        "search_module._SECONDS_BETWEEN_WRITES = 0.01\n"
        f"run_search(Slowly(), 'dehb', 20_000.0, file={str(file)!r})\n"
    )
    path = os.pathsep.join([str(Path(__file__).parent), *sys.path])
    process = subprocess.Popen([sys.executable, "-c", script], env={**os.environ, "PYTHONPATH": path})
    try:
        while not file.exists() or len(read_trajectory(file)) < 5:
            assert process.poll() is None
            time.sleep(0.01)
    finally:
        process.kill()
        process.wait()
    assert process.returncode == -signal.SIGKILL
    begun = read_trajectory(file)
    assert not begun.is_complete
    problem = Valley()
    found = run_search(problem, "dehb", 3_000.0, file=file)
    whole = run_search(Valley(), "dehb", 3_000.0)
    assert [replace(one, overhead_s=0) for one in found] == [replace(one, overhead_s=0) for one in whole]
    assert len(problem.asked) == len(whole) + 1 - len(begun.within(3_000.0))
