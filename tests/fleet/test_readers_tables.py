"""Fleets in plain tables: what comes out of them, what goes into them, and sentences about what is wrong."""

from __future__ import annotations

import gzip
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from phones import random_fleet

from fedarena.core.errors import BadInputError
from fedarena.core.options import resolve_part
from fedarena.fleet import FLEETS, Availability, Devices, Fleet, Ragged, load_fleet
from fedarena.fleet.sources.table import write_tables

DEVICES = """phone,seconds_per_sample,download_bits_per_second,upload_bits_per_second,flops_per_second,measured_upload
007,0.5,8e6,inf,,1e6 2e6
b,0.25,4000000,1000000,1e9,
"""
AVAILABILITY = """phone,start_seconds,end_seconds,period_seconds
b,100,200,1000
007,50,60,86400
b, 0 ,99.6,1000
"""


@pytest.fixture
def load(tmp_path: Path):
    """Writes tables as CSV files and loads them."""

    def write_and_load(devices: str | None = None, availability: str | None = None, **options: Any) -> Fleet:
        settings: dict[str, Any] = {"name": "table", **options}
        for name, text in (("devices", devices), ("availability", availability)):
            if text is not None:
                path = tmp_path / f"{name}.csv"
                path.write_text(text)
                settings[name] = str(path)
        return load_fleet(settings, phones=3)

    return write_and_load


def test_two_tables_of_the_same_phones(load) -> None:
    fleet = load(DEVICES, AVAILABILITY)
    assert fleet.paired
    assert fleet.devices.seconds_per_sample.tolist() == [0.5, 0.25]
    assert fleet.devices.download_bits_per_second.tolist() == [8e6, 4e6]
    assert fleet.devices.upload_bits_per_second.tolist() == [np.inf, 1e6]
    np.testing.assert_array_equal(fleet.devices.flops_per_second, [np.nan, 1e9])
    assert fleet.devices.measured_upload.offsets.tolist() == [0, 2, 2]
    assert fleet.devices.measured_upload.values.tolist() == [1e6, 2e6]
    assert fleet.availability.periods.tolist() == [86_400, 1_000]
    assert fleet.availability.offsets.tolist() == [0, 1, 2]
    assert fleet.availability.starts.tolist() == [50, 0]  # 99.6 is rounded to 100, where the next interval begins
    assert fleet.availability.ends.tolist() == [60, 200]


def test_one_table(load) -> None:
    only_devices = load(DEVICES)
    assert only_devices.availability.share().tolist() == [1, 1]
    only_availability = load(None, AVAILABILITY)
    assert only_availability.availability.periods.tolist() == [1_000, 86_400]
    assert only_availability.devices.compute_seconds(0, 10, 1e9) == 0
    with pytest.raises(BadInputError, match="needs a table of devices, one of availability, or both"):
        load()


def test_devices_without_names_are_not_paired(load) -> None:
    nameless = "seconds_per_sample,download_bits_per_second,upload_bits_per_second\n1,2,3\n"
    fleet = load(nameless, AVAILABILITY)
    assert not fleet.paired
    assert (len(fleet.devices), len(fleet.availability)) == (1, 2)


def test_a_period_for_all_and_phones_that_are_never_there(load) -> None:
    text = "end_seconds,phone,start_seconds\n5,a,1\n,b,\n"
    availability = load(None, text, period_seconds=10).availability
    assert availability.periods.tolist() == [10, 10]
    assert availability.share().tolist() == [0.4, 0]


def test_intervals_that_rounding_leaves_nothing_of(load) -> None:
    with pytest.warns(UserWarning, match=r"availability\.csv: 1 intervals are empty when rounded"):
        availability = load(
            None, "phone,start_seconds,end_seconds\na,1.1,1.4\na,2.6,4.4\n", period_seconds=9
        ).availability
    assert (availability.starts.tolist(), availability.ends.tolist()) == ([3], [4])


def test_compressed_files_and_marks_of_spreadsheets(tmp_path: Path) -> None:
    (tmp_path / "a.csv.gz").write_bytes(gzip.compress(AVAILABILITY.encode()))
    (tmp_path / "b.csv").write_bytes(b"\xef\xbb\xbf" + AVAILABILITY.replace("\n", "\r\n").encode() + b"\r\n\r\n")
    fleets = [
        load_fleet({"name": "table", "availability": str(tmp_path / name)}, phones=3) for name in ("a.csv.gz", "b.csv")
    ]
    assert fleets[0].fingerprint == fleets[1].fingerprint


