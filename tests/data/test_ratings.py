"""Ratings of users, from small files of every form, in blocks of any size, and in pieces that were interrupted."""

from __future__ import annotations

import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rating_files import Rating, made_ratings, write_movielens, write_netflix

import fedarena
from fedarena.core.errors import BadInputError, DamagedFileError
from fedarena.data import Federation, load_federation
from fedarena.data.many_users import buckets
from fedarena.data.many_users import ratings as rating_files
from fedarena.data.statistics.table7 import compared_with_table_7

RATINGS = made_ratings()


def load(folder: Path, **options: object) -> Federation:
    return load_federation("ratings", {"folder": str(folder), **options})


def content(federation: Federation) -> list[tuple[str, str, int, float]]:
    """User, part, place of the item, and rating."""
    found = []
    clients = federation.clients()
    for client, name in zip(clients, federation.client_ids(clients), strict=True):
        for part in ("train", "validation", "test"):
            samples = federation.samples(np.array([client]), part).columns
            found += [(name, part, int(i), float(y)) for i, y in zip(samples["item"], samples["y"], strict=True)]
    return found


def expected(some: list[Rating]) -> list[tuple[str, int, float]]:
    place = {item: place for place, item in enumerate(sorted({item for _, item, _ in some}))}
    return sorted((str(user), place[item], float(rating)) for user, item, rating in some)


def without_parts(federation: Federation) -> list[tuple[str, int, float]]:
    return sorted((user, item, y) for user, _, item, y in content(federation))


@pytest.mark.parametrize("name", ["u.data", "ratings.dat", "netflix"])
@pytest.mark.parametrize("block_bytes", [50, 1 << 20])
def test_every_form_holds_the_same_ratings(
    name: str, block_bytes: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rating_files, "BLOCK_BYTES", block_bytes)
    monkeypatch.setattr(buckets, "INPUT_BYTES_PER_BUCKET", 1000)
    if name == "netflix":
        write_netflix(tmp_path, RATINGS)
    else:
        write_movielens(tmp_path, name, RATINGS)
    federation = load(tmp_path, form="netflix" if name == "netflix" else "movielens")
    assert without_parts(federation) == expected(RATINGS)
    assert federation.num_clients == 30
    assert federation.task.kind == "rating"
    assert federation.task.inputs == {"item": 20}
    assert federation.task.value_range == (1.0, 5.0)
    counts = [len(federation.samples(federation.clients(), part).columns["y"]) for part in ("train", "test")]
    assert counts == [210, 30]  # of 10, 9 or 8 ratings, 1 is for validation and 1 for testing
    if name == "netflix":
        assert "480,189 clients" in str(compared_with_table_7(federation))


def test_half_stars_lengthen_the_scale_and_windows_ends_lines_otherwise(tmp_path: Path) -> None:
    write_movielens(tmp_path, "ratings.csv", RATINGS)
    path = tmp_path / "ratings.csv"
    path.write_bytes(path.read_bytes().replace(b"\n", b"\r\n"))
    federation = load(tmp_path)
    assert federation.task.value_range == (0.5, 5.0)
    halves = [(user, item, 4.5 if rating == 5 else float(rating)) for user, item, rating in expected(RATINGS)]
    assert without_parts(federation) == halves


