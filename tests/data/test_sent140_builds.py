"""Building Sentiment140 with interruptions, leftovers, a full disk, and two processes at once."""

from __future__ import annotations

import threading
from pathlib import Path

import numpy as np
import pytest
from filelock import FileLock
from interrupted_builds import InterruptionError, build_in_spite_of_interruptions
from tweet_files import left_over, load, pack, table

from fedarena.core.errors import BadInputError, RunFailedError
from fedarena.data.many_users import buckets, resumable, tweets
from fedarena.data.registry import cached_path


def many_tweets(number: int) -> bytes:
    random = np.random.default_rng(1)
    return table(
        [
            (
                "04"[random.integers(2)],
                str(row),
                f"user-{random.integers(40)}",
                " ".join(random.choice(list("abcdefgh"), 5)),
            )
            for row in range(number)
        ]
    )


@pytest.fixture
def small_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tweets, "BLOCK_BYTES", 2_000)
    monkeypatch.setattr(buckets, "CHECKPOINT_BYTES", 4_000)
    monkeypatch.setattr(buckets, "INPUT_BYTES_PER_BUCKET", 8_000)


@pytest.mark.usefixtures("small_steps")
def test_an_interrupted_build_goes_on_and_gives_the_same_store(tmp_path: Path) -> None:
    folder = pack(tmp_path / "raw", many_tweets(400))
    steps: list[tuple[float, str]] = []
    whole = load(folder, lambda *step: steps.append(step))
    assert {words for _, words in steps} == {"Reading tweets", "Grouping by user", "Counting words", "Writing"}
    assert [fraction for fraction, _ in steps] == sorted(fraction for fraction, _ in steps)
    assert steps[-1][0] == 1
    load(folder, lambda *step: pytest.fail("The second call does nothing"))

    whole.path.rename(tmp_path / "whole")
    fingerprint, work = whole.fingerprint, [f".{whole.path.name}.lock", f".{whole.path.name}.work"]

    def look() -> None:
        assert left_over(folder) == work

    again, seen = build_in_spite_of_interruptions(lambda progress: load(folder, progress), 3 * len(steps), look)
    assert again.fingerprint == fingerprint
    assert seen[-1] == 1
    assert len(seen) > 20
    assert left_over(folder) == []


def stop(fraction: float, words: str) -> None:
    if fraction > 0.3:
        raise InterruptionError


@pytest.mark.usefixtures("small_steps")
def test_bad_input_after_an_interruption_removes_the_work(tmp_path: Path) -> None:
    folder = pack(tmp_path / "raw", many_tweets(100)[:-2])  # the last quote is missing
    with pytest.raises(InterruptionError):
        load(folder, stop)
    assert len(left_over(folder)) == 2
    with pytest.raises(BadInputError, match=r"Line 100 of .* has a quote without its counterpart"):
        load(folder)
    assert left_over(folder) == []


@pytest.mark.usefixtures("small_steps")
def test_what_other_builds_left_does_not_matter(tmp_path: Path) -> None:
    folder = pack(tmp_path / "raw", many_tweets(100))
    with pytest.raises(InterruptionError):
        load(folder, stop)
    _, work = left_over(folder)
    assert load(folder, length=3).num_samples == 103  # other options
    pack(folder, many_tweets(150))  # other files
    path = cached_path("sent140", {"folder": str(folder), "verify": False})
    killed = path.with_name(f".{path.name}.0123.tmp")  # of a process that was killed while it wrote the store
    killed.mkdir()
    again = load(folder)
    assert again.num_samples == 153
    assert sorted(again.client_ids(again.clients())) == sorted({f"user-{n}" for n in range(40)} | {"bob", "dan", "eve"})
    assert not killed.exists()
    assert (path.parent / work).exists()


@pytest.mark.usefixtures("small_steps")
def test_a_full_disk_is_told_and_the_work_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = pack(tmp_path / "raw", many_tweets(100))

    def full(path: Path, value: object) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as context:
        context.setattr(buckets, "write_json", full)
        with pytest.raises(
            RunFailedError, match=r"Cannot build .*sent140-.*: No space left on device; the next attempt"
        ):
            load(folder)
    assert len(left_over(folder)) == 2
    assert load(folder).num_samples == 103


def test_two_at_once_do_not_disturb_each_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = pack(tmp_path / "raw")
    monkeypatch.setattr(resumable, "POLL_SECONDS", 0.01)
    second_waits, results = threading.Event(), []

    def first(fraction: float, words: str) -> None:
        assert second_waits.wait(20)

    def second(fraction: float, words: str) -> None:
        assert words == "Waiting for another process that is building the same"
        second_waits.set()

    threads = [
        threading.Thread(target=lambda step=step: results.append(load(folder, step, length=7)))
        for step in (first, second)
    ]
    threads[0].start()
    while len(left_over(folder, length=7)) < 2:  # until the first has the lock, and its folder
        threading.Event().wait(0.01)
    threads[1].start()
    for thread in threads:
        thread.join(30)
    assert len({federation.fingerprint for federation in results}) == 1
    assert len(results) == 2
    assert left_over(folder, length=7) == []


def test_work_of_a_store_that_is_there_is_removed_unless_somebody_has_the_lock(tmp_path: Path) -> None:
    folder = pack(tmp_path / "raw")
    works = [load(folder, length=length).path for length in (5, 6)]
    works = [path.with_name(f".{path.name}.work") for path in works]
    for work in works:
        work.mkdir()
        (work / "rows.bin").write_bytes(b"rows")
    with FileLock(works[1].with_suffix(".lock")):
        load(folder, length=7)
        assert [work.exists() for work in works] == [False, True]
        assert left_over(folder, length=5) == []
    load(folder, length=8)
    assert not works[1].exists()
