"""FLHetBench's files: their rule of availability, cases, latencies by model, and sentences about what is wrong."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from test_readers_fedscale import changed
from trace_folder import FLHETBENCH, needs_flhetbench

from fedarena.core.errors import BadInputError
from fedarena.fleet import Fleet, load_fleet
from fedarena.fleet.reading.latencies import SCORE_COLUMN, SCORE_MILLISECONDS, read_latencies

TIMERS = {
    "681": {
        "isSuccess": True,
        "trace_start": 1_000.0,
        "trace_end": 1_100.0,
        "ready_time": [[1_010.0, 1_020.0], [1_021.0, 1_025.0], [1_040.0, 1_040.0], [1_090.0, 1_100.0]],
    },
    "451": {"isSuccess": False, "trace_start": None, "trace_end": None, "ready_time": []},
    "37": {"isSuccess": True, "trace_start": 86_400.0, "trace_end": 259_200.0, "ready_time": [[90_000.0, 100_000.0]]},
}


def record(manufacturer: str, model: str, speeds: list[Any], tac: str = "1") -> dict[str, Any]:
    info = {"model": model, "manufacturer": manufacturer, "os": "RELEASE:7.0", "tac": tac}
    return {
        "id": "5707702298738688",
        "timestamp": 1519487039349000,
        "device_properties": {"battery_level": 68, "network_type": "WIFI", "device_info": info},
        "tcp_speed_results": speeds,
    }


DEVICES = [
    record("samsung", "SM-A520F", [31_692.5, 40_000.0]),
    record("Google", "Pixel 2", [5_000.0]),
    record("samsung", "SM-A520F", [1_000, 2_000, 3_000]),
    record("samsung", "SM-A205F", [10_000.0], tac="2"),
]
LATENCIES = [
    {"Phone Model": "Google Pixel 2", "Vit Latency": 300.0, "Vit STD": 1.0, "ResNet Latency": 100.0, "ResNet STD": 0.3},
    {"Phone Model": "google  pixel 2", "ResNet Latency": 120.0, "ResNet STD": 0},
    {"Phone Model": "Motorola Edge 40", "ResNet Latency": 0.0, "ResNet STD": 0},
    {"Phone Model": "Samsung Galaxy A20", "ResNet Latency": 400.0, "ResNet STD": 0},
]
SCORES = [
    {"Model": "Huawei Mate 30 Pro 5G", "CPU_F_AI_Score": "3744", "AI_Score": " 76206 1,6"},
    {"Model": "Samsung Galaxy Star Pro", "CPU_F_AI_Score": "105 2", "AI_Score": " 212 "},
]
MODEL_NAMES = {"SM-A205F": "Samsung Galaxy A20", "SM-A520F": "unknown"}


@pytest.fixture
def write(tmp_path: Path):
    def write_json(name: str, value: Any) -> str:
        path = tmp_path / name
        path.write_text(json.dumps(value))
        return str(path)

    return write_json


@pytest.fixture
def load(write):
    def load_case(timers: Any = None, **files: Any) -> Fleet:
        options: dict[str, Any] = {"timers_file": write("timers.json", TIMERS if timers is None else timers)}
        for option, value in files.items():
            options[option] = write(f"{option}.json", value) if option.endswith("_file") else value
        return load_fleet({"name": "flhetbench", **options}, phones=5)

    return load_case


def their_rule(timer: dict[str, Any], time: int) -> bool:
    """Availability by whole seconds, written down plainly."""
    length = int(timer["trace_end"] - timer["trace_start"])
    seconds = [0] * length
    for start, end in timer["ready_time"]:
        for second in range(int(start - timer["trace_start"]), int(end - timer["trace_start"]) + 1):
            if second < length:
                seconds[second] = 1
    return seconds[int(time - timer["trace_start"]) % length] == 1


def test_their_rule_second_by_second(load) -> None:
    fleet = load()
    assert len(fleet.availability) == 2
    assert not fleet.paired
    for time in [*range(350), *range(1_000, 1_120), *range(2_071, 2_103)]:
        assert fleet.availability.is_available(0, time) == their_rule(TIMERS["681"], time), time
    times = np.array([89_999, 90_000, 100_000, 100_001])
    for period in (0, 172_800, 20 * 172_800):
        assert fleet.availability.is_available(1, times + period).tolist() == [False, True, True, False]


def test_the_clock_of_the_first_day(load) -> None:
    fleet = load(changed(TIMERS, "37", "trace_start", to=80_000.0), clock="first_day")
    assert fleet.availability.starts[-1] == 90_000
    assert fleet.availability.periods[-1] == 179_200


def test_a_case_pairs_states_and_devices(load) -> None:
    fleet = load(states_file=["37", "681", "37", "681"], devices_file=DEVICES)
    assert fleet.paired
    assert fleet.availability.periods.tolist() == [172_800, 100, 172_800, 100]
    assert fleet.devices.seconds_per_sample.tolist() == [0, 0, 0, 0]
    for speeds in (fleet.devices.measured_download, fleet.devices.measured_upload):
        assert speeds.values.tolist() == [31_692_500, 40e6, 5e6, 1e6, 2e6, 3e6, 10e6]
        assert speeds.offsets.tolist() == [0, 2, 3, 6, 7]
    assert fleet.devices.download_bits_per_second[2] == 2e6
    assert not load(devices_file=DEVICES).paired


@pytest.mark.filterwarnings("ignore:.*not in this list")
def test_latencies_by_model(load) -> None:
    files = {"devices_file": DEVICES, "latencies_file": LATENCIES, "model_names_file": MODEL_NAMES}
    seconds = load(**files, training_factor=1.0, seed=3).devices.seconds_per_sample
    assert seconds[1] == pytest.approx(0.110)  # by manufacturer and model: the median of two measurements
    assert seconds[3] == pytest.approx(0.400)  # by the name that the file of names has
    assert seconds[0] == seconds[2]  # drawn, but the same for the same model
    assert seconds[0] in {0.1, 0.12, 0.4}
    drawn = {load(**files, training_factor=1.0, seed=seed).devices.seconds_per_sample[0] for seed in range(30)}
    assert drawn == {0.1, 0.12, 0.4}
    mean = load(**files, unmatched="mean").devices.seconds_per_sample
    assert mean[0] == pytest.approx(3 * (0.1 + 0.12 + 0.4) / 3)


def test_unknown_models_are_counted(load) -> None:
    with pytest.warns(UserWarning, match=r"latencies_file.json: 3 of 4 phones are of models that are not in this list"):
        load(devices_file=DEVICES, latencies_file=LATENCIES)


NAMELESS = [
    changed(DEVICES, 0, "device_properties", "device_info", "model", to=None)[0],
    changed(DEVICES, 1, "device_properties", "device_info", "model", to=KeyError)[1],
    changed(DEVICES, 2, "device_properties", to=KeyError)[2],
    changed(DEVICES, 3, "device_properties", "device_info", "model", to=" ")[3],
]


@pytest.mark.filterwarnings("ignore:.*not in this list")
@pytest.mark.parametrize("position", range(4))
def test_a_record_without_a_model_is_unmatched(load, position: int) -> None:
    devices = [*DEVICES[:position], NAMELESS[position], *DEVICES[position + 1 :]]
    files = {"devices_file": devices, "latencies_file": LATENCIES, "model_names_file": MODEL_NAMES}
    with pytest.warns(UserWarning, match="no phone model") as warned:
        found = load(**files, unmatched="mean", training_factor=1.0).devices
    said = [str(warning.message) for warning in warned if "devices_file" in str(warning.message)]
    assert len(said) == 1
    assert said[0].endswith("devices_file.json: 1 of 4 records have no phone model and count as unmatched")
    assert found.seconds_per_sample[position] == pytest.approx((0.1 + 0.12 + 0.4) / 3)
    speeds = found.measured_download.take([position]).values
    assert speeds.tolist() == [1000 * speed for speed in DEVICES[position]["tcp_speed_results"]]


@pytest.mark.filterwarnings("ignore:.*(not in this list|no phone model)")
def test_records_without_a_model_are_devices_of_their_own(load, write) -> None:
    many = [NAMELESS[0]] * 40
    seconds = load(devices_file=many, latencies_file=LATENCIES, training_factor=1.0).devices.seconds_per_sample
    assert set(seconds) == {0.1, 0.12, 0.4}
    assert len(load_fleet({"name": "mobiperf", "file": write("m.json", many)}, 5).devices) == 40


@pytest.mark.filterwarnings("ignore:.*no phone model")
def test_a_list_that_has_only_manufacturers_does_not_match_what_has_no_model(load) -> None:
    only = [{"Phone Model": "samsung", "ResNet Latency": 1.0}, {"Phone Model": "LG", "ResNet Latency": 3.0}]
    with pytest.warns(UserWarning, match="1 of 1 phones are of models that are not in this list"):
        found = load(devices_file=NAMELESS[:1], latencies_file=only, unmatched="mean", training_factor=1.0)
    assert found.devices.seconds_per_sample.tolist() == [0.002]


def test_latencies_without_devices(load) -> None:
    fleet = load(latencies_file=LATENCIES)
    np.testing.assert_allclose(fleet.devices.seconds_per_sample, [0.3, 0.36, 1.2])
    assert np.isinf(fleet.devices.download_bits_per_second).all()


def test_ai_benchmark(write) -> None:
    latencies = load_fleet({"name": "ai_benchmark", "file": write("a.json", LATENCIES), "training_factor": 2}, 5)
    np.testing.assert_allclose(latencies.devices.seconds_per_sample, [0.2, 0.24, 0.8])
    vit = load_fleet({"name": "ai_benchmark", "file": write("a.json", LATENCIES), "network": "ViT"}, 5)
    np.testing.assert_allclose(vit.devices.seconds_per_sample, [0.9])
    scores = load_fleet({"name": "ai_benchmark", "file": write("b.json", SCORES), "training_factor": 1}, 5)
    np.testing.assert_allclose(scores.devices.seconds_per_sample, [367.824 / 3744, 367.824 / 105])
    assert (scores.availability.share() == 1).all()
    bad = write("c.json", changed(SCORES, 1, "Model", to=None))
    with pytest.raises(BadInputError) as refused:
        load_fleet({"name": "ai_benchmark", "file": bad}, 5)
    assert str(refused.value) == f"{bad}: 'Model' of record 2 must be a text, not None"


def test_mobiperf_groups_records_of_a_phone(write) -> None:
    fleet = load_fleet({"name": "mobiperf", "file": write("m.json", DEVICES)}, 5)
    assert len(fleet.devices) == 3
    assert fleet.devices.measured_download.offsets.tolist() == [0, 5, 6, 7]
    assert fleet.devices.measured_download.values.tolist() == [31_692_500, 40e6, 1e6, 2e6, 3e6, 5e6, 10e6]


@pytest.mark.parametrize(
    ("timers", "sentence"),
    [
        ({}, "must hold an entry for every phone"),
        ({"1": None}, "the entry of phone '1' must be a dictionary, not None"),
        ({"451": TIMERS["451"]}, "No phone is usable"),
        (changed(TIMERS, "681", "isSuccess", to=KeyError), "phone '681' has no 'isSuccess'"),
        (changed(TIMERS, "681", "isSuccess", to="yes"), "'isSuccess' of phone '681' must be true or false, not 'yes'"),
        (changed(TIMERS, "681", "trace_end", to=None), "'trace_end' of phone '681' must be a number, not None"),
        (changed(TIMERS, "681", "trace_end", to=1_000.0), "begins at 1000 and ends at 1000 seconds"),
        (changed(TIMERS, "681", "ready_time", to=5), "'ready_time' of phone '681' must be a list, not 5"),
        (changed(TIMERS, "681", "ready_time", to=[[1_010.0]]), "must have pairs of seconds, not [1010.0]"),
        (changed(TIMERS, "681", "ready_time", to=[[1_010.0, "x"]]), "must be a number, not 'x'"),
        (
            changed(TIMERS, "681", "ready_time", to=[[1_020.0, 1_010.0]]),
            "phone '681' is ready from 1020 to 1010 seconds",
        ),
        (changed(TIMERS, "681", "ready_time", to=[[900.0, 1_010.0]]), "within the trace from 1000 to 1100"),
        (changed(TIMERS, "681", "ready_time", to=[[1_090.0, 1_101.0]]), "within the trace from 1000 to 1100"),
        (changed(TIMERS, "681", "ready_time", to=[[1_010.0, 1_020.0], [1_015.0, 1_030.0]]), "phone '681' overlap"),
    ],
)
def test_bad_timers(load, timers: Any, sentence: str) -> None:
    with pytest.raises(BadInputError, match=r"timers\.json") as refused:
        load(timers)
    assert sentence in str(refused.value)


@pytest.mark.parametrize(
    ("files", "sentence"),
    [
        ({"states_file": {}}, "states_file.json must hold a list of names of phones"),
        ({"states_file": ["37", "9"]}, "states_file.json: entry 2 is '9', which is not a usable phone of"),
        ({"states_file": ["451"]}, "entry 1 is '451', which is not a usable phone"),
        ({"states_file": ["37"], "devices_file": DEVICES}, "has 4 phones and"),
        ({"devices_file": []}, "devices_file.json must hold a list of records, not []"),
        ({"devices_file": [7]}, "devices_file.json: record 1 must be a dictionary, not 7"),
        (
            {"devices_file": changed(DEVICES, 1, "tcp_speed_results", to=KeyError)},
            "record 2 has no 'tcp_speed_results'",
        ),
        ({"devices_file": changed(DEVICES, 1, "tcp_speed_results", to=[])}, "of record 2 is empty"),
        ({"devices_file": changed(DEVICES, 1, "tcp_speed_results", to=[5, 0])}, "record 2 has a speed of 0 kilobits"),
        ({"devices_file": changed(DEVICES, 2, "tcp_speed_results", to=[-5])}, "record 3 has a speed of -5 kilobits"),
        ({"devices_file": changed(DEVICES, 1, "tcp_speed_results", to=["5"])}, "of record 2 must be a number, not '5'"),
        (
            {"devices_file": changed(DEVICES, 0, "device_properties", to=[])},
            "'device_properties' of record 1 must be a dictionary, not []",
        ),
        (
            {"devices_file": changed(DEVICES, 0, "device_properties", "device_info", to="x")},
            "'device_info' of record 1 must be a dictionary, not 'x'",
        ),
        (
            {"devices_file": changed(DEVICES, 0, "device_properties", "device_info", "model", to=7)},
            "'model' of record 1 must be a text, not 7",
        ),
        ({"latencies_file": {}}, "latencies_file.json must hold a list of records"),
        ({"latencies_file": changed(LATENCIES, 1, "ResNet Latency", to=-3)}, "of record 2 must not be negative"),
        ({"latencies_file": changed(LATENCIES, 1, "ResNet Latency", to=KeyError)}, "record 2 has no 'ResNet Latency'"),
        ({"latencies_file": changed(LATENCIES, 1, "Phone Model", to="")}, "'Phone Model' of record 2 must be a text"),
        ({"latencies_file": LATENCIES[2:3]}, "No phone has a 'ResNet Latency' above 0"),
        ({"latencies_file": changed(SCORES, 1, SCORE_COLUMN, to="fast")}, "record 2 must be a number, not 'fast'"),
        ({"latencies_file": changed(SCORES, 1, SCORE_COLUMN, to="0")}, "record 2 must be a finite number above 0"),
        ({"latencies_file": SCORES, "network": "ViT"}, "latencies_file.json: AI-Benchmark's scores tell"),
        (
            {"devices_file": DEVICES, "latencies_file": LATENCIES, "model_names_file": [1]},
            "model_names_file.json must hold a name for every model",
        ),
    ],
)
def test_bad_cases(load, files: dict[str, Any], sentence: str) -> None:
    with pytest.raises(BadInputError) as refused:
        load(**files)
    assert sentence in str(refused.value)


@needs_flhetbench
def test_the_published_timers() -> None:
    path = FLHETBENCH / "cached_timers.json"
    timers = {name: timer for name, timer in json.loads(path.read_text()).items() if timer["isSuccess"]}
    assert sum(len(timer["ready_time"]) for timer in timers.values()) == 14_139
    availability = load_fleet({"name": "flhetbench", "timers_file": str(path)}, 5).availability
    assert len(availability) == 710
    assert availability.share().mean() == pytest.approx(0.095, abs=0.0005)
    assert np.median(availability.share()) == pytest.approx(0.055, abs=0.0005)
    random = np.random.default_rng(0)
    names = list(timers)
    for row in random.choice(710, 12, replace=False):
        timer = timers[names[row]]
        edges = np.array(timer["ready_time"]).ravel().astype(int)
        near_edges = random.choice(edges, 15) + random.integers(-2, 3, 15)
        for time in [*random.integers(0, 3_000_000, 15).tolist(), *near_edges.tolist()]:
            assert availability.is_available(row, time) == their_rule(timer, time), (names[row], time)


@needs_flhetbench
@pytest.mark.parametrize("case", [1, 2])
def test_the_published_cases(case: int) -> None:
    devices_path, states_path = FLHETBENCH / f"device_case{case}.json", FLHETBENCH / f"state_case{case}.json"
    files = {"timers_file": "cached_timers", "states_file": states_path.stem, "devices_file": devices_path.stem}
    settings = {option: str(FLHETBENCH / f"{name}.json") for option, name in files.items()}
    fleet = load_fleet({"name": "flhetbench", **settings}, 5)
    assert fleet.paired
    assert len(fleet.devices) == 100
    speeds = json.loads(devices_path.read_text())[17]["tcp_speed_results"]
    assert fleet.devices.measured_upload.take([17]).values.tolist() == [1000 * speed for speed in speeds]
    name = json.loads(states_path.read_text())[17]
    timer = json.loads((FLHETBENCH / "cached_timers.json").read_text())[name]
    for time in range(0, 200_000, 2_111):
        assert fleet.availability.is_available(17, time) == their_rule(timer, time)


@needs_flhetbench
@pytest.mark.filterwarnings("ignore:.*not in this list")
@pytest.mark.parametrize("case", [1, 2])
def test_a_published_case_of_which_one_record_lost_its_model(case: int, write) -> None:
    records = json.loads((FLHETBENCH / f"device_case{case}.json").read_text())
    # As in the one published record that has none.
    records[17]["device_properties"]["device_info"] = dict.fromkeys(("model", "manufacturer", "os", "tac"))
    settings = {
        "name": "flhetbench",
        "timers_file": str(FLHETBENCH / "cached_timers.json"),
        "states_file": str(FLHETBENCH / f"state_case{case}.json"),
        "latencies_file": str(FLHETBENCH / "training_latency.json"),
    }
    whole = load_fleet({**settings, "devices_file": str(FLHETBENCH / f"device_case{case}.json")}, 100)
    with pytest.warns(UserWarning, match="1 of 100 records have no phone model"):
        fleet = load_fleet({**settings, "devices_file": write("devices.json", records)}, 100)
    others = np.arange(100) != 17
    assert (fleet.devices.seconds_per_sample == whole.devices.seconds_per_sample)[others].all()
    assert fleet.devices.seconds_per_sample[17] > 0
    np.testing.assert_array_equal(fleet.devices.measured_download.values, whole.devices.measured_download.values)


@needs_flhetbench
def test_the_published_latencies_agree_with_the_scores() -> None:
    latencies = read_latencies(FLHETBENCH / "training_latency.json")
    assert len(latencies.models) == 997 - 19
    milliseconds: dict[str, list[float]] = {}
    for model, seconds in zip(latencies.models, latencies.seconds, strict=True):
        milliseconds.setdefault(model.lower(), []).append(1000 * seconds)
    scores = json.loads((FLHETBENCH / "raw_ai_benchmark_list.json").read_text())
    both = [
        (float(phone[SCORE_COLUMN].split()[0]), np.median(milliseconds[phone["Model"].lower()]))
        for phone in scores
        if phone["Model"].lower() in milliseconds
    ]
    assert len(both) == 137
    assert np.median([score * latency for score, latency in both]) == pytest.approx(SCORE_MILLISECONDS)
    assert np.corrcoef(np.log(np.array(both).T))[0, 1] == pytest.approx(-0.95, abs=0.005)
