"""Partitioners of somebody's own: what they are given, what they may return, and what happens when they change."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fedarena
from fedarena.core.errors import BadInputError
from fedarena.data import Federation, load_federation
from fedarena.data.registry import assign_clients, cached_path

LABELS = np.array([2, 0, 1, 0, 2, 1])
PICTURES = np.arange(6 * 16, dtype=np.uint8).reshape(6, 4, 4)


def by_sorting_in_place(labels):
    labels.sort()
    return np.arange(len(labels)) // 2


def with_a_negative_client(labels):
    return np.arange(len(labels)) - 1


def with_halves(labels):
    return np.arange(len(labels)) + 0.5


def with_nan(labels):
    return np.full(len(labels), np.nan)


def with_too_few(labels):
    return np.zeros(len(labels) - 1, dtype=int)


def with_lists_of_samples(labels):
    return [[0, 1, 2], [3, 4], [5]]


def with_a_mapping(labels):
    return {0: [0, 1, 2], 1: [3, 4, 5]}


def with_one_number(labels):
    return 0


def with_words(labels):
    return np.array(["a", "b"] * (len(labels) // 2))


def in_turns(labels, *, clients: int = 3):
    return np.arange(len(labels)) % clients


def in_turns_as_a_list(labels):
    return [place % 3 for place in range(len(labels))]


def in_turns_as_floats(labels):
    return np.arange(len(labels)) % 3.0


def own(function: Callable[..., Any]) -> str:
    return f"{__name__}:{function.__name__}"


def test_a_partitioner_that_changes_the_labels_is_refused_and_they_stay_as_they_are() -> None:
    labels = LABELS.copy()
    with pytest.raises(BadInputError, match=r"changes the labels.*labels = labels.copy\(\)"):
        assign_clients({"name": own(by_sorting_in_place)}, labels)
    assert np.array_equal(labels, LABELS)


@pytest.mark.parametrize(
    ("partitioner", "returned"),
    [
        (with_a_negative_client, "-1 for sample 0"),
        (with_halves, "0.5 for sample 0"),
        (with_nan, "nan for sample 0"),
        (with_too_few, "5 numbers"),
        (with_lists_of_samples, r"\[\[0, 1, 2\], \[3, 4\], \[5\]\]"),
        (with_a_mapping, r"\{0: "),
        (with_one_number, "0"),
        (with_words, "array"),
    ],
)
def test_what_is_not_a_client_for_every_sample_is_refused(partitioner: Callable[..., Any], returned: str) -> None:
    with pytest.raises(BadInputError, match=f"the client of each of the 6 samples.* it returned {returned}"):
        assign_clients({"name": own(partitioner)}, LABELS)


@pytest.mark.parametrize("partitioner", [in_turns, in_turns_as_a_list, in_turns_as_floats])
def test_whole_numbers_of_any_type_are_clients(partitioner: Callable[..., Any]) -> None:
    clients = assign_clients({"name": own(partitioner)}, LABELS)
    assert clients.dtype == np.int64
    assert clients.tolist() == [0, 1, 2, 0, 1, 2]


def test_a_partitioner_may_be_the_function_itself() -> None:
    partition = {"name": in_turns, "clients": 2}
    table = fedarena.from_table({"x": np.arange(6.0), "y": LABELS}, label="y", partition=partition)
    assert table.source.options["partition"] == {"name": own(in_turns), "clients": 2}
    pictures = fedarena.from_images(PICTURES, label=LABELS, partition=partition)
    assert pictures.source.options["partition"] == {"name": own(in_turns), "clients": 2}
    assert table.num_clients == pictures.num_clients == 2


def pictures_by(partition: str) -> Federation:
    return fedarena.from_images(PICTURES, label=LABELS, partition=partition)


def texts_by(partition: str) -> Federation:
    rows = {"text": ["a b", "c d", "e"] * 2, "mood": LABELS.tolist()}
    return fedarena.from_texts(rows, text="text", label="mood", partition=partition)


def digits_by(partition: str) -> Federation:
    return load_federation("digits", {"partition": {"name": partition}})


@pytest.mark.parametrize("made", [pictures_by, texts_by, digits_by])
def test_an_edited_partitioner_deals_anew(
    made: Callable[[str], Federation], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(sys, "dont_write_bytecode", True)  # a file that changes within a second
    found = []
    for clients in (2, 3, 2):
        source = f"import numpy\ndef deal(labels):\n    return numpy.arange(len(labels)) % {clients}\n"
        (tmp_path / "own_dealer.py").write_text(source)
        sys.modules.pop("own_dealer", None)
        importlib.invalidate_caches()
        found.append(made("own_dealer:deal"))
    sys.modules.pop("own_dealer")
    assert [one.num_clients for one in found] == [2, 3, 2]
    assert found[0].path == found[2].path  # what was dealt so before is still there


def test_stores_of_built_in_partitioners_keep_their_names() -> None:
    iid = {"name": "iid", "clients": 2}
    assert cached_path("digits", {"partition": iid | {"clients": 10}}).name == "digits-f83e49a3eab55f5f"
    assert cached_path("diabetes").name == "diabetes-5817b2245d7e6287"
    pictures = fedarena.from_images(PICTURES, label=LABELS.tolist(), partition=iid)
    assert pictures.path.name == "images-images-07058fa172b493dc"
