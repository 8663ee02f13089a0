"""Reading pickled plain data without running anything.

A pickle is a program for a small machine, and Python's own runs whatever the program names. Here it is left only the
instructions that make dictionaries, lists, tuples, texts and numbers; it stops at any other with a sentence. NumPy's
scalars, which FedScale's files are full of, are recognized by their exact form and decoded from their bytes: a name in
a pickle is compared with a few known ones, and never looked up, imported or called. Files of other things, such as
arrays, have a machine that knows a few names more.

This is the machine of the standard library that is written in Python. The one in C cannot be made safe by a subclass:
it makes room for announced numbers before it looks whether they are true (``]r\\xf0\\xff\\xff\\x7f.``, eight bytes,
takes 32 GB for the place 2,147,483,632 of its memory), hands out objects of the extension registry without asking, and
hashes keys that are nested so deeply that Python crashes.
"""

from __future__ import annotations

import io
import pickle
import struct
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

from fedarena.core.errors import BadInputError

MAX_PICKLE_BYTES = 1 << 28  # six times the largest file of FedScale
MAX_DEPTH = 64
# Values of lists that are in a pickle once and mentioned again and again; all of FedScale's traces have half as many.
MAX_SHARED_VALUES = 1 << 23
# Instructions of a single byte that take a hundred times as much memory: marks, containers, entries of the machine's
# memory. Not all bytes of these values are instructions, but all of these instructions are such bytes.
MAX_HEAVY_BYTES = 1 << 25
_HEAVY = (b"(", b"]", b"}", b"\x85", b"\x86", b"\x87", b"\x94")
# Whole numbers of traces are short; long ones would take for ever to be hashed or written out.
_MAX_INTEGER_BYTES = 1024
_MAX_DIGITS = 2500
_LONGEST_NAME = 100
_LONGEST_NUMBER_BYTES = 8
_PLAIN = {str, bytes, int, float, bool, type(None)}
_CONTAINERS = {dict, list, tuple}
_DAMAGED = (LookupError, ValueError, TypeError, AttributeError, ArithmeticError, struct.error, pickle.UnpicklingError)
# The forms of NumPy's number types, by what `struct` calls them.
_NUMBER_FORMS = dict(
    zip(["f2", "f4", "f8", "b1", "i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8"], "efd?bhiqBHIQ", strict=True)
)


def parse_pickle(data: bytes, path: str | Path, machine: type[PlainUnpickler] | None = None) -> Any:
    """The plain value that the pickle `data` describes (protocols 0 to 5); `path` names it in errors.

    A `machine` of one's own may know more than plain data.
    """
    if len(data) > MAX_PICKLE_BYTES:
        raise BadInputError(f"{path} has {len(data):,} bytes; a pickle may have at most {MAX_PICKLE_BYTES:,}")
    if len(data) > MAX_HEAVY_BYTES and sum(map(data.count, _HEAVY)) > MAX_HEAVY_BYTES:
        raise BadInputError(f"{path} holds more than {MAX_HEAVY_BYTES:,} lists and dictionaries")
    file = io.BytesIO(data)
    unpickler = (machine or PlainUnpickler)(file, str(path))
    try:
        value = unpickler.load()
    except (EOFError, *_DAMAGED) as error:
        if isinstance(error, EOFError) or file.tell() == len(data):
            sentence = f"is not a complete pickle: it breaks off at byte {len(data):,}"
        else:
            sentence = f"is not a pickle of plain data: byte {file.tell():,} makes no sense"
        raise BadInputError(f"{path} {sentence}") from None
    return unpickler.checked(value)


def check_plain(value: Any, path: str) -> None:
    """Refuses what contains itself, what is not plain, and small parts that are shared until they are very many."""
    if type(value) in _PLAIN:
        return
    present = 0
    # How many values are in a container that is finished, with all inside it, however often they are shared.
    finished: dict[int, int] = {}
    unfinished: set[int] = set()
    # A container comes twice: to be opened, and, after everything inside of it, to be closed.
    waiting: list[tuple[Any, bool]] = [(value, False)]
    while waiting:
        container, opened = waiting.pop()
        if type(container) not in _CONTAINERS:
            raise BadInputError(f"{path} holds a NumPy type or function where a number or a text should be")
        inside = container.values() if type(container) is dict else container
        if opened:
            unfinished.remove(id(container))
            present += len(container)
            finished[id(container)] = len(container) + sum(
                finished[id(item)] for item in inside if type(item) not in _PLAIN
            )
            continue
        if id(container) in unfinished:
            raise BadInputError(f"{path} holds a list or dictionary that contains itself")
        if id(container) in finished:
            continue
        unfinished.add(id(container))
        if len(unfinished) > MAX_DEPTH:
            raise BadInputError(f"{path} holds more than {MAX_DEPTH} lists or dictionaries inside each other")
        waiting.append((container, True))
        waiting.extend((item, False) for item in inside if type(item) not in _PLAIN)
    if finished[id(value)] > max(present, MAX_SHARED_VALUES):
        raise BadInputError(
            f"{path} mentions the same lists or dictionaries so often that its {present:,} values come to more than "
            f"{MAX_SHARED_VALUES:,}; a file of so many must write down each of them"
        )


