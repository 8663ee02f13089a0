"""Pickles of plain data are read like Python reads them, and nothing in a pickle is ever executed."""

from __future__ import annotations

import copyreg
import gzip
import os
import pickle
import random
import struct
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedarena.core import pickles
from fedarena.core.errors import BadInputError
from fedarena.core.pickles import parse_pickle
from fedarena.fleet.reading import traces

PROTOCOLS = range(6)
SHARED_LIST = [1, 2]
PLAIN_VALUES = [
    {1: {"computation": 153.0, "communication": 2209.6}, 2: {"computation": 39.0, "communication": 1e9}},
    {"1": {"active": list(range(0, 5_000, 2)), "inactive": [], "model": "LG-K350"}},
    [None, True, False, 0, 1, 255, 256, 65_535, 65_536, -1, -70_000, 2**31, -(2**31) - 1, 2**80, -(2**2_100)],
    [0.0, -0.5, 1e300, float("inf"), 5e-324],
    ["", "plain", "Überraschung\n\\ \"'", "日本", "\U0001f600", "x" * 300],
    [(), (1,), (1, 2), (1, 2, 3), (1, 2, 3, 4), ((), [[]], {})],
    [SHARED_LIST, SHARED_LIST, {"again": SHARED_LIST}],
    {1.5: 2, None: 3, True: 4},
    7,
]


@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize("value", PLAIN_VALUES)
def test_plain_data_is_what_was_pickled(value: Any, protocol: int) -> None:
    read = parse_pickle(pickle.dumps(value, protocol), "made.pkl")
    assert read == value
    assert repr(read) == repr(value)  # also tells 1 from True and 1.0


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
        lambda inner: (
            st.lists(inner) | st.dictionaries(st.text() | st.integers(), inner) | st.tuples(inner, inner, inner)
        ),
        max_leaves=20,
    ),
    st.sampled_from(PROTOCOLS),
)
def test_any_plain_data(value: Any, protocol: int) -> None:
    assert repr(parse_pickle(pickle.dumps(value, protocol), "made.pkl")) == repr(value)


@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize(
    "kind", [np.float64, np.float32, np.float16, np.int64, np.int8, np.uint16, np.uint64, np.bool_]
)
def test_scalars_of_numpy_become_numbers(kind: type, protocol: int) -> None:
    values = {1: kind(1), 2: [kind(0), kind(1)]}
    read = parse_pickle(pickle.dumps(values, protocol), "made.pkl")
    assert read == values
    assert {type(number) for number in [read[1], *read[2]]} <= {int, float, bool}


def test_scalars_as_old_versions_of_numpy_wrote_them() -> None:
    """So is FedScale's file of devices: protocol 3, and the module's former name."""
    data = pickle.dumps({1: np.float64(2209.615982329485)}, 3).replace(b"cnumpy._core.", b"cnumpy.core.")
    assert b"cnumpy.core.multiarray\nscalar" in data
    assert parse_pickle(data, "made.pkl") == {1: 2209.615982329485}


def test_scalars_of_the_other_byte_order() -> None:
    data = pickle.dumps(np.float64(258.5), 3).replace(b"X\x01\x00\x00\x00<", b"X\x01\x00\x00\x00>")
    data = data.replace(struct.pack("<d", 258.5), struct.pack(">d", 258.5))
    assert pickle.loads(data) == 258.5
    assert parse_pickle(data, "made.pkl") == 258.5


def test_texts_of_python_2() -> None:
    data = b"(dp0\nS'computation'\np1\nF153.0\nsS\"it's\"\nU\x02\xe9as."
    assert parse_pickle(data, "old.pkl") == {"computation": 153.0, "it's": "éa"}


calls: list[object] = []


def remember(*arguments: object) -> dict[str, int]:
    calls.append(arguments)
    return {}


class Calls:
    """Pickled, it becomes the call of a function."""

    def __init__(self, function: Any, *arguments: Any, state: Any = None):
        self.call = (function, arguments, state)

    def __reduce__(self) -> Any:
        return self.call


class Plain:
    pass


