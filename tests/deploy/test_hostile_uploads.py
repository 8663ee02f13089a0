"""Devices that are broken or hostile: nothing they send stops a run or moves its model, and all has its reason."""

from __future__ import annotations

import json
import math
import struct
from contextlib import suppress

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tiny_office import FORM, SAMPLES, Office, body_of, header_of

from fedarena.client import codec
from fedarena.core.errors import DamagedFileError
from fedarena.core.sealed_json import unseal_json
from fedarena.deploy.calls import BadCallError, Buckets, Calls, Offer, parse
from fedarena.deploy.coordinator import ExcludedError
from fedarena.deploy.devices import Joined
from fedarena.deploy.offences import OFFENCES_FILE
from fedarena.deploy.update_form import UpdateForm

GOOD = body_of(2)


def tensors(**changed) -> bytes:
    found = codec.decode(GOOD)
    return codec.encode({name: t for name, t in (found | changed).items() if t is not None})


def with_value(value: float) -> bytes:
    return tensors(**{"params/a": torch.tensor([0.0, value, 1.0])})


def raw(header: bytes | dict, numbers: bytes = b"\0" * 28) -> bytes:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + numbers


def entry(begin: int, end: int, shape: list, dtype: str = "F32") -> dict:
    return {"dtype": dtype, "shape": shape, "data_offsets": [begin, end]}


A, B = entry(0, 12, [3]), entry(12, 28, [2, 2])

# What is wrong, the word for it, and what is changed in the first message, in the report, and in the body.
HEADERS = {
    "no task": {"task": None},
    "a short task": {"task": "ab"},
    "a task that is no digits": {"task": "z" * 32},
    "a task that is a path": {"task": "../../../../../../etc/passwd"},
    "a task that is a list": {"task": ["0"] * 32},
    "no digest": {"sha256": None},
    "a short digest": {"sha256": "00"},
    "a negative offset": {"offset": -1},
    "a fraction as offset": {"offset": 0.5},
    "true as offset": {"offset": True},
    "an offset of 2^70": {"offset": 1 << 70},
    "text as size": {"bytes": "many"},
    "no report": {"report": None},
    "a list as report": {"report": [1]},
}
OFFSETS = {"an offset behind the end": {"offset": len(GOOD) + 5}}
SIZES = {"no bytes": {"bytes": 0}, "a byte": {"bytes": 1}, "a terabyte": {"bytes": 1 << 40}}
REPORTS = {
    "no samples": ("samples", {"samples": 0}),
    "more samples than it has": ("samples", {"samples": SAMPLES + 1}),
    "negative samples": ("report", {"samples": -1}),
    "half a sample": ("report", {"samples": 0.5}),
    "true samples": ("report", {"samples": True}),
    "samples in words": ("report", {"samples": "eight"}),
    "too few steps": ("steps", {"steps": 0}),
    "too many steps": ("steps", {"steps": 1000}),
    "samples that were not processed": ("steps", {"processed": 1_000_000}),
    "an undefined loss": ("report", {"loss": math.nan}),
    "an infinite loss": ("report", {"loss": math.inf}),
    "no loss": ("report", {"loss": None}),
    "a loss of hundreds of digits": ("report", {"loss": 10**400}),
    "a list as loss": ("report", {"loss": [1]}),
    "an undefined first loss": ("report", {"start_loss": math.nan}),
    "a list of observations": ("report", {"observed": [1]}),
    "no observations": ("report", {"observed": None}),
    "an infinite observation": ("report", {"observed": {"clients": math.inf}}),
    "thousands of observations": ("report", {"observed": {str(n): 0 for n in range(5000)}}),
    "seconds in words": ("report", {"seconds": {"train": "long"}}),
    "infinite energy": ("report", {"joules": math.inf}),
}
BODIES = {
    "noise": ("form", b"\xff" * len(GOOD)),
    "zeros": ("form", b"\0" * len(GOOD)),
    "a header of 2^63 bytes": ("form", struct.pack("<Q", 1 << 63) + GOOD[8:]),
    "a header that is longer than all": ("form", struct.pack("<Q", 10_000) + GOOD[8:]),
    "a header that is no JSON": ("form", raw(b"{" * 150)),
    "a header of brackets": ("form", raw(b"[" * 60_000)),
    "a list as header": ("form", raw(b"[1,2,3]" + b" " * 100)),
    "a missing tensor": ("form", raw({"params/a": A, "params/c": B})),
    "a tensor more": ("form", raw({"params/a": A, "params/b": B, "x": entry(28, 28, [0])})),
    "the same tensor twice": ("form", raw(f'{{"params/a":{json.dumps(A)},"params/a":{json.dumps(B)}}}'.encode())),
    "another shape": ("form", raw({"params/a": A, "params/b": entry(12, 28, [4])})),
    "another type": ("form", raw({"params/a": entry(0, 12, [3], "I32"), "params/b": B})),
    "an unknown type": ("form", raw({"params/a": entry(0, 12, [3], "F33"), "params/b": B})),
    "tensors that overlap": ("form", raw({"params/a": A, "params/b": entry(0, 16, [2, 2])})),
    "a hole": ("form", raw({"params/a": A, "params/b": entry(16, 32, [2, 2])}, b"\0" * 32)),
    "bytes behind the end": ("form", raw({"params/a": A, "params/b": B}, b"\0" * 40)),
    "too few numbers": ("form", raw({"params/a": A, "params/b": B}, b"\0" * 20) + b""),
    "negative sizes": ("form", raw({"params/a": entry(0, 12, [-3]), "params/b": B})),
    "sizes that overflow": ("form", raw({"params/a": entry(0, 12, [1 << 62, 4]), "params/b": B})),
    "thousands of empty tensors": ("form", raw({f"{n}": entry(28, 28, [0]) for n in range(900)})),
    "a pickle": ("form", b"\x80\x04\x95" + GOOD[3:]),
    "an undefined number": ("not finite", with_value(math.nan)),
    "an infinite number": ("not finite", with_value(math.inf)),
    "a negative infinite number": ("not finite", with_value(-math.inf)),
    "a very long update": ("norm", with_value(3e38)),
    "a long update": ("norm", with_value(1e6)),
}