def all_columns(phones: int) -> Fleet:
    """A fleet in which everything occurs that can."""
    random = np.random.default_rng(1)
    some = np.where(random.random(phones) < 0.5, np.nan, random.uniform(size=phones))
    speeds = [random.uniform(1, 9, size=random.integers(0, 4)).tolist() for _ in range(phones)]
    devices = Devices.from_columns(
        seconds_per_sample=random.uniform(size=phones) / 3,
        flops_per_second=some * 1e10,
        download_bits_per_second=np.where(random.random(phones) < 0.3, np.inf, 1e6 / 7),
        upload_bits_per_second=random.uniform(1, 2, size=phones),
        compute_watts=some,
        radio_watts=some,
        measured_download=Ragged.from_lists(speeds),
        measured_upload=Ragged.from_lists(speeds[::-1]),
    )
    return Fleet("all", devices, random_fleet(phones).availability, paired=True)


@pytest.mark.parametrize("ending", ["csv", "parquet"])
@pytest.mark.parametrize(
    "fleet",
    [
        random_fleet(50, paired=True),
        random_fleet(30, availabilities=70),
        all_columns(40),
        Fleet("never", random_fleet(3).devices, Availability.never(3), paired=True),
        load_fleet("ideal", 5),
    ],
    ids=lambda fleet: fleet.name,
)
def test_what_is_written_is_what_is_read(fleet: Fleet, ending: str, tmp_path: Path) -> None:
    paths = {part: str(tmp_path / f"{part}.{ending}") for part in ("devices", "availability")}
    write_tables(fleet, **paths)
    assert sorted(path.name for path in tmp_path.iterdir()) == [f"availability.{ending}", f"devices.{ending}"]
    assert load_fleet({"name": "table", **paths}, phones=3).fingerprint == fleet.fingerprint


def test_paths_that_cannot_be_written(tmp_path: Path) -> None:
    fleet = random_fleet(3)
    with pytest.raises(BadInputError, match=r"devices.xlsx must end in .csv or .parquet"):
        write_tables(fleet, devices=tmp_path / "devices.xlsx", availability=tmp_path / "a.csv")
    with pytest.raises(BadInputError, match=r"none/d.csv cannot be written: No such file"):
        write_tables(fleet, devices=tmp_path / "none" / "d.csv", availability=tmp_path / "a.csv")


def test_a_fleet_on_disk(tmp_path: Path) -> None:
    fleet = random_fleet(20)
    fleet.save(tmp_path / "fleet")
    assert load_fleet({"name": "file", "path": str(tmp_path / "fleet")}, phones=3).fingerprint == fleet.fingerprint
    with pytest.raises(BadInputError, match="none"):
        load_fleet({"name": "file", "path": str(tmp_path / "none")}, phones=3)


def test_devices_of_one_fleet_with_the_availability_of_another(load, tmp_path: Path) -> None:
    load(DEVICES, AVAILABILITY)  # writes them
    parts = {"devices": {"name": "table", "devices": str(tmp_path / "devices.csv")}, "availability": "ideal"}
    fleet = load_fleet({"name": "combined", **parts}, phones=7)
    assert not fleet.paired
    assert fleet.devices.seconds_per_sample.tolist() == [0.5, 0.25]
    assert (fleet.availability.share() == 1).all()
    with pytest.raises(BadInputError, match=r"fleet\.devices\.speed: the fleet 'ideal' has no option"):
        load_fleet({"name": "combined", "devices": {"name": "ideal", "speed": 1}, "availability": "ideal"}, phones=7)
    with pytest.raises(BadInputError, match=r"fleet\.availability is missing"):
        load_fleet({"name": "combined", "devices": "ideal"}, phones=7)


