"""Settings files that are hostile or simply wrong: each gets a sentence, at once."""

from __future__ import annotations

import itertools
import tracemalloc
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from fedarena.core.errors import BadInputError
from fedarena.core.yaml_files import (
    MOST_BYTES,
    MOST_LEVELS,
    MOST_NUMBER_CHARACTERS,
    MOST_VALUES,
    NotYamlError,
    parse_yaml,
    read_yaml,
)

LETTERS = "abcdefghi"


def laughs(merged: bool) -> str:
    """Nine levels, each nine times the one before: 387,420,489 values in 500 bytes."""
    lines = ["a: &a " + ("{x: 1}" if merged else "[" + ",".join("x" * 9) + "]")]
    for before, letter in itertools.pairwise(LETTERS):
        nine = [f"k{number}: *{before}" if merged else f"*{before}" for number in range(9)]
        lines.append(f"{letter}: &{letter} " + ("{%s}" if merged else "[%s]") % ",".join(nine))
    return "\n".join(lines)


@pytest.mark.parametrize("merged", [False, True])
def test_aliases_cannot_explode(merged: bool) -> None:
    tracemalloc.start()
    try:
        with pytest.raises(BadInputError, match=f"f.yaml holds too much: .*{MOST_VALUES:,}"):
            parse_yaml(laughs(merged), "f.yaml")
        assert tracemalloc.get_traced_memory()[1] < 50e6
    finally:
        tracemalloc.stop()


def test_a_few_aliases_are_fine() -> None:
    assert parse_yaml("a: &a {x: 1, y: 2}\nb: {<<: *a, y: 3}\nc: [*a, *a]", "f") == {
        "a": {"x": 1, "y": 2},
        "b": {"x": 1, "y": 3},
        "c": [{"x": 1, "y": 2}] * 2,
    }


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("rounds: 3\nlocal:\n  lr: 1\n  lr: 2\n", "f.yaml, line 4: the key 'lr' is there already, in line 3"),
        ("{a: 1, 'a': 2}", "f.yaml, line 1: the key 'a' is there already"),
        ("a: [{b: 1, b: 2}]", "the key 'b' is there already"),
        ("a: &x {b: *x}", "f.yaml, line 1: an alias stands inside of what it refers to"),
        ("a: 1\nseed: !!int abc", "f.yaml, line 2: 'abc' is not a number of the type int"),
        ("seed: !!int ''", "'' is not a number"),
        ("seed: !!float x", "'x' is not a number of the type float"),
        ("seed: !!bool x", "'x' is neither true nor false"),
        ("seed: " + "9" * 5000, f"f.yaml, line 1: a number has more than {MOST_NUMBER_CHARACTERS} characters"),
        ("seed: 0x" + "f" * 5000, f"a number has more than {MOST_NUMBER_CHARACTERS} characters"),
        ("? [1, 2]\n: 3", "there is the key that is a list"),
        ("a: {0.5: 3}", "there is the key 0.5, but keys must be names"),
        ("- " * 200, f"f.yaml is nested too deeply: settings have at most {MOST_LEVELS} levels"),
        ("[" * 100_000, "nested too deeply"),
        ("[" + "1," * 200_000 + "]", "f.yaml holds too much"),
        ('"\\ud800"', "holds half a character"),
        ('"\\UFFFFFFFF"', "f.yaml is not valid YAML"),
        ("a: *b", "f.yaml is not valid YAML: found undefined alias 'b' (line 1, column 4)"),
        ("\x1b[31m: 1", "f.yaml is not valid YAML"),
        ("!!python/object/apply:os.system [ls]", "f.yaml is not valid YAML"),
        ("!!set {a}", "f.yaml is not valid YAML"),
    ],
    ids=lambda value: value[:20],
)
def test_sentences(text: str, sentence: str) -> None:
    with pytest.raises(BadInputError) as caught:
        parse_yaml(text, "f.yaml")
    assert sentence in str(caught.value)
    assert str(caught.value).isprintable()
    assert len(str(caught.value)) < 300


@pytest.mark.parametrize("text", ["2024-02-30", "2024-01-01", "1:30", "010", "="])
def test_what_would_be_something_else_than_it_looks_is_text(text: str) -> None:
    assert parse_yaml(text, "f") == text


@given(
    st.recursive(
        st.none()
        | st.booleans()
        | st.integers(-(10**30), 10**30)
        | st.floats(allow_nan=False)
        | st.text(st.characters(codec="utf-8")),
        lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner, max_size=4),
        max_leaves=20,
    )
)
def test_what_is_written_is_read_as_by_pyyaml(value: Any) -> None:
    text = yaml.safe_dump(value, sort_keys=False, allow_unicode=True)
    assert parse_yaml(text, "f") == yaml.safe_load(text)


@given(st.text())
def test_any_text_is_a_value_or_a_sentence(text: str) -> None:
    with suppress(BadInputError):
        parse_yaml(text, "f")


def test_files_that_are_too_large_are_not_read(tmp_path: Path) -> None:
    path = tmp_path / "large.yaml"
    path.write_text("".join(f"key{number}: 1\n" for number in range(500_000)))
    with pytest.raises(BadInputError, match=f"large.yaml is too large for settings: .*{MOST_BYTES:,} bytes"):
        read_yaml(path)
    with pytest.raises(BadInputError, match="/dev/zero is too large for settings"):
        read_yaml(Path("/dev/zero"))


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(BadInputError, match="cannot be read: Is a directory"):
        read_yaml(tmp_path)
    with pytest.raises(BadInputError, match="cannot be read: embedded null byte"):
        read_yaml(Path("a\0b"))
    with pytest.raises(BadInputError, match="cannot be read: File name too long"):
        read_yaml(Path("a" * 300))


def test_only_what_is_no_yaml_at_all_is_told_apart() -> None:
    """On the command line such a value is a text; a key that is there twice is not."""
    with pytest.raises(NotYamlError):
        parse_yaml("a: b: c", "f")
    with pytest.raises(BadInputError) as caught:
        parse_yaml("{a: 1, a: 2}", "f")
    assert not isinstance(caught.value, NotYamlError)
