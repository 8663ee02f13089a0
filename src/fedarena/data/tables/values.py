"""What a column holds: numbers, or words of which there are a few; in either, values may be missing."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from decimal import Decimal
from typing import Any
from unicodedata import normalize

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from fedarena.core.errors import BadInputError
from fedarena.core.outside_text import quoted
from fedarena.core.registry import nearest
from fedarena.data.class_labels import as_number, number_name
from fedarena.data.store.schema import IntArray
from fedarena.data.tables.number_form import USUAL_FORM, NumberForm, looks_like_thousands

Floats = npt.NDArray[np.float64]
Mask = npt.NDArray[np.bool_]
Where = Callable[[int], str]  # a row, in words

_COMMA = re.compile(r"[+-]?\d*,\d+")
_WHOLE = re.compile(r"[+-]?\d+")
_LEADING_ZERO = re.compile(r"[+-]?0\d")
_WHOLE_ID = re.compile(r"-?(0|[1-9]\d*)(\.0+)?")
_LARGEST_EXACT = 2**53
_DATE = re.compile(r"\d{4}-\d{2}-\d{2}|\d{1,2}[./]\d{1,2}[./]\d{4}")
# What means that there is nothing, in every column; what else does in a table is for its owner to say.
NA_TEXTS = ("", "NA", "N/A", "NaN", "nan", "null", "NULL")
_BOOLEANS = {"true": 1.0, "false": 0.0}
_KINDS_OF_NAMES = (
    pa.types.is_large_string,
    pa.types.is_boolean,
    pa.types.is_null,
    pa.types.is_integer,
    pa.types.is_floating,
)
ALL_COLUMNS = "*"  # in place of a column's name
NOTHING = -1  # the code of a missing word


@dataclass(frozen=True)
class Numbers:
    """A number in every row; NaN where there is none."""

    values: Floats
    are_booleans: bool = False
    exact: Words | None = None  # the same where some are whole numbers that a float does not tell from their neighbours

    @property
    def missing(self) -> Mask:
        """Rows without a value."""
        return np.isnan(self.values)

    def as_words(self) -> Words:
        """The same with a word for every different number, by their order."""
        if self.exact is not None:
            return self.exact
        distinct, place = np.unique(self.values[~self.missing], return_inverse=True)
        codes = np.full(len(self.values), NOTHING, dtype=np.int64)
        codes[~self.missing] = place.reshape(-1)
        names = ("false", "true") if self.are_booleans else None
        return Words(codes, tuple(names[int(n)] if names else number_name(n) for n in distinct.tolist()))


@dataclass(frozen=True)
class Words:
    """The place of a word in every row; -1 where there is none."""

    codes: IntArray
    words: tuple[str, ...]

    @property
    def missing(self) -> Mask:
        """Rows without a value."""
        return np.asarray(self.codes == NOTHING)


Values = Numbers | Words


@dataclass(frozen=True)
class Marks:
    """What stands for a missing value in a column, and how numbers are written in its texts."""

    texts: tuple[str, ...]
    numbers: tuple[float, ...] = ()  # also those that were given as text
    whole: frozenset[int] = frozenset()  # those of them that are whole, of which a float has not every digit
    form: NumberForm = USUAL_FORM

    def has(self, text: str) -> bool:
        """Whether a text stands for a missing value."""
        return text in self.texts or self._has_number(text)

    def _has_number(self, text: str) -> bool:
        if _WHOLE.fullmatch(text):
            return not self.whole.isdisjoint(_whole_numbers(text))
        return _any_number(text) in self.numbers

    def among(self, texts: Sequence[str]) -> Mask:
        """Which texts are numbers that stand for a missing value."""
        return np.array([bool(self.numbers) and self._has_number(text) for text in texts], dtype=bool)

    def in_column(self, array: pa.ChunkedArray, values: Floats) -> Mask:
        """Which numbers of a column stand for a missing value; whole ones are compared in all their digits."""
        if _is_whole(array.type):
            marks = [mark for mark in map(Decimal, self.whole) if _fits(mark, array.type)]
            found = pc.is_in(array, value_set=pa.array(marks, array.type))
            return np.array(found.to_numpy(), dtype=bool)
        dtype = array.type.to_pandas_dtype() if pa.types.is_floating(array.type) else np.float64
        with np.errstate(over="ignore"):
            as_stored = np.array(self.numbers, dtype=np.float64).astype(dtype).astype(np.float64)
        return np.isin(values, as_stored[np.isfinite(as_stored)])


class MissingMarks:
    """What stands for a missing value, in all columns or in some, and how numbers are written."""

    def __init__(self, by_column: Mapping[str, Sequence[Any]], columns: Sequence[str], form: NumberForm = USUAL_FORM):
        self._form = form
        for name in by_column:
            if name not in columns and name != ALL_COLUMNS:
                raise BadInputError(f"na_values: the table has no column {quoted(name)}; {nearest(str(name), columns)}")
        self._marks = by_column

    def of(self, column: str) -> Marks:
        """Those of a column, with what means nothing everywhere."""
        marks = [*self._marks.get(ALL_COLUMNS, ()), *self._marks.get(column, ())]
        numbers = [_any_number(mark) for mark in marks]
        return Marks(
            (*NA_TEXTS, *(mark for mark in marks if isinstance(mark, str))),
            tuple(number for number in numbers if number is not None),
            frozenset(whole for mark in marks for whole in _whole_numbers(mark)),
            self._form,
        )


def _any_number(value: str | float) -> float | None:
    """The number that a mark or a text is, however large; None for words."""
    try:
        number = float(value)
    except (ValueError, OverflowError):
        return None
    return number if np.isfinite(number) and not (isinstance(value, str) and "_" in value) else None


def _whole_numbers(value: str | float) -> set[int]:
    """The same with all digits if it is whole: as it is written, and as the float that is written so."""
    number = _any_number(value)
    if number is None:
        return set()
    is_exact = isinstance(value, int) or (isinstance(value, str) and _WHOLE.fullmatch(value) is not None)
    meant = [Decimal(str(value)), *([] if is_exact else [Decimal(number)])]
    return {int(one) for one in meant if one == one.to_integral_value()}


def _is_whole(kind: pa.DataType) -> bool:
    return bool(pa.types.is_integer(kind) or (pa.types.is_decimal(kind) and kind.scale <= 0))


def _fits(number: Decimal, kind: pa.DataType) -> bool:
    try:
        pa.scalar(number, kind)
    except (pa.ArrowInvalid, OverflowError):
        return False
    return True


def read_values(
    name: str, array: pa.ChunkedArray, marks: Marks, where: Where, words_by: str | None, as_text: bool = False
) -> Values:
    """The values of a column. Text is numbers if all of it is.

    What looks like something else than words is refused with a sentence that says how it can be allowed, `words_by`;
    if that is None, all text is. With `as_text`, neither are codes such as 01.
    """
    kind = array.type
    if pa.types.is_dictionary(kind):
        kind = kind.value_type
        array = array if isinstance(kind, pa.BaseExtensionType) else array.cast(kind)  # such as intervals of pandas
    if pa.types.is_null(kind):
        return Numbers(np.full(len(array), np.nan))
    if pa.types.is_boolean(kind):
        return Numbers(_as_floats(array.cast(pa.int8())), are_booleans=True)
    if pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_decimal(kind):
        values = _as_floats(array)
        found = _marked(name, Numbers(values), marks.in_column(array, values), where)
        return _with_exact(found, *_encoded(array)) if _is_whole(kind) and _needs_exact(found) else found
    if pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind):
        return _read_texts(name, array.cast(pa.large_string()), marks, where, words_by, as_text)
    holds = "dates or times" if pa.types.is_temporal(kind) else f"values of the type {kind}"
    raise BadInputError(
        f"Column {quoted(name)} holds {holds}, which are neither numbers nor words; make numbers of them, or leave the "
        "column out with drop."
    )


def _as_floats(array: pa.ChunkedArray) -> Floats:
    if pa.types.is_decimal(array.type):
        array = array.cast(pa.string())  # Arrow makes 1.89 of a decimal its neighbour, and of a text the nearest float
    numbers = array.cast(pa.float64(), safe=False)  # of numbers beyond 2**53 the nearest
    return np.array(pc.fill_null(numbers, np.nan).to_numpy(), dtype=np.float64)


def _marked(name: str, numbers: Numbers, are_marks: Mask, where: Where) -> Numbers:
    """Numbers without those that stand for a missing one; what is infinite is refused."""
    values = np.where(are_marks, np.nan, numbers.values)
    infinite = np.flatnonzero(np.isinf(values))
    if len(infinite):
        row = int(infinite[0])
        raise BadInputError(
            f"Column {quoted(name)} holds {values[row]} in {where(row)}, which is no number to learn from."
        )
    return Numbers(values, numbers.are_booleans)


def _read_texts(
    name: str, array: pa.ChunkedArray, marks: Marks, where: Where, words_by: str | None, as_text: bool
) -> Values:
    trimmed = pc.utf8_trim_whitespace(array)
    absent = pc.is_in(trimmed, value_set=pa.array(marks.texts, trimmed.type))
    codes, distinct = _encoded(pc.if_else(absent, pa.scalar(None, trimmed.type), trimmed))
    plain = distinct if marks.form.is_usual else pa.array(marks.form.plain(distinct.to_pylist()), distinct.type)
    numbers = _numbers_of(plain)
    if numbers is not None:
        if not marks.form.is_usual:
            _check_points(name, distinct.to_pylist(), plain.to_pylist(), codes, marks.form, where)
        if as_text and _are_codes(distinct.to_pylist(), numbers.values):
            return _without_marks(_sorted_words(distinct.to_pylist(), codes), marks)
        values = np.append(numbers.values, np.nan)[codes]
        are_marks = np.append(marks.among(plain.to_pylist()), False)[codes]
        found = _marked(name, Numbers(values, numbers.are_booleans), are_marks, where)
        if _needs_exact(found) and all(_WHOLE.fullmatch(text) for text in plain.to_pylist()):
            return _with_exact(found, codes, plain)
        return found
    words: list[str] = distinct.to_pylist()
    if words_by is not None:
        _check_are_words(name, words, plain.to_pylist(), codes, where, words_by)
    return _without_marks(_sorted_words(words, codes), marks)


def _sorted_words(words: list[str], codes: IntArray) -> Words:
    order = sorted(range(len(words)), key=words.__getitem__)
    place = np.full(len(words) + 1, NOTHING, dtype=np.int64)
    place[order] = np.arange(len(words))
    return Words(place[codes], tuple(words[number] for number in order))


def _are_codes(texts: list[str], numbers: Floats) -> bool:
    """Whether texts are more than the numbers they read as: 01 is another code than 1."""
    has_zeros = any(_LEADING_ZERO.match(text) for text in texts)
    return has_zeros or len(np.unique(numbers)) < len(texts)


def _needs_exact(numbers: Numbers) -> bool:
    return bool((np.abs(numbers.values) >= _LARGEST_EXACT).any())


def _with_exact(numbers: Numbers, codes: IntArray, distinct: pa.Array) -> Numbers:
    """Numbers that also know each of the distinct whole ones that they are."""
    whole = [int(value) for value in distinct.to_pylist() if value is not None]
    ordered = sorted(set(whole))
    place_of = {number: place for place, number in enumerate(ordered)}
    places = np.array([place_of[number] for number in whole] + [NOTHING], dtype=np.int64)[codes]
    kept = np.unique(places[~numbers.missing])
    place = np.full(len(ordered) + 1, NOTHING, dtype=np.int64)
    place[kept] = np.arange(len(kept))
    words = Words(np.where(numbers.missing, NOTHING, place[places]), tuple(str(ordered[number]) for number in kept))
    return replace(numbers, exact=words)


def _encoded(array: pa.ChunkedArray) -> tuple[IntArray, pa.Array]:
    """The places of values among the distinct ones, in the order of their first rows."""
    encoded = array.combine_chunks().dictionary_encode()
    codes = pc.fill_null(encoded.indices.cast(pa.int64()), NOTHING).to_numpy(zero_copy_only=False)
    return np.array(codes, dtype=np.int64), encoded.dictionary


def _numbers_of(texts: pa.Array) -> Numbers | None:
    """Texts as numbers, or as true and false; None if some are neither."""
    try:
        return Numbers(np.array(texts.cast(pa.float64()).to_numpy(zero_copy_only=False), dtype=np.float64))
    except pa.ArrowInvalid:
        pass
    words = [word.lower() for word in texts.to_pylist()]
    if words and set(words) <= _BOOLEANS.keys():
        return Numbers(np.array([_BOOLEANS[word] for word in words]), are_booleans=True)
    found = [as_number(word) for word in words]
    return None if None in found else Numbers(np.array(found, dtype=np.float64))


def _check_points(
    name: str, texts: list[str], plain: list[str], codes: IntArray, form: NumberForm, where: Where
) -> None:
    """Raises where a number has a point although fractions have a comma."""
    are_strange = [form.is_strange(text, as_read) for text, as_read in zip(texts, plain, strict=True)]
    rows = np.flatnonzero(np.array([*are_strange, False])[codes])
    if len(rows):
        row = int(rows[0])
        raise BadInputError(
            f"Column {quoted(name)} holds {quoted(texts[codes[row]])} in {where(row)}, a point where decimal is a "
            "comma; say so if it is between thousands (thousands: .)."
        )


def _check_are_words(
    name: str, words: list[str], plain: list[str], codes: IntArray, where: Where, words_by: str
) -> None:
    """Raises where most values are no words, but numbers among which something else stands, or numbers in disguise."""
    rows = np.flatnonzero(codes != NOTHING)
    have_thousands = [looks_like_thousands(word) for word in plain]
    have_comma = [_COMMA.fullmatch(word) is not None for word in plain]
    if (row := _first_of_most(have_thousands, codes, rows)) is not None and not any(
        comma and not thousands for comma, thousands in zip(have_comma, have_thousands, strict=True)
    ):
        raise BadInputError(
            f"Column {quoted(name)} holds numbers with a comma, such as {quoted(words[codes[row]])} in {where(row)}, "
            "which looks like thousands; say so (thousands: ,), or if it is before a fraction (decimal: ,), or "
            f"{words_by} if these are no numbers."
        )
    if (row := _first_of_most(have_comma, codes, rows)) is not None:
        raise BadInputError(
            f"Column {quoted(name)} holds numbers with a comma, such as {quoted(words[codes[row]])} in {where(row)}; "
            f"say so (decimal: ,), or {words_by} if these are no numbers."
        )
    if (row := _first_of_most([_DATE.match(word) is not None for word in words], codes, rows)) is not None:
        raise BadInputError(
            f"Column {quoted(name)} holds dates, such as {quoted(words[codes[row]])} in {where(row)}; make numbers of "
            f"them, leave the column out with drop, or {words_by} if each is one of its own."
        )
    is_word = np.array([as_number(word) is None for word in plain])
    strange = rows[is_word[codes[rows]]]
    if 2 * len(strange) >= len(rows):
        refuse_booleans_and_numbers(f"Column {quoted(name)}", words, words_by)
        return
    example = quoted(words[codes[strange[0]]])
    more = f", and words in {len(strange) - 1:,} other rows" if len(strange) > 1 else ""
    raise BadInputError(
        f"Column {quoted(name)} holds numbers, but {example} in {where(int(strange[0]))}{more}; name {example} among "
        f"na_values if it means a missing value, or {words_by} if these are no numbers."
    )


def alike(names: Iterable[str]) -> str | None:
    """What to say about names that differ, but hardly look so; None if there are none."""
    by_look: dict[str, list[str]] = {}
    for name in names:
        by_look.setdefault(" ".join(normalize("NFKC", name).casefold().split()), []).append(name)
    groups = [texts for texts in by_look.values() if len(texts) > 1]
    if not groups:
        return None
    more = f", like {len(groups) - 1:,} more," if len(groups) > 1 else ""
    return (
        f"{' and '.join(map(quoted, groups[0]))}{more} differ only in capitals, blanks or how characters are encoded, "
        "and are not the same; write them in one way if they should be"
    )


def refuse_booleans_and_numbers(what: str, words: Sequence[str], words_by: str | None = None) -> None:
    """Raises if words are only true, false and numbers; if nothing can allow that (`words_by`), only about 0 and 1."""
    numbers = {word: number for word in words if (number := as_number(word)) is not None}
    others = {word.lower() for word in words if word not in numbers}
    is_allowed = words_by is None and not set(numbers.values()) <= {0, 1}
    if not numbers or not others or not others <= _BOOLEANS.keys() or is_allowed:
        return
    unless = "" if words_by is None else f", or {words_by} if these are no numbers"
    raise BadInputError(
        f"{what} holds both {' and '.join(sorted(others))} and numbers such as "
        f"{quoted(next(iter(numbers)))}; write all in one way, such as 1 and 0{unless}."
    )


def _first_of_most(are_such: list[bool], codes: IntArray, rows: IntArray) -> int | None:
    """The first row with such a word, if more than half of the rows have one."""
    such = rows[np.array(are_such)[codes[rows]]]
    return int(such[0]) if 2 * len(such) > len(rows) else None


def _without_marks(words: Words, marks: Marks) -> Words:
    """Words that are numbers may be marks of missing values, too."""
    is_mark = marks.among(words.words)
    if not is_mark.any():
        return words
    place = np.append(np.where(is_mark, NOTHING, np.cumsum(~is_mark) - 1), NOTHING)
    return Words(place[words.codes], tuple(w for w, gone in zip(words.words, is_mark, strict=True) if not gone))


def read_names(name: str, array: pa.ChunkedArray, option: str, marks: Marks | None = None) -> Words:
    """Ids and other names as they stand in the table, in the order of their first rows; whole numbers have no point.

    Of text, only what is empty is missing, unless `marks` say what else is.
    """
    kind = array.type
    if pa.types.is_dictionary(kind) and not isinstance(kind.value_type, pa.BaseExtensionType):
        return read_names(name, array.cast(kind.value_type), option, marks)
    if pa.types.is_string_view(kind) or pa.types.is_string(kind):
        array = array.cast(pa.large_string())
    elif not any(is_kind(kind) for is_kind in _KINDS_OF_NAMES):
        raise BadInputError(f"{option}: column {quoted(name)} holds values of the type {kind}, which are no names.")
    codes, distinct = _encoded(array)
    place_of: dict[str, int] = {}
    places = [NOTHING] * (len(distinct) + 1)
    names = [_as_name(value) for value in distinct.to_pylist()]
    if marks is not None:
        names = _without_points(name, names, marks, option)
    for number, text in enumerate(names):
        if text is not None and not (marks is not None and marks.has(text)):
            places[number] = place_of.setdefault(text, len(place_of))
    return Words(np.array(places, dtype=np.int64)[codes], tuple(place_of))


def _without_points(name: str, names: list[str | None], marks: Marks, option: str) -> list[str | None]:
    """Ids that are whole numbers, some written 1.0 as in files of numbers with gaps, as they are in other files."""
    ids = {text for text in names if text is not None and not marks.has(text)}
    if not any("." in text for text in ids) or not all(_WHOLE_ID.fullmatch(text) for text in ids):
        return names
    plain = {text: text.partition(".")[0] for text in ids}
    spelled: dict[str, str] = {}
    for text in sorted(ids):
        if spelled.setdefault(plain[text], text) != text:
            raise BadInputError(
                f"{option}: column {quoted(name)} holds both {quoted(spelled[plain[text]])} and {quoted(text)}; write "
                "the same number in one way."
            )
    return [None if text is None else plain.get(text, text) for text in names]


def _as_name(value: Any) -> str | None:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, float):
        return None if np.isnan(value) else number_name(value) if abs(value) < 2**53 else repr(value)
    return None if value is None else str(value).strip() or None
