"""Fleets on disk, their fingerprints, and the catalogue."""

from __future__ import annotations

import json
import resource
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from phones import random_fleet

from fedarena.core.errors import BadInputError, CannotReadError, DamagedFileError, RunFailedError
from fedarena.fleet import FLEETS, Availability, Devices, Fleet, Ragged, load_fleet
from fedarena.fleet.storage import AVAILABILITY_NAME, DEVICES_NAME, MANIFEST_NAME, _map_table, arrays_of


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    path = tmp_path / "fleets" / "mine"
    random_fleet(20).save(path)
    return path


def assert_same(one: Fleet, other: Fleet) -> None:
    assert (one.name, one.paired) == (other.name, other.paired)
    for part, same in ((one.devices, other.devices), (one.availability, other.availability)):
        for array, expected in zip(arrays_of(part), arrays_of(same), strict=True):
            assert array.dtype == expected.dtype
            np.testing.assert_array_equal(array, expected)


@pytest.mark.parametrize(("availabilities", "paired"), [(20, True), (20, False), (7, False)])
def test_round_trip(tmp_path: Path, availabilities: int, paired: bool) -> None:
    fleet = random_fleet(20, availabilities, paired)
    fleet.save(tmp_path / "mine")
    opened = Fleet.open(str(tmp_path / "mine"))
    assert_same(opened, fleet)
    assert opened.fingerprint == fleet.fingerprint
    assert opened.availability.before.tolist() == fleet.availability.before.tolist()
    opened.verify()
    opened.save(tmp_path / "again")
    assert_same(Fleet.open(tmp_path / "again"), fleet)
    for name in (MANIFEST_NAME, DEVICES_NAME, AVAILABILITY_NAME):
        assert (tmp_path / "again" / name).read_bytes() == (tmp_path / "mine" / name).read_bytes()


@pytest.mark.parametrize("availability", [Availability.always(3), Availability.never(3)])
def test_round_trip_of_phones_without_measurements(tmp_path: Path, availability: Availability) -> None:
    nothing = {"download_bits_per_second": [np.inf] * 3, "upload_bits_per_second": [np.inf] * 3}
    fleet = Fleet("ideal", Devices.from_columns(seconds_per_sample=[0, 0, 0], **nothing), availability)
    fleet.save(tmp_path / "ideal")
    opened = Fleet.open(tmp_path / "ideal")
    assert_same(opened, fleet)
    assert (opened.devices.measured_download, opened.devices.measured_upload) == (None, None)
    assert opened.availability.share().tolist() == availability.share().tolist()


def test_round_trip_of_no_measurement_of_anybody(tmp_path: Path) -> None:
    fleet = random_fleet(3)
    empty = replace(fleet, devices=replace(fleet.devices, measured_upload=Ragged.from_lists([[], [], []])))
    empty.save(tmp_path / "empty")
    assert_same(Fleet.open(tmp_path / "empty"), empty)


def with_trace_starts(fleet: Fleet) -> Fleet:
    starts = np.arange(len(fleet.availability), dtype=np.int64) * 100_003
    return replace(fleet, availability=replace(fleet.availability, trace_starts=starts))


def test_round_trip_of_when_traces_start(tmp_path: Path) -> None:
    fleet = with_trace_starts(random_fleet(20))
    fleet.save(tmp_path / "mine")
    opened = Fleet.open(tmp_path / "mine")
    opened.verify()
    assert_same(opened, fleet)
    assert opened.availability.trace_starts.tolist() == fleet.availability.trace_starts.tolist()
    assert opened.availability.take([3, 3, 1]).trace_starts.tolist() == [300_009, 300_009, 100_003]
    # They change nothing that a run could notice.
    assert opened.fingerprint == random_fleet(20).fingerprint


def test_files_are_plain_arrow(saved: Path) -> None:
    """Anybody can read them: a row per phone, units in the names."""
    fleet = random_fleet(20)
    with pa.memory_map(str(saved / AVAILABILITY_NAME)) as file:
        table = pa.ipc.open_file(file).read_all()
    assert table.num_rows == 20
    for row in (0, 5, 19):
        first, last = fleet.availability.offsets[row], fleet.availability.offsets[row + 1]
        found = [(item["start_seconds"], item["end_seconds"]) for item in table["intervals"][row].as_py()]
        expected = zip(fleet.availability.starts[first:last], fleet.availability.ends[first:last], strict=True)
        assert found == [(int(start), int(end)) for start, end in expected]
    assert set(table["period_seconds"].to_pylist()) == {86_400}


def test_arrays_are_views_of_the_file(saved: Path) -> None:
    opened = Fleet.open(saved)
    for array in (*arrays_of(opened.availability), opened.availability.before, opened.devices.seconds_per_sample):
        assert not array.flags.owndata
        assert not array.flags.writeable


def test_opening_imports_no_pandas(saved: Path) -> None:
    """It would take longer than everything else."""
    code = f"import sys; from fedarena.fleet import Fleet; Fleet.open({str(saved)!r}); print('pandas' in sys.modules)"
    finished = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert finished.stdout.strip() == "False"


