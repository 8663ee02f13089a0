"""Reading a cohort of pictures that lie compressed in a store: what does it cost beside decoding them with Pillow?

    python benchmarks/flair_reading.py [--output result.json] [--cohort 200] [--pixels 256] [--repetitions 5]

Builds a federation of JPEGs in a temporary folder, with about as many pictures per user as FLAIR has (median 2, mean 8,
at most 512), and reads the pictures of a cohort: when none was decoded before, and when all were. Beside it, the same
bytes, already in memory, become arrays by Pillow alone, on as many threads. All take turns; numbers are medians. The
exit code is 1 if a target is missed.
"""

from __future__ import annotations

import argparse
import io
import statistics
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from fedarena.core import streams
from fedarena.data import ColumnSpec, Federation, FederationWriter, TaskSpec
from fedarena.data.store.decoded import decoded_cache
from fedarena.data.store.side_by_side import decoding_threads
from store import environment, peak_resident_bytes
from targets import Measurement, conclude, show_targets

COHORT = 200
PIXELS = 256
REPETITIONS = 5
USERS_PER_COHORT = 2  # users in the federation for each in a cohort
DISTINCT_PICTURES = 256
CLASSES = 17
MOST_PICTURES = 512


def pictures_per_user(users: int) -> np.ndarray:
    """Sizes with about FLAIR's quartiles and mean."""
    drawn = streams.generator(0, "benchmark/pictures").lognormal(np.log(1.6), 1.65, users)
    return np.minimum(np.ceil(drawn), MOST_PICTURES).astype(np.int64)


def draw_jpegs(count: int, pixels: int) -> list[bytes]:
    """Smooth colours with some noise, which take about as many bytes as photos of that size."""
    random = streams.generator(0, "benchmark/colours")
    files = []
    for _ in range(count):
        coarse = Image.fromarray(random.integers(0, 256, (16, 16, 3), dtype=np.uint8))
        smooth = np.asarray(coarse.resize((pixels, pixels), Image.Resampling.BICUBIC), dtype=np.int16)
        noisy = smooth + random.integers(-12, 13, smooth.shape, dtype=np.int16)
        file = io.BytesIO()
        Image.fromarray(noisy.clip(0, 255).astype(np.uint8)).save(file, "JPEG", quality=85)
        files.append(file.getvalue())
    return files


def build(path: Path, users: int, pixels: int) -> Federation:
    files, number = draw_jpegs(DISTINCT_PICTURES, pixels), 0
    columns = {
        "x": ColumnSpec(dtype="uint8", shape=(3, pixels, pixels), encoding="jpeg"),
        "y": ColumnSpec(dtype="uint8", shape=(CLASSES,)),
    }
    task = TaskSpec(kind="multi_label", classes=CLASSES)
    with FederationWriter(path, name="benchmark", task=task, columns=columns) as writer:
        for user, size in enumerate(pictures_per_user(users).tolist()):
            x = [files[(number + place) % len(files)] for place in range(size)]
            writer.add_client(f"user-{user:06d}", train={"x": x, "y": np.zeros((size, CLASSES), np.uint8)})
            number += size
    return Federation.open(path)


def by_pillow(content: bytes) -> np.ndarray:
    with Image.open(io.BytesIO(content)) as picture:
        return np.asarray(picture.convert("RGB"))


def seconds_of(work: Callable[[], Any]) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def measure(federation: Federation, cohort: int, repetitions: int) -> tuple[list[Measurement], dict[str, Any]]:
    clients = streams.generator(0, "benchmark/cohort").choice(federation.num_clients, cohort, replace=False)
    files = federation.encoded(clients, "train").files
    threads = decoding_threads()
    seconds: dict[str, list[float]] = {"Pillow alone": [], "decoded": [], "decoded before": []}
    with ThreadPoolExecutor(threads) as pool:
        for repetition in range(repetitions + 1):
            decoded_cache().clear()
            measured = {
                "Pillow alone": seconds_of(lambda: list(pool.map(by_pillow, files))),
                "decoded": seconds_of(lambda: federation.samples(clients, "train")),
                "decoded before": seconds_of(lambda: federation.samples(clients, "train")),
            }
            if repetition:  # the first time warms the page cache, and starts the threads
                for what, value in measured.items():
                    seconds[what].append(value)
    median = {what: statistics.median(values) for what, values in seconds.items()}
    ratios = [ours / pillow for ours, pillow in zip(seconds["decoded"], seconds["Pillow alone"], strict=True)]
    targets = [Measurement(f"reading {cohort} users beside Pillow alone", statistics.median(ratios), 1.2, "times")]
    facts = {
        "users": cohort,
        "pictures": len(files),
        "mean_file_kilobytes": statistics.mean(map(len, files)) / 1e3,
        "decoded_megabytes": len(files) * federation.columns["x"].bytes_per_sample / 1e6,
        "threads": threads,
        "cache_megabytes": decoded_cache().limit_bytes / 1e6,
        "seconds": median,
        "pictures_per_second": {what: len(files) / value for what, value in median.items()},
        "peak_resident_megabytes": peak_resident_bytes() / 1e6,
    }
    return targets, facts


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cohort", type=int, default=COHORT)
    parser.add_argument("--pixels", type=int, default=PIXELS)
    parser.add_argument("--repetitions", type=int, default=REPETITIONS)
    parser.add_argument("--output", type=Path)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        federation = build(Path(folder) / "store", USERS_PER_COHORT * arguments.cohort, arguments.pixels)
        targets, facts = measure(federation, arguments.cohort, arguments.repetitions)
    per_second = ", ".join(f"{what} {value:,.0f}" for what, value in facts["pictures_per_second"].items())
    remark = f"{facts['pictures']:,} pictures of {facts['mean_file_kilobytes']:.1f} kB on {facts['threads']} threads; "
    show_targets("Reading pictures", targets, f"{remark}pictures a second: {per_second}.")
    return conclude(targets, facts, environment(), arguments.output)


if __name__ == "__main__":
    raise SystemExit(main())
