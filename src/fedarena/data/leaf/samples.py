"""A client's samples as LEAF's lists x and y, and back, with nothing lost."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from fedarena.core.errors import BadInputError
from fedarena.data.leaf.description import Description
from fedarena.data.store.schema import AnyArray, ColumnSpec
from fedarena.data.text.characters import codes_of

LARGEST_BYTE = 255
_LEAST = np.iinfo(np.int64).min
_COLUMN = "column:"  # begins the keys of columns that LEAF does not know
Lists = dict[str, list[Any]]


class SampleForm:
    """How samples of one federation are written."""

    def __init__(self, description: Description):
        self._task = description.task
        self._columns = description.columns
        self._text = description.text
        self._text_column = description.text_column
        self._characters = _Characters(description.characters) if description.characters is not None else None
        self._labels = _Characters(description.label_characters) if description.label_characters is not None else None
        self._words = description.words if self._text == "words" else ()
        self._token_of_word = {word: token for token, word in enumerate(self._words)}

    def to_lists(self, columns: Mapping[str, AnyArray]) -> Lists:
        """Samples as JSON has them."""
        lists: Lists = {}
        for name, values in columns.items():
            if name == "tokens" and self._text_column == "tokens":
                # As LEAF has its lines of Shakespeare: a sequence, and what comes next.
                lists["x"] = self._to_text(values[:, :-1])
                lists["y"] = [text[0] for text in self._to_text(values[:, -1:])]
            elif name == "x" and self._text_column == "x":
                lists["x"] = self._to_text(values)
            elif name == "y" and self._labels is not None:
                lists["y"] = list("".join(self._labels.to_strings(values[:, None])))
            else:
                lists[self._key(name)] = _to_numbers(values, scaled=self._is_scaled(name))
        return lists

    def to_columns(self, lists: Mapping[str, Any]) -> dict[str, AnyArray]:
        """Samples as they were before `to_lists`; raises a sentence that says what is wrong with them."""
        return {name: self._read(name, spec, lists) for name, spec in self._columns.items()}

    def _read(self, name: str, spec: ColumnSpec, lists: Mapping[str, Any]) -> AnyArray:
        if name == "tokens" and self._text_column == "tokens":
            before = self._from_text(_entry(lists, "x"), spec.shape[0] - 1)
            ends = _entry(lists, "y")
            last = self._from_text(ends if self._characters is not None else [[token] for token in ends], 1)
            return np.concatenate([before, last], axis=1).astype(spec.dtype)
        if name == "x" and self._text_column == "x":
            return self._from_text(_entry(lists, "x"), spec.shape[0]).astype(spec.dtype)
        if name == "y" and self._labels is not None:
            return self._labels.from_strings(_entry(lists, "y"), 1)[:, 0].astype(spec.dtype)
        key = self._key(name)
        return _from_numbers(_entry(lists, key), spec, key, scaled=self._is_scaled(name))

    def _key(self, column: str) -> str:
        known = column in ("x", "y") and self._task.kind != "next_token"
        return column if known else _COLUMN + column

    def _is_scaled(self, column: str) -> bool:
        """Pictures are bytes here and fractions of 1 in LEAF."""
        return column == "x" and self._task.kind != "next_token" and self._columns["x"].dtype == "uint8"

    def _to_text(self, tokens: AnyArray) -> list[Any]:
        if self._characters is not None:
            return self._characters.to_strings(tokens)
        if self._text == "words":
            return [[self._words[token] for token in row] for row in tokens.tolist()]
        numbers: list[Any] = tokens.tolist()
        return numbers

    def _from_text(self, texts: list[Any], length: int) -> AnyArray:
        if self._characters is not None:
            return self._characters.from_strings(texts, length)
        for text in texts:
            if not isinstance(text, list) or len(text) != length:
                raise BadInputError(f"a text must be a list of {length} tokens, not {shown(text)}")
        if self._text == "words":
            try:
                tokens = [[self._token_of_word[word] for word in text] for text in texts]
            except (KeyError, TypeError) as error:
                raise BadInputError(f"there is no token {error.args[0]!r} in the vocabulary of the file") from None
            return np.array(tokens, dtype=np.int64).reshape(len(texts), length)
        return _from_numbers(texts, ColumnSpec(dtype="int64", shape=(length,)), "x", scaled=False)


class _Characters:
    """Tokens as the characters of strings."""

    def __init__(self, characters: str):
        self._codes = codes_of(characters)
        self._order = np.argsort(self._codes, kind="stable")

    def to_strings(self, tokens: AnyArray) -> list[str]:
        """Every row as a string."""
        length = tokens.shape[1]
        text = self._codes[tokens].tobytes().decode("utf-32-le")
        return [text[start : start + length] for start in range(0, len(text), length)]

    def from_strings(self, strings: list[Any], length: int) -> AnyArray:
        """The tokens of strings that all have this length."""
        for string in strings:
            if not isinstance(string, str) or len(string) != length:
                raise BadInputError(f"a text must be a string of {length} characters, not {shown(string)}")
        codes = codes_of("".join(strings))
        place = np.searchsorted(self._codes[self._order], codes).clip(max=len(self._codes) - 1)
        tokens: AnyArray = self._order[place]
        wrong = np.flatnonzero(self._codes[tokens] != codes)
        if len(wrong):
            raise BadInputError(f"there is no character {chr(codes[wrong[0]])!r} in the vocabulary of the file")
        return tokens.reshape(len(strings), length)


def _to_numbers(values: AnyArray, scaled: bool) -> list[Any]:
    flat = values.reshape(len(values), int(np.prod(values.shape[1:]))) if values.ndim > 1 else values
    if scaled:
        flat = flat / LARGEST_BYTE
    if values.dtype == np.uint64:
        flat = flat.view(np.int64)  # parsers of JSON have no larger integers; what fits into them stays as it is
    if values.dtype.kind == "f":
        flat = flat.astype(np.float64)
        if not np.isfinite(flat).all():
            raise BadInputError("a value is not finite, which JSON cannot write")
    if flat.dtype == np.int64 and (flat == _LEAST).any():
        # The one integer that parsers refuse for its digits is a power of two, and so exact as a fraction, too.
        flat = np.where(flat == _LEAST, float(_LEAST), flat.astype(object))
    numbers: list[Any] = flat.tolist()
    return numbers


def _from_numbers(values: list[Any], spec: ColumnSpec, key: str, scaled: bool) -> AnyArray:
    shape, dtype = (len(values), *spec.shape), np.dtype("int64" if spec.dtype == "uint64" else spec.dtype)
    width = int(np.prod(spec.shape, dtype=np.int64))
    # Numbers beyond the dtype raise or wrap around; what came out is compared with what was there.
    try:
        with np.errstate(all="ignore"):
            found = np.array(values, dtype=np.float64 if scaled or dtype.kind == "f" else dtype)
    except (TypeError, ValueError, OverflowError):
        raise BadInputError(f"{key} holds something else than lists of {width} numbers of type {dtype}") from None
    if found.size != len(values) * width:
        raise BadInputError(f"the samples of {key} must have {width} numbers each")
    if scaled:
        whole = np.rint(found * LARGEST_BYTE)
        if not ((np.abs(found * LARGEST_BYTE - whole) < 1e-6) & (whole >= 0) & (whole <= LARGEST_BYTE)).all():
            raise BadInputError(f"{key} must hold fractions k/255 between 0 and 1, which the file says are bytes")
        found, dtype = whole.astype(np.uint8), np.dtype(np.uint8)
    elif dtype.kind != "f" and found.tolist() != values:
        raise BadInputError(f"{key} holds numbers that are not of type {dtype}")
    with np.errstate(over="ignore"):
        numbers: AnyArray = found.view(np.uint64) if spec.dtype == "uint64" else found.astype(dtype)
    if not np.isfinite(numbers).all():
        raise BadInputError(f"{key} holds null, or a number that is too large for the type {dtype}")
    return np.asarray(numbers.reshape(shape))


def _entry(lists: Mapping[str, Any], key: str) -> list[Any]:
    found = lists.get(key)
    if not isinstance(found, list):
        raise BadInputError(f"there is no list {key}")
    return found


def shown(value: Any) -> str:
    """A value as it may stand in a sentence."""
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}…"
