"""The coordinator without a network: in whatever order calls and kills come, the same updates count, each once."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tiny_office import Killed, Office, body_of, header_of, killed_after

from fedarena.core.errors import DamagedFileError
from fedarena.deploy.coordinator import ONLINE_SECONDS, ExcludedError
from fedarena.deploy.tasks import ROUND_FILE
from fedarena.simulate.protocols import Buffered, Deadline, Readiness, Synchronous

CALLS = st.tuples(
    st.sampled_from(["next", "whole", "pieces", "part", "again", "status", "busy", "old", "kill"]),
    st.integers(0, 2),
    st.integers(0, 60),
)


def play(office: Office, calls) -> None:
    """Calls of devices in some order, on top of each other."""
    for what, client, number in calls:
        if what == "kill":
            office.start()
            office.open()
            continue
        task = office.given(client) or next(t for t in office.coordinator.course.tasks if t.client == client)
        body, half = body_of(client), min(number, len(body_of(client)))
        if what == "whole":
            office.send(client, task)
        elif what == "pieces":
            office.upload(client, header_of(task, body), [body[:half], body[half:]] if 0 < half < len(body) else [body])
        elif what == "part":
            office.upload(client, header_of(task, body), [body[:half]] if half else [])
        elif what == "again":
            there = office.coordinator.status(office.member(client), task.id).get("bytes", 0)
            offset = min(there, half)
            office.upload(client, header_of(task, body, offset), [body[offset:]] if offset < len(body) else [])
        elif what == "status":
            office.coordinator.status(office.member(client), task.id)
        elif what == "busy":
            office.coordinator.next(office.member(client), task.id, True)
        elif what == "old":
            assert "late" in office.send(client, office.task(client))


def finish(office: Office) -> None:
    """Every device goes on until it has a receipt."""
    for client in range(office.clients):
        if (task := office.given(client)) is not None:
            assert office.send(client, task) == {"accepted": True}
    assert office.coordinator.closed


def wanted(tmp_path) -> np.ndarray:
    office = Office(tmp_path / "plain")
    office.open()
    finish(office)
    return office.total()


@settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(calls=st.lists(CALLS, max_size=14))
def test_any_order_of_calls_gives_the_same_sum(calls, tmp_path_factory):
    folder = tmp_path_factory.mktemp("office")
    office = Office(folder / "any")
    office.open()
    play(office, calls)
    finish(office)
    assert len(office.coordinator.course.used()) == 3
    np.testing.assert_array_equal(office.total(), wanted(folder))


@settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(operations=st.integers(0, 60), order=st.permutations(range(3)), data=st.data())
def test_a_server_killed_between_any_two_operations_on_files_loses_nothing(
    operations, order, data, tmp_path_factory, monkeypatch
):
    folder = tmp_path_factory.mktemp("office")
    office = Office(folder / "killed")
    told: dict[int, dict] = {}
    with killed_after(operations, monkeypatch):
        try:
            office.open()
            for client in order:
                told[client] = office.send(client, office.given(client))
        except Killed:
            pass
    before = {client: answer for client, answer in told.items() if answer == {"accepted": True}}
    office.start()
    office.open()
    for client in before:  # who has a receipt is not asked to train again
        assert office.given(client) is None
    finish(office)
    np.testing.assert_array_equal(office.total(), wanted(folder))


def test_a_receipt_is_found_again_after_the_round_is_over(tmp_path):
    office = Office(tmp_path)
    office.open()
    first = {client: office.given(client) for client in range(3)}
    finish(office)
    office.start()
    office.open(2)
    for client, task in first.items():
        member = office.member(client)
        assert office.coordinator.status(member, task.id) == {"receipt": {"accepted": True}}
        assert office.send(client, task) == {"accepted": True}  # a replay, which counts for nothing
        assert "late" in office.coordinator.status(office.member((client + 1) % 3), task.id)["receipt"]
    assert all(task.is_open for task in office.coordinator.course.tasks)


def test_who_falls_silent_is_gone_but_not_under_ideal(tmp_path):
    for protocol, gone in ((None, False), (Readiness(), True)):
        office = Office(tmp_path / str(gone), protocol=protocol)
        office.open()
        for client in (0, 1):
            office.send(client, office.given(client))
        task = office.given(2)
        office.clock.time += ONLINE_SECONDS + 1
        office.coordinator.wait(1.0)
        assert office.coordinator.closed == gone
        answer = office.send(2, task)
        assert ("late" in answer) == gone
        assert office.coordinator.closed


def test_synchronous_takes_the_first_and_cancels_the_others(tmp_path):
    protocol = Synchronous(over_commit=2.0)
    office = Office(tmp_path, clients=4, protocol=protocol)
    protocol.cohort = 2
    office.open()
    tasks = [office.given(client) for client in range(4)]
    assert office.send(3, tasks[3]) == {"accepted": True}
    assert office.send(1, tasks[1]) == {"accepted": True}
    assert office.coordinator.closed
    assert "late" in office.send(0, tasks[0])
    assert office.coordinator.next(office.member(2), tasks[2].id, True) == {"cancel": tasks[2].id}
    assert [task.client for task in office.coordinator.course.used()] == [1, 3]  # by their jobs, not as they came


def test_a_deadline_uses_what_has_come_if_that_is_enough(tmp_path):
    for updates, used in ((2, 2), (1, 0)):
        office = Office(tmp_path / str(updates), protocol=Deadline(seconds=30, minimum_success_share=0.5))
        office.open()
        for client in range(updates):
            office.send(client, office.given(client))
        office.coordinator.wait(29.0)
        assert not office.coordinator.closed
        office.coordinator.wait(2.0)
        assert office.coordinator.closed
        assert len(office.coordinator.course.used()) == used


@pytest.mark.parametrize("killed", [False, True])
def test_devices_hear_whether_their_update_was_used(tmp_path, killed):
    """Two of three updates are too few: what these devices keep must be what it was before."""
    office = Office(tmp_path, protocol=Deadline(seconds=30, minimum_success_share=1.0))
    rounds = {1: (0, 1), 2: (0, 1, 2), 3: ()}
    tasks: dict[int, dict] = {}
    for number, clients in rounds.items():
        office.open(number)
        for client in range(3):
            answer = office.coordinator.next(office.member(client), None, True)
            before = tasks.get(number - 1, {}).get(client)
            heard = None if before is None else {"task": before.id, "used": number == 3}
            assert answer.get("last") == heard
        tasks[number] = {client: office.given(client) for client in clients}
        for client, task in tasks[number].items():
            assert office.send(client, task) == {"accepted": True}
            assert office.coordinator.next(office.member(client), None, True) is None or number == 2
        office.coordinator.wait(31.0)
        assert office.coordinator.closed
        if killed:
            office.start()
    for client in (0, 1, 2):  # a round without its update does not make the server forget
        assert office.coordinator.course.fate(client).task == tasks[2][client].id


def test_a_secure_sum_that_is_not_there_yet_tells_nothing(tmp_path):
    office = Office(tmp_path)
    office.coordinator.admission.sums_securely = True
    office.open()
    jobs = {client: office.given(client) for client in range(3)}
    finish(office)
    assert office.coordinator.course.fate(1) is None
    office.coordinator.conclude({jobs[0].job, jobs[1].job})  # the last one's group is lost
    office.start()
    office.open(2)
    heard = [office.coordinator.next(office.member(client), None, True)["last"]["used"] for client in range(3)]
    assert heard == [True, True, False]


def test_a_server_that_was_down_gives_a_round_its_whole_time_again(tmp_path):
    office = Office(tmp_path, protocol=Deadline(seconds=30))
    office.open()
    task = office.given(0)
    office.clock.time += 1000
    office.start()
    office.open()
    assert not office.coordinator.closed
    assert office.send(0, task) == {"accepted": True}
    office.coordinator.wait(31.0)
    assert [used.client for used in office.coordinator.course.used()] == [0]


def test_buffered_goes_on_with_those_who_are_not_done(tmp_path):
    office = Office(tmp_path, protocol=Buffered(buffer_size=2))
    office.open()
    tasks = [office.given(client) for client in range(3)]
    office.send(2, tasks[2])
    office.send(0, tasks[0])
    course = office.coordinator.course
    assert course.closed is not None
    assert {task.client for task in course.used()} == {0, 2}
    assert tasks[1].id not in course.closed.ended
    assert office.send(1, tasks[1]) == {"accepted": True}  # for the next round


def test_a_revoked_device_is_out_at_once_and_its_job_fails(tmp_path):
    office = Office(tmp_path)
    office.open()
    for client in (0, 1):
        office.send(client, office.given(client))
    office.members.revoke("phone2", "lost")
    with pytest.raises(ExcludedError, match="revoked: lost"):
        office.member(2)
    office.coordinator.wait(1.0)
    assert office.coordinator.closed
    assert [task.outcome for task in office.coordinator.course.tasks] == ["accepted", "accepted", "excluded"]


def test_a_later_upload_of_the_same_task_takes_the_place_of_one_that_hangs(tmp_path):
    office = Office(tmp_path)
    office.open()
    task, member, body = office.given(0), office.member(0), body_of(0)
    hanging = office.coordinator.begin_upload(member, header_of(task, body))
    office.coordinator.write(member, hanging, body[:10])
    assert office.send(0, task) == {"accepted": True}
    assert office.coordinator.write(member, hanging, body[10:]) == {"accepted": True}
    assert office.coordinator.finish_upload(member, hanging) == {"accepted": True}


def test_pieces_that_do_not_fit_are_asked_for_again_instead_of_refused(tmp_path):
    office = Office(tmp_path)
    office.open()
    task, body = office.given(0), body_of(0)
    office.upload(0, header_of(task, b"x" * len(body)), [b"x" * 20])
    answer = office.upload(0, header_of(task, body, offset=20), [body[20:]])
    assert answer == {"offset": 0}
    assert office.send(0, task) == {"accepted": True}


def read_again(office: Office) -> np.ndarray:
    """What a server that is started again adds up."""
    office.start()
    return office.total()


@pytest.mark.parametrize("what", ["update", "receipt", "journal"])
def test_nothing_that_changed_on_disk_is_added_up(tmp_path, what):
    """Whichever bit of what a server wrote is flipped, it says so when it starts again, or when it adds up."""
    office = Office(tmp_path)
    office.open()
    finish(office)
    task, expected = office.coordinator.course.used()[1], office.total()
    body = office.coordinator.inbox.body(task.id)
    path = {"update": body, "receipt": body.with_name(f"{task.id}.json"), "journal": tmp_path / "run" / ROUND_FILE}[
        what
    ]
    content = path.read_bytes()
    for position in range(0, len(content), 9):
        damaged = bytearray(content)
        damaged[position] ^= 1 << position % 8
        path.write_bytes(damaged)
        with pytest.raises(DamagedFileError, match=f"{path.name} is damaged"):
            read_again(office)
    path.write_bytes(content)
    np.testing.assert_array_equal(read_again(office), expected)


def test_updates_that_were_mixed_up_are_not_added_up(tmp_path):
    office = Office(tmp_path)
    office.open()
    finish(office)
    one, other = (office.coordinator.inbox.body(task.id) for task in office.coordinator.course.used()[:2])
    for path, onto in ((one, other), (one.with_suffix(".json"), other.with_suffix(".json"))):
        onto.write_bytes(path.read_bytes())
    with pytest.raises(DamagedFileError, match=f"it belongs to {one.name}"):
        read_again(office)


@pytest.mark.parametrize("content", [None, b"", b"another model"])
def test_a_server_does_not_go_on_with_a_model_that_devices_could_not_download(tmp_path, content):
    office = Office(tmp_path)
    office.open()
    office.start()
    model = office.coordinator.blobs / office.model
    model.unlink() if content is None else model.write_bytes(content)
    with pytest.raises(DamagedFileError, match=f"{office.model} is damaged or missing"):
        office.open()
