"""What clients remember: kept exactly, for those who took part alone, in little RAM, and written once."""

from __future__ import annotations

import math
import random
import threading
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fedarena.core.errors import DamagedFileError, RunFailedError
from fedarena.simulate import ClientStateChanges, ClientStateLog, ClientStates, LogEnd
from fedarena.simulate.client_states import log as state_log
from fedarena.simulate.client_states.layout import Layout
from fedarena.train import Groups

FLOATS = 32
BYTES = 4 * FLOATS  # of one memory below
HEADER_BYTES = 28


def rows(*values: float) -> Groups:
    """A memory for every value."""
    return {"control": {"w": torch.tensor(values)[:, None].expand(-1, FLOATS)}}


def value_of(memory: Groups) -> float:
    assert (memory["control"]["w"] == memory["control"]["w"][0]).all()
    return float(memory["control"]["w"][0])


def after(before: ClientStates, values: dict[int, float]) -> ClientStates:
    changes = ClientStateChanges(before)
    changes.add(list(values), rows(*values.values()))
    return changes.client_states()


def values_of(states: ClientStates) -> dict[int, float]:
    return {client: value_of(memory) for client, memory in states.items()}


def on_disk(folder: Path, ram_bytes: int = 2**30) -> tuple[ClientStates, ClientStateLog]:
    states, log = ClientStates(), ClientStateLog(folder / "client_states-0.log")
    states.keep_in(log, ram_bytes)
    return states, log


# --- bytes and back -------------------------------------------------------------------------------------------------


def bits(t: torch.Tensor) -> bytes:
    return t.contiguous().flatten().view(torch.uint8).numpy().tobytes() if t.numel() else b""


def test_states_come_back_with_the_same_bits_names_and_order() -> None:
    strange = torch.tensor([[math.nan, -0.0], [math.inf, 1e-45]])
    strange[0].view(torch.int32)[0] |= 12345  # a NaN with a number in it
    stacked: Groups = {
        "z": {"b/c": strange, "a": torch.tensor([3.5, 4.5], dtype=torch.bfloat16)},
        "empty": {},
        "a": {
            "transposed": torch.arange(24.0, dtype=torch.float64).reshape(2, 3, 4).transpose(1, 2),
            "flags": torch.tensor([[True, False, True], [False, False, True]]),
            "nothing": torch.zeros(2, 0, 5),
            "numbers": torch.tensor([[2**62], [-1]]),
            "half": torch.ones(2, 1, 1, 3, dtype=torch.float16),
            "trained": torch.ones(2, 2, requires_grad=True),
        },
    }
    changes = ClientStateChanges(ClientStates())
    changes.add([7, 3], stacked)
    found = changes.client_states()
    for row, client in enumerate((7, 3)):
        memory = found[client]
        assert list(memory) == ["z", "empty", "a"]
        assert [list(tensors) for tensors in memory.values()] == [list(tensors) for tensors in stacked.values()]
        for group, tensors in memory.items():
            for name, t in tensors.items():
                expected = stacked[group][name][row].detach()
                assert (t.dtype, t.shape, bits(t)) == (expected.dtype, expected.shape, bits(expected))
                assert t.data_ptr() % 64 == 0
                assert not t.requires_grad


def test_a_layout_survives_as_text() -> None:
    layout = Layout.of_rows({"ä/b": {"é": torch.zeros(2, 3, 0), "w": torch.zeros(2)}, "empty": {}})
    assert Layout.from_json(layout.to_json()) == layout


def test_what_is_read_belongs_to_the_reader(tmp_path: Path) -> None:
    for start in (ClientStates(), on_disk(tmp_path)[0]):
        given_rows = rows(1.0)
        given_rows["control"]["w"] = given_rows["control"]["w"].clone()
        changes = ClientStateChanges(start)
        changes.add([0], given_rows)
        given_rows["control"]["w"].fill_(2)
        found = changes.client_states()
        found[0]["control"]["w"].fill_(3)
        assert values_of(found) == {0: 1.0}


# --- a value per round ----------------------------------------------------------------------------------------------


@pytest.fixture(params=["ram", "disk", "disk without ram"])
def empty(request: pytest.FixtureRequest, tmp_path: Path) -> ClientStates:
    if request.param == "ram":
        return ClientStates()
    return on_disk(tmp_path, 0 if request.param == "disk without ram" else 2**30)[0]


