"""The codec against the safetensors package, in both directions, and against bytes that nobody should believe."""

from __future__ import annotations

import io
import json
from contextlib import suppress

import hypothesis.strategies as st
import numpy as np
import pytest
import safetensors.torch
import torch
from hypothesis import example, given, settings

from fedarena.client import codec
from fedarena.client.codec import BadTensorsError

NAMES = st.text(st.characters(exclude_categories=["Cs"]), max_size=12).filter(lambda name: name != "__metadata__")


@st.composite
def tensors(draw):
    """Some tensors of all types, also without dimensions and without numbers, with any bits in them."""
    found = {}
    for name in draw(st.lists(NAMES, max_size=4, unique=True)):
        dtype = draw(st.sampled_from(list(codec.DTYPES.values())))
        shape = tuple(draw(st.lists(st.integers(0, 3), max_size=3)))
        count = int(np.prod(shape, dtype=int)) * dtype.itemsize
        data = bytearray(draw(st.binary(min_size=count, max_size=count)))
        if dtype == torch.bool:
            data = bytearray(byte & 1 for byte in data)
        found[name] = torch.frombuffer(data, dtype=dtype).reshape(shape) if data else torch.empty(shape, dtype=dtype)
    return found


def same(found, wanted) -> bool:
    def bits(t):
        return t.reshape(-1).view(torch.uint8).tolist() if t.numel() else []

    return found.keys() == wanted.keys() and all(
        (t.dtype, t.shape, bits(t)) == (wanted[name].dtype, wanted[name].shape, bits(wanted[name]))
        for name, t in found.items()
    )


def file_of(header: object, body: bytes = b"") -> bytes:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return len(text).to_bytes(8, "little") + text + body