def honest_total(office: Office) -> np.ndarray:
    """What the two honest devices come to."""
    honest = [torch.cat([t.reshape(-1) for t in codec.decode(body_of(client)).values()]).numpy() for client in (0, 1)]
    return honest[0] * np.float32(1.1) + honest[1]


def attacked(tmp_path, attack) -> tuple[Office, dict]:
    """A round in which the last device misbehaves, and what it is told."""
    office = Office(tmp_path, norm_bound=1000.0)
    office.open()
    told = attack(office, office.given(2))
    for client in (0, 1):
        assert office.send(client, office.given(client)) == {"accepted": True}
    return office, told


def check_unmoved(office: Office, word: str) -> None:
    assert office.coordinator.closed
    assert [task.client for task in office.coordinator.course.used()] == [0, 1]
    np.testing.assert_array_equal(office.total(), honest_total(office))
    failed = office.coordinator.course.tasks[2]
    assert (failed.outcome, failed.reason) == ("refused", word)
    assert any(word in line and "phone2" in line for line in office.log)


@pytest.mark.parametrize("what", [*HEADERS, *OFFSETS])
def test_a_first_message_that_makes_no_sense_is_refused(what, tmp_path):
    changed = (HEADERS | OFFSETS)[what]
    office, told = attacked(tmp_path, lambda office, task: office.upload(2, header_of(task, GOOD) | changed, [GOOD]))
    assert told["refused"]
    assert any(": header: " in line for line in office.log)
    assert [task.client for task in office.coordinator.course.accepted()] == [0, 1]


@pytest.mark.parametrize("message", [None, [], "x", 5, True, {}], ids=repr)
def test_a_first_message_that_is_something_else_is_refused(message, tmp_path):
    _, told = attacked(tmp_path, lambda office, task: office.upload(2, message, [GOOD]))
    assert told["refused"]


@pytest.mark.parametrize("what", SIZES)
def test_a_size_that_no_update_has_is_refused_before_a_byte_is_read(what, tmp_path):
    office, told = attacked(
        tmp_path, lambda office, task: office.upload(2, header_of(task, GOOD) | SIZES[what], [b"x" * 100])
    )
    assert "bytes" in told["refused"]
    check_unmoved(office, "size")


@pytest.mark.parametrize("what", REPORTS)
def test_work_that_cannot_have_been_done_is_refused(what, tmp_path):
    word, report = REPORTS[what]
    office, told = attacked(tmp_path, lambda office, task: office.send(2, task, **report))
    assert told["refused"]
    check_unmoved(office, word)


@pytest.mark.parametrize("what", BODIES)
def test_a_body_that_is_no_update_is_refused(what, tmp_path):
    word, body = BODIES[what]
    office, told = attacked(tmp_path, lambda office, task: office.send(2, task, body))
    assert told["refused"]
    assert not office.coordinator.inbox.body(office.coordinator.course.tasks[2].id).exists()
    check_unmoved(office, word)


def test_another_digest_than_announced_is_refused(tmp_path):
    office, told = attacked(
        tmp_path, lambda office, task: office.upload(2, header_of(task, GOOD) | {"sha256": "0" * 64}, [GOOD])
    )
    assert "SHA-256" in told["refused"]
    check_unmoved(office, "digest")


def test_more_bytes_than_announced_are_refused(tmp_path):
    office, _ = attacked(tmp_path, lambda office, task: office.upload(2, header_of(task, GOOD), [GOOD, b"more"]))
    check_unmoved(office, "size")