def test_a_round_and_the_one_before_can_be_read(empty: ClientStates) -> None:
    first = after(empty, {1: 1.0, 2: 1.0})
    second = after(first, {2: 2.0, 3: 2.0})
    assert values_of(first) == {1: 1.0, 2: 1.0}
    assert values_of(second) == {1: 1.0, 2: 2.0, 3: 2.0}
    assert (3 in first, 3 in second, 4 in second, len(first), len(second)) == (False, True, False, 2, 3)
    assert second.get(4) is None


def test_states_that_are_gone_are_not_mistaken_for_later_ones(empty: ClientStates) -> None:
    first = after(empty, {1: 1.0})
    second = after(first, {1: 2.0})
    second.settle()
    with pytest.raises(RuntimeError, match="states of an earlier round"):
        first.get(1)
    with pytest.raises(RuntimeError, match="states of an earlier round"):
        after(first, {1: 3.0})
    assert values_of(second) == {1: 2.0}


def test_a_round_without_memories_changes_nothing(empty: ClientStates) -> None:
    changes = ClientStateChanges(empty)
    changes.add([1, 2], {})
    assert changes.client_states() is empty


def test_an_abandoned_round_leaves_nothing(empty: ClientStates) -> None:
    first = after(empty, {1: 1.0, 2: 1.0})
    abandoned = after(first, {2: 9.0, 3: 9.0})
    second = after(first, {1: 2.0, 4: 2.0})
    second.settle()
    assert values_of(second) == {1: 2.0, 2: 1.0, 4: 2.0}
    with pytest.raises(RuntimeError, match="states of an earlier round"):
        len(abandoned)


def test_the_last_memory_of_a_client_in_a_round_counts(empty: ClientStates) -> None:
    changes = ClientStateChanges(empty)
    changes.add([1, 2], rows(1.0, 1.0))
    changes.add([2, 1], rows(2.0, 3.0))
    assert values_of(changes.client_states()) == {1: 3.0, 2: 2.0}
    changes.client_states().settle()
    assert values_of(changes.client_states()) == {1: 3.0, 2: 2.0}


def test_states_of_several_forms_live_together(empty: ClientStates, tmp_path: Path) -> None:
    now = empty
    for length in (1, 5, 3, 5):
        changes = ClientStateChanges(now)
        changes.add([length, 9], {"grows": {"w": torch.full((2, length), float(length))}})
        now = changes.client_states()
        now.settle()
    assert {client: memory["grows"]["w"].tolist() for client, memory in now.items()} == {
        client: [float(length)] * length for client, length in ((1, 1), (3, 3), (5, 5), (9, 5))
    }


def test_states_collected_in_ram_move_to_a_log(tmp_path: Path) -> None:
    now = after(after(ClientStates(), {1: 1.0, 2: 1.0}), {2: 2.0, 3: 2.0})
    log = ClientStateLog(tmp_path / "log")
    now.keep_in(log, BYTES)
    now.settle()
    assert now.bytes_in_ram <= BYTES
    assert sorted(log) == [1, 2, 3]
    assert values_of(now) == {1: 1.0, 2: 2.0, 3: 2.0}


# --- limits ---------------------------------------------------------------------------------------------------------


class CountingLog(ClientStateLog):
    """Remembers who was read from disk."""

    def __init__(self, path: Path):
        super().__init__(path)
        self.asked: list[int] = []

    def read(self, client, unsettled=False):
        memory = super().read(client, unsettled)
        if memory is not None:
            self.asked.append(client)
        return memory


def test_those_used_last_stay_in_ram(tmp_path: Path) -> None:
    start, log = ClientStates(), CountingLog(tmp_path / "log")
    start.keep_in(log, 3 * BYTES)
    now = after(start, {1: 1.0, 2: 2.0, 3: 3.0})
    now.settle()
    assert now.bytes_in_ram == 3 * BYTES
    assert [value_of(now[client]) for client in (1, 2, 3, 1)] == [1.0, 2.0, 3.0, 1.0]
    assert log.asked == []
    now = after(now, {4: 4.0})  # 2 was not used for the longest time
    assert now.bytes_in_ram == 3 * BYTES
    assert [value_of(now[client]) for client in (3, 1, 4)] == [3.0, 1.0, 4.0]
    assert log.asked == []
    assert value_of(now[2]) == 2.0
    assert log.asked == [2]
    assert value_of(now[2]) == 2.0
    assert log.asked == [2]
    assert now.bytes_in_ram == 3 * BYTES