class WithArguments:
    def __getnewargs_ex__(self) -> Any:
        return (), {"key": 1}

    def __new__(cls, key: int = 0) -> WithArguments:
        calls.append(key)
        return super().__new__(cls)


def with_attribute() -> Plain:
    made = Plain()
    made.name = "value"  # type: ignore[attr-defined]
    return made


MALICIOUS = {
    "os.system": lambda marker: Calls(os.system, f"touch {marker}"),
    "builtins.eval": lambda marker: Calls(eval, f"open({str(marker)!r}, 'w')"),
    "builtins.exec": lambda marker: Calls(exec, f"open({str(marker)!r}, 'w')"),
    "builtins.getattr": lambda marker: Calls(getattr, "text", "upper"),
    "a function": lambda marker: Calls(remember, 1),
    "inside": lambda marker: {"1": {"computation": 1.0, "communication": [(1, Calls(remember, 2))]}},
    "as a key": lambda marker: {Calls(remember, 3): 1},
    "as an argument": lambda marker: Calls(remember, Calls(remember, 4)),
    "with a state": lambda marker: Calls(remember, 5, state={"a": 1}),
    "copyreg": lambda marker: Calls(copyreg._reconstructor, Plain, object, None),
    "an object": lambda marker: with_attribute(),
    "an object with arguments": lambda marker: WithArguments.__new__(WithArguments),
    "a class": lambda marker: Plain,
    "an array": lambda marker: np.arange(3),
    "a path": lambda marker: Path("x"),
    "a set": lambda marker: {1, 2},
    "a bytearray": lambda marker: bytearray(b"x"),
    "an object array's number": lambda marker: np.array([None], dtype=object),
}


@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize("kind", MALICIOUS)
def test_nothing_is_executed(kind: str, protocol: int, tmp_path: Path) -> None:
    marker = tmp_path / "executed"
    data = pickle.dumps(MALICIOUS[kind](marker), protocol)
    calls.clear()
    with pytest.raises(BadInputError, match=r"^bad\.pkl ") as refused:
        parse_pickle(data, "bad.pkl")
    assert not calls
    assert not marker.exists()
    if "." in kind:
        name = kind.replace("os.system", f"{os.system.__module__}.system")
        assert f"wants to run {name}" in str(refused.value) or "__builtin__" in str(refused.value)


def test_the_same_pickles_do_execute_in_python(tmp_path: Path) -> None:
    """The test above would be worth nothing if they did not."""
    marker = tmp_path / "executed"
    calls.clear()
    pickle.loads(pickle.dumps(MALICIOUS["os.system"](marker)))
    pickle.loads(pickle.dumps(MALICIOUS["inside"](marker)))
    assert marker.exists()
    assert calls == [(2,)]


