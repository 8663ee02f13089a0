"""Fleets of measured devices: rows are records, and what is wrong with a file is one sentence that names it."""

from __future__ import annotations

import copy
import json
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from fedarena.cli import main
from fedarena.core.device_record import FORMAT, VERSION, parse_record
from fedarena.core.errors import BadInputError
from fedarena.fleet import Fleet, load_fleet, load_fleet_with_notes

SMALL, LARGE = 1e6, 8e9


def model_entry(name: str, seconds: float, flops: float, **others: Any) -> dict[str, Any]:
    return {
        "model": name,
        "batch_size": 16,
        "seconds_per_sample": {"mean": seconds, "std": None},
        "flops_per_sample": flops,
        "watts": None,
    } | others


def network(*speeds: float, watts: float | None = None) -> dict[str, Any]:
    """Large transfers at these speeds, uploads ten times as slow, after a small one that does not count."""

    def transfers(factor: float) -> list[dict[str, float]]:
        sizes = [64, *([4096] * len(speeds))]
        return [
            {"bytes": size, "seconds": 8 * size / (factor * speed), "bits_per_second": factor * speed}
            for size, speed in zip(sizes, [1.0, *speeds], strict=True)
        ]

    return {"latency_seconds": {}, "download": transfers(1.0), "upload": transfers(0.1), "watts": watts}


def record(seconds: float = 0.1, **others: Any) -> dict[str, Any]:
    models = [model_entry("logistic_regression", seconds / 100, SMALL), model_entry("resnet18", seconds, LARGE)]
    return {"format": FORMAT, "version": VERSION, "models": models, "network": network(1e6, 3e6)} | others


def write(path: Path, value: Any) -> Path:
    path.write_text(value if isinstance(value, str) else json.dumps(value))
    return path


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = tmp_path / "phones"
    made.mkdir()
    write(made / "b.json", record(0.2, network=network(5e6)))
    write(made / "a.json", record(0.1))
    write(made / "notes.txt", "not a record")
    return made


def load(**options: Any) -> Fleet:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        return load_fleet({"name": "profiles"} | options, phones=7)


def test_rows_are_devices(folder: Path) -> None:
    fleet = load(files=str(folder))
    assert len(fleet.devices) == len(fleet.availability) == 2
    assert fleet.paired
    assert fleet.availability.share().tolist() == [1.0, 1.0]
    devices = fleet.devices
    np.testing.assert_allclose(devices.flops_per_second, [LARGE / 0.1, LARGE / 0.2])
    np.testing.assert_allclose(devices.download_bits_per_second, [2e6, 5e6])
    np.testing.assert_allclose(devices.upload_bits_per_second, [2e5, 5e5])
    assert set(devices.draw_download(np.zeros(50, dtype=int), np.arange(50)).tolist()) == {1e6, 3e6}
    # Twice the operations of the model that was measured take twice as long.
    np.testing.assert_allclose(devices.compute_seconds([0, 1], samples=5, flops=2 * 5 * LARGE), [1.0, 2.0])
    assert not devices.knows_energy


def test_a_chosen_model_takes_its_time_whatever_is_trained(folder: Path) -> None:
    devices = load(files=str(folder), model="logistic_regression").devices
    np.testing.assert_allclose(devices.compute_seconds([0, 1], samples=1000, flops=1e15), [1.0, 2.0])


def test_the_largest_model_is_one_that_all_devices_know(folder: Path) -> None:
    only_small = record(models=[model_entry("logistic_regression", 0.5, SMALL)])
    write(folder / "c.json", only_small)
    np.testing.assert_allclose(load(files=str(folder)).devices.flops_per_second[2], SMALL / 0.5)
    write(folder / "c.json", only_small | {"models": [model_entry("another", 0.5, SMALL)]})
    with pytest.raises(BadInputError, match="was measured on all of the 3 devices"):
        load(files=str(folder))


def test_operations_that_were_not_counted_need_a_model(tmp_path: Path) -> None:
    path = write(tmp_path / "a.json", record(models=[model_entry("cnn", 0.5, 0) | {"flops_per_sample": None}]))
    with pytest.raises(BadInputError, match=r"or set fleet\.model"):
        load(files=str(path))
    assert load(files=str(path), model="cnn").devices.seconds_per_sample.tolist() == [0.5]
    entry = model_entry("resnet18", 0.2, LARGE)
    for name, others in (("b", entry), ("c", entry | {"flops_per_sample": None})):
        write(tmp_path / f"{name}.json", record(models=[model_entry("logistic_regression", 0.1, SMALL), others]))
    fleet = load(files=[str(tmp_path / "b.json"), str(tmp_path / "c.json")])  # of c, only the small one was counted
    np.testing.assert_allclose(fleet.devices.flops_per_second, SMALL / 0.1)