def test_a_cohort_that_does_not_fit_is_written_before_its_round_is_over(tmp_path: Path) -> None:
    start, log = on_disk(tmp_path, 4 * BYTES)
    first = after(start, dict.fromkeys(range(10), 1.0))
    first.settle()
    committed = log.settled
    changes = ClientStateChanges(first)
    for client in range(10):
        assert value_of(first[client]) == 1.0
        changes.add([client], rows(2.0))
        assert first.bytes_in_ram <= 4 * BYTES
    assert log.path.stat().st_size > committed.bytes
    assert values_of(first) == dict.fromkeys(range(10), 1.0)
    assert values_of(changes.client_states()) == dict.fromkeys(range(10), 2.0)
    assert log.settled == committed
    assert values_of(reopened(log)) == dict.fromkeys(range(10), 1.0)
    assert values_of(first) == dict.fromkeys(range(10), 1.0)  # RAM is full of what is outdated after the round
    changes.client_states().settle()
    assert [value_of(changes.client_states()[client]) for client in reversed(range(10))] == 10 * [2.0]
    assert values_of(reopened(log)) == dict.fromkeys(range(10), 2.0)


def test_what_an_abandoned_round_wrote_is_written_over(tmp_path: Path) -> None:
    start, log = on_disk(tmp_path, BYTES)
    first = after(start, {1: 1.0})
    abandoned = after(first, dict.fromkeys(range(10), 9.0))
    assert values_of(abandoned) == dict.fromkeys(range(10), 9.0)
    second = after(first, {2: 2.0})
    second.settle()
    assert log.path.stat().st_size == log.settled.bytes
    assert values_of(reopened(log)) == {1: 1.0, 2: 2.0}


def test_compaction_forgets_a_round_that_is_not_over(tmp_path: Path) -> None:
    start, _ = on_disk(tmp_path, BYTES)
    first = after(start, {1: 1.0})
    abandoned = after(first, dict.fromkeys(range(10), 9.0))
    log = first.compact_log(tmp_path / "client_states-1.log")
    assert values_of(first) == values_of(reopened(log)) == {1: 1.0}
    with pytest.raises(RuntimeError, match="states of an earlier round"):
        abandoned.get(2)


def reopened(log: ClientStateLog, ram_bytes: int = 2**30) -> ClientStates:
    states = ClientStates()
    states.keep_in(ClientStateLog.open(log.path, log.settled), ram_bytes)
    return states


