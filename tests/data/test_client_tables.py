"""Clicks, trips and throughput by client: small files in their forms, and real ones."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from both_engines import agree
from picture_maps import write_table
from publishers_files import load, real

from fedarena.core.errors import BadInputError
from fedarena.data import Federation

SMALL_GRU = {"name": "gru", "hidden": 8, "layers": 1}
HEADING = (
    "TRIP_ID",
    "CALL_TYPE",
    "ORIGIN_CALL",
    "ORIGIN_STAND",
    "TAXI_ID",
    "TIMESTAMP",
    "DAY_TYPE",
    "MISSING_DATA",
    "POLYLINE",
)


def everything(federation: Federation) -> dict[str, np.ndarray]:
    """All samples, whatever part they are in."""
    parts = [federation.samples(federation.clients(), part).columns for part in ("train", "validation", "test")]
    return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}


def write_clicks(folder: Path) -> None:
    samples = [
        ("1", 0, "10", "430548_1007", 1, 0),
        ("1", 1, "11", "430539_1007", 0, 1),
        ("2", 2, "12", "430539_1007", 1, 0),
    ]
    write_table(folder / "raw_sample.csv", [("user", "time_stamp", "adgroup_id", "pid", "nonclk", "clk"), *samples])
    ads = [("10", 6, 60, 600, "NULL", 170.0), ("11", 7, 60, 601, 5, 1e8)]
    write_table(
        folder / "ad_feature.csv", [("adgroup_id", "cate_id", "campaign_id", "customer", "brand", "price"), *ads]
    )
    heading = (
        "userid",
        "cms_segid",
        "cms_group_id",
        "final_gender_code",
        "age_level",
        "pvalue_level",
        "shopping_level",
    )
    write_table(
        folder / "user_profile.csv",
        [(*heading, "occupation", "new_user_class_level "), ("1", 3, 5, 2, 2, "", 3, 0, 3)],
    )


def test_three_tables_of_clicks_are_put_together(tmp_path: Path) -> None:
    write_clicks(tmp_path)
    federation = load("taobao", tmp_path, split="within_client", train_fraction=1.0)
    assert sorted(federation.client_ids(federation.clients())) == ["1", "2"]
    assert federation.task.inputs == {
        "adgroup_id": 3,
        "cms_segid": 2,
        "cate_id": 3,
        "campaign_id": 2,
        "customer": 3,
        "brand": 2,
        "numbers": None,
    }
    samples = everything(federation)
    order = np.argsort(samples["adgroup_id"])
    assert samples["y"][order].tolist() == [0, 1, 0]
    assert samples["brand"][order].tolist() == [0, 1, 0]  # a missing one is code 0
    price = federation.columns["numbers"].names.index("price")
    np.testing.assert_allclose(samples["numbers"][order][:, price], np.log1p([170.0, 1e8, 0.0]), rtol=1e-6)
    assert load("taobao", tmp_path, buckets=7).task.inputs["brand"] == 7
    (tmp_path / "ad_feature.csv").unlink()
    with pytest.raises(BadInputError, match=r"lacks ad_feature\.csv; all three tables are needed"):
        load("taobao", tmp_path)


@pytest.mark.parametrize(
    ("row", "complaint"),
    [
        (("1", 0, "10", "430548_1007", 1, 2), r"raw_sample\.csv, line 5: clk must be 0 or 1, not '2'"),
        (("", 0, "10", "430548_1007", 1, 0), r"raw_sample\.csv, line 5 has no user"),
        (("1", 0, "10", "430548_x", 1, 0), r"raw_sample\.csv, line 5: pid must be a number, not 'x'"),
    ],
)
def test_clicks_that_are_none(row: tuple, complaint: str, tmp_path: Path) -> None:
    write_clicks(tmp_path)
    with open(tmp_path / "raw_sample.csv", "a") as file:
        file.write(",".join(map(str, row)) + "\n")
    with pytest.raises(BadInputError, match=complaint):
        load("taobao", tmp_path)


def test_real_clicks_train_on_both_engines(tmp_path: Path) -> None:
    federation = load("taobao", real("taobao_alimama"))
    assert (federation.num_clients, federation.num_samples) == (230, 500)
    assert everything(federation)["y"].sum() == 210
    agree(federation, tmp_path)


def trip(taxi: str, positions: list[tuple[float, float]], missing: str = "False") -> tuple[object, ...]:
    return ("1", "C", "", "", taxi, "1372636858", "A", missing, json.dumps(positions))


def test_where_trips_end(tmp_path: Path) -> None:
    centre = (-8.62, 41.16)
    way = [(centre[0] + step / 83.8, centre[1] - step / 111.2) for step in range(5)]
    rows = [trip("7", way), trip("7", way[:3]), trip("7", way, "True"), trip("8", [])]
    write_table(tmp_path / "train.csv", [HEADING, *rows])
    federation = load("taxi", tmp_path, points=3)
    assert federation.num_samples == 1  # others are too short, or have gaps
    samples = everything(federation)
    np.testing.assert_allclose(samples["x"], [[[0, 0], [1, -1], [2, -2]]], atol=1e-5)
    np.testing.assert_allclose(samples["y"], [[4, -4]], atol=1e-5)


def test_fedscales_taxis_have_ten_values_under_nine_names(tmp_path: Path) -> None:
    way = [(-8.62, 41.16 + step / 100) for step in range(5)]
    write_table(tmp_path / "train" / "7.csv", [HEADING, (0, *trip("7", way)), (5, *trip("7", way))])
    write_table(tmp_path / "test" / "8.csv", [HEADING, (1, *trip("8", way))])
    federation = load("taxi", tmp_path, points=2)
    assert [len(federation.clients(group)) for group in ("train", "test")] == [1, 1]
    assert federation.num_samples == 3
    write_table(tmp_path / "test" / "7.csv", [HEADING, (1, *trip("7", way))])
    with pytest.raises(
        BadInputError, match=r"'7' is in two groups, in line 2 of a file in .*train and line 2 of a file"
    ):
        load("taxi", tmp_path, points=2)


@pytest.mark.parametrize(
    ("row", "complaint"),
    [
        (
            (*trip("7", [])[:-1], "[[1,2],[3]]"),
            r"train\.csv, line 2: POLYLINE must be a list of \[longitude, latitude\]",
        ),
        (trip("", []), r"train\.csv, line 2 has no TAXI_ID"),
        (("1", "2"), r"train\.csv, line 2 has 2 values; the heading has 9 columns"),
    ],
)
def test_trips_that_are_none(row: tuple, complaint: str, tmp_path: Path) -> None:
    write_table(tmp_path / "train.csv", [HEADING, row])
    with pytest.raises(BadInputError, match=complaint):
        load("taxi", tmp_path)


def test_real_trips_train_on_both_engines(tmp_path: Path) -> None:
    federation = load("taxi", real("porto_taxi"))
    assert (federation.num_clients, federation.num_samples) == (302, 874)
    assert np.abs(everything(federation)["y"]).max() < 200  # kilometres: nobody left the country
    local = {"steps": 2, "batch_size": 4, "lr": 1e-4, "epochs": None}
    agree(federation, tmp_path, local=local, model=SMALL_GRU)


def test_throughput_from_what_was_sent_and_from_traces(tmp_path: Path) -> None:
    heading = ("time (ns GMT)", "session_id", "index", "delivery_rate")
    # Two streams of one session that are mixed with each other.
    rows = [(time, "a", time % 2, (10 * (time % 2) + time // 2) * 1e6) for time in range(12)]
    write_table(tmp_path / "sent" / "video_sent_2021-01-01.csv", [heading, *rows])
    for stream in (0, 1):
        path = tmp_path / "traces" / "cooked_traces" / f"tracea_{stream}"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("".join(f"{step} {10 * stream + step}\n" for step in range(6)))
    for form in ("sent", "traces"):
        samples = everything(load("puffer", tmp_path / form, history=3))
        assert sorted(samples["y"].tolist()) == [3, 4, 5, 13, 14, 15]
        first = samples["x"][samples["y"] == 13][0]
        assert first.tolist() == [[10], [11], [12]]
        assert sorted(everything(load("puffer", tmp_path / form, history=3, stride=2))["y"].tolist()) == [3, 5, 13, 15]
    (tmp_path / "traces" / "cooked_traces" / "traceb_0").write_text("1 2\n3\n")
    with pytest.raises(BadInputError, match=r"traceb_0 in .*cooked_traces, line 2 must be a time and a rate"):
        load("puffer", tmp_path / "traces", history=3)
    write_table(tmp_path / "sent" / "video_sent_2021-01-02.csv", [heading, (1, "a", 0, "nan")])
    with pytest.raises(BadInputError, match=r"2021-01-02\.csv, line 2: delivery_rate must be a number, not 'nan'"):
        load("puffer", tmp_path / "sent", history=3)


def test_real_throughput_trains_on_both_engines(tmp_path: Path) -> None:
    """The real sessions, written in the form in which they were published."""
    with np.load(real("puffer_traces") / "puffer_sessions_first300.npz") as found:
        traces = {name: found[name] for name in found}
    folder = tmp_path / "raw" / "cooked_traces"
    folder.mkdir(parents=True)
    for place in range(40):
        begin, end = traces["offset"][place : place + 2]
        points = zip(traces["t_ms"][begin:end], traces["throughput"][begin:end], strict=True)
        session = traces["session"][place].replace("/", "-")
        text = "".join(f"{time / 1000} {rate}\n" for time, rate in points)
        (folder / f"trace{session}_{traces['stream'][place]}").write_text(text)
    federation = load("puffer", tmp_path / "raw", stride=4)
    assert federation.num_clients == len(set(traces["session"][:40]))
    agree(federation, tmp_path, model=SMALL_GRU)