@pytest.mark.parametrize(
    ("files", "order"),
    [
        (["a.json"], [0.1]),
        (["b.json", "a.json"], [0.2, 0.1]),
        (["*.json"], [0.1, 0.2]),
        (["b.json", "[a-z].json"], [0.2, 0.1, 0.2]),
    ],
)
def test_files_lists_and_patterns(folder: Path, files: list[str], order: list[float]) -> None:
    fleet = load(files=[str(folder / name) for name in files], model="resnet18")
    assert fleet.devices.seconds_per_sample.tolist() == order


def test_a_file_whose_name_looks_like_a_pattern(folder: Path) -> None:
    path = write(folder / "phone [1].json", record(0.7))
    assert load(files=str(path), model="resnet18").devices.seconds_per_sample.tolist() == [0.7]


def test_copies(folder: Path) -> None:
    many = load(files=str(folder), copies=[3, 1], model="resnet18")
    assert many.devices.seconds_per_sample.tolist() == [0.1, 0.1, 0.1, 0.2]
    assert len(many.availability) == 4
    assert len(load(files=str(folder), copies=2).devices) == 4
    with pytest.raises(BadInputError, match="copies has 3 numbers, but there are 2 device records"):
        load(files=str(folder), copies=[1, 2, 3])
    with pytest.raises(BadInputError, match="copies"):
        load(files=str(folder), copies=0)


def test_a_network_that_was_not_measured(folder: Path) -> None:
    write(folder / "c.json", record(network=None))
    sentence = "c.json: the network was not measured; set fleet.download_bits_per_second, or measure it"
    with pytest.raises(BadInputError, match=sentence):
        load(files=str(folder))
    with pytest.raises(BadInputError, match=r"c.json: .* set fleet.upload_bits_per_second"):
        load(files=str(folder), download_bits_per_second=9e6)
    devices = load(files=str(folder), download_bits_per_second=9e6, upload_bits_per_second=4e6).devices
    np.testing.assert_allclose(devices.download_bits_per_second, [2e6, 5e6, 9e6])
    np.testing.assert_allclose(devices.upload_bits_per_second, [2e5, 5e5, 4e6])
    with pytest.raises(BadInputError, match="upload_bits_per_second"):
        load(files=str(folder), download_bits_per_second=9e6, upload_bits_per_second=0)


def test_energy_needs_both_powers(tmp_path: Path) -> None:
    knows = [model_entry("resnet18", 0.1, LARGE, watts=6.0)]
    write(tmp_path / "1.json", record(models=knows, network=network(1e6, watts=2.0)))
    write(tmp_path / "2.json", record(models=knows))
    write(tmp_path / "3.json", record(network=network(1e6, watts=2.0)))
    devices = load(files=str(tmp_path)).devices
    np.testing.assert_array_equal(devices.compute_watts, [6.0, np.nan, np.nan])
    np.testing.assert_array_equal(devices.radio_watts, [2.0, np.nan, np.nan])
    devices = load(files=str(tmp_path), radio_watts=1.5).devices
    np.testing.assert_array_equal(devices.compute_watts, [6.0, 6.0, np.nan])
    np.testing.assert_array_equal(devices.radio_watts, [2.0, 1.5, np.nan])
    known = load(files=[str(tmp_path / "1.json")]).devices
    assert known.joules(0, compute_seconds=10, radio_seconds=5) == 70


def test_devices_that_are_not_quite_comparable(folder: Path) -> None:
    other = [model_entry("resnet18", 0.1, 2 * LARGE, batch_size=64)]
    write(folder / "c.json", record(models=other))
    fleet, notes = load_fleet_with_notes({"name": "profiles", "files": str(folder)}, 3)
    assert len(fleet.devices) == 3
    assert [("batch_size" in note, "flops_per_sample" in note) for note in notes] == [
        (True, False),
        (False, True),
    ]
    assert "1 of 3 devices" in notes[0]


def test_devices_combined_with_another_availability(folder: Path) -> None:
    parts = {"devices": {"name": "profiles", "files": str(folder)}, "availability": {"name": "uniform", "share": 0.5}}
    fleet = load_fleet({"name": "combined"} | parts, phones=20)
    assert len(fleet.devices) == 2
    np.testing.assert_allclose(fleet.availability.share(), 0.5)


