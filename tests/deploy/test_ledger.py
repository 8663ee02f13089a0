"""The ledger of spent privacy: it only grows, survives everything, and runs over the same members add up."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("cryptography")
pytest.importorskip("dp_accounting")
from hypothesis import given, settings
from hypothesis import strategies as st
from small_deployments import bits_of, deploy_folder, play, simulated_bits, small_config

from fedarena.core.errors import BadInputError, DamagedFileError
from fedarena.deploy.ledger import (
    HEAD_FILE,
    LEDGER_FILE,
    SECRET_FILE,
    Account,
    PrivacyLedger,
    begin_ledger,
    spent_lines,
)
from fedarena.deploy.serving import open_server
from fedarena.privacy.accounting import Sampled, composed_epsilon
from fedarena.privacy.local import LocalLaplaceMechanism
from fedarena.privacy.mechanism import Mechanism
from fedarena.runs.observer import Observer

STEPS = Sampled(100, 10, 1.0)


class Private(Mechanism):
    """Steps with Gaussian noise."""

    delta, budget = 1e-3, None

    def __init__(self, sampled: Sampled | None = STEPS, budget: float | None = None):
        self._sampled, self.budget = sampled, budget

    @property
    def sampled(self) -> Sampled | None:
        return self._sampled

    def epsilon(self, steps: int) -> float:
        return 0.5 * steps if self._sampled is None else self._sampled.epsilon(steps, self.delta)


@pytest.fixture
def ledger_folder(tmp_path: Path) -> Path:
    return begun(tmp_path)


def begun(folder: Path) -> Path:
    """A folder in which nothing was spent yet."""
    (folder / HEAD_FILE).parent.mkdir(parents=True)
    begin_ledger(folder)
    return folder


def test_runs_of_the_same_members_add_up(ledger_folder: Path) -> None:
    ledger = PrivacyLedger(ledger_folder)
    first = Account(ledger, "a", "first", Private())
    for step in range(1, 6):
        first.spend(step)
    assert first.epsilon(5) == STEPS.epsilon(5, 1e-3)
    second = Account(PrivacyLedger(ledger_folder), "b", "second", Private())
    assert second.epsilon(0) == pytest.approx(STEPS.epsilon(5, 1e-3))
    assert second.epsilon(7) == pytest.approx(STEPS.epsilon(12, 1e-3))
    local = Account(PrivacyLedger(ledger_folder), "c", "local", Private(None))
    assert local.epsilon(2) == pytest.approx(STEPS.epsilon(5, 1e-3) + 1.0)


def test_composition_is_that_of_one_run_and_less_than_the_sum() -> None:
    other = Sampled(100, 20, 2.0)
    both = composed_epsilon([(STEPS, 10), (other, 10)], 1e-3)
    assert max(STEPS.epsilon(10, 1e-3), other.epsilon(10, 1e-3)) < both
    assert both < STEPS.epsilon(10, 5e-4) + other.epsilon(10, 5e-4)
    assert composed_epsilon([(STEPS, 4), (STEPS, 6)], 1e-3) == pytest.approx(STEPS.epsilon(10, 1e-3))


def test_a_step_that_is_made_again_costs_once(ledger_folder: Path) -> None:
    account = Account(PrivacyLedger(ledger_folder), "a", "run", Private())
    for step in (1, 2, 2, 1, 3):
        account.spend(step)
    again = PrivacyLedger(ledger_folder)
    assert again.steps("a") == 3
    assert len((ledger_folder / LEDGER_FILE).read_text().splitlines()) == 4


def test_uploads_of_rounds_that_fail_are_spent(ledger_folder: Path) -> None:
    """Noise of devices' own comes to every upload, and the server has it whether or not it makes a step of it."""
    mechanism = LocalLaplaceMechanism(job_epsilon=1.0)
    mechanism.participation.prepare(np.arange(3))
    account = Account(PrivacyLedger(ledger_folder), "a", "run", mechanism)
    assert spent_lines(ledger_folder) == []
    for _ in range(4):
        mechanism.participation.observe(np.array([0, 2]), 0)  # a round without a step
        account.spend(0)
    assert spent_lines(ledger_folder) == ["Privacy spent by run: ε = 4 for δ = 0 after 0 steps"]
    later = Account(PrivacyLedger(ledger_folder), "b", "later", Private(None))
    assert later.epsilon(2) == 4.0 + 1.0


@given(st.integers(0, 2000))
@settings(max_examples=40)
def test_whatever_is_changed_is_noticed(place: int) -> None:
    import tempfile

    with tempfile.TemporaryDirectory() as name:
        folder = begun(Path(name))
        account = Account(PrivacyLedger(folder), "a", "run", Private())
        for step in range(1, 4):
            account.spend(step)
        data = bytearray((folder / LEDGER_FILE).read_bytes())
        data[place % len(data)] ^= 1
        (folder / LEDGER_FILE).write_bytes(data)
        with pytest.raises(DamagedFileError, match="nobody knows any more what privacy was spent"):
            PrivacyLedger(folder)


