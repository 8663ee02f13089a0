"""The picture and the table of a fleet, and the command that shows them."""

from __future__ import annotations

import io
import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rich.console import Console
from typer.testing import CliRunner

from fedarena.cli import main
from fedarena.cli.catalogue import DEFAULT_PHONES
from fedarena.display import fleet_figure
from fedarena.display.drawing.style import DARK_COLOURS
from fedarena.display.fleets.picture import compute_columns
from fedarena.display.terminal import fleet_table
from fedarena.fleet import Availability, Devices, Fleet, describe_fleet, load_fleet

DAY_SECONDS = 86_400


def describe(fleet: Fleet, clients: int | None = None) -> dict[str, Any]:
    """What a run would write, as it comes back from the file."""
    everybody = np.arange(clients or len(fleet.devices))
    return json.loads(json.dumps(describe_fleet(fleet.match(everybody, None, seed=0), everybody, seed=0)))


def make_fleet(intervals: list[tuple[int, int]], phones: int = 4, **columns: Any) -> Fleet:
    """Phones that all are available in these intervals of each day."""
    rows = np.repeat(np.arange(phones), len(intervals))
    starts, ends = np.tile(np.array(intervals, dtype=np.int64).reshape(-1, 2), (phones, 1)).T
    availability = Availability.from_intervals(rows, starts, ends, np.full(phones, DAY_SECONDS))
    columns = {
        "seconds_per_sample": [0.1, 0.2, 0.4, 0.8],
        "download_bits_per_second": [1e6, 2e6, 4e6, 8e6],
        "upload_bits_per_second": [1e6, 2e6, 4e6, 8e6],
    } | columns
    return Fleet("<made>", Devices.from_columns(**columns), availability, paired=True)


def printed(fleet: dict[str, Any]) -> list[str]:
    console = Console(width=80, record=True, file=io.StringIO())
    console.print(fleet_table(fleet))
    return console.export_text().splitlines()


def traces(fleet: dict[str, Any]) -> dict[str, list[Any]]:
    """The traces of every panel, by its horizontal axis."""
    panels: dict[str, list[Any]] = {"x": [], "x2": [], "x3": []}
    for trace in fleet_figure(fleet).data:
        panels[trace.xaxis or "x"].append(trace)
    return panels


def test_dots_are_clients_with_their_speeds() -> None:
    (dots,) = traces(describe(make_fleet([(0, 10)])))["x"]
    assert sorted(zip(dots.x, dots.y, strict=True)) == [(100, 1), (200, 2), (400, 4), (800, 8)]
    figure = fleet_figure(describe(make_fleet([(0, 10)])))
    assert figure.layout.xaxis.title.text == "training: time per sample (ms)"
    assert figure.layout.yaxis.title.text == "network (Mbit/s)"
    assert (figure.layout.xaxis.type, figure.layout.yaxis.type) == ("log", "log")


def test_uploads_are_shown_apart_where_they_differ() -> None:
    fleet = describe(make_fleet([(0, 10)], upload_bits_per_second=[3e6] * 4))
    down, up = traces(fleet)["x"]
    assert (down.name, up.name) == ("download", "upload")
    assert down.showlegend
    assert set(up.y) == {3.0}


def test_speeds_in_operations_have_their_unit() -> None:
    flops = {"seconds_per_sample": None, "flops_per_second": [1e9, 2e9, 3e9, 4e9]}
    fleet = describe(make_fleet([(0, 10)], **flops))
    assert fleet_figure(fleet).layout.xaxis.title.text == "training: computing (GFLOP/s)"
    assert any("computing (GFLOP/s)" in line for line in printed(fleet))


BOTH = {"flops_per_second": [1e9, 2e9, 3e9, 4e9]}  # besides the time for a sample
MIXED = {"seconds_per_sample": [0.1, np.nan, 0.2, 0.3], "flops_per_second": [np.nan, 2e9, 4e9, 8e9]}


