"""Labels become classes in a fixed order, and their names say which they were."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedarena.core.errors import BadInputError
from fedarena.data.class_labels import sorted_classes

numbers = st.one_of(
    st.integers(-(2**53), 2**53), st.floats(-1e15, 1e15), st.integers(-3, 3), st.sampled_from([-1.0, 1.0, 0.5])
)
words = st.text(min_size=1, max_size=4)


@given(st.lists(numbers, min_size=2, max_size=20).filter(lambda values: len(set(values)) > 1), st.randoms())
def test_numbers_go_by_value_and_come_back_from_their_names(values: list[float], random) -> None:
    found = sorted_classes(values, "y")
    assert [float(found.names[code]) for code in found.class_of] == [float(value) for value in values]
    assert np.all(np.diff([float(name) for name in found.names]) > 0)
    assert set(found.class_of.tolist()) == set(range(found.classes)) == set(range(len(found.names)))
    shuffled = list(values)
    random.shuffle(shuffled)
    assert sorted_classes(shuffled, "y").names == found.names
    assert sorted_classes([str(value) for value in values], "y").names == found.names


@given(st.lists(words, min_size=2, max_size=20).filter(lambda values: len(set(values)) > 1))
def test_words_go_by_the_alphabet_and_come_back(values: list[str]) -> None:
    values = ["some word", *values]
    found = sorted_classes(values, "y")
    assert [found.names[code] for code in found.class_of] == values
    assert list(found.names) == sorted(set(values))


def test_the_order_of_mixed_writing_and_of_booleans() -> None:
    assert sorted_classes(["10", "9", 9.0], "y").names == ("9", "10")
    assert sorted_classes(["10", "9", "nine"], "y").names == ("10", "9", "nine")
    assert sorted_classes([True, False], "y").names == ("false", "true")
    assert sorted_classes(["1_0", "2"], "y").names == ("1_0", "2")
    assert sorted_classes(["inf", "2"], "y").names == ("2", "inf")


@pytest.mark.parametrize(
    ("values", "sentence"),
    [
        (["cat", 1.0], "y holds both words such as 'cat' and numbers such as 1.0"),
        ([3, "3.0"], "y is 3 in every sample, so there is nothing to learn"),
        ([], "y has no labels"),
    ],
)
def test_labels_that_are_none(values: list, sentence: str) -> None:
    with pytest.raises(BadInputError, match=sentence):
        sorted_classes(values, "y")