@pytest.mark.parametrize(
    "data",
    [
        b"(S'touch marker'\nios\nsystem\n.",  # INST
        b"(cos\nsystem\nS'touch marker'\no.",  # OBJ
        b"cos\nsystem\n(S'touch marker'\ntR.",
        b"\x8c\x02os\x8c\x06system\x93(\x8c\x0ctouch marker\x85R.",
        b"\x8c\x08builtins\x8c\x04exec\x93.",
        b"Pmarker\n.",  # PERSID
        b"S'marker'\nQ.",  # BINPERSID
        b"\x82\x01.",  # EXT1
        b"\x97.",  # NEXT_BUFFER
        b"]\x8f.",  # EMPTY_SET
        b"\x96\x01\x00\x00\x00\x00\x00\x00\x00x.",  # BYTEARRAY8
        b"}}b.",  # BUILD of a dictionary
        b"S'text'\n)R.",  # REDUCE of a text
        b"S'text'\n)\x81.",  # NEWOBJ
        b"cnumpy\ndtype\n.",  # a known name by itself
        b"cnumpy\ndtype\n(S'O8'\nI00\nI01\ntR.",  # a type of objects
        b"cnumpy.core.multiarray\nscalar\n(S'f8'\nS'12345678'\ntR.",  # a number without a type
        b"c_codecs\nencode\n(S'x'\nS'rot13'\ntR.",
        b"cnumpy.core.multiarray\n_reconstruct\n.",
        b"c_codecs\nencode\n}S'name'\nNsb.",  # BUILD of what stands for a known name
        b"c_codecs\nencode\nN}S'__defaults__'\n)s\x86b.",
        b"c_codecs\nencode\n)\x81.",  # NEWOBJ of it
        b"c_codecs\nencode\n)}\x92.",  # NEWOBJ_EX
        b"(c_codecs\nencode\nS'x'\no.",
        b"(S'x'\nS'latin1'\ni_codecs\nencode\n.",
        b"c_codecs\nencode\nc_codecs\nencode\n\x85R.",
        b"cnumpy\ndtype\n)" + b"\x85" * 300_000 + b"NN\x87R.",  # hashing this would exhaust the stack
        b"cnumpy\ndtype.__class__.__base__\n.",
        b"\x80\x04\x8c\x05numpy\x8c\x05dtype\x93S'f8'\nI00\nI01\n\x87RS'text'\nb.",
        b"}S'x'\nc_codecs\nencode\ns.",
    ],
)
def test_instructions_that_do_something_are_refused(data: bytes, tmp_path: Path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(BadInputError, match=r"^bad\.pkl "):
        parse_pickle(data, "bad.pkl")
    assert not list(tmp_path.iterdir())


def test_extensions_are_not_looked_up() -> None:
    copyreg.add_extension(__name__, "remember", 240)
    try:
        data = pickle.dumps(Calls(remember, 6), 2)
        assert b"\x82\xf0" in data
        pickle.loads(data)  # Python remembers what 240 means
        calls.clear()
        with pytest.raises(BadInputError, match="extension registry"):
            parse_pickle(data, "bad.pkl")
        assert not calls
    finally:
        copyreg.remove_extension(__name__, "remember", 240)
        copyreg.clear_extension_cache()


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_every_truncation_is_refused(protocol: int) -> None:
    data = pickle.dumps(
        {1: {"active": [1, 300, 70_000], "model": "x", "time": np.float64(2.5), "big": 2**70}}, protocol
    )
    for length in range(1, len(data)):
        with pytest.raises(BadInputError, match=r"^short\.pkl is not a"):
            parse_pickle(data[:length], "short.pkl")


@pytest.mark.parametrize(
    "data",
    [
        b"\x80\x02]r\xf0\xff\xff\x7f.",  # a place in memory that Python's machine makes 32 GB of room for
        b"]rhello",
    ],
)
def test_memory_is_used_for_what_is_there_only(data: bytes) -> None:
    if data.endswith(b"."):
        assert parse_pickle(data, "x") == []
    else:
        with pytest.raises(BadInputError):
            parse_pickle(data, "x")


@pytest.mark.parametrize(
    "data",
    [
        b"X\xff\xff\xff\xffabc.",
        b"\x8d\xff\xff\xff\xff\xff\xff\xff\x7fabc.",
        b"\x8e\xff\xff\xff\xff\xff\xff\xff\x7fabc.",
        b"\x8b\xff\xff\xff\x7fabc.",
        b"\x80\x04\x95\xff\xff\xff\xff\xff\xff\xff\x7f.",
        b"I" + b"9" * 10_000 + b"\n.",
    ],
)
def test_absurd_lengths_are_refused(data: bytes) -> None:
    with pytest.raises(BadInputError, match=r"^x (is not a|holds a whole number of more than)"):
        parse_pickle(data, "x")


@pytest.mark.parametrize(
    "key",
    [
        b")" + b"\x85" * 300_000,  # a tuple nested so deep that hashing it would exhaust the stack
        b")" + b"2\x86" * 60,  # a tuple of the same tuple twice, sixty times: hashing it would never end
        b"cnumpy\ndtype\n",
    ],
    ids=["deep", "wide", "name"],
)
@pytest.mark.parametrize("form", [b"}%bNs.", b"}(%bNu.", b"(%bNd."])
def test_keys_must_be_plain(key: bytes, form: bytes) -> None:
    with pytest.raises(BadInputError, match=r"^x is not a pickle of plain data"):
        parse_pickle(form % key, "x")


def test_a_frame_must_be_in_the_file() -> None:
    data = pickle.dumps(list(range(20)), 4)
    assert data[2:3] == pickle.FRAME
    longer = data[:3] + struct.pack("<Q", len(data) - 11 + 1) + data[11:]
    assert parse_pickle(data, "x") == list(range(20))
    with pytest.raises(BadInputError, match=f"x is not a complete pickle: it breaks off at byte {len(data)}"):
        parse_pickle(longer, "x")


def test_large_files_are_refused(monkeypatch) -> None:
    monkeypatch.setattr(pickles, "MAX_PICKLE_BYTES", 100)
    with pytest.raises(BadInputError, match=r"x has 1\d\d bytes; a pickle may have at most 100"):
        parse_pickle(pickle.dumps("a" * 120), "x")


def test_what_contains_itself_is_refused() -> None:
    loop: list[Any] = []
    loop.append({"inside": (loop,)})
    with pytest.raises(BadInputError, match="contains itself"):
        parse_pickle(pickle.dumps(loop), "x")


def test_depth_is_limited() -> None:
    nested: list[Any] = []
    for _ in range(100):
        nested = [nested]
    with pytest.raises(BadInputError, match="more than 64"):
        parse_pickle(pickle.dumps(nested), "x")


def repeated(times: int) -> list[Any]:
    many: list[Any] = [0]
    for _ in range(times):
        many = [many] * 10
    return many


def test_repetition_is_limited_by_what_it_comes_to() -> None:
    read = parse_pickle(pickle.dumps(repeated(6)), "x")  # 1,111,110 lists and a million numbers
    for _ in range(6):
        assert len(read) == 10
        assert all(inner is read[0] for inner in read)
        read = read[0]
    assert read == [0]
    with pytest.raises(BadInputError) as refused:
        parse_pickle(pickle.dumps(repeated(50)), "x")
    assert str(refused.value) == (
        "x mentions the same lists or dictionaries so often that its 501 values come to more than 8,388,608; "
        "a file of so many must write down each of them"
    )


def test_what_is_written_down_may_be_more_than_what_is_repeated(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pickles, "MAX_SHARED_VALUES", 100)
    assert len(parse_pickle(pickle.dumps([list(range(50)) for _ in range(10)]), "x")) == 10
    shared = list(range(50))
    assert len(parse_pickle(pickle.dumps([shared]), "x")) == 1
    with pytest.raises(BadInputError, match="its 52 values come to more than 100"):
        parse_pickle(pickle.dumps([shared] * 2), "x")


def test_many_small_containers_are_refused_before_they_are_made(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pickles, "MAX_HEAVY_BYTES", 1_000)
    for code in (b"(", b"]", b"}", b"\x94", b")\x85"):
        with pytest.raises(BadInputError, match="x holds more than 1,000 lists and dictionaries"):
            parse_pickle(code * 1_001 + b".", "x")
    assert len(parse_pickle(pickle.dumps(list(range(5_000))), "x")) == 5_000


# Each asks for gigabytes: of the machine's memory, of texts and numbers that are not there, of copies of one text.
ANNOUNCEMENTS = [
    b"\x80\x02]r\xf0\xff\xff\x7f.",
    b"X\xff\xff\xff\xffabc.",
    b"B\xff\xff\xff\xffabc.",
    b"T\xff\xff\xff\x7fabc.",
    *(b"%b\xff\xff\xff\xff\xff\xff\xff\x7fabc." % code for code in (b"\x8d", b"\x8e", b"\x96")),
    *(b"%b\x00\x00\x00\x00\x04\x00\x00\x00abc." % code for code in (b"\x8d", b"\x8e", b"\x96")),
    b"\x8b\xff\xff\xff\x7fabc.",
    b"\x80\x04\x95\x00\x00\x00\x00\x08\x00\x00\x00.",
    b"c_codecs\nencode\nq\x00X\x40\x42\x0f\x00" + b"a" * 1_000_000 + b"q\x01X\x06\x00\x00\x00latin1q\x02"
    b"]" + b"h\x00h\x01h\x02\x86Ra" * 10_000 + b".",
]


def test_announced_lengths_take_no_memory() -> None:
    """In a process that gets an error if it asks for more than 2 GB more than it has."""
    code = f"""
import resource
from fedarena.core.errors import BadInputError
from fedarena.core.pickles import parse_pickle

used = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (used + 2 * 10**9,) * 2)
for data in {ANNOUNCEMENTS!r}:
    try:
        print(parse_pickle(data, "x"))
    except BadInputError as error:
        print(str(error)[:8])
"""
    finished = subprocess.run([sys.executable, "-"], input=code, capture_output=True, text=True, check=False)
    assert finished.stderr == ""
    assert finished.stdout.split("\n")[0] == "[]"
    assert set(finished.stdout.split("\n")[1:-1]) == {"x is not", "x holds "}


@settings(max_examples=300)
@given(st.binary(max_size=60) | st.integers(min_value=0))
def test_no_bytes_get_through_with_another_error(noise: bytes | int) -> None:
    if isinstance(noise, int):  # a few bytes of a good pickle are changed
        value = {1: {"active": [1, 2, 300], "x": np.float64(1.5), "name": "abc"}, 2: [(), (1, 2), None]}
        mutated = bytearray(pickle.dumps(value, noise % 6))
        source = random.Random(noise)
        for _ in range(3):
            mutated[source.randrange(len(mutated))] = source.randrange(256)
        noise = bytes(mutated)
    with suppress(BadInputError):
        pickle.dumps(parse_pickle(noise, "noise.pkl"))


def test_gzip_and_json_are_recognized(tmp_path: Path) -> None:
    value = {"1": {"computation": 2.5}}
    for name, data in {
        "plain.pkl": pickle.dumps(value),
        "old.pkl": pickle.dumps(value, 0),
        "small.pkl.gz": gzip.compress(pickle.dumps(value)),
        "data.json": b' {"1": {"computation": 2.5}}\n',
        "data.json.gz": gzip.compress(b'{"1": {"computation": 2.5}}'),
    }.items():
        (tmp_path / name).write_bytes(data)
        assert traces.read_json_or_pickle(tmp_path / name) == value


@pytest.mark.parametrize(
    ("data", "sentence"),
    [
        (b"", "is empty"),
        (b"  \n", "is empty"),
        (b"\x1f\x8b\x08garbage", "is damaged"),
        (gzip.compress(b"{}" * 1000, mtime=0)[:-20], "is damaged"),
        (b"{", "is not JSON: .* in line 1, column 2"),
        (b'{"a":\n 1,}', "is not JSON: .* in line 2"),
        (b'{"a": "\xff"}', "is not JSON"),
        (b"[" * 100_000, "is not JSON"),
        (b"hello", "is not a"),
    ],
)
def test_files_that_are_nothing(data: bytes, sentence: str, tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(data)
    with pytest.raises(BadInputError, match=f"{path} {sentence}"):
        traces.read_json_or_pickle(path)


def test_files_that_cannot_be_read(tmp_path: Path, monkeypatch) -> None:
    with pytest.raises(BadInputError, match=f"There is no file {tmp_path}/none"):
        traces.read_json(tmp_path / "none")
    with pytest.raises(BadInputError, match="cannot be read: Is a directory"):
        traces.read_json(tmp_path)
    monkeypatch.setattr("fedarena.core.files.MAX_FILE_BYTES", 1_000)
    (tmp_path / "bomb.gz").write_bytes(gzip.compress(b"0" * 100_000))
    with pytest.raises(BadInputError, match=r"bomb\.gz is too large"):
        traces.read_json(tmp_path / "bomb.gz")


@pytest.mark.parametrize("content", [{10**4000: 1}, {1: 10**4000}, [2 ** (8 * 1100)]])
@pytest.mark.parametrize("protocol", [0, 2, 4])
def test_numbers_of_absurd_length_are_refused(content: object, protocol: int) -> None:
    with pytest.raises(BadInputError, match="holds a whole number of more than"):
        parse_pickle(pickle.dumps(content, protocol), "long.pickle")