def test_paths_do_not_depend_on_the_folder(load, tmp_path: Path, monkeypatch) -> None:
    load(DEVICES, AVAILABILITY)  # writes them
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    given = {"name": "combined", "devices": {"name": "table", "devices": "devices.csv"}}
    given["availability"] = {"name": "table", "availability": "~/availability.csv"}
    resolved = resolve_part(FLEETS, given, "fleet")
    assert resolved["devices"]["devices"] == str(tmp_path / "devices.csv")
    assert resolved["availability"]["availability"] == str(tmp_path / "availability.csv")
    assert resolve_part(FLEETS, resolved, "fleet") == resolved


HEADER = "phone,seconds_per_sample,download_bits_per_second,upload_bits_per_second\n"


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("", "devices.csv is empty"),
        (HEADER, "devices.csv has no rows"),
        (
            "phone,second_per_sample\na,1\n",
            "has a column 'second_per_sample', which means nothing; did you mean 'seconds_per_sample'?",
        ),
        ("phone,phone\na,1\n", "devices.csv has two columns 'phone'"),
        (HEADER + "a,1,2\n", "devices.csv, line 2 has 3 values for 4 columns"),
        (HEADER + "a,1,2,3\nb,1,2,3,4\n", "devices.csv, line 3 has 5 values for 4 columns"),
        (HEADER + "a,1,2,3\n\nb,1,2,3\n", "devices.csv, line 3: 'phone' is missing"),
        (
            HEADER + "a,1,2,3\nb,1,fast,3\n",
            "devices.csv, line 3: 'download_bits_per_second' must be a number, not 'fast'",
        ),
        (HEADER + "a,1,2,3\n,1,2,3\n", "devices.csv, line 3: 'phone' is missing"),
        (HEADER + "a,1,2,3\nb,1,2,3\na,1,2,3\n", "devices.csv, line 4: the phone 'a' has a row already, "),
        (HEADER + "a,1,2,3\nb,1,-2,3\n", "devices.csv, line 3) is -2; it must be positive"),
        (HEADER + "a,1,2,3\nb,1,2,0\n", "devices.csv, line 3) is 0; it must be positive"),
        (HEADER + "a,1,2,3\nb,1,2,\n", "devices.csv, line 3) is missing; every phone needs a speed"),
        (HEADER + "a,,2,3\n", "How fast phone 'a' ("),
        (
            "phone,download_bits_per_second,upload_bits_per_second\na,1,2\n",
            "seconds_per_sample or flops_per_second is need",
        ),
        ("seconds_per_sample,measured_upload\n1,5 x\n", "devices.csv, line 2: 'measured_upload' must be numbers, not"),
    ],
)
def test_bad_devices(load, text: str, sentence: str) -> None:
    with pytest.raises(BadInputError, match=r"devices\.csv") as refused:
        load(text)
    assert sentence in str(refused.value)


INTERVALS = "phone,start_seconds,end_seconds,period_seconds\n"


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("phone,start_seconds,period_seconds\na,1,9\n", "availability.csv has no column 'end_seconds'"),
        (
            "phone,start_seconds,end_second\na,1,9\n",
            "has a column 'end_second', which means nothing; did you mean 'end_seconds'?",
        ),
        ("phone,start_seconds,end_seconds\na,1,9\n", "has no column 'period_seconds'; it must have one or"),
        (INTERVALS + "a,1,2,9\na,5,5,9\n", "line 3: end_seconds must be above start_seconds, but the row of phone 'a'"),
        (INTERVALS + "a,1,2,9\na,6,5,9\n", "line 3: end_seconds must be above start_seconds"),
        (INTERVALS + "a,-1,2,9\n", "line 2: start_seconds must be at least 0"),
        (INTERVALS + "a,1,10,9\n", "line 2: end_seconds must not be above the period"),
        (INTERVALS + "a,1,,9\n", "line 2: an interval needs both start_seconds and end_seconds"),
        (INTERVALS + "a,1,inf,9\n", "line 2: end_seconds must not be above the period"),
        (INTERVALS + "a,1,2,0\n", "line 2: the period must be a number of seconds above 0"),
        (INTERVALS + "a,1,2,\n", "line 2: the period must be a number of seconds above 0"),
        (INTERVALS + "a,1,2,inf\n", "line 2: the period must be a number of seconds above 0"),
        (INTERVALS + "a,1,2,5e9\n", "The period of phone 'a' is 5000000000 seconds"),
        (INTERVALS + "a,0.1,0.2,0.3\n", "The period of phone 'a' is 0 seconds"),
        (INTERVALS + "a,1,2,9\nb,1,2,8\na,3,4,8\n", "line 4: the period differs from the one before of the phone"),
        (INTERVALS + "a,1,5,9\nb,1,2,9\na,4,6,9\n", "line 4: the interval of phone 'a' overlaps that in "),
        (INTERVALS + "a,1,2,9\na,two,3,9\n", "line 3: 'start_seconds' must be a number, not 'two'"),
    ],
)
def test_bad_availability(load, text: str, sentence: str) -> None:
    with pytest.raises(BadInputError, match=r"availability\.csv") as refused:
        load(None, text)
    assert sentence in str(refused.value)