def test_lines_cannot_be_taken_out_or_put_in_another_order(ledger_folder: Path) -> None:
    account = Account(PrivacyLedger(ledger_folder), "a", "run", Private())
    for step in range(1, 4):
        account.spend(step)
    path = ledger_folder / LEDGER_FILE
    lines = path.read_text().splitlines(keepends=True)
    for wrong in (lines[:1] + lines[2:], [lines[0], lines[2], lines[1], lines[3]], lines[1:]):
        path.write_text("".join(wrong))
        with pytest.raises(DamagedFileError, match=r"ledger.jsonl is damaged in line"):
            PrivacyLedger(ledger_folder)


@pytest.mark.parametrize("left", range(4))
def test_a_ledger_that_was_cut_off_is_noticed(ledger_folder: Path, left: int) -> None:
    account = Account(PrivacyLedger(ledger_folder), "a", "run", Private())
    for step in range(1, 4):
        account.spend(step)
    path = ledger_folder / LEDGER_FILE
    path.write_text("".join(path.read_text().splitlines(keepends=True)[:left]))
    with pytest.raises(DamagedFileError, match=rf"at its end: it has {left} lines?, and 4 were written: nobody knows"):
        PrivacyLedger(ledger_folder)
    path.unlink()
    with pytest.raises(DamagedFileError, match="at its end: it has 0 lines, and 4 were written"):
        spent_lines(ledger_folder)


def test_another_ledger_of_the_same_length_is_noticed(ledger_folder: Path, tmp_path: Path) -> None:
    others = begun(tmp_path / "others")
    for folder, run in ((ledger_folder, "a"), (others, "b")):
        Account(PrivacyLedger(folder), run, "run", Private()).spend(1)
    shutil.copy(others / LEDGER_FILE, ledger_folder)
    with pytest.raises(DamagedFileError, match="in line 2, which is not the one that was written"):
        PrivacyLedger(ledger_folder)


def test_how_long_a_ledger_is_cannot_get_lost_either(ledger_folder: Path) -> None:
    Account(PrivacyLedger(ledger_folder), "a", "run", Private()).spend(1)
    head = ledger_folder / HEAD_FILE
    head.write_bytes(head.read_bytes().replace(b'"lines": 2', b'"lines": 1'))
    with pytest.raises(DamagedFileError, match=r"ledger.json is damaged: it is not what was written"):
        PrivacyLedger(ledger_folder)
    for path in (head, ledger_folder / LEDGER_FILE):
        path.unlink()
        with pytest.raises(DamagedFileError, match=r"ledger.json is missing, which says how much privacy was spent"):
            PrivacyLedger(ledger_folder)


def test_a_line_that_a_killed_server_had_just_written_counts(ledger_folder: Path) -> None:
    account = Account(PrivacyLedger(ledger_folder), "a", "run", Private())
    account.spend(1)
    head = (ledger_folder / HEAD_FILE).read_bytes()
    account.spend(2)
    (ledger_folder / HEAD_FILE).write_bytes(head)
    ledger = PrivacyLedger(ledger_folder)
    assert ledger.steps("a") == 2
    ledger.spend("a", 3, 1.0)
    assert PrivacyLedger(ledger_folder).steps("a") == 3


def test_half_a_line_was_told_to_nobody(ledger_folder: Path) -> None:
    """A server that was killed while it wrote had not released the step."""
    account = Account(PrivacyLedger(ledger_folder), "a", "run", Private())
    account.spend(1)
    path = ledger_folder / LEDGER_FILE
    whole = path.read_bytes()
    path.write_bytes(whole + b'{"run": "a", "steps": 2, "eps')
    ledger = PrivacyLedger(ledger_folder)
    assert ledger.steps("a") == 1
    ledger.spend("a", 2, 1.0)
    assert PrivacyLedger(ledger_folder).steps("a") == 2
    assert path.read_bytes().startswith(whole)


def test_what_is_spent_is_on_disk_before_anybody_hears_of_it(ledger_folder: Path, monkeypatch: Any) -> None:
    account = Account(PrivacyLedger(ledger_folder), "a", "run", Private())
    synced = []
    original = os.fsync

    def fsync(descriptor: int) -> None:
        original(descriptor)
        synced.append((ledger_folder / LEDGER_FILE).read_bytes())

    monkeypatch.setattr(os, "fsync", fsync)
    account.spend(1)
    assert json.loads(synced[-1].splitlines()[-1])["steps"] == 1


def test_noise_has_a_secret_that_stays(ledger_folder: Path) -> None:
    seeds = {drawn(PrivacyLedger(ledger_folder), run) for run in ("a", "b", "a")}
    assert len(seeds) == 2
    assert (ledger_folder / SECRET_FILE).stat().st_mode & 0o777 == 0o600
    other = begun(ledger_folder / "other")
    assert drawn(PrivacyLedger(other), "a") not in seeds
    (ledger_folder / SECRET_FILE).write_bytes(b"short")
    with pytest.raises(DamagedFileError, match=r"noise.secret is damaged: it has 5 bytes"):
        PrivacyLedger(ledger_folder).noise("a")