def floats(begin: int, end: int, shape: list[int] | None = None) -> dict:
    return {"dtype": "F32", "shape": [(end - begin) // 4] if shape is None else shape, "data_offsets": [begin, end]}


@given(tensors(), st.dictionaries(NAMES, NAMES, max_size=2))
@settings(max_examples=40)
def test_what_is_written_is_read_by_both(wanted, metadata):
    data = codec.encode(wanted, metadata)
    assert same(safetensors.torch.load(data), wanted)
    found = codec.decode(data)
    assert same(found, wanted)
    assert list(found) == list(wanted)  # sums over all tensors depend on their order
    assert len(data) == codec.encoded_bytes(codec.form_of(wanted), metadata)
    assert codec.read_header(io.BytesIO(data), len(data), None, "It").metadata == metadata


@given(tensors())
@settings(max_examples=40)
def test_what_safetensors_writes_is_read(wanted):
    data = safetensors.torch.save(wanted)
    assert same(codec.decode(data), wanted)
    assert list(codec.decode(data, codec.form_of(wanted))) == list(wanted)


def test_files(tmp_path):
    groups = {"params": {"a.weight": torch.randn(3, 2), "b": torch.tensor(2)}, "nothing": {}}
    codec.save_groups(tmp_path / "some", groups)
    found = codec.load_groups(tmp_path / "some")
    assert found.keys() == groups.keys()
    assert same(found["params"], groups["params"])
    assert same(codec.decode_groups(codec.encode_groups(groups))["params"], groups["params"])
    assert [path.name for path in tmp_path.iterdir()] == ["some"]


DAMAGED = {
    "nothing": b"",
    "no header": b"\0" * 7,
    "a header as large as can be": b"\xff" * 8,
    "a header longer than what follows": (100).to_bytes(8, "little") + b"{}",
    "a header that is too long": file_of(b" " * codec.UNKNOWN_HEADER_BYTES + b"{}"),
    "no JSON": file_of(b"{]"),
    "no UTF-8": file_of(b'{"\xff": 1}'),
    "half of a character": file_of(b'{"\\ud800": {"dtype":"F32","shape":[0],"data_offsets":[0,0]}}'),
    "levels without end": file_of(b"[" * 100_000),
    "a number of many digits": file_of(b'{"a": {"dtype":"F32","shape":[' + b"9" * 5000 + b'],"data_offsets":[0,4]}}'),
    "a list": file_of([]),
    "a number": file_of({"a": 1}),
    "one name twice": file_of(b'{"a": %s, "a": %s}' % ((json.dumps(floats(0, 4)).encode(),) * 2), b"1234"),
    "a type nobody knows": file_of({"a": {"dtype": "F12", "shape": [1], "data_offsets": [0, 4]}}, b"1234"),
    "a type that is a list": file_of({"a": {"dtype": [], "shape": [1], "data_offsets": [0, 4]}}, b"1234"),
    "one field more": file_of({"a": floats(0, 4) | {"code": "x"}}, b"1234"),
    "one field less": file_of({"a": {"dtype": "F32", "shape": [1]}}, b"1234"),
    "a negative size": file_of({"a": floats(0, 4, [-1])}, b"1234"),
    "a broken size": file_of({"a": floats(0, 4, [1.0])}, b"1234"),
    "a size that is true": file_of({"a": floats(0, 4, [True])}, b"1234"),
    "sizes that overflow": file_of({"a": floats(0, 4, [2**40, 2**40])}, b"1234"),
    "sizes that overflow without a number": file_of({"a": floats(0, 0, [0, 2**40, 2**40])}),
    "too many dimensions": file_of({"a": floats(0, 4, [1] * 100)}, b"1234"),
    "not a number": file_of(b'{"a": {"dtype":"F32","shape":[NaN],"data_offsets":[0,4]}}', b"1234"),
    "a shape of another size": file_of({"a": floats(0, 4, [2])}, b"1234"),
    "an end before the beginning": file_of({"a": floats(4, 0, [1])}, b"1234"),
    "three places": file_of({"a": floats(0, 4) | {"data_offsets": [0, 2, 4]}}, b"1234"),
    "an overlap": file_of({"a": floats(0, 8), "b": floats(4, 12)}, b"123456789012"),
    "the same place": file_of({"a": floats(0, 4), "b": floats(0, 4)}, b"1234"),
    "a hole": file_of({"a": floats(0, 4), "b": floats(8, 12)}, b"123456789012"),
    "a hole in front": file_of({"a": floats(4, 8)}, b"12345678"),
    "bytes behind": file_of({"a": floats(0, 4)}, b"12345"),
    "bytes of nothing": file_of({}, b"1"),
    "missing bytes": file_of({"a": floats(0, 4)}, b"123"),
    "numbers as metadata": file_of({"__metadata__": {"a": 1}}),
    "a text as metadata": file_of({"__metadata__": "a"}),
    "a truth value of 7": file_of({"a": {"dtype": "BOOL", "shape": [1], "data_offsets": [0, 1]}}, b"\7"),
}


@pytest.mark.parametrize("data", DAMAGED.values(), ids=DAMAGED.keys())
def test_what_is_not_in_the_form_is_refused(data):
    with pytest.raises(BadTensorsError, match=r"^The upload does not hold tensors in the form of safetensors: "):
        codec.decode(data, what="The upload")


WANTED = {"a/b": (torch.float32, (2,)), "a/c": (torch.int64, ())}


@pytest.mark.parametrize(
    ("sent", "sentence"),
    [
        ({"a/b": torch.zeros(2)}, "it has no tensor 'a/c'"),
        ({"a/b": torch.zeros(2), "a/c": torch.tensor(1), "d": torch.zeros(0)}, "a tensor 'd', which nobody asked for"),
        ({"a/b": torch.zeros(2, 1), "a/c": torch.tensor(1)}, r"'a/b' is F32 of shape \[2, 1\], and must be"),
        ({"a/b": torch.zeros(2).half(), "a/c": torch.tensor(1)}, r"must be F32 of shape \[2\]"),
        ({f"a/{n}": torch.zeros(0) for n in range(1500)}, "announces a header of .* and at most 65,536 are read"),
    ],
)
def test_another_form_than_the_one_wanted_is_refused(sent, sentence):
    with pytest.raises(BadTensorsError, match=sentence):
        codec.decode(codec.encode(sent), WANTED)


def test_a_known_form_may_need_a_long_header():
    many = {f"params/layers.{n}.attention.weight": torch.zeros(1) for n in range(1200)}
    data = codec.encode(many)
    assert int.from_bytes(data[:8], "little") > codec.KNOWN_HEADER_BYTES
    assert len(codec.decode(data, codec.form_of(many))) == 1200


@pytest.mark.parametrize("groups", [b"[1]", b"{}", b"[", b"null"])
def test_groups_that_are_none_are_refused(groups):
    with pytest.raises(BadTensorsError, match="not a list of names"):
        codec.decode_groups(codec.encode({}, {"groups": groups.decode()}))


def test_a_tensor_of_no_group_is_refused():
    with pytest.raises(BadTensorsError, match="'alone' belongs to no group"):
        codec.decode_groups(codec.encode({"alone": torch.zeros(1)}))


def test_a_type_that_the_form_has_not_is_not_written():
    with pytest.raises(ValueError, match="cannot be written"):
        codec.encode({"a": torch.zeros(1, dtype=torch.complex64)})


def survives(data: bytes) -> None:
    """Bytes are tensors, or refused by the one error that says so."""
    for read in (codec.decode, codec.decode_groups, lambda data: codec.decode(data, WANTED)):
        with suppress(BadTensorsError):
            read(data)


@given(st.binary(max_size=200))
@example(b"\x02" + b"\0" * 7 + b"{}")
@settings(max_examples=100)
def test_random_bytes_do_no_harm(data):
    survives(data)
    survives(file_of(data))


WRITTEN = codec.encode({"a/b": torch.randn(2), "a/c": torch.tensor(3)}, {"groups": '["a"]'})


@given(st.lists(st.tuples(st.integers(0, len(WRITTEN) - 1), st.integers(0, 255)), min_size=1, max_size=3))
@settings(max_examples=150)
def test_changed_bytes_do_no_harm(changes):
    data = bytearray(WRITTEN)
    for place, value in changes:
        data[place] = value
    survives(bytes(data))


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)
ENTRY = st.fixed_dictionaries(
    {
        "dtype": st.sampled_from([*codec.DTYPES, "F8_E4M3"]) | JSON,
        "shape": st.lists(st.integers(-1, 2**63), max_size=3) | JSON,
        "data_offsets": st.lists(st.integers(-1, 2**64), max_size=3) | JSON,
    }
)


@given(st.dictionaries(st.text(max_size=5) | st.just("__metadata__"), ENTRY | JSON, max_size=3), st.binary(max_size=24))
@settings(max_examples=30)
def test_strange_headers_do_no_harm(header, body):
    survives(file_of(header, body))