class NumberType:
    """A type of NumPy's numbers, as described in the pickle."""

    def __init__(self, form: str):
        self.form = form
        self.layout = struct.Struct("<" + form)

    def order(self, state: Any) -> None:
        """Sets the order of bytes, the second entry of the state that NumPy writes."""
        if type(state) is not tuple or state[1] not in ("<", ">", "|"):
            raise TypeError("not the state of a type of numbers")
        self.layout = struct.Struct((">" if state[1] == ">" else "<") + self.form)


def _number_type(code: Any, _align: Any, _copy: Any) -> NumberType:
    if type(code) is not str:  # like a key of a dictionary: not everything can be hashed safely
        raise TypeError("not the name of a type of numbers")
    return NumberType(_NUMBER_FORMS[code])


def _number(number_type: Any, digits: Any) -> Any:
    return number_type.layout.unpack(digits)[0]


def _encoded(text: Any, encoding: Any) -> bytes:
    # Protocols 0 to 2 write the bytes of a number this way. A long text could be encoded again and again.
    if type(text) is not str or len(text) > _LONGEST_NUMBER_BYTES or encoding != "latin1":
        raise ValueError("not the bytes of a number")
    return text.encode("latin-1")


# What stands for the only names that may appear in plain data.
KNOWN_NAMES: dict[str, Any] = {
    "numpy.dtype": _number_type,
    "numpy.core.multiarray.scalar": _number,
    "numpy._core.multiarray.scalar": _number,
    "_codecs.encode": _encoded,
}


# Of the instructions of the standard library, those that make plain data. NumPy's scalars need the last three: GLOBAL
# and STACK_GLOBAL ask `find_class`, and nothing can be called by REDUCE but what that returns.
_KEPT = (
    *(pickle.PROTO, pickle.STOP, pickle.MARK, pickle.POP, pickle.POP_MARK, pickle.DUP),
    *(pickle.NONE, pickle.NEWTRUE, pickle.NEWFALSE, pickle.BININT, pickle.BININT1, pickle.BININT2, pickle.LONG1),
    *(pickle.FLOAT, pickle.BINFLOAT, pickle.STRING, pickle.BINSTRING, pickle.SHORT_BINSTRING),
    *(pickle.UNICODE, pickle.BINUNICODE, pickle.SHORT_BINUNICODE, pickle.BINUNICODE8),
    *(pickle.BINBYTES, pickle.SHORT_BINBYTES, pickle.BINBYTES8),
    *(pickle.EMPTY_TUPLE, pickle.TUPLE, pickle.TUPLE1, pickle.TUPLE2, pickle.TUPLE3),
    *(pickle.EMPTY_LIST, pickle.LIST, pickle.APPEND, pickle.APPENDS, pickle.EMPTY_DICT),
    *(pickle.PUT, pickle.BINPUT, pickle.LONG_BINPUT, pickle.MEMOIZE, pickle.GET, pickle.BINGET, pickle.LONG_BINGET),
    *(pickle.GLOBAL, pickle.STACK_GLOBAL, pickle.REDUCE),
)
_REFUSED = {
    "wants to create an object": (pickle.OBJ, pickle.NEWOBJ, pickle.NEWOBJ_EX),
    "refers to an object outside of the file": (
        *(pickle.PERSID, pickle.BINPERSID),
        *(pickle.NEXT_BUFFER, pickle.READONLY_BUFFER),
    ),
    "refers to an object by a number of Python's extension registry": (pickle.EXT1, pickle.EXT2, pickle.EXT4),
    "holds a set": (pickle.EMPTY_SET, pickle.ADDITEMS, pickle.FROZENSET),
    "holds a bytearray": (pickle.BYTEARRAY8,),
}