def test_nothing_to_read(tmp_path: Path) -> None:
    for files, sentence in (
        (str(tmp_path), r"There is no device record \(.json\) in "),
        (str(tmp_path / "*.json"), r"There is no device record \(.json\) in .*\*.json"),
        (str(tmp_path / "none.json"), "There is no file .*none.json"),
        ([], "fleet.files is empty"),
    ):
        with pytest.raises(BadInputError, match=sentence):
            load(files=files)


def test_a_model_that_was_not_measured(folder: Path) -> None:
    with pytest.raises(BadInputError, match=r"a.json: the model 'resnet19' was not measured; did you mean 'resnet18'"):
        load(files=str(folder), model="resnet19")


def damaged(change: Any) -> dict[str, Any]:
    value = copy.deepcopy(record())
    change(value)
    return value


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        ("", "is empty"),
        ("{", "is not JSON"),
        ("[1, 2]", "it is not a device record, which `fedarena profile-device` writes"),
        ('{"a": 1}', "it is not a device record"),
        (record(version=2), "the device record is of version 2, but this FedArena reads version 1"),
        (record(models=[]), "the device record has no measured model"),
        (record(models={}), "'models' of it must be a list"),
        (record(models=[3]), "model 1 of the device record has no name"),
        (record(network=5), "'network' of the device record must be a dictionary or null"),
        (record(network={"download": []}), "'upload' of the network must be a list, not None"),
        (record(network={"download": [7], "upload": []}), "a transfer in 'download' of the network must be"),
        (damaged(lambda r: r["models"][1].pop("seconds_per_sample")), "'seconds_per_sample' of the model 'resnet18'"),
        (damaged(lambda r: r["models"][1]["seconds_per_sample"].update(mean=0)), "must be a number above 0, not 0"),
        (damaged(lambda r: r["models"][1]["seconds_per_sample"].update(mean=float("nan"))), "above 0, not nan"),
        (damaged(lambda r: r["models"][1]["seconds_per_sample"].update(mean=10**400)), "above 0, not 1000"),
        (
            damaged(lambda r: r["models"][1].update(flops_per_sample="many")),
            "'flops_per_sample' .* at least 0, not 'many'",
        ),
        (
            damaged(lambda r: r["models"][1].update(batch_size=True)),
            "'batch_size' .* must be a number above 0, not True",
        ),
        (damaged(lambda r: r["models"][1].update(batch_size=1.5)), "'batch_size' .* must be a whole number, not 1.5"),
        (damaged(lambda r: r["models"][1].update(watts=-1)), "'watts' of the model 'resnet18' must be .* not -1"),
        (damaged(lambda r: r["network"]["upload"][0].update(bits_per_second=0)), "'bits_per_second' of a transfer in"),
        (damaged(lambda r: r["models"].append(r["models"][0])), "has the model 'logistic_regression' twice"),
        (
            damaged(lambda r: r["models"][1].update(seconds_per_step={"mean": 100})),
            "'seconds_per_step' of the model 'resnet18' is 100, and 'seconds_per_sample' times 'batch_size' 1.6; they",
        ),
        (
            damaged(lambda r: r["models"][1].update(flops_per_second=8e9)),
            r"'flops_per_second' of .* is 8e\+09, and 'flops_per_sample' by 'seconds_per_sample' 8e\+10",
        ),
        (
            damaged(lambda r: r["network"]["upload"][1].update(bits_per_second=100)),
            "'bits_per_second' of a transfer in 'upload' .* is 100, and 8 times 'bytes' by 'seconds' 100000; they",
        ),
    ],
)
def test_damaged_and_foreign_files(tmp_path: Path, content: Any, sentence: str) -> None:
    path = write(tmp_path / "phone.json", content)
    with pytest.raises(BadInputError, match=f"phone.json.*{sentence}") as caught:
        load(files=str(path))
    assert "\n" not in str(caught.value)


def test_fields_that_a_fleet_does_not_know_do_no_harm() -> None:
    assert parse_record(record(conditions={"before": 1}, more=[1, 2])).models.keys() == {
        "logistic_regression",
        "resnet18",
    }


def test_an_option_that_is_called_like_a_part_of_a_run(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder.parent)
    words = ["fleet", "profiles", f"files={folder}", "model=logistic_regression", "-o", "fleet.html"]
    result = CliRunner().invoke(main, words)
    assert result.exit_code == 0, result.output
