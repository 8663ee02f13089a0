"""What a device keeps: it becomes current with an accepted update alone, whatever happens in between."""

from __future__ import annotations

import errno
import os
import threading
from contextlib import closing

import pytest
import torch

from fedarena.client import codec, kept
from fedarena.client.device import Trained
from fedarena.client.kept import DeviceFolder, DiskFullError, RunFolder, needing_room
from fedarena.core.errors import BadInputError, DamagedFileError

TASK, OTHER = "0123456789abcdef" * 2, "f" * 32


def trained(value: float, keeps: bool = True) -> Trained:
    memory = {"control": {"w": torch.full((3,), value)}, "empty": {}} if keeps else None
    return Trained({"params": {"w": torch.ones(2)}}, memory, {"samples": 3})


def value_of(folder: RunFolder) -> float | None:
    memory = RunFolder(folder.path).current()  # as after a restart
    return None if memory is None else float(memory["control"]["w"][0])


def test_only_an_accepted_update_changes_what_is_kept(tmp_path):
    folder = RunFolder(tmp_path)
    assert value_of(folder) is None
    assert folder.pending() is None
    pending = folder.keep(TASK, trained(1.0), {"train": 2.0})
    assert pending.bytes == folder.update(TASK).stat().st_size
    assert RunFolder(tmp_path).pending() == pending
    assert value_of(folder) is None
    use(folder, TASK)
    assert value_of(folder) == 1.0
    assert folder.current()["empty"] == {}
    folder.keep(OTHER, trained(2.0), {})
    folder.dropped(OTHER)
    assert value_of(folder) == 1.0
    assert sorted(path.name for path in tmp_path.iterdir()) == ["current"]


def use(folder: RunFolder, task: str) -> None:
    """The server has accepted an update, and used it."""
    folder.delivered(task)
    folder.decided(task, used=True)


def test_an_update_that_was_accepted_and_not_used_changes_nothing(tmp_path):
    folder = RunFolder(tmp_path)
    folder.keep(TASK, trained(1.0), {})
    use(folder, TASK)
    folder.keep(OTHER, trained(2.0), {})
    folder.delivered(OTHER)
    assert value_of(folder) == 1.0
    assert folder.pending() is None
    assert RunFolder(tmp_path).undecided() == OTHER
    folder.decided(OTHER, used=False)
    assert value_of(folder) == 1.0
    assert folder.undecided() is None
    assert sorted(path.name for path in tmp_path.iterdir()) == ["current"]


def test_kills_between_the_steps_of_acceptance(tmp_path):
    folder = RunFolder(tmp_path)
    folder.keep(TASK, trained(1.0), {})
    left = (tmp_path / "pending.json").read_bytes()
    folder.delivered(TASK)
    (tmp_path / "pending.json").write_bytes(left)  # which was not deleted before the kill
    folder.delivered(TASK)  # as the server's status says
    assert folder.pending() is None
    left = (tmp_path / "delivered.json").read_bytes()
    folder.decided(TASK, used=True)
    (tmp_path / "delivered.json").write_bytes(left)  # the same
    folder.decided(TASK, used=True)
    assert value_of(folder) == 1.0
    assert folder.undecided() is None


@pytest.mark.parametrize("name", ["pending.json", "delivered.json"])
def test_whatever_bit_of_a_note_changes_is_noticed_by_name(name, tmp_path):
    folder = RunFolder(tmp_path)
    folder.keep(TASK, trained(1.0), {"train": 2.0})
    if name == "delivered.json":
        folder.delivered(TASK)
    content = (tmp_path / name).read_bytes()
    for place in range(0, len(content), 5):
        damaged = bytearray(content)
        damaged[place] ^= 1 << place % 8
        (tmp_path / name).write_bytes(damaged)
        with pytest.raises(DamagedFileError, match=f"{name} is damaged; delete it"):
            folder.pending() or folder.undecided()