def refuse(unpickler: PlainUnpickler, reason: str) -> None:
    """Stops at what is not data."""
    raise BadInputError(f"{unpickler.path} {reason}; {unpickler.allowed}")


class PlainUnpickler(pickle._Unpickler):
    """Python's machine with the instructions for plain data only; there is none to do anything."""

    known_names: ClassVar[dict[str, Any]] = KNOWN_NAMES
    allowed: ClassVar[str] = "trace files may hold plain numbers, texts, lists and dictionaries only"

    # What the machine works with, and nobody has declared.
    stack: list[Any]
    append: Callable[[Any], None]
    pop_mark: Callable[[], list[Any]]
    read: Callable[[int], bytes]
    readline: Callable[[], bytes]

    def __init__(self, file: io.BytesIO, path: str):
        super().__init__(file, encoding="latin-1")
        self.path, self._file, self._bytes = path, file, len(file.getbuffer())

    def find_class(self, module: str, name: str) -> Any:
        """One of our own functions for a known name; any other is refused."""
        if self._file.tell() == self._bytes:
            raise EOFError  # and the name may be cut off
        known = self.known_names.get(f"{module}.{name}")
        if known is None:
            shown = repr(f"{module}.{name}"[:_LONGEST_NAME])[1:-1]  # a name is what somebody wrote into the file
            raise BadInputError(f"{self.path} wants to run {shown}, which was not done; {self.allowed}")
        return known

    def checked(self, value: Any) -> Any:
        """What was read, after a look at all of it."""
        check_plain(value, self.path)
        return value

    def instance(self) -> None:
        """Stops at an instruction that names a class and creates an object of it."""
        module, name = (self.readline().rstrip(b"\n").decode("latin-1") for _ in range(2))
        self.find_class(module, name)
        refuse(self, "wants to create an object")

    def frame(self) -> None:
        """Frames are for reading ahead; all that matters here is whether the file is as long as they say."""
        (announced,) = struct.unpack("<Q", self.read(8))
        if announced > self._bytes - self._file.tell():
            raise EOFError

    def integer_line(self) -> None:
        """A whole number in digits, or, in two of them, a truth value."""
        digits = self.readline().rstrip(b"\n")
        if len(digits) > _MAX_DIGITS:
            raise BadInputError(f"{self.path} holds a whole number of more than {_MAX_DIGITS} digits")
        self.append(digits == b"01" if digits in (b"00", b"01") else int(digits.removesuffix(b"L")))

    def long_integer(self) -> None:
        """A whole number of many bytes."""
        (count,) = struct.unpack("<I", self.read(4))
        if count > _MAX_INTEGER_BYTES:
            raise BadInputError(f"{self.path} holds a whole number of more than {_MAX_INTEGER_BYTES} bytes")
        self.append(int.from_bytes(self.read(count), "little", signed=True))

    def new_dict(self) -> None:
        """A dictionary of keys and values since the last mark."""
        items = self.pop_mark()
        self.append({})
        self._fill(items)

    def set_item(self) -> None:
        """One key and value."""
        value, key = self.stack.pop(), self.stack.pop()
        self._fill([key, value])

    def set_items(self) -> None:
        """Keys and values since the last mark."""
        self._fill(self.pop_mark())

    def _fill(self, items: list[Any]) -> None:
        # No tuples: to hash one that is nested deeply can take for ever or crash Python.
        if type(self.stack[-1]) is not dict or not set(map(type, items[::2])) <= _PLAIN:
            raise TypeError("not a dictionary, or a key is not plain")
        self.stack[-1].update(zip(items[::2], items[1::2], strict=True))

    def set_state(self) -> None:
        """Nothing but a type of numbers has a state."""
        state, number_type = self.stack.pop(), self.stack[-1]
        if type(number_type) is not NumberType:
            raise TypeError("sets the state of something that has none")
        number_type.order(state)

    dispatch: ClassVar[dict[int, Callable[[Any], None]]] = {
        **{ord(code): pickle._Unpickler.dispatch[ord(code)] for code in _KEPT},
        **{ord(code): partial(refuse, reason=reason) for reason, codes in _REFUSED.items() for code in codes},
        ord(pickle.FRAME): frame,
        ord(pickle.INT): integer_line,
        ord(pickle.LONG): integer_line,
        ord(pickle.LONG4): long_integer,
        ord(pickle.DICT): new_dict,
        ord(pickle.SETITEM): set_item,
        ord(pickle.SETITEMS): set_items,
        ord(pickle.BUILD): set_state,
        ord(pickle.INST): instance,
    }
