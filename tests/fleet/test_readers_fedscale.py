"""FedScale's two files: units, ends of intervals, and sentences about what is wrong."""

from __future__ import annotations

import copy
import json
import pickle
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from trace_folder import FEDSCALE, needs_fedscale

from fedarena.core.errors import BadInputError
from fedarena.fleet import Fleet, load_fleet
from fedarena.fleet.reading.traces import merge_intervals

DEVICES = {
    1: {"computation": np.float64(153.0), "communication": np.float64(2209.5)},
    2: {"computation": np.float64(39.0), "communication": np.float64(18437.25)},
}
BEHAVIOUR = {
    1: {"duration": 40, "inactive": [59, 90], "finish_time": 86_400, "active": [51, 70], "model": "LG-K350"},
    2: {"duration": 0, "inactive": [], "finish_time": 172_800, "active": [], "model": "CPH1909"},
    3: {"duration": 9, "inactive": [10, 10, 20], "finish_time": 100, "active": [3, 10, 15], "model": "TA-1028"},
}


@pytest.fixture
def load(tmp_path: Path):
    """Writes the two files as pickles or JSON and loads them; what is None is left out."""

    def write_and_load(devices: Any, behaviour: Any, ending: str = "pkl", **options: Any) -> Fleet:
        settings: dict[str, Any] = {"name": "fedscale_files", **options}
        for option, name, value in (
            ("device_file", "client_device_capacity", devices),
            ("availability_file", "client_behave_trace", behaviour),
        ):
            if value is not None:
                path = tmp_path / f"{name}.{ending}"
                path.write_bytes(pickle.dumps(value, 3) if ending == "pkl" else json.dumps(value).encode())
                settings[option] = str(path)
        return load_fleet(settings, phones=10)

    return write_and_load


@pytest.mark.filterwarnings("ignore:.*touch or overlap")
def test_units_and_intervals(load) -> None:
    fleet = load(DEVICES, BEHAVIOUR)
    assert not fleet.paired
    np.testing.assert_allclose(fleet.devices.seconds_per_sample, [0.459, 0.117])
    np.testing.assert_allclose(fleet.devices.download_bits_per_second, [2_209_500, 18_437_250])
    np.testing.assert_array_equal(fleet.devices.upload_bits_per_second, fleet.devices.download_bits_per_second)
    availability = fleet.availability
    assert availability.offsets.tolist() == [0, 2, 2, 4]
    # Phone 3: the empty interval at 10 lasts a second and goes on from the one before.
    assert availability.starts.tolist() == [51, 70, 3, 15]
    assert availability.ends.tolist() == [59, 90, 11, 20]
    assert availability.periods.tolist() == [86_400, 172_800, 100]


def test_merged_intervals_are_counted(load) -> None:
    with pytest.warns(UserWarning, match=r"client_behave_trace.pkl: 1 intervals touch or overlap the one before"):
        load(None, BEHAVIOUR)


def test_json_of_the_same_shape(load) -> None:
    as_json = json.loads(json.dumps({1: {"computation": 10, "communication": 1000.0}}))
    assert load(as_json, None, "json").devices.seconds_per_sample.tolist() == [pytest.approx(0.03)]


def test_what_is_left_out_is_ideal(load) -> None:
    fleet = load(DEVICES, None, training_factor=1.0)
    assert fleet.availability.leaves_at(0, 5.0) == np.inf
    np.testing.assert_allclose(fleet.devices.seconds_per_sample, [0.153, 0.039])
    only_availability = load(None, {1: BEHAVIOUR[1]})
    assert only_availability.devices.compute_seconds(0, 100, 1e12) == 0
    with pytest.raises(BadInputError, match="needs a device_file, an availability_file, or both"):
        load_fleet({"name": "fedscale_files"}, 3)


def test_overlaps_are_merged_and_what_is_behind_the_end_is_cut(load) -> None:
    trace = {1: {"active": [50, 10, 30.4, 95, 120], "inactive": [60, 35, 55.2, 130, 125], "finish_time": 100}}
    with pytest.warns(UserWarning, match="intervals") as warned:
        availability = load(None, trace).availability
    assert availability.starts.tolist() == [10, 95]
    assert availability.ends.tolist() == [60, 100]
    assert [str(warning.message).split(": ")[1][:30] for warning in warned] == [
        "2 intervals end after the trac",
        "2 intervals touch or overlap t",
    ]


@given(st.lists(st.tuples(st.integers(0, 2), st.integers(0, 60), st.integers(1, 15)), max_size=12))
def test_merging_against_sets_of_seconds(intervals: list[tuple[int, int, int]]) -> None:
    columns = np.array(intervals, dtype=np.int64).reshape(-1, 3).T
    rows, starts, ends = merge_intervals(columns[0], columns[1], columns[1] + columns[2])
    seconds = {(row, second) for row, start, length in intervals for second in range(start, start + length)}
    merged = [
        (row, second)
        for row, start, end in zip(rows.tolist(), starts.tolist(), ends.tolist(), strict=True)
        for second in range(start, end)
    ]
    assert len(merged) == len(set(merged))
    assert set(merged) == seconds
    assert not seconds & set(zip(rows.tolist(), ends.tolist(), strict=True))  # what touched is one interval now