def test_empty_chunks_are_refused(tmp_path):
    office, _ = attacked(tmp_path, lambda office, task: office.upload(2, header_of(task, GOOD), [b""] * 3))
    check_unmoved(office, "size")


def test_updates_far_longer_than_those_before_are_refused(tmp_path):
    office = Office(tmp_path, norm_factor=10.0)
    for round in (1, 2):
        office.open(round)
        for client in range(3):
            office.send(client, office.given(client))
    office.open(3)
    task = office.given(2)
    assert "10 times the median" in office.send(2, task, with_value(1000.0))["refused"]
    assert (task.outcome, task.reason) == ("refused", "norm")
    office.start()  # what was accepted before is not forgotten
    office.open(3)
    assert "10 times the median" in office.send(1, office.given(1), with_value(1000.0))["refused"]


def test_a_task_of_somebody_else_is_refused_and_stays_open(tmp_path):
    office = Office(tmp_path)
    office.open()
    others = office.given(0)
    assert "somebody else" in office.send(2, others)["refused"]
    assert others.is_open
    assert office.send(0, others) == {"accepted": True}


@pytest.mark.parametrize("restarted", [False, True])
def test_three_refusals_put_a_device_into_quarantine_and_the_run_goes_on(restarted, tmp_path):
    office = Office(tmp_path)
    office.open()
    task = office.given(2)
    for _ in range(3):
        office.upload(2, header_of(task, GOOD) | {"sha256": "?"}, [])
        if restarted:
            office.start()
            office.open()
    with pytest.raises(ExcludedError, match="quarantine: 3 uploads were refused, the last one: header"):
        office.member(2)
    for client in (0, 1):
        office.send(client, office.given(client))
    assert office.coordinator.closed
    office.start()
    with pytest.raises(ExcludedError, match="quarantine"):
        office.member(2)


def test_who_is_invited_again_after_quarantine_has_three_chances_again(tmp_path):
    office = Office(tmp_path)
    office.open()
    for serial in ("2", "new"):
        for number in range(3):
            member = office.coordinator.member("phone2", serial)
            office.coordinator.begin_upload(member, {"number": number})
        with pytest.raises(ExcludedError, match="quarantine"):
            office.coordinator.member("phone2", serial)
        office.members.invite("phone2", "new", "2099-01-01")


def test_an_update_that_is_refused_again_after_a_kill_counts_once(tmp_path, monkeypatch):
    office = Office(tmp_path)
    office.open()
    task = office.given(2)
    monkeypatch.setattr(office.coordinator.inbox, "settle", lambda *_: exit(1))
    with pytest.raises(SystemExit):
        office.send(2, task, with_value(math.nan))
    office.start()
    office.open()
    assert office.send(2, office.given(2), with_value(math.nan))["refused"]
    path = tmp_path / "run" / OFFENCES_FILE
    assert unseal_json(path.read_bytes()) == {"refused": {"2": [task.id]}}
    path.write_bytes(path.read_bytes().replace(task.id.encode(), b"0" * 32))
    with pytest.raises(DamagedFileError, match=r"refused.json is damaged"):
        office.start()


def test_truth_values_and_coverage_are_looked_at(tmp_path):
    office = Office(tmp_path)
    admission = office.coordinator.admission
    admission.form = UpdateForm({"coverage/a": (torch.float32, (2,)), "other/flag": (torch.bool, (2,))})
    good = {"coverage/a": torch.tensor([0.0, 1.0]), "other/flag": torch.tensor([True, False])}
    for changed, word in (
        ({}, None),
        ({"coverage/a": torch.tensor([0.0, 1.5])}, "coverage"),
        ({"coverage/a": torch.tensor([-0.1, 1.0])}, "coverage"),
        ({"flag": 7}, "form"),
    ):
        body = codec.encode(good | {name: t for name, t in changed.items() if name in good})
        body = body[:-2] + b"\x07\x00" if "flag" in changed else body
        path = tmp_path / "body"
        path.write_bytes(body)
        announced = admission.announced(header_of(office.task(0), body))
        if word is None:
            admission.check_body(path, announced)
        else:
            with pytest.raises(Exception, match=r".") as found:
                admission.check_body(path, announced)
            assert found.value.word == word


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)
NAMES = st.sampled_from(
    ["task", "run", "busy", "ready", "protocol", "fedarena", "samples", "columns", "report", "bytes"]
)


@settings(max_examples=50)
@given(data=st.data())
def test_no_message_whatever_ends_in_anything_but_an_answer(data, tmp_path_factory):
    office = _fuzzed(tmp_path_factory)
    calls = Calls(office.coordinator, Joined(office.folder / "joined"), OFFER)
    member = office.coordinator.members.get("phone0")
    message = data.draw(st.binary(max_size=40) | (st.dictionaries(NAMES, JSON) | JSON).map(_encoded))
    for call in (calls.join, calls.next, calls.status):
        with suppress(BadCallError):
            answer = call(member, message)
            assert answer is None or isinstance(answer, dict)