def test_nothing_is_overwritten(saved: Path) -> None:
    with pytest.raises(BadInputError, match="already exists; remove it or choose another folder"):
        random_fleet(3).save(saved)
    assert len(Fleet.open(saved).devices) == 20


def test_failed_writing_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("fedarena.fleet.storage.write_json", full)
    with pytest.raises(RunFailedError, match=r"Cannot create the fleet .*mine: No space left on device\."):
        random_fleet(3).save(tmp_path / "mine")
    assert list(tmp_path.iterdir()) == []


def test_somebody_else_was_faster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "mine"
    monkeypatch.setattr("fedarena.fleet.storage.write_json", lambda *_: path.mkdir())
    with pytest.raises(BadInputError, match="was made by somebody else meanwhile"):
        random_fleet(3).save(path)
    assert list(tmp_path.iterdir()) == [path]


def change_manifest(path: Path, **changes: Any) -> None:
    content = json.loads((path / MANIFEST_NAME).read_text())
    (path / MANIFEST_NAME).write_text(json.dumps({**content, **changes}))


def rewrite(path: Path, change: Any) -> None:
    """Writes another table in place of one, with a manifest that says so."""
    with pa.memory_map(str(path)) as file:
        batch = pa.ipc.open_file(file).get_batch(0)
    changed = change(batch)
    with pa.ipc.new_file(path.with_suffix(".new"), changed.schema) as writer:
        writer.write_batch(changed)
    path.with_suffix(".new").replace(path)
    files = json.loads((path.parent / MANIFEST_NAME).read_text())["files"]
    files[path.name]["bytes"] = path.stat().st_size
    change_manifest(path.parent, files=files)


def test_folders_that_are_no_fleets(tmp_path: Path, saved: Path) -> None:
    file = tmp_path / "file"
    file.write_text("hello")
    for path in (tmp_path, tmp_path / "nothing", file):
        with pytest.raises(BadInputError, match=r"is not a fleet: it has no fleet\.json"):
            Fleet.open(path)
    change_manifest(saved, format="fedarena federation")
    with pytest.raises(BadInputError, match=r"fleet\.json does not describe a fleet"):
        Fleet.open(saved)
    change_manifest(saved, format="fedarena fleet", version=2)
    with pytest.raises(BadInputError, match="has version 2 of the format of fleets; this program reads version 1"):
        Fleet.open(saved)
    (saved / MANIFEST_NAME).write_text("[]")
    with pytest.raises(BadInputError, match="does not describe a fleet"):
        Fleet.open(saved)


@pytest.mark.parametrize("content", ["", "{", "\xff"])
def test_damaged_manifest(saved: Path, content: str) -> None:
    (saved / MANIFEST_NAME).write_bytes(content.encode("latin-1"))
    with pytest.raises(DamagedFileError, match=r"fleet\.json cannot be read"):
        Fleet.open(saved)


def test_incomplete_manifest(saved: Path) -> None:
    change_manifest(saved, paired="yes")
    with pytest.raises(DamagedFileError, match=r"is incomplete; it should have name, paired, fingerprint, files"):
        Fleet.open(saved)
    change_manifest(saved, paired=False, files={})
    with pytest.raises(DamagedFileError, match=r"does not describe devices\.arrow"):
        Fleet.open(saved)


@pytest.mark.parametrize("name", [DEVICES_NAME, AVAILABILITY_NAME])
def test_damaged_files(saved: Path, name: str) -> None:
    file = saved / name
    content = file.read_bytes()
    file.write_bytes(content[:-10])
    with pytest.raises(DamagedFileError, match=rf"{name} has {len(content) - 10} bytes where {len(content)} were"):
        Fleet.open(saved)
    file.write_bytes(bytes(len(content)))
    with pytest.raises(DamagedFileError, match=f"{name} cannot be read as an Arrow file"):
        Fleet.open(saved)
    file.unlink()
    with pytest.raises(DamagedFileError, match=f"{name} is missing"):
        Fleet.open(saved)


def as_float32(batch: pa.RecordBatch) -> pa.RecordBatch:
    return batch.set_column(0, batch.schema.field(0).name, batch.column(0).cast(pa.float32(), safe=False))


def as_strings(batch: pa.RecordBatch) -> pa.RecordBatch:
    return batch.set_column(batch.num_columns - 1, batch.schema.names[-1], pa.array(["x"] * batch.num_rows))


@pytest.mark.parametrize(
    ("name", "change", "sentence"),
    [
        (DEVICES_NAME, lambda batch: batch.drop_columns(["radio_watts"]), "has no column 'radio_watts'"),
        (DEVICES_NAME, lambda batch: batch.slice(1), "has 19 rows where 20 were written"),
        (DEVICES_NAME, as_float32, "has float with 0 gaps where double was expected"),
        (DEVICES_NAME, as_strings, "has string where lists of double were expected"),
        (AVAILABILITY_NAME, lambda batch: batch.drop_columns(["intervals"]), "has no column 'intervals'"),
        (AVAILABILITY_NAME, as_float32, "has float with 0 gaps where int64 was expected"),
        (AVAILABILITY_NAME, as_strings, "has string where lists of struct<"),
    ],
)
def test_foreign_tables(saved: Path, name: str, change: Any, sentence: str) -> None:
    rewrite(saved / name, change)
    with pytest.raises(DamagedFileError) as caught:
        Fleet.open(saved)
    assert sentence in str(caught.value)


