"""Reading pickled plain data without running anything.

A pickle is a program for a small machine, and Python's own machine runs whatever the program names. The one here knows
only the instructions that make dictionaries, lists, tuples, texts and numbers, and stops at any other with a sentence.
NumPy's scalars, which FedScale's files are full of, are recognized by their exact form and decoded from their bytes: a
name in a pickle is compared with a few known ones here, and never looked up, imported or called.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import MethodType
from typing import Any

from fedarena.core.errors import BadInputError

MAX_PICKLE_BYTES = 1 << 28  # six times the largest file of FedScale
MAX_DEPTH = 64
# Whole numbers of traces are short; long ones would take for ever to be hashed or written out.
_MAX_INTEGER_BYTES = 1024
_MAX_DIGITS = 2500
_LONGEST_NAME = 100
_NEWEST_PROTOCOL = 5
_PLAIN = {str, bytes, int, float, bool, type(None)}
_CONTAINERS = {dict, list, tuple}
_PLAIN_ONLY = "trace files may hold plain numbers, texts, lists and dictionaries only"
_QUOTED = re.compile(r"""'(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*\"""")

# The forms of NumPy's number types, by what `struct` calls them.
_NUMBER_FORMS = dict(
    zip(["f2", "f4", "f8", "b1", "i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8"], "efd?bhiqBHIQ", strict=True)
)


class _Known:
    """One of the names that may appear in a pickle; it stands for itself and cannot be called."""


_NUMBER_TYPE, _NUMBER, _ENCODE = _Known(), _Known(), _Known()
_KNOWN_NAMES = {
    "numpy.dtype": _NUMBER_TYPE,
    "numpy.core.multiarray.scalar": _NUMBER,
    "numpy._core.multiarray.scalar": _NUMBER,
    "_codecs.encode": _ENCODE,  # how protocols 0 to 2 write the bytes of a number
}


class _NumberType(_Known):
    """A type of NumPy's numbers, as described in the pickle."""

    def __init__(self, form: str):
        self.form = form
        self.layout = struct.Struct("<" + form)


def parse_pickle(data: bytes, path: str | Path) -> Any:
    """The plain value that the pickle `data` describes (protocols 0 to 5); `path` names it in errors."""
    if len(data) > MAX_PICKLE_BYTES:
        raise BadInputError(f"{path} has {len(data):,} bytes; a pickle may have at most {MAX_PICKLE_BYTES:,}")
    machine = _Machine(data, str(path))
    try:
        value = machine.run()
    except (IndexError, struct.error):
        # Every instruction takes what it needs from the bytes, the stack or the memory, in this order of likelihood.
        raise BadInputError(f"{path} is not a complete pickle: it breaks off at byte {machine.position:,}") from None
    except (ValueError, TypeError, KeyError, AttributeError, OverflowError):
        raise BadInputError(f"{path} is not a pickle of plain data: byte {machine.position:,} makes no sense") from None
    _check_plain(value, str(path))
    return value


def _check_plain(value: Any, path: str) -> None:
    """Refuses whatever contains itself or something that is not plain; shared parts are looked at once."""
    if type(value) in _PLAIN:
        return
    finished: set[int] = set()
    unfinished: set[int] = set()
    # A container comes twice: to be opened, and, after everything inside of it, to be closed.
    waiting: list[tuple[Any, bool]] = [(value, False)]
    while waiting:
        container, opened = waiting.pop()
        if type(container) not in _CONTAINERS:
            raise BadInputError(f"{path} holds a NumPy type or function where a number or a text should be")
        if opened:
            unfinished.remove(id(container))
            finished.add(id(container))
            continue
        if id(container) in unfinished:
            raise BadInputError(f"{path} holds a list or dictionary that contains itself")
        if id(container) in finished:
            continue
        unfinished.add(id(container))
        if len(unfinished) > MAX_DEPTH:
            raise BadInputError(f"{path} holds more than {MAX_DEPTH} lists or dictionaries inside each other")
        waiting.append((container, True))
        if type(container) is dict:
            waiting.extend((item, False) for item in container.values() if type(item) not in _PLAIN)
        else:
            waiting.extend((item, False) for item in container if type(item) not in _PLAIN)