def test_an_archive_is_as_good(tmp_path: Path) -> None:
    write_movielens(tmp_path, "u.data", RATINGS)
    with zipfile.ZipFile(tmp_path / "ml-100k.zip", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.write(tmp_path / "u.data", "ml-100k/u.data")
    plain = content(load(tmp_path))
    (tmp_path / "u.data").unlink()
    assert content(load(tmp_path)) == plain
    packed = (tmp_path / "ml-100k.zip").read_bytes()
    (tmp_path / "ml-100k.zip").write_bytes(packed[:60] + bytes(20) + packed[80:])
    with pytest.raises(DamagedFileError, match=r"ml-100k\.zip is damaged"):
        load(tmp_path)


def test_some_users_and_those_with_enough(tmp_path: Path) -> None:
    write_movielens(tmp_path, "u.data", RATINGS)
    everybody, enough = load(tmp_path), load(tmp_path, minimum_samples=10)
    sizes = {user: sum(1 for one, _, _ in RATINGS if str(one) == user) for user, *_ in content(everybody)}
    assert {user for user, *_ in content(enough)} == {user for user, size in sizes.items() if size >= 10}
    some = load(tmp_path, fraction=0.3)
    assert 0.3 <= some.num_samples / len(RATINGS) < 0.35
    assert some.task.inputs == {"item": 20}  # all items, whoever is taken
    by_client = load(tmp_path, split="by_client")
    assert len(by_client.clients("train")) == 24


@pytest.mark.parametrize("form", ["movielens", "netflix"])
def test_an_interrupted_build_goes_on_and_gives_the_same(
    form: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rating_files, "BLOCK_BYTES", 100)
    monkeypatch.setattr(buckets, "CHECKPOINT_BYTES", 200)
    write_netflix(tmp_path, RATINGS)
    write_movielens(tmp_path, "u.data", RATINGS)
    whole = content(load(tmp_path, form=form, sampling_seed=1))
    read = rating_files.RatingFile.read
    seen: list[int] = []

    def killed(self: Any, byte: int, line: int, item: int) -> Iterator[Any]:
        seen.append(byte)
        for number, piece in enumerate(read(self, byte, line, item)):
            if len(seen) == 1 and number == 9:
                raise KeyboardInterrupt
            yield piece

    monkeypatch.setattr(rating_files.RatingFile, "read", killed)
    with pytest.raises(KeyboardInterrupt):
        load(tmp_path, form=form)
    assert content(load(tmp_path, form=form)) == whole
    assert seen[1] > 0


@pytest.mark.parametrize(
    ("name", "lines", "complaint"),
    [
        ("u.data", "1\t2\t3\t4\n1\t2\t6\t4\n", r"Line 2 of .*u\.data must be user\titem\trating\ttime, .*0\.5 to 5"),
        ("u.data", "1\t2\t3\t4\n1\t2\t3\n", r"Line 2 of .*u\.data must be"),
        ("ratings.csv", "userId,movieId,rating,timestamp\n1,x,3,4\n", r"Line 2 of .*ratings\.csv must be"),
        ("ratings.csv", "userId,movieId,rating,timestamp\n", "have no ratings"),
        ("ratings.dat", "1::2::3::4\n1::-2::3::4\n", r"Line 2 of .*ratings\.dat must be user::item::rating::time"),
        ("u.data", "", "is empty"),
    ],
)
def test_lines_that_are_no_ratings_are_named(name: str, lines: str, complaint: str, tmp_path: Path) -> None:
    (tmp_path / name).write_text(lines)
    with pytest.raises(BadInputError, match=complaint):
        load(tmp_path)


def test_netflix_without_a_movie_or_a_file(tmp_path: Path) -> None:
    write_netflix(tmp_path, RATINGS)
    (tmp_path / "combined_data_2.txt").write_text("12,3,2005-09-06\n")
    with pytest.raises(BadInputError, match=r"Line 1 of .*combined_data_2\.txt must be a movie's number and a colon"):
        load(tmp_path, form="netflix")
    (tmp_path / "combined_data_2.txt").unlink()
    with pytest.raises(BadInputError, match=r"lacks combined_data_2\.txt of the Netflix Prize"):
        load(tmp_path, form="netflix")
    with pytest.raises(BadInputError, match=r"lacks MovieLens: ratings\.csv, u\.data, ratings\.dat"):
        load(tmp_path)


@pytest.mark.slow
def test_users_keep_their_own_factors_on_both_engines(tmp_path: Path) -> None:
    """Items are shared, and what a user is like never leaves the client: it predicts better than what all share."""
    write_movielens(tmp_path, "u.data", made_ratings(users=16, items=12, per_user=12))
    federation = load(tmp_path)
    found = {}
    for engine in ("cohort", "reference"):
        run = fedarena.run(
            federation=federation,
            algorithm="fedbn",
            engine={"name": engine, "dtype": "float64"},
            local={"steps": 8, "lr": 0.1, "batch_size": 8, "epochs": None},
            rounds=14 if engine == "cohort" else 2,
            evaluation={"every": 1},
            cohort=12,
            name=engine,
            runs_folder=tmp_path,
            progress=False,
        )
        said = (run.path / "log.txt").read_text()
        assert "one at a time" not in said
        assert "averages" not in said
        found[engine] = {name: run.rounds[name].to_pylist() for name in ("rmse", "personal_rmse", "bytes_up")}
    for name, values in found["reference"].items():
        np.testing.assert_allclose(found["cohort"][name][1:3], values[1:], rtol=1e-9, err_msg=name)
    last = {name: values[-1] for name, values in found["cohort"].items()}
    assert last["personal_rmse"] < 0.8 * last["rmse"]
    shared = 12 * (8 + 1) + 8 + 1  # items' factors and levels, the weights and the level of all
    assert last["bytes_up"] == 12 * shared * 8


def test_other_algorithms_say_that_they_average_users(tmp_path: Path) -> None:
    write_movielens(tmp_path, "u.data", RATINGS)
    with pytest.warns(UserWarning, match="a part of one client alone, personal, which fedavg averages like all others"):
        fedarena.run(federation=load(tmp_path), rounds=1, cohort=3, runs_folder=tmp_path, progress=False)
