from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedarena.core.errors import BadInputError
from fedarena.fleet import Devices, Ragged

GOOD: dict[str, Any] = {
    "seconds_per_sample": [0.5, np.nan, 0.0],
    "flops_per_second": [np.nan, 1e9, np.nan],
    "download_bits_per_second": [8e6, np.inf, 2e6],
    "upload_bits_per_second": [1e6, 2e6, 3e6],
    "compute_watts": [2.0, np.nan, 1.0],
    "radio_watts": [3.0, np.nan, 0.0],
}
lists_of_numbers = st.lists(st.lists(st.floats(1, 1e9), max_size=5), min_size=1, max_size=8)


def test_what_is_not_given_is_not_known() -> None:
    columns = {name: GOOD[name] for name in ("download_bits_per_second", "upload_bits_per_second")}
    devices = Devices.from_columns(seconds_per_sample=[1, 2, 3], compute_watts=None, **columns)
    assert len(devices) == 3
    assert devices.seconds_per_sample.dtype == np.float64
    for name in ("flops_per_second", "compute_watts", "radio_watts"):
        assert np.isnan(getattr(devices, name)).tolist() == [True] * 3
    assert devices.measured_download is None


def test_compute_seconds() -> None:
    devices = Devices.from_columns(**GOOD)
    assert devices.compute_seconds([0, 1, 2, 1], [10, 10, 10, 20], [4e9, 4e9, 4e9, 8e9]).tolist() == [5, 4, 0, 8]
    assert devices.compute_seconds(0, [1, 2], np.nan).tolist() == [0.5, 1.0]


def test_known_operations_come_first() -> None:
    devices = Devices.from_columns(**{**GOOD, "flops_per_second": [1e9, 1e9, np.inf]})
    assert devices.compute_seconds([0, 2], 10, 3e9).tolist() == [3.0, 0.0]
    assert devices.compute_seconds(0, 10, np.nan).item() == 5.0  # a model whose operations nobody counted


def test_joules() -> None:
    joules = Devices.from_columns(**GOOD).joules([0, 1, 2], [10, 10, 10], [1, 1, 1])
    np.testing.assert_array_equal(joules, [23.0, np.nan, 10.0])
    assert not Devices.from_columns(**GOOD).knows_energy
    assert Devices.from_columns(**GOOD).take([0, 2]).knows_energy


def test_means_of_measured_speeds() -> None:
    measured = Ragged.from_lists([[1.0, 3.0], [], [5.0]])
    columns = {**GOOD, "download_bits_per_second": [np.nan, 7.0, np.nan], "measured_download": measured}
    assert Devices.from_columns(**columns).download_bits_per_second.tolist() == [2.0, 7.0, 5.0]
    del columns["download_bits_per_second"]
    with pytest.raises(BadInputError, match="download_bits_per_second of phone 1 is missing"):
        Devices.from_columns(**columns)


def test_speeds_are_drawn_by_random_bits() -> None:
    measured = Ragged.from_lists([[1.0, 3.0], [], [5.0]])
    devices = Devices.from_columns(**GOOD, measured_upload=measured)
    bits = np.array([0, 1, 2**64 - 1], dtype=np.uint64)
    assert devices.draw_upload(0, bits).tolist() == [1.0, 3.0, 3.0]
    assert devices.draw_upload([1, 2], bits[:2]).tolist() == [2e6, 5.0]
    assert devices.draw_download([0, 1, 0], bits).tolist() == [8e6, np.inf, 8e6]
    assert devices.draw_upload(0, 1).item() == 3.0
    assert devices.upload_bits_per_second.tolist() == GOOD["upload_bits_per_second"]


@settings(deadline=None)
@given(lists_of_numbers, st.data())
def test_draws_are_measured_speeds(lists: list[list[float]], data: Any) -> None:
    phones = len(lists)
    plain = {"seconds_per_sample": np.ones(phones), "upload_bits_per_second": np.ones(phones)}
    devices = Devices.from_columns(
        **plain, download_bits_per_second=np.full(phones, 0.25), measured_download=Ragged.from_lists(lists)
    )
    asked = data.draw(st.lists(st.tuples(st.integers(0, phones - 1), st.integers(0, 2**64 - 1)), min_size=1))
    rows, bits = np.array([row for row, _ in asked]), np.array([bits for _, bits in asked], dtype=np.uint64)
    expected = [lists[row][bits % len(lists[row])] if lists[row] else 0.25 for row, bits in asked]
    assert devices.draw_download(rows, bits).tolist() == expected
    taken = devices.take(rows)
    assert taken.draw_download(np.arange(len(rows)), bits).tolist() == expected