def test_operations_are_used_where_they_are_known_as_in_the_simulation() -> None:
    made = make_fleet([(0, 10)], **BOTH)
    assert made.devices.compute_seconds(0, samples=5, flops=1e9) == 1, "and not five times 0.1"
    fleet = describe(made)
    (dots,) = traces(fleet)["x"]
    assert sorted(dots.x) == [1, 2, 3, 4]
    assert fleet_figure(fleet).layout.xaxis.title.text == "training: computing (GFLOP/s)"
    assert any("computing (GFLOP/s)" in line for line in printed(fleet))
    assert not any("time per sample" in line for line in printed(fleet))


def test_a_fleet_that_mixes_both_says_of_how_many_clients() -> None:
    fleet = describe(make_fleet([(0, 10)], **MIXED))
    figure = fleet_figure(fleet)
    (text,) = [note.text for note in figure.layout.annotations if "computing" in note.text]
    assert text.split("<br>")[:2] == [
        "computing of 75.0 % of clients: four fifths 2.40 GFLOP/s to 7.20 GFLOP/s",
        "time per sample of 25.0 % of clients: 100 ms for all",
    ]
    (dots,) = traces(fleet)["x"]
    assert sorted(x for x in dots.x if np.isfinite(x)) == [2, 4, 8]
    assert figure.layout.xaxis.title.text == "training: computing of 75.0 % (GFLOP/s)"
    assert any("computing of 75.0 % (GFLOP/s)" in line for line in printed(fleet))


@pytest.mark.parametrize(
    ("flops", "order"),
    [
        ([np.nan, np.nan, np.nan, 1e9], ["time per sample of 75.0 % of clients", "computing of 25.0 % of clients"]),
        ([np.nan, np.nan, 1e9, 1e9], ["computing of 50.0 % of clients", "time per sample of 50.0 % of clients"]),
        ([np.nan] * 4, ["time per sample"]),
        ([np.inf] * 4, ["computing"]),
    ],
)
def test_the_more_frequent_way_to_tell_speeds_is_first(flops: list[float], order: list[str]) -> None:
    seconds = np.where(np.isnan(flops), 0.1, np.nan)
    speeds = describe(make_fleet([(0, 10)], seconds_per_sample=seconds, flops_per_second=flops))["speeds"]
    assert [column.title for column in compute_columns(speeds)] == order


def test_the_week_is_drawn_as_it_is() -> None:
    (line,) = traces(describe(make_fleet([(6 * 3600, 12 * 3600)])))["x2"]
    hours = np.array(line.x) % 24
    assert (line.x[0], line.x[-1]) == (0, 7 * 24 - 1 / 4)
    assert np.array_equal(np.array(line.y) == 1, (hours >= 6) & (hours < 12))
    assert line.customdata[0] == "day 0, 0:00"
    assert line.customdata[96 + 4 * 13 + 1] == "day 1, 13:15"


def test_the_curve_of_lengths_rises_where_slots_are() -> None:
    fleet = describe(make_fleet([(0, 60), (1000, 1060), (5000, 5060), (20_000, 23_600)]))
    (line,) = traces(fleet)["x3"]
    x, y = np.array(line.x), np.array(line.y)
    assert (np.diff(x) >= 0).all()
    assert (np.diff(y) >= 0).all()
    assert y[0] == 0
    assert y[-1] == 1
    # three of four slots last a minute, one an hour
    assert np.interp([40, 100, 2000, 4096], x, y) == pytest.approx([0, 0.75, 0.75, 1], abs=0.07)


@pytest.mark.parametrize(
    ("fleet", "sentence"), [("ideal", "nobody ever leaves"), ({"name": "uniform", "share": 0}, "nobody is ever there")]
)
def test_what_cannot_be_drawn_is_said(fleet: Any, sentence: str) -> None:
    description = describe(load_fleet(fleet, 3))
    (words,) = traces(description)["x3"]
    assert list(words.text) == [sentence]
    assert not any("slot" in line for line in printed(description))


def test_infinite_speeds_have_no_place_on_an_axis() -> None:
    (words,) = traces(describe(load_fleet("ideal", 3)))["x"]
    assert list(words.text) == ["either computing or transfers take no time"]
    (dots,) = traces(describe(make_fleet([(0, 9)], upload_bits_per_second=[np.inf] * 4)))["x"]
    assert dots.name == "download"