Instruction = Callable[["_Machine"], None]
_INSTRUCTIONS: dict[int, Instruction] = {}


def _on(code: int | str) -> Callable[[Instruction], Instruction]:
    """Marks what the machine does when it meets the byte `code`."""

    def add(instruction: Instruction) -> Instruction:
        _INSTRUCTIONS[ord(code) if isinstance(code, str) else code] = instruction
        return instruction

    return add


class _Machine:
    """Follows the instructions of a pickle. What it can make is plain data; there is no instruction to do anything."""

    def __init__(self, data: bytes, path: str):
        self.data = data
        self.path = path
        self.position = 0
        self.stack: list[Any] = []
        self.below: list[list[Any]] = []  # the stacks that marks have set aside
        self.memory: dict[int, Any] = {}

    def run(self) -> Any:
        data, instructions = self.data, [self._instruction(code) for code in range(256)]
        while True:
            code = data[self.position]
            self.position += 1
            if code == 0x2E:  # "." ends a pickle
                return self.stack[-1]
            instructions[code]()

    def _instruction(self, code: int) -> Callable[[], None]:
        instruction = _INSTRUCTIONS.get(code)
        return partial(self._refuse, code) if instruction is None else MethodType(instruction, self)

    def _integer(self, digits: str) -> int:
        if len(digits) > _MAX_DIGITS:
            raise BadInputError(f"{self.path} holds a whole number of more than {_MAX_DIGITS} digits")
        return int(digits)

    def _integer_of(self, count: int) -> int:
        if count > _MAX_INTEGER_BYTES:
            raise BadInputError(f"{self.path} holds a whole number of more than {_MAX_INTEGER_BYTES} bytes")
        return int.from_bytes(self._take(count), "little", signed=True)

    def _refuse(self, code: int) -> None:
        if code == ord("i"):
            raise self._wants_to_run(f"{self._line()}.{self._line()}")
        if code in _REFUSED:
            raise BadInputError(f"{self.path} {_REFUSED[code]}; {_PLAIN_ONLY}")
        raise ValueError("not an instruction")

    def _wants_to_run(self, name: str) -> BadInputError:
        shown = repr(name[:_LONGEST_NAME])[1:-1]  # a name is what somebody wrote into the file
        return BadInputError(f"{self.path} wants to run {shown}, which was not done; {_PLAIN_ONLY}")

    # Reading the bytes

    def _take(self, count: int) -> bytes:
        taken = self.data[self.position : self.position + count]
        if len(taken) != count:
            raise IndexError("breaks off")
        self.position += count
        return taken

    def _line(self) -> str:
        end = self.data.find(b"\n", self.position)
        if end < 0:
            raise IndexError("breaks off")
        line = self.data[self.position : end]
        self.position = end + 1
        return line.decode("latin-1")

    def _unsigned(self, count: int) -> int:
        return int.from_bytes(self._take(count), "little")

    def _marked(self) -> list[Any]:
        items = self.stack
        self.stack = self.below.pop()
        return items

    # Headers and the stack

    @_on(0x80)
    def protocol(self) -> None:
        if self._unsigned(1) > _NEWEST_PROTOCOL:
            raise ValueError("unknown protocol")

    @_on(0x95)
    def frame(self) -> None:
        if self._unsigned(8) > len(self.data) - self.position:
            raise IndexError("breaks off")

    @_on("(")
    def mark(self) -> None:
        self.below.append(self.stack)
        self.stack = []

    @_on("0")
    def pop(self) -> None:
        if self.stack:
            self.stack.pop()
        else:
            self._marked()

    @_on("1")
    def pop_mark(self) -> None:
        self._marked()

    @_on("2")
    def duplicate(self) -> None:
        self.stack.append(self.stack[-1])

    # Numbers, texts, bytes

    @_on("N")
    def none(self) -> None:
        self.stack.append(None)

    @_on(0x88)
    def true(self) -> None:
        self.stack.append(True)

    @_on(0x89)
    def false(self) -> None:
        self.stack.append(False)

    @_on("I")
    def int_line(self) -> None:
        line = self._line()
        self.stack.append({"00": False, "01": True}[line] if line in ("00", "01") else self._integer(line))

    @_on("L")
    def long_line(self) -> None:
        self.stack.append(self._integer(self._line().removesuffix("L")))

    @_on("J")
    def int_of_4_bytes(self) -> None:
        self.stack.append(int.from_bytes(self._take(4), "little", signed=True))

    @_on("K")
    def int_of_1_byte(self) -> None:
        self.stack.append(self.data[self.position])
        self.position += 1

    @_on("M")
    def int_of_2_bytes(self) -> None:
        self.stack.append(int.from_bytes(self._take(2), "little"))

    @_on(0x8A)
    def short_long(self) -> None:
        self.stack.append(self._integer_of(self._unsigned(1)))

    @_on(0x8B)
    def long(self) -> None:
        self.stack.append(self._integer_of(self._unsigned(4)))

    @_on("F")
    def float_line(self) -> None:
        self.stack.append(float(self._line()))

    @_on("G")
    def float_of_8_bytes(self) -> None:
        self.stack.append(struct.unpack(">d", self._take(8))[0])

    @_on("V")
    def text_line(self) -> None:
        self.stack.append(self._line().encode("latin-1").decode("raw-unicode-escape"))

    @_on("S")
    def quoted_line(self) -> None:
        quoted = self._line().strip()
        if not _QUOTED.fullmatch(quoted):
            raise ValueError("not a text in quotes")
        self.stack.append(quoted[1:-1].encode("latin-1").decode("unicode-escape"))

    @_on(0x8C)
    def short_text(self) -> None:
        self.stack.append(self._take(self._unsigned(1)).decode("utf-8", "surrogatepass"))

    @_on("X")
    def text(self) -> None:
        self.stack.append(self._take(self._unsigned(4)).decode("utf-8", "surrogatepass"))

    @_on(0x8D)
    def long_text(self) -> None:
        self.stack.append(self._take(self._unsigned(8)).decode("utf-8", "surrogatepass"))

    @_on("U")
    def short_old_text(self) -> None:
        self.stack.append(self._take(self._unsigned(1)).decode("latin-1"))

    @_on("T")
    def old_text(self) -> None:
        self.stack.append(self._take(self._unsigned(4)).decode("latin-1"))

    @_on("C")
    def short_bytes(self) -> None:
        count = self.data[self.position]
        self.position += 1
        self.stack.append(self._take(count))

    @_on("B")
    def bytes_(self) -> None:
        self.stack.append(self._take(self._unsigned(4)))

    @_on(0x8E)
    def long_bytes(self) -> None:
        self.stack.append(self._take(self._unsigned(8)))

    # Lists, tuples, dictionaries

    @_on("]")
    def empty_list(self) -> None:
        self.stack.append([])

    @_on(")")
    def empty_tuple(self) -> None:
        self.stack.append(())

    @_on("}")
    def empty_dict(self) -> None:
        self.stack.append({})

    @_on("l")
    def list_(self) -> None:
        items = self._marked()
        self.stack.append(items)

    @_on("t")
    def tuple_(self) -> None:
        items = self._marked()
        self.stack.append(tuple(items))

    @_on(0x85)
    def tuple_1(self) -> None:
        self.stack[-1] = (self.stack[-1],)

    @_on(0x86)
    def tuple_2(self) -> None:
        last = self.stack.pop()
        self.stack[-1] = (self.stack[-1], last)

    @_on(0x87)
    def tuple_3(self) -> None:
        last, middle = self.stack.pop(), self.stack.pop()
        self.stack[-1] = (self.stack[-1], middle, last)

    @_on("d")
    def dict_(self) -> None:
        items = self._marked()
        self.stack.append(self._filled({}, items))

    @_on("a")
    def append(self) -> None:
        item = self.stack.pop()
        self._top(list).append(item)

    @_on("e")
    def appends(self) -> None:
        items = self._marked()
        self._top(list).extend(items)

    @_on("s")
    def set_item(self) -> None:
        item, key = self.stack.pop(), self.stack.pop()
        self._filled(self._top(dict), [key, item])

    @_on("u")
    def set_items(self) -> None:
        items = self._marked()
        self._filled(self._top(dict), items)

    def _filled(self, container: dict[Any, Any], items: list[Any]) -> dict[Any, Any]:
        # No tuples: to hash one that is nested deeply can take for ever or crash Python.
        if not set(map(type, items[::2])) <= _PLAIN:
            raise TypeError("a key is not plain")
        container.update(zip(items[::2], items[1::2], strict=True))
        return container

    def _top(self, kind: type) -> Any:
        top = self.stack[-1]
        if type(top) is not kind:
            raise TypeError("not a container of this kind")
        return top

    # The memory

    @_on("p")
    def put_line(self) -> None:
        self.memory[int(self._line())] = self.stack[-1]

    @_on("q")
    def put_1_byte(self) -> None:
        self.memory[self.data[self.position]] = self.stack[-1]
        self.position += 1

    @_on("r")
    def put_4_bytes(self) -> None:
        self.memory[int.from_bytes(self._take(4), "little")] = self.stack[-1]

    @_on(0x94)
    def put_next(self) -> None:
        self.memory[len(self.memory)] = self.stack[-1]

    @_on("g")
    def get_line(self) -> None:
        self.stack.append(self.memory[int(self._line())])

    @_on("h")
    def get_1_byte(self) -> None:
        self.stack.append(self.memory[self.data[self.position]])
        self.position += 1

    @_on("j")
    def get_4_bytes(self) -> None:
        self.stack.append(self.memory[int.from_bytes(self._take(4), "little")])

    # NumPy's scalars: three known names, applied to arguments of exactly the form that NumPy writes

    @_on("c")
    def name_in_lines(self) -> None:
        self._name(f"{self._line()}.{self._line()}")

    @_on(0x93)
    def name_on_stack(self) -> None:
        name, module = self.stack.pop(), self.stack.pop()
        if type(name) is not str or type(module) is not str:
            raise TypeError("a name is not a text")
        self._name(f"{module}.{name}")

    def _name(self, name: str) -> None:
        if name not in _KNOWN_NAMES:
            raise self._wants_to_run(name)
        self.stack.append(_KNOWN_NAMES[name])

    @_on("R")
    def apply(self) -> None:
        arguments, known = self.stack.pop(), self.stack[-1]
        if known is _NUMBER:
            number_type, digits = arguments
            self.stack[-1] = number_type.layout.unpack(digits)[0]
        elif known is _NUMBER_TYPE:
            code, _, _ = arguments
            self.stack[-1] = _NumberType(_NUMBER_FORMS[code])
        elif known is _ENCODE:
            text, encoding = arguments
            if encoding != "latin1":
                raise ValueError("another encoding than NumPy's")
            self.stack[-1] = text.encode("latin-1")
        else:
            raise TypeError("applies something that is not a name")

    @_on("b")
    def set_state(self) -> None:
        state, number_type = self.stack.pop(), self.stack[-1]
        if type(number_type) is not _NumberType or type(state) is not tuple or state[1] not in ("<", ">", "|"):
            raise TypeError("sets the state of something that has none")
        number_type.layout = struct.Struct((">" if state[1] == ">" else "<") + number_type.form)


_REFUSED = {
    **dict.fromkeys((ord("o"), 0x81, 0x92), "wants to create an object"),
    **dict.fromkeys((ord("P"), ord("Q"), 0x97, 0x98), "refers to an object outside of the file"),
    **dict.fromkeys((0x82, 0x83, 0x84), "refers to an object by a number of Python's extension registry"),
    **dict.fromkeys((0x8F, 0x90, 0x91), "holds a set"),
    0x96: "holds a bytearray",
}