@settings(deadline=None)
@given(lists_of_numbers)
def test_means_of_lists(lists: list[list[float]]) -> None:
    expected = [np.mean(values) if values else np.nan for values in lists]
    np.testing.assert_allclose(Ragged.from_lists(lists).means(), expected, rtol=1e-12)


def test_taken_phones() -> None:
    devices = Devices.from_columns(**GOOD, measured_upload=Ragged.from_lists([[1.0, 3.0], [], [5.0]]))
    taken = devices.take([2, 0, 2])
    assert taken.upload_bits_per_second.tolist() == [3e6, 1e6, 3e6]
    assert taken.measured_download is None
    assert taken.measured_upload is not None
    assert taken.measured_upload.offsets.tolist() == [0, 1, 3, 4]
    assert taken.measured_upload.values.tolist() == [5.0, 1.0, 3.0, 5.0]
    with pytest.raises(IndexError):
        devices.take([-1])


def ragged(values: float) -> Ragged:
    return Ragged.from_lists([[1.0], [2.0, values], []])


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (
            {"seconds_per_sample": [0.5, 1.0, -1.0]},
            "seconds_per_sample of phone 'cid' is -1; it must be finite",
        ),
        ({"seconds_per_sample": [np.inf, 1.0, 1.0]}, "seconds_per_sample of phone 'ann' is inf; it must be finite"),
        ({"flops_per_second": [1e9, 0.0, 1e9]}, "flops_per_second of phone 'bob' is 0; it must be positive."),
        ({"flops_per_second": [np.nan] * 3}, "How fast phone 'bob' computes is missing; seconds_per_sample or flops"),
        (
            {"seconds_per_sample": None, "flops_per_second": None},
            "How fast phone 'ann' computes is missing; seconds_per_sample or flops_per_second is needed.",
        ),
        (
            {"download_bits_per_second": [1.0, np.nan, 1.0]},
            "download_bits_per_second of phone 'bob' is missing; every phone needs a speed.",
        ),
        ({"upload_bits_per_second": None}, "upload_bits_per_second of phone 'ann' is missing; every phone needs"),
        (
            {"upload_bits_per_second": [1.0, 1.0, 0.0]},
            "upload_bits_per_second of phone 'cid' is 0; it must be",
        ),
        ({"download_bits_per_second": [-3.0, 1.0, 1.0]}, "download_bits_per_second of phone 'ann' is -3; it must be"),
        (
            {"compute_watts": [1.0, -2.0, 1.0]},
            "compute_watts of phone 'bob' is -2; it must be finite and not",
        ),
        ({"radio_watts": [1.0, 1.0, np.inf]}, "radio_watts of phone 'cid' is inf; it must be finite and not negative."),
        ({"radio_watts": [1.0, 1.0, 1.0]}, "Of phone 'bob' only one of compute_watts and radio_watts is given; energy"),
        ({"radio_watts": [1.0]}, "seconds_per_sample has 3 phones, but radio_watts has 1; they must be equally many."),
        ({"measured_upload": Ragged.from_lists([[1.0]])}, "seconds_per_sample has 3 phones, but measured_upload has 1"),
        ({"measured_upload": ragged(0.0)}, "measured_upload of phone 'bob' has a speed of 0 bits per second; measured"),
        ({"measured_upload": ragged(np.nan)}, "measured_upload of phone 'bob' has a speed of nan bits per second"),
        ({"measured_download": ragged(np.inf)}, "measured_download of phone 'bob' has a speed of inf bits per second"),
        ({"measured_download": [[1.0]] * 3}, "measured_download must be Ragged lists of speeds, not list."),
        (
            {"upload_bit_per_second": [1.0] * 3},
            "Devices have no column 'upload_bit_per_second'; did you mean 'upload",
        ),
        ({"radio_watts": ["1", "2", "3"]}, "radio_watts must be numbers"),
        ({"radio_watts": 3.0}, "radio_watts must be a list of numbers, not an array of 0 dimensions."),
        ({"names": ["ann", "bob"]}, "There are 2 names for 3 phones; every phone needs one."),
    ],
)
def test_bad_columns(change: dict[str, Any], sentence: str) -> None:
    Devices.from_columns(**GOOD)
    with pytest.raises(BadInputError) as caught:
        Devices.from_columns(**{**GOOD, "names": ["ann", "bob", "cid"], **change})
    assert str(caught.value).startswith(sentence)


def test_no_columns_at_all() -> None:
    with pytest.raises(BadInputError, match="Devices need columns: seconds_per_sample, flops_per_second"):
        Devices.from_columns()