@pytest.mark.parametrize("name", [DEVICES_NAME, AVAILABILITY_NAME])
def test_no_changed_byte_goes_unnoticed(tmp_path: Path, name: str) -> None:
    """A changed number is found by `verify`; a changed structure at once. None of them crashes."""
    saved = tmp_path / "mine"
    with_trace_starts(random_fleet(20)).save(saved)
    file = saved / name
    original = file.read_bytes()
    fleet = Fleet.open(saved)
    fleet.verify()
    noticed = 0
    for position in range(0, len(original), 7):
        content = bytearray(original)
        content[position] ^= 0x55
        file.unlink()  # the mapped file stays as it was
        file.write_bytes(content)
        try:
            changed = Fleet.open(saved)
            changed.verify()
        except BadInputError:
            noticed += 1
        else:
            assert_same(changed, fleet)  # padding, or a part of the format that says nothing about the numbers
            assert changed.availability.before.tolist() == fleet.availability.before.tolist()
            assert changed.availability.trace_starts.tolist() == fleet.availability.trace_starts.tolist()
    assert noticed > len(original) // 7 / 4


def test_a_run_does_not_begin_with_a_damaged_fleet(saved: Path) -> None:
    fleet = load_fleet({"name": "file", "path": str(saved)}, 3)
    path = saved / AVAILABILITY_NAME
    data = path.read_bytes()
    place = data.index(fleet.availability.starts[3:8].tobytes()) + 8
    path.unlink()  # the mapped file stays as it was
    path.write_bytes(data[:place] + bytes([data[place] ^ 1]) + data[place + 1 :])
    Fleet.open(saved)  # which looks at nothing
    with pytest.raises(DamagedFileError):
        load_fleet({"name": "file", "path": str(saved)}, 3)


def test_fingerprint() -> None:
    fleet = random_fleet(20)
    assert random_fleet(20).fingerprint == fleet.fingerprint
    assert len(fleet.fingerprint) == 32
    assert replace(fleet, name="another").fingerprint == fleet.fingerprint
    others = [
        replace(fleet, paired=True),
        replace(fleet, availability=Availability.always(20)),
        replace(fleet, devices=replace(fleet.devices, compute_watts=np.ones(20))),
        replace(fleet, devices=replace(fleet.devices, measured_download=fleet.devices.measured_upload)),
        replace(
            fleet,
            devices=replace(fleet.devices, measured_upload=None, measured_download=fleet.devices.measured_upload),
        ),
        random_fleet(20, seed=1),
    ]
    assert len({fleet.fingerprint, *(other.fingerprint for other in others)}) == len(others) + 1


def test_fleets_that_make_no_sense() -> None:
    fleet = random_fleet(3)
    with pytest.raises(BadInputError, match="'random' has no phones; it needs at least one"):
        replace(fleet, availability=Availability.always(0))
    with pytest.raises(BadInputError, match="'random' has 3 devices and 4 availabilities; where they belong together"):
        replace(fleet, availability=Availability.always(4), paired=True)


def made_up(phones: int, *, watts: float = 1.0, paired: bool = False) -> Fleet:
    fleet = random_fleet(phones, paired=paired)
    return replace(fleet, devices=replace(fleet.devices, compute_watts=np.full(phones, watts)))


@pytest.mark.parametrize("settings", [{"name": f"{__name__}:made_up", "watts": 4}, f"{__name__}:made_up"])
def test_fleets_by_name(settings: Any) -> None:
    fleet = load_fleet(settings, 5)
    assert fleet.devices.compute_watts.tolist() == [4.0 if isinstance(settings, dict) else 1.0] * 5
    with pytest.raises(BadInputError, match=r"fleet\.wats: the fleet '.*made_up' has no option 'wats'; did you mean"):
        load_fleet({"name": f"{__name__}:made_up", "wats": 4}, 5)
    with pytest.raises(BadInputError, match="There is no fleet called 'moon'"):
        load_fleet({"name": "moon"}, 5)
    assert FLEETS.kind == "fleet"


def test_too_many_open_files_are_no_damage(saved: Path) -> None:
    manifest = json.loads((saved / MANIFEST_NAME).read_text())
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (0, limits[1]))
    try:
        with pytest.raises(CannotReadError, match=r"fleet\.json cannot be read: too many open files"):
            Fleet.open(saved)
        with pytest.raises(CannotReadError, match=r"devices\.arrow cannot be read: too many open files"):
            _map_table(saved / DEVICES_NAME, manifest)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