def drawn(ledger: PrivacyLedger, run: str) -> int:
    return int(ledger.noise(run).stream("noise").words(1)[0])


def test_what_was_spent_can_be_shown(ledger_folder: Path) -> None:
    assert spent_lines(ledger_folder) == []
    assert not (ledger_folder / SECRET_FILE).exists()
    account = Account(PrivacyLedger(ledger_folder), "a", "first", Private())
    for step in (1, 2):
        account.spend(step)
    (line,) = spent_lines(ledger_folder)
    assert line == f"Privacy spent by first: ε = {STEPS.epsilon(2, 1e-3):.4g} for δ = 0.001 after 2 steps"


def test_neighbours_of_different_kinds_cannot_be_added_up(ledger_folder: Path) -> None:
    account = Account(PrivacyLedger(ledger_folder), "a", "run", Private())
    account.spend(1)
    with pytest.raises(BadInputError, match=r"which cannot be added up; choose selector=poisson"):
        Account(PrivacyLedger(ledger_folder), "b", "run", Private(Sampled(100, 10, 1.0, "uniform")))


# In runs

DP: dict[str, Any] = {
    "privacy": {"name": "gaussian", "noise_multiplier": 1.0},
    "selector": "shuffled",
    "cohort": 2,
    "rounds": 2,
}


def private_play(folder: Any, invitations: Any, config: Any, monkeypatch: Any, secret: bool = False) -> Any:
    import small_deployments

    monkeypatch.setattr(small_deployments, "open_server", lambda *args: open_server(*args, secret_noise=secret))
    return play(folder, invitations, config)[0]


@pytest.mark.filterwarnings("ignore:Privacy")
def test_central_noise_is_that_of_the_simulation_but_for_the_secret(tmp_path: Path, monkeypatch: Any) -> None:
    config = small_config(**DP)
    found = [
        private_play(*deploy_folder(tmp_path / f"{secret}"), config, monkeypatch, secret) for secret in (False, True)
    ]
    bits = [bits_of(server.run.snapshot.state) for server in found]
    assert bits[0] == simulated_bits(config)
    assert bits[1] != bits[0]
    assert PrivacyLedger(found[0].folder.path).describe()[0]["steps"] == 2


@pytest.mark.filterwarnings("ignore:Privacy")
def test_deleting_a_run_gives_nothing_back(tmp_path: Path, monkeypatch: Any) -> None:
    folder, invitations = deploy_folder(tmp_path / "deploy")
    first = private_play(folder, invitations, small_config(**DP), monkeypatch)
    spent = first.run.result().rounds["epsilon"].to_pylist()[-1]
    shutil.rmtree(folder.runs)
    folder.runs.mkdir()
    second = private_play(folder, invitations, small_config(**DP), monkeypatch)
    column = second.run.result().rounds["epsilon"].to_pylist()
    assert column[0] == pytest.approx(spent)
    assert column[-1] > spent
    with pytest.raises(BadInputError, match=r"have spent in all runs to ε = .*, more than privacy.epsilon=1; their"):
        open_server(folder, small_config(**DP, **{"privacy.epsilon": 1.0, "privacy.noise_multiplier": 9.0}), Observer())


@pytest.mark.filterwarnings("ignore:Privacy")
def test_a_folder_that_forgot_steps_is_another_run(tmp_path: Path, monkeypatch: Any) -> None:
    """Else the same noise would come to other updates."""
    folder, _ = deploy_folder(tmp_path / "deploy")
    config = small_config(**DP)
    with small_server(folder, config) as server:
        run, identity = server.run.folder, record_of(folder)
        server.run.account.spend(3)  # as if it had come so far
        server.run._recorder.release()
    with small_server(folder, config) as server:
        assert record_of(folder, run) != identity
        assert PrivacyLedger(folder.path).steps(identity) == 3
        assert server.run.account.epsilon(1) > server.run.experiment.mechanism.epsilon(3)
        server.run._recorder.release()


@pytest.mark.filterwarnings("ignore:Privacy")
@pytest.mark.parametrize("name", ["current.json", "run.json"])
def test_a_changed_record_of_a_run_is_noticed_by_name(name: str, tmp_path: Path) -> None:
    """Its account, say: else what a run has spent could be put down to another one."""
    folder, _ = deploy_folder(tmp_path / "deploy")
    config = small_config(**DP)
    with small_server(folder, config) as server:
        path = folder.path / name if name == "current.json" else server.run.folder / "deploy" / name
        server.run._recorder.release()
    path.write_text(path.read_text().replace(record_of(folder), "0" * 32))
    with pytest.raises(DamagedFileError, match=f"{name} is damaged: it is not what was written"):
        open_server(folder, config, Observer())


def small_server(folder: Any, config: Any) -> Any:
    from small_deployments import serving

    return serving(folder, config)


def record_of(folder: Any, run: Path | None = None) -> str:
    path = folder.path / "current.json" if run is None else run / "deploy" / "run.json"
    return json.loads(path.read_text())["account"]