@settings(max_examples=50)
@given(message=JSON, changes=st.dictionaries(st.sampled_from(["offset", "bytes", "sha256", "report", "task"]), JSON))
def test_no_first_message_whatever_ends_in_anything_but_an_answer(message, changes, tmp_path_factory):
    office = _fuzzed(tmp_path_factory)
    member, task = office.coordinator.members.get("phone1"), office.coordinator.course.tasks[1]
    for header in (message, header_of(task, GOOD) | changes):
        begun = office.coordinator.begin_upload(member, header)
        answer = begun if isinstance(begun, dict) else office.coordinator.abandon(begun)
        assert set(answer) <= {"refused", "late", "offset", "accepted"}


OFFER = Offer("run", {}, {"x": ("float32", (2,))}, frozenset({0, 1, 2}))
_OFFICES: list[Office] = []


def _fuzzed(tmp_path_factory) -> Office:
    """One office for all examples; whom it has put into quarantine does not matter to these calls."""
    if not _OFFICES:
        _OFFICES.append(Office(tmp_path_factory.mktemp("fuzzed")))
        _OFFICES[0].open()
    return _OFFICES[0]


def _encoded(value) -> bytes:
    return json.dumps(value).encode()


def test_messages_have_a_largest_size_and_depth():
    for message in (b"[" * 70_000, b"{" * 60_000, b'{"a":' * 10_000, b"\xff\xfe", b"", b"1", b'{"a":"\\ud800"}'):
        with pytest.raises(BadCallError):
            parse(message)


def test_a_device_that_calls_too_often_is_told_to_wait():
    now = [0.0]
    buckets = Buckets(lambda: now[0])
    allowed = sum(buckets.take("phone0") for _ in range(1000))
    assert 100 <= allowed < 400
    assert buckets.take("phone1")
    now[0] += 1.0
    assert 10 <= sum(buckets.take("phone0") for _ in range(1000)) <= 40


@pytest.mark.parametrize(
    ("changed", "sentence"),
    [
        ({"protocol": 2}, "protocol 2"),
        ({"fedarena": "0.0.1"}, "'0.0.1'"),
        ({"samples": None}, "how many"),
        ({"samples": {"train": -1}}, "how many"),
        ({"samples": {"train": 1.5}}, "how many"),
        ({"samples": {"train": 0, "test": 4}}, "no training sample"),
        ({"columns": None}, "columns"),
        ({"columns": {}}, "have no 'x'"),
        ({"columns": {"x": 1}}, "type and a shape"),
        ({"columns": {"x": ["float32", [3]]}}, "must have [2]"),
    ],
)
def test_who_cannot_take_part_is_told_why(changed, sentence, tmp_path):
    from fedarena.core.version import VERSION

    office = Office(tmp_path)
    joined = Joined(tmp_path / "joined")
    calls = Calls(office.coordinator, joined, OFFER)
    good = {"protocol": 1, "fedarena": VERSION, "samples": {"train": 3}, "columns": {"x": ["float32", [2]]}}
    member = office.member(0)
    assert sentence in calls.join(member, _encoded(good | changed))["refused"]
    assert joined.get("phone0") is None
    assert calls.join(member, _encoded(good))["client"] == 0
    assert Joined(tmp_path / "joined").samples("phone0") == 3
    assert (
        "began without"
        in Calls(office.coordinator, joined, Offer("run", {}, {}, frozenset())).join(member, _encoded(good))["refused"]
    )


def test_what_a_device_said_and_somebody_changed_is_refused_by_name(tmp_path):
    Joined(tmp_path).add("phone0", {"samples": {"train": 3}})
    path = tmp_path / "phone0.json"
    path.write_bytes(path.read_bytes().replace(b"3", b"9"))
    with pytest.raises(DamagedFileError, match=r"phone0.json is damaged: it is not what was written"):
        Joined(tmp_path)


def test_what_two_devices_said_cannot_be_mixed_up(tmp_path):
    for number in range(2):
        Joined(tmp_path).add(f"phone{number}", {"samples": {"train": 3 + number}})
    assert [Joined(tmp_path).samples(f"phone{number}") for number in range(2)] == [3, 4]
    (tmp_path / "phone0.json").write_bytes((tmp_path / "phone1.json").read_bytes())
    with pytest.raises(DamagedFileError, match=r"phone0.json is not what was written there: it belongs to phone1"):
        Joined(tmp_path)


def test_the_form_of_these_tests_is_the_one_that_is_expected():
    assert codec.form_of(codec.decode(GOOD)) == FORM
