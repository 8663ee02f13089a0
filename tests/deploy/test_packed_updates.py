"""Updates in the encodings of compressors: what is decoded is what was meant, and nothing else is let in."""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tiny_office import FORM, Office

from fedarena.client import codec
from fedarena.deploy.update_form import UpdateForm
from fedarena.train import Job, JobArrays, Work
from fedarena.transforms import TRANSFORMS, Transform
from fedarena.transforms.compressor import Compressor
from fedarena.transforms.encodings import BadEncodingError
from fedarena.transforms.packing import Packing, packing_of
from fedarena.transforms.rows import Rows

FORM_OF_PARAMS = {"a": torch.zeros(40, 6), "b": torch.zeros(40)}
ONE = np.ones(1)
COMPRESSORS = [name for name in TRANSFORMS.names() if issubclass(TRANSFORMS.get(name), Compressor)]


@cache
def made(name: str) -> tuple[Packing, bytes, dict[str, torch.Tensor]]:
    """How a compressor's updates travel, the bytes of one, and what the simulator says that the server sees."""
    compressor = TRANSFORMS.get(name)()
    generator = torch.Generator().manual_seed(3)
    update = {name: torch.randn(1, *t.shape, generator=generator) for name, t in FORM_OF_PARAMS.items()}
    rows = Rows({"params": update}, JobArrays.of([Job(0, 1)]), Work(ONE, ONE, ONE), ONE, ("params",), packs=True)
    new = compressor.client_init({"params": FORM_OF_PARAMS})
    kept = {group: {name: t.unsqueeze(0) for name, t in tensors.items()} for group, tensors in new.items()}
    sent, _ = compressor.at_client(rows, kept, {})
    packing = packing_of([compressor], FORM_OF_PARAMS)
    data = sent["packed"]["params"].numpy().tobytes()
    assert len(data) == int(sent["sent"]["params"][0])
    return packing, data, {name: t[0] for name, t in sent["params"].items()}


@pytest.mark.parametrize("name", COMPRESSORS)
def test_what_arrives_is_what_the_simulator_has(name):
    packing, data, seen = made(name)
    assert len(data) <= packing.encoding.most_bytes
    found = packing.unpack(data)
    assert list(found) == list(seen)
    for tensor in seen:
        assert found[tensor].dtype == seen[tensor].dtype
        torch.testing.assert_close(found[tensor], seen[tensor], rtol=0, atol=0)


@pytest.mark.parametrize("name", COMPRESSORS)
@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_whatever_bytes_come_they_are_an_update_or_refused(name, data):
    packing, honest, _ = made(name)
    changed = bytearray(honest)
    for _ in range(data.draw(st.integers(0, 4))):
        changed[data.draw(st.integers(0, min(len(honest), 200) - 1))] = data.draw(st.integers(0, 255))
    cut = data.draw(st.sampled_from([len(honest), 0, 1, 5, len(honest) - 1]))
    given_bytes = data.draw(st.sampled_from([bytes(changed[:cut]), bytes(changed) + b"\0"]) | st.binary(max_size=80))
    try:
        found = packing.unpack(given_bytes)
    except BadEncodingError:
        return
    assert {name: t.shape for name, t in found.items()} == {name: t.shape for name, t in FORM_OF_PARAMS.items()}


def test_a_transform_behind_a_compressor_sends_numbers_of_which_many_are_zero():
    class Doubled(Transform):
        def at_client(self, rows, kept, server):
            return rows.update, kept

    class Watching(Transform):
        pass

    qsgd = TRANSFORMS.get("qsgd")()
    assert packing_of([Doubled(), qsgd, Watching()], FORM_OF_PARAMS).encoding.most_bytes < 4 * 280
    assert packing_of([qsgd, Doubled()], FORM_OF_PARAMS).encoding.most_bytes == 4 * 280
    assert packing_of([Doubled()], FORM_OF_PARAMS) is None


# At the server's door

PARAMS = {name.removeprefix("params/"): torch.zeros(shape) for name, (_, shape) in FORM.items()}  # seven numbers


