"""What clients keep, in files that workers write and read: the same bits, and nothing left behind."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from pretend_ray import Call, Fate, PretendRay, pretending
from small_clusters import MANY_SHARDS, Silent, bits, on_cluster, opened, play

from fedarena.core.errors import DamagedFileError
from fedarena.runs.cluster import shared_states, worker
from fedarena.runs.run import Run, resume_run
from fedarena.simulate import ClientStateChanges, ClientStates
from fedarena.simulate.client_states import log as logs
from fedarena.simulate.client_states import packed_states
from fedarena.storage.checkpoint import open_client_states, read_state

SETTINGS: dict[str, Any] = MANY_SHARDS | {"algorithm": "ditto", "rounds": 4}


@pytest.fixture(scope="module")
def expected(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    return bits(play(SETTINGS, tmp_path_factory.mktemp("alone"), "alone"))


@pytest.fixture(autouse=True)
def everything_goes_to_files(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shared_states, "ABOVE_BYTES", 0)


def _parts(run: Path) -> list[Path]:
    return sorted((run / "checkpoint").glob("*.part"))


@pytest.fixture(params=["compacted", "not compacted"])
def log_size(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if request.param == "compacted":
        monkeypatch.setattr(logs, "COMPACT_ABOVE_BYTES", 0)


@pytest.mark.sampled(1)
@pytest.mark.usefixtures("log_size")
def test_same_bits(expected: dict[str, Any], tmp_path: Path) -> None:
    with pretending(PretendRay()) as ray:
        run = play(on_cluster(SETTINGS, 2), tmp_path, "shared")
    assert bits(run) == expected
    assert _parts(run)
    places = [call.message["shard"]["states"]["places"] for call in ray.began if call.method == "train"]
    assert any(known is not None and known["clients"] for known in places)  # and not only what had travelled anyway
    assert not list((run / "checkpoint").glob(".*"))  # nor the sign


def test_a_worker_that_does_not_see_the_folder_gets_states_sent(
    expected: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every other answer is that of a worker elsewhere."""
    answers = iter([True, False] * 1000)
    monkeypatch.setattr(worker, "sees", lambda offer: next(answers))
    with pretending(PretendRay()):
        run = play(on_cluster(SETTINGS, 2), tmp_path, "some elsewhere")
    assert bits(run) == expected
    assert _parts(run)


def test_same_bits_whoever_fails(expected: dict[str, Any], tmp_path: Path) -> None:
    draw = random.Random(1)
    fates: list[Fate] = ["dies", "slow", "lost"]

    def fate(call: Call) -> Fate:
        return draw.choice(fates) if call.method == "train" and draw.random() < 0.2 else None

    with pretending(PretendRay(fate, 1)):
        run = play(on_cluster(SETTINGS, 2), tmp_path, "unlucky")
    assert bits(run) == expected
    state = read_state(run)
    assert state is not None
    assert [path.name for path in _parts(run)] == sorted(
        open_client_states(run, state).part_files
    )  # all others are gone


@pytest.fixture
def interrupted(tmp_path: Path) -> Iterator[Run]:
    with pretending(PretendRay()):
        run = opened(on_cluster(SETTINGS, 2), tmp_path, "parted").advance(2)
        yield run
        run._let_go()


def test_a_killed_driver(interrupted: Run, expected: dict[str, Any]) -> None:
    """What counted when it was killed is there; what workers had written since is removed."""
    before = _parts(interrupted.folder)
    assert interrupted.snapshot is not None
    states, written = interrupted.snapshot.client_states, interrupted.folder / "checkpoint" / "client_states-new.part"
    client = next(iter(states))
    rows = {group: {name: t[None] for name, t in tensors.items()} for group, tensors in states[client].items()}
    logs.write_part(written.parent, written.name, packed_states([client], rows))
    interrupted._recorder.release()
    resumed = resume_run(interrupted.folder, Silent(), elsewhere="cohort").path
    assert bits(resumed) == expected
    assert not written.exists()
    assert set(_parts(resumed)) <= set(before)


def test_a_fork_has_its_own_files(interrupted: Run) -> None:
    fork = interrupted.fork(name="fork")
    assert [path.name for path in _parts(fork.folder)] == [path.name for path in _parts(interrupted.folder)]
    assert fork.snapshot is not None
    assert interrupted.snapshot is not None
    assert sorted(fork.snapshot.client_states) == sorted(interrupted.snapshot.client_states)
    fork.close()


@pytest.mark.sampled(1)
@pytest.mark.parametrize("damage", ["a byte", "the end", "all of it"])
def test_a_damaged_file_is_found(interrupted: Run, damage: str) -> None:
    part = _parts(interrupted.folder)[0]
    content = part.read_bytes()
    if damage == "all of it":
        part.unlink()
    else:
        part.write_bytes(content[:-1] + (bytes([content[-1] ^ 1]) if damage == "a byte" else b""))
    interrupted._recorder.release()
    with pytest.raises(DamagedFileError, match=part.name):
        resume_run(interrupted.folder, Silent(), elsewhere="cohort")


@pytest.mark.parametrize("last", ["sent", "in a file"])
def test_a_client_that_keeps_something_twice_in_a_round(last: str, tmp_path: Path) -> None:
    """The last one counts, wherever it is."""
    states = ClientStates()
    states.keep_in(logs.ClientStateLog(tmp_path / "client_states-0.log"), 2**20)
    changes = ClientStateChanges(states)
    first, second = ({"own": {"w": torch.full((1, 3), value)}} for value in (1.0, 2.0))
    for number, rows in enumerate((first, second)):
        if (last == "in a file") == (number == 1):
            changes.adopt(logs.write_part(tmp_path, f"{number}.part", packed_states([7], rows)))
        else:
            changes.add([7], rows)
    after = changes.client_states()
    assert after[7]["own"]["w"].tolist() == [2.0] * 3
    assert (after.place_in_part(7) is not None) == (last == "in a file")
    after.settle()
    assert after[7]["own"]["w"].tolist() == [2.0] * 3