def test_a_list_that_many_phones_share_is_not_copied_without_end(tmp_path: Path) -> None:
    """Three thousand times a hundred thousand intervals would take 22 GB; the file has less than a megabyte."""
    starts = list(range(0, 200_000, 2))
    phones = {
        number: {"active": starts, "inactive": starts, "finish_time": 200_000, "duration": 1, "model": "x"}
        for number in range(3_000)
    }
    path = tmp_path / "shared.pkl"
    path.write_bytes(pickle.dumps(phones))
    assert path.stat().st_size < 10**6
    with pytest.raises(BadInputError, match=r"shared\.pkl mentions the same lists or dictionaries so often that its"):
        load_fleet({"name": "fedscale_files", "availability_file": str(path)}, 5)
    for phone in phones.values():
        phone["active"] = phone["inactive"] = starts[:100]
    path.write_bytes(pickle.dumps(phones))
    availability = load_fleet({"name": "fedscale_files", "availability_file": str(path)}, 5).availability
    assert len(availability) == 3_000
    assert availability.starts.tolist() == starts[:100] * 3_000


def changed(value: Any, *keys: Any, to: Any) -> Any:
    """A copy with one entry changed; with none it is removed."""
    result = copy.deepcopy(value)
    place = result
    for key in keys[:-1]:
        place = place[key]
    if to is KeyError:
        del place[keys[-1]]
    else:
        place[keys[-1]] = to
    return result


@pytest.mark.parametrize(
    ("devices", "sentence"),
    [
        ({}, "client_device_capacity.pkl must hold an entry for every phone, not {}"),
        ([1], "must hold an entry for every phone"),
        ({1: 5}, "the entry of phone 1 must be a dictionary, not 5"),
        (changed(DEVICES, 2, "computation", to=KeyError), "phone '2' has no 'computation'"),
        (
            changed(DEVICES, 2, "communication", to=0),
            "'communication' of phone '2' must be a finite number above 0, not 0",
        ),
        (changed(DEVICES, 2, "communication", to=-5.0), "above 0, not -5.0"),
        (changed(DEVICES, 1, "communication", to=float("nan")), "above 0, not nan"),
        (changed(DEVICES, 1, "communication", to=None), "'communication' of phone '1' must be a number, not None"),
        (changed(DEVICES, 1, "computation", to="153"), "must be a number, not '153'"),
        (changed(DEVICES, 1, "computation", to=True), "must be a number, not True"),
        (changed(DEVICES, 1, "computation", to=10**400), "must be a finite number above 0"),
        (changed(DEVICES, 1, "computation", to=10**9000), "holds a whole number of more than 1024 bytes"),
        ({1: DEVICES[1], "1": DEVICES[2]}, "has two phones of the same name"),
        ([list(range(1000))] * 1000, "must hold an entry for every phone, not [[0, 1, 2, 3, 4, 5, ...], "),
    ],
)
def test_bad_devices(load, devices: Any, sentence: str) -> None:
    with pytest.raises(BadInputError, match=r"client_device_capacity\.pkl") as refused:
        load(devices, None)
    assert sentence in str(refused.value)


@pytest.mark.parametrize(
    ("behaviour", "sentence"),
    [
        (
            changed(BEHAVIOUR, 1, "finish_time", to=0),
            "'finish_time' of phone '1' must be a finite number above 0, not 0",
        ),
        (changed(BEHAVIOUR, 1, "finish_time", to=0.2), "The period of phone '1' is 0 seconds"),
        (changed(BEHAVIOUR, 1, "finish_time", to=KeyError), "phone '1' has no 'finish_time'"),
        (changed(BEHAVIOUR, 1, "active", to=7), "'active' of phone '1' must be a list, not 7"),
        (changed(BEHAVIOUR, 1, "active", to=[51]), "phone '1' has 1 times in 'active' but 2 in 'inactive'"),
        (changed(BEHAVIOUR, 1, "active", to=[51, 95]), "phone '1' is active from 95 until 90 seconds"),
        (changed(BEHAVIOUR, 1, "active", to=[-1, 70]), "phone '1' is active from -1 until 59 seconds"),
        (changed(BEHAVIOUR, 3, "inactive", 1, to="x"), "'inactive' of phone '3' must be a number, not 'x'"),
    ],
)
def test_bad_behaviour(load, behaviour: Any, sentence: str) -> None:
    with pytest.raises(BadInputError, match=r"client_behave_trace\.pkl") as refused:
        load(None, behaviour)
    assert sentence in str(refused.value)


@needs_fedscale
def test_the_first_ten_published_phones(load) -> None:
    published = json.loads((FEDSCALE / "fedscale_first10.json").read_text())
    behaviour = published["client_behave_trace"]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        fleet = load(published["client_device_capacity"], behaviour, "json")
    assert len(fleet.devices) == len(fleet.availability) == 10
    assert fleet.devices.seconds_per_sample[0] == pytest.approx(3 * 0.153)
    assert fleet.devices.upload_bits_per_second[0] == pytest.approx(2_209_615.98, abs=0.01)
    for row, trace in enumerate(behaviour.values()):
        empty = sum(active == inactive for active, inactive in zip(trace["active"], trace["inactive"], strict=True))
        seconds = fleet.availability.available_seconds(row, 0, trace["finish_time"])
        assert 0 <= seconds - trace["duration"] <= empty
        # Their rule, at random times over several periods; only at the very end of an interval do they differ.
        times = np.random.default_rng(row).integers(0, 5 * trace["finish_time"], 300)
        for time in times.tolist():
            position = time % trace["finish_time"]
            theirs = any(a <= position <= b for a, b in zip(trace["active"], trace["inactive"], strict=True))
            if position not in trace["inactive"]:
                assert fleet.availability.is_available(row, time) == theirs