def test_a_disk_that_refuses_is_explained(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    start, log = on_disk(tmp_path, 0)

    def refuse(states) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(log, "append", refuse)
    with pytest.raises(RunFailedError, match="Cannot write the states of clients to disk: No space left on device"):
        after(start, {1: 1.0})


@pytest.mark.parametrize("ram_bytes", [0, 3 * BYTES, 2**30])
@given(seed=st.integers(0, 2**32))
@settings(deadline=None, max_examples=30)
def test_against_a_dictionary(tmp_path_factory: pytest.TempPathFactory, ram_bytes: int, seed: int) -> None:
    """Rounds, reads, abandoned rounds, compaction and resumption in any order."""
    chance = random.Random(seed)
    folder = tmp_path_factory.mktemp("log")
    now, log = on_disk(folder, ram_bytes)
    expected: dict[int, float] = {}
    committed, committed_end = dict(expected), log.settled
    for step in range(chance.randint(1, 25)):
        cohort = {chance.randrange(12): chance.random() for _ in range(chance.randint(1, 6))}
        cohort = {client: float(np.float32(value)) for client, value in cohort.items()}
        following = after(now, cohort)
        assert following.bytes_in_ram <= ram_bytes
        action = chance.choice(["finish", "finish", "finish", "abandon", "compact", "resume"])
        if action == "resume":  # a crash: what was not committed is lost
            log = ClientStateLog.open(log.path, committed_end)
            now, expected = ClientStates(), dict(committed)
            now.keep_in(log, ram_bytes)
        elif action != "abandon":
            now, expected = following, expected | cohort
            now.settle()
            if action == "compact":
                old = log.path.read_bytes()
                former, log = log, now.compact_log(folder / f"client_states-{step + 1}.log")
                assert former.path.read_bytes() == old
            if action == "compact" or chance.random() < 0.5:
                committed, committed_end = dict(expected), log.settled
        for client in chance.sample(range(12), 4):
            memory = now.get(client)
            assert (None if memory is None else value_of(memory)) == expected.get(client)
        assert now.bytes_in_ram <= ram_bytes
        assert len(now) == len(expected)
    assert values_of(now) == expected
    assert values_of(reopened(log)) == expected


def test_threads_may_read_while_a_round_writes(tmp_path: Path) -> None:
    start, _ = on_disk(tmp_path, 5 * BYTES)
    first = after(start, {client: float(client) for client in range(40)})
    wrong: list[int] = []

    def read(seed: int) -> None:
        chance = random.Random(seed)
        for _ in range(300):
            client = chance.randrange(40)
            if value_of(first[client]) != client:
                wrong.append(client)

    threads = [threading.Thread(target=read, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    changes = ClientStateChanges(first)
    for client in range(40):
        changes.add([client], rows(-1.0))
    for thread in threads:
        thread.join()
    assert wrong == []
    assert set(values_of(changes.client_states()).values()) == {-1.0}


# --- the log --------------------------------------------------------------------------------------------------------


def test_compaction_drops_what_is_outdated(tmp_path: Path) -> None:
    now, log = on_disk(tmp_path)
    for round in range(50):
        now = after(now, {client: float(round) for client in range(10)})
        now.settle()
    compact = now.compact_log(tmp_path / "client_states-50.log")
    records = 10 * (BYTES + HEADER_BYTES)
    assert log.settled.bytes > 50 * records
    assert records < compact.path.stat().st_size == compact.settled.bytes < records + 200  # the layout
    assert values_of(now) == dict.fromkeys(range(10), 49.0)
    now = after(now, {3: 50.0})
    now.settle()
    assert values_of(reopened(compact)) == dict.fromkeys(range(10), 49.0) | {3: 50.0}


def test_a_log_is_compacted_when_more_than_half_is_outdated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(state_log, "COMPACT_ABOVE_BYTES", 1000)
    now, log = on_disk(tmp_path)
    verdicts = []
    for _ in range(3):
        now = after(now, dict.fromkeys(range(20), 1.0))
        now.settle()
        verdicts.append(log.is_mostly_outdated)
    assert verdicts == [False, True, True]  # the layout is the grain that tips the scales
    monkeypatch.setattr(state_log, "COMPACT_ABOVE_BYTES", log.settled.bytes)
    assert not log.is_mostly_outdated


def test_every_damaged_byte_is_noticed(tmp_path: Path) -> None:
    now, log = on_disk(tmp_path)
    after(now, {1: 1.0, 2: 2.0}).settle()
    good = log.path.read_bytes()
    for position in range(len(good)):
        log.path.write_bytes(good[:position] + bytes([good[position] ^ 4]) + good[position + 1 :])
        with pytest.raises(DamagedFileError, match=r"client_states-0\.log is damaged"):
            ClientStateLog.open(log.path, log.settled)
    for length in range(len(good)):
        log.path.write_bytes(good[:length])
        with pytest.raises(DamagedFileError, match=r"client_states-0\.log is damaged"):
            ClientStateLog.open(log.path, log.settled)
    log.path.write_bytes(good)
    for end in (LogEnd(log.settled.bytes, 1), LogEnd(log.settled.bytes - 1, log.settled.crc32)):
        with pytest.raises(DamagedFileError, match=r"client_states-0\.log is damaged"):
            ClientStateLog.open(log.path, end)
    assert values_of(reopened(log)) == {1: 1.0, 2: 2.0}


def test_damage_during_a_run_is_noticed(tmp_path: Path) -> None:
    now, log = on_disk(tmp_path, 0)
    now = after(now, {1: 1.0, 2: 2.0})
    now.settle()
    good = log.path.read_bytes()
    log.path.write_bytes(good[:-1] + bytes([good[-1] ^ 1]))
    assert value_of(now[1]) == 1.0
    with pytest.raises(DamagedFileError, match=r"client_states-0\.log is damaged"):
        now.get(2)
    log.path.unlink()
    with pytest.raises(DamagedFileError, match=r"client_states-0\.log cannot be read"):
        now.get(1)