def office_with(name: str, folder) -> Office:
    packing = packing_of([TRANSFORMS.get(name)()], PARAMS)
    office = Office(folder, norm_bound=100.0)
    admission = office.coordinator.admission
    admission.form = form = UpdateForm(FORM, packing)
    admission.least_bytes, admission.most_bytes = form.least_bytes, form.most_bytes + 64
    office.open()
    return office


def body(data: bytes, **more: torch.Tensor) -> bytes:
    return codec.encode({"packed/params": torch.frombuffer(bytearray(data), dtype=torch.uint8), **more})


def floats(*values: float) -> bytes:
    return np.array(values, dtype="<f4").tobytes()


def places(count: int, code: bytes) -> bytes:
    return b"\2" + count.to_bytes(4, "little") + code


GOOD = b"\1\x82" + floats(1.5, -2.0)  # a bitmap: the first number and the last
SPARSE = {
    "a code for places that nobody knows": ("encoding", b"\7" + GOOD[1:]),
    "a number without a place": ("encoding", GOOD + floats(1.0)),
    "a place without a number": ("encoding", GOOD[:-4]),
    "half a number": ("encoding", GOOD[:-2]),
    "four billion places": ("encoding", places(0xFFFFFFFF, b"\xff" * 8)),
    "more places than numbers": ("encoding", places(8, b"\xff" * 8)),
    "places that are not there": ("encoding", places(3, b"")),
    "a place behind the end": ("encoding", places(1, b"\x1f") + floats(1.0)),
    "all places and one number": ("encoding", b"\0" + floats(1.0)),
    "more bytes than all numbers take": ("encoding", b"\0" * 29),
    "an infinite number": ("not finite", b"\1\x82" + floats(np.inf, 1.0)),
    "an undefined number": ("not finite", floats(*[np.nan] * 7)),
    "a very long update": ("norm", floats(*[1e6] * 7)),
}
LEVELS = {
    "no levels": ("encoding", floats(1.0, 1.0)),
    "a form of levels that nobody knows": ("encoding", floats(1.0, 1.0) + b"\x09\0\0"),
    "levels of other sizes": ("encoding", floats(1.0, 1.0) + b"\0" + b"\xff\xff"),
    "levels that are missing": ("encoding", floats(1.0, 1.0) + b"\0\0"),
    "endless gamma codes": ("encoding", floats(1.0, 1.0) + b"\2\0" + b"\0" * 3),
    "an infinite scale": ("not finite", floats(np.inf, 1.0) + b"\0\x55\x55"),
}


@pytest.mark.parametrize(("compressor", "what"), [*(("top_k", w) for w in SPARSE), *(("sign", w) for w in LEVELS)])
def test_hostile_encodings_are_refused_with_their_reason(compressor, what, tmp_path):
    word, data = (SPARSE | LEVELS)[what]
    office = office_with(compressor, tmp_path)
    task = office.given(2)
    assert office.send(2, task, body(data))["refused"]
    assert (task.outcome, task.reason) == ("refused", word)
    assert not office.coordinator.inbox.body(task.id).exists()


@pytest.mark.parametrize(
    "more",
    [{}, {"params/a": torch.zeros(3)}, {"packed/params": torch.zeros(7)}, {"x": torch.zeros(0)}],
    ids=["nothing", "raw numbers", "bytes that are numbers", "a tensor more"],
)
def test_an_update_of_another_form_is_refused(more, tmp_path):
    office = office_with("top_k", tmp_path)
    task = office.given(2)
    given_body = codec.encode(more) if "x" not in more else body(GOOD, **more)
    assert office.send(2, task, given_body)["refused"]
    assert task.reason == "form"


def test_an_honest_update_is_added_up(tmp_path):
    office = office_with("top_k", tmp_path)
    task = office.given(2)
    assert office.send(2, task, body(GOOD)) == {"accepted": True}
    found = office.coordinator.admission.form.load(office.coordinator.inbox.accepted_body(task.id))
    assert torch.cat([t.reshape(-1) for t in found.values()]).tolist() == [1.5, 0, 0, 0, 0, 0, -2.0]
    assert codec.form_of(found) == FORM
    assert task.bytes < len(codec.encode(found))