def test_a_period_given_twice(load) -> None:
    with pytest.raises(BadInputError, match=r"has a column 'period_seconds'; .* but not both"):
        load(None, AVAILABILITY, period_seconds=5)
    with pytest.raises(BadInputError, match=r"fleet\.period_seconds"):
        load(None, "phone,start_seconds,end_seconds\na,1,9\n", period_seconds=0)


def test_phones_that_are_in_one_table_only(load) -> None:
    with pytest.raises(BadInputError, match=r"availability\.csv, line 5: the phone 'c' is not in .*devices\.csv"):
        load(DEVICES, AVAILABILITY + "c,1,2,9\n")
    with pytest.raises(BadInputError, match=r"has no row of the phone '007' of .*devices\.csv; a phone that is never"):
        load(DEVICES, INTERVALS + "b,1,2,9\n")


def test_parquet_files_of_others(tmp_path: Path) -> None:
    path = tmp_path / "availability.parquet"
    settings = {"name": "table", "availability": str(path)}
    columns: dict[str, Any] = {"phone": [3, 3, 8], "start_seconds": [1, 5, None], "end_seconds": [2, 6, None]}
    pq.write_table(pa.table({**columns, "period_seconds": [9.0, 9.0, 7.0]}), path)
    assert load_fleet(settings, phones=3).availability.offsets.tolist() == [0, 2, 2]
    pq.write_table(pa.table({**columns, "period_seconds": [9, 9, None]}), path)
    with pytest.raises(BadInputError, match=r"availability\.parquet, row 3: the period must be a number"):
        load_fleet(settings, phones=3)
    pq.write_table(pa.table({**columns, "period_seconds": [True, True, True]}), path)
    with pytest.raises(BadInputError, match="the column 'period_seconds' must hold numbers, not bool"):
        load_fleet(settings, phones=3)
    pq.write_table(pa.table({**columns, "phone": [1.5, 2.5, 3.5], "period_seconds": [9, 9, 9]}), path)
    with pytest.raises(BadInputError, match="the column 'phone' must hold texts, not double"):
        load_fleet(settings, phones=3)
    path.write_bytes(b"PAR1 and nothing else")
    with pytest.raises(BadInputError, match=r"availability\.parquet cannot be read as a Parquet file"):
        load_fleet(settings, phones=3)


def test_files_that_are_neither(tmp_path: Path) -> None:
    (tmp_path / "devices.txt").write_text(DEVICES)
    with pytest.raises(BadInputError, match=r"devices\.txt must end in .csv, .csv.gz or .parquet"):
        load_fleet({"name": "table", "devices": str(tmp_path / "devices.txt")}, phones=3)
    with pytest.raises(BadInputError, match=r"There is no file .*none\.csv"):
        load_fleet({"name": "table", "devices": str(tmp_path / "none.csv")}, phones=3)
    (tmp_path / "devices.csv").write_bytes(b"\xff\xfe\x00\n1,2")
    with pytest.raises(BadInputError, match="line 1 must be names of columns"):
        load_fleet({"name": "table", "devices": str(tmp_path / "devices.csv")}, phones=3)
    (tmp_path / "devices.csv").write_bytes(HEADER.encode() + b"\xff\xfe,1,2,3\n")
    with pytest.raises(BadInputError, match=r"devices\.csv cannot be read as a CSV file"):
        load_fleet({"name": "table", "devices": str(tmp_path / "devices.csv")}, phones=3)