@pytest.mark.parametrize("fleet", ["fedscale", "flash", "ideal", "uniform"])
def test_every_colour_has_a_dark_partner(fleet: str) -> None:
    figure = fleet_figure(describe(load_fleet(fleet, 50)))
    colours = set(re.findall(r"#[0-9A-Fa-f]{6}|rgba\([^)]*\)", figure.to_json()))
    assert colours <= DARK_COLOURS.keys(), colours - DARK_COLOURS.keys()
    assert not [note.text for note in figure.layout.annotations if "color" in note.text], "no script can replace it"


def test_names_are_text_and_not_markup() -> None:
    description = describe(make_fleet([(0, 10)]), clients=9)
    title = fleet_figure(description).layout.title.text
    assert title == "<b>&lt;made&gt;</b><br>9 clients with 4 phones"
    assert printed(description)[0].strip() == "<made>: 9 clients with 4 phones"


def test_devices_and_availabilities_from_different_places_are_counted_apart() -> None:
    fleet = make_fleet([(0, 10)])
    apart = Fleet("apart", fleet.devices, Availability.always(7), paired=False)
    assert fleet_figure(describe(apart)).layout.title.text.endswith("4 devices and 7 availabilities")


def test_the_table_has_one_unit_a_row() -> None:
    lines = printed(describe(make_fleet([(0, 60), (1000, 1060), (5000, 5060), (20_000, 23_600)])))
    rows = {match[1]: match[2].split() for line in lines if (match := re.match(r"  (\S.*?)  +(\S.*?) *$", line))}
    assert rows["time available (%)"] == ["4.38"] * 4 + ["1.00"]
    assert rows["slots a day"] == ["4.00"] * 4 + ["1.00"]
    assert rows["slot length (min)"] == ["15.8", "1.00", "1.00", "60.0", "60.0"]
    assert rows["time per sample (ms)"] == ["375", "130", "300", "680", "5.23"]
    assert rows["network (Mbit/s)"] == ["3.75", "1.30", "3.00", "6.80", "5.23"]
    assert "0 % of the clients are never available, 0 % always" in lines[-1]
    assert max(map(len, lines)) <= 80


def call(*arguments: str, code: int = 0) -> str:
    result = CliRunner().invoke(main, ["fleet", *arguments])
    assert result.exit_code == code, result.output
    assert result.exception is None or isinstance(result.exception, SystemExit)
    return result.output


def test_the_command_shows_a_table_and_draws_a_picture(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    output = call("fedscale", "training_factor=2")
    assert f"fedscale: {DEFAULT_PHONES:,} clients with {DEFAULT_PHONES:,} phones" in output
    assert "Picture: fedscale.html" in output
    assert 'class="plot"' in (tmp_path / "fedscale.html").read_text()


def test_a_saved_fleet_is_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    output = call("flash", "seed=3", "--clients", "40", "--save", "mine", "-o", "a.html")
    assert "Fleet: mine" in output
    assert Fleet.open("mine").fingerprint == load_fleet({"name": "flash", "seed": 3}, 40).fingerprint
    again = call("mine", "-o", "b.html")
    assert "flash: 40 clients with 40 phones" in again
    assert output.split("Fleet:")[0] == again.split("Picture:")[0]
    assert "flash: 100 clients with 40 phones" in call("mine", "--clients", "100", "-o", "c.html")


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["fedscal"], "There is no fleet called 'fedscal' and no folder of that name; did you mean 'fedscale'?"),
        (["fedscale", "sed=1"], "has no option 'sed'; did you mean 'seed'?"),
        (["uniform", "share=2"], "fleet.share must be between 0 and 1, not 2."),
        (["ideal", "-o", "picture.txt"], "A picture cannot be written as 'picture.txt'"),
        (["ideal", "--save", "there"], "there exists; give --save another name"),
        (["there"], "there"),
    ],
)
def test_bad_arguments_end_with_a_sentence(
    arguments: list[str], sentence: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "there").mkdir()
    output = call(*arguments, code=2)
    assert sentence in output
    assert "Traceback" not in output


def test_fleets_are_listed() -> None:
    result = CliRunner().invoke(main, ["list", "fleets"])
    assert result.exit_code == 0
    for name in ("fedscale", "flash", "ideal", "uniform"):
        assert re.search(rf"^  {name} ", result.output, flags=re.MULTILINE)
