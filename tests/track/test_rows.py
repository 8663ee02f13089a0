"""Rows after those already read: the same as the whole table, whoever writes meanwhile."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest
from tracked_runs import config

import fedarena
from fedarena.core.errors import DamagedFileError
from fedarena.runs.run import resume_run, start_run
from fedarena.storage import recorder
from fedarena.storage.run_data import load_run
from fedarena.track.rows import RowReader

TABLES = ("rounds", "jobs", "timings")


def test_pieces_make_the_whole_table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recorder, "_COMMIT_SHARE", 0.0)  # only what is asked for is committed
    run = fedarena.open(config().to_dict(), runs_folder=tmp_path)
    reader = RowReader(run.folder, TABLES)
    assert reader.read() == {}
    pieces = []
    for rounds in (0, 1, 4, 3, 0, 4):
        run.advance(rounds)
        pieces.append(reader.read())
        assert reader.last_round == run.round
    assert [len(piece["rounds"]) for piece in pieces] == [1, 1, 4, 3, 0, 4]
    result = run.close()
    assert all(len(table) == 0 for table in reader.read().values()), "also when the tables have become Parquet"
    for table in TABLES:
        together = pa.concat_tables([piece[table] for piece in pieces])
        assert together.equals(getattr(result, table)), table
        assert RowReader(result.path, [table]).read()[table].equals(getattr(result, table))


def test_rows_that_are_not_wanted_are_left_out(tmp_path: Path) -> None:
    folder = start_run(config(), tmp_path).path
    assert RowReader(folder, ["rounds"], after=7).read()["rounds"]["round"].to_pylist() == [8, 9, 10, 11, 12]


def test_a_run_that_another_process_goes_on_with_can_still_be_followed(tmp_path: Path) -> None:
    run = fedarena.open(config().to_dict(), runs_folder=tmp_path).advance(5)
    run.close()
    reader = RowReader(run.folder, TABLES)
    begin = reader.read()["rounds"]
    resume_run(run.folder)
    rest = reader.read()["rounds"]
    assert pa.concat_tables([begin, rest]).equals(load_run(run.folder).rounds)


def test_a_changed_byte_is_noticed(tmp_path: Path) -> None:
    run = fedarena.open(config().to_dict(), runs_folder=tmp_path).advance(5)
    run.close()
    path = run.folder / "checkpoint" / "rounds.arrows"
    data = bytearray(path.read_bytes())
    data[-100] ^= 1
    path.write_bytes(data)
    with pytest.raises(DamagedFileError, match=r"rounds\.arrows is damaged"):
        RowReader(run.folder, TABLES).read()


def test_another_run_in_the_same_folder_is_noticed(tmp_path: Path) -> None:
    folder = start_run(config(rounds=1), tmp_path).path
    reader = RowReader(folder, TABLES)
    reader.read()
    folder.rename(tmp_path / "old")
    start_run(config(rounds=1), tmp_path)
    with pytest.raises(DamagedFileError, match="another run than before"):
        reader.read()