def test_who_keeps_nothing_new_keeps_what_there_was(tmp_path):
    folder = RunFolder(tmp_path)
    folder.keep(TASK, trained(1.0), {})
    use(folder, TASK)
    folder.keep(OTHER, trained(2.0, keeps=False), {})
    folder.delivered(OTHER)
    assert folder.undecided() is None
    assert value_of(folder) == 1.0


@pytest.mark.parametrize("place", [3, 60, -1], ids=["length", "header", "numbers"])
def test_damaged_memory_is_refused_by_name(place, tmp_path):
    folder = RunFolder(tmp_path)
    folder.keep(TASK, trained(1.0), {})
    use(folder, TASK)
    data = bytearray((tmp_path / "current").read_bytes())
    data[place] ^= 1
    (tmp_path / "current").write_bytes(data)
    with pytest.raises(DamagedFileError, match=f"{tmp_path}/current .*newcomer$"):
        folder.current()


@pytest.mark.parametrize("text", ["", "{}", '{"task": "../x", "report": {}, "sha256": "", "bytes": 1}', "[1]"])
def test_a_damaged_list_of_pending_jobs_is_refused_by_name(text, tmp_path):
    (tmp_path / "pending.json").write_text(text)
    with pytest.raises(DamagedFileError, match=r"pending.json is damaged; delete it, and its job is done again"):
        RunFolder(tmp_path).pending()


def test_an_update_that_is_gone_is_missed(tmp_path):
    folder = RunFolder(tmp_path)
    folder.keep(TASK, trained(1.0), {})
    folder.update(TASK).write_bytes(b"half")
    with pytest.raises(DamagedFileError, match=r"update.* is damaged or missing; delete .*pending.json, and its job"):
        folder.pending()


def test_names_from_outside_lead_nowhere_else(tmp_path):
    folder = DeviceFolder(tmp_path / "state")
    assert folder.run("../../other", "alice").path.parent == tmp_path / "state" / "runs"
    with pytest.raises(BadInputError, match="not the name of one"):
        folder.run("x", "alice").update("../update")


def test_two_clients_do_not_share_a_folder(tmp_path, monkeypatch):
    monkeypatch.setattr(kept, "LOCK_SECONDS", 0.05)
    first = DeviceFolder(tmp_path)
    with pytest.raises(BadInputError, match="is in use by another client"):
        DeviceFolder(tmp_path)
    first.close()
    DeviceFolder(tmp_path).close()


def test_the_folder_of_a_client_that_is_just_ending_is_waited_for(tmp_path):
    first = DeviceFolder(tmp_path)
    also_open = os.dup(first._lock.fileno())  # as in a process that is being started while the client is killed
    first.close()
    ending = threading.Timer(0.1, os.close, [also_open])
    ending.start()
    DeviceFolder(tmp_path).close()
    ending.join()


def test_a_full_disk_has_a_sentence(tmp_path, monkeypatch):
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    folder = RunFolder(tmp_path)
    monkeypatch.setattr(codec, "write_tensors", full)
    with pytest.raises(DiskFullError, match=r"The disk is full: .* make room, and start again"):
        folder.keep(TASK, trained(1.0), {})
    monkeypatch.undo()
    assert folder.pending() is None
    assert value_of(folder) is None
    with pytest.raises(DiskFullError, match="cannot be written to: read-only file system"), needing_room(tmp_path):
        raise OSError(errno.EROFS, "x")


def test_what_another_device_keeps_is_not_gone_on_with(tmp_path):
    """A copy of a device's folder, or two invitations that are used one after the other with the same --state."""
    with closing(DeviceFolder(tmp_path)) as folder:
        folder.run("run", "alice")
        assert folder.run("run", "alice").current() is None
        with pytest.raises(BadInputError, match=r"run is what alice keeps for this run, and this is bob; "):
            folder.run("run", "bob")
        folder.run("another", "bob")
