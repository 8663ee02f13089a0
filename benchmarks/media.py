"""Reading published pictures and recordings: how fast beside decoding alone, and in how much memory?

    python benchmarks/media.py [--output result.json] [--pictures 4000] [--recordings 20000] [--samples 1000000]

Writes files in the forms of FedScale's OpenImage (JPEGs of 256 x 256 pixels) and Google Speech (WAV of a second) and
builds federations from them, from which all samples are read. Beside it, the same files are decoded by the same
libraries (Pillow, and the standard library's wave) and thrown away. All take turns; numbers are medians of CPU time.
To decode a WAV file is little but copying it, so a store of recordings, which is built once, takes longer to build: its
samples are written to disk, with checksums. It is measured beside the least that takes: to decode, make a checksum and
write. Stores are removed before the next turn, and the first turn does not count: memory that a machine has never used
before, which the system takes for files that are written, can cost more than all the rest. Then federations of a
million small samples are built in processes of their own, whose memory is measured. The exit code is 1 if a target is
missed.
"""

from __future__ import annotations

import argparse
import csv
import io
import json
import math
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
import wave
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from fedarena.core import streams
from fedarena.data import Federation, load_federation
from fedarena.data.registry import CACHE_VARIABLE
from fedarena.data.store.decoded import LIMIT_VARIABLE
from store import environment, peak_resident_bytes
from targets import Measurement, conclude, show_targets

LEAST_SPEED = 0.8  # of decoding alone
MOST_MEGABYTES = 1000
REPETITIONS = 5
SAMPLES_PER_CLIENT = 50
CLIENTS_AT_ONCE = 10
DISTINCT = 64  # files; maps name them again and again
SIDE = 256  # of pictures, in pixels
RATE = 16_000
TITLES = {"pictures": "OpenImage", "recordings": "Google Speech"}
SMALL = {"pictures": "fedscale_femnist", "recordings": "google_speech"}  # what a million samples are built of


def write_map(folder: Path, samples: int, names: list[str]) -> None:
    """A training map of so many samples that name the same files in turns."""
    path = folder / "client_data_mapping" / "train.csv"
    path.parent.mkdir(parents=True)
    with open(path, "w", newline="", encoding="utf-8") as file:
        rows = csv.writer(file)
        rows.writerow(["client_id", "sample_path", "label_name", "label_id"])
        for number in range(samples):
            rows.writerow(
                [number // SAMPLES_PER_CLIENT, names[number % len(names)], ("bed", "cat")[number % 2], number % 2]
            )


def write_pictures(folder: Path, samples: int, side: int, kind: str) -> list[Path]:
    """Smooth colours with some noise, which take about as many bytes as photos of that size."""
    random = streams.generator(0, "benchmark/pictures")
    (folder / "train").mkdir(parents=True)
    paths = []
    for number in range(min(DISTINCT, samples)):
        coarse = Image.fromarray(random.integers(0, 256, (16, 16, 3), dtype=np.uint8))
        smooth = np.asarray(coarse.resize((side, side), Image.Resampling.BICUBIC), dtype=np.int16)
        noisy = (smooth + random.integers(-12, 13, smooth.shape, dtype=np.int16)).clip(0, 255).astype(np.uint8)
        paths.append(folder / "train" / f"{number}.{kind.lower()}")
        picture = Image.fromarray(noisy)
        (picture if kind == "JPEG" else picture.convert("L")).save(paths[-1], kind, quality=85)
    prefix = "" if kind == "JPEG" else "train/"  # where the map's names begin
    write_map(folder, samples, [f"{prefix}{path.name}" for path in paths])
    return paths


def write_recordings(folder: Path, samples: int, length: int) -> list[Path]:
    random = streams.generator(0, "benchmark/recordings")
    (folder / "train").mkdir(parents=True)
    paths = []
    for number in range(min(DISTINCT, samples)):
        paths.append(folder / "train" / f"{number}.wav")
        with wave.open(str(paths[-1]), "wb") as file:
            file.setnchannels(1)
            file.setsampwidth(2)
            file.setframerate(RATE)
            file.writeframes(random.integers(-9999, 9999, length, dtype=np.int16).tobytes())
    write_map(folder, samples, [path.name for path in paths])
    return paths


def decode_pictures(paths: list[Path], samples: int) -> None:
    room = np.empty((3, SIDE, SIDE), dtype=np.uint8)  # used again: to be given new memory each time takes longer
    for number in range(samples):
        with Image.open(io.BytesIO(paths[number % len(paths)].read_bytes())) as picture:
            room[:] = np.asarray(picture).transpose(2, 0, 1)  # as models take it


def decode_recordings(paths: list[Path], samples: int, write: Callable[[Any], object] = np.copy) -> None:
    for number in range(samples):
        with wave.open(io.BytesIO(paths[number % len(paths)].read_bytes())) as file:
            write(np.frombuffer(file.readframes(file.getnframes()), "<i2"))


def store_recordings_plainly(paths: list[Path], samples: int, target: Path) -> None:
    """The least that a store takes: they are on disk in the end, and damage can be found."""
    checksum = 0

    def write(values: Any) -> None:
        nonlocal checksum
        checksum = zlib.crc32(values, checksum)
        file.write(values)

    with open(target, "wb") as file:
        decode_recordings(paths, samples, write)
        file.flush()
        os.fsync(file.fileno())
    target.unlink()


def build(kind: str, folder: Path, cache: Path) -> Federation:
    os.environ[CACHE_VARIABLE] = str(cache)
    name = "openimage" if kind == "pictures" else "google_speech"
    return load_federation(name, {"folder": str(folder)})


def read(federation: Federation) -> None:
    """All samples, as a cohort of some clients after the other."""
    clients = federation.clients()
    for first in range(0, len(clients), CLIENTS_AT_ONCE):
        federation.samples(clients[first : first + CLIENTS_AT_ONCE], "train")


def cpu_seconds(action: Callable[[], None]) -> float:
    start = time.process_time()
    action()
    return time.process_time() - start


def measure_speed(kind: str, folder: Path, samples: int, repetitions: int) -> tuple[Measurement, dict[str, Any]]:
    """How fast a federation is built beside decoding alone, in turns."""
    raw = folder / "raw"
    paths = write_pictures(raw, samples, SIDE, "JPEG") if kind == "pictures" else write_recordings(raw, samples, RATE)
    decode = decode_pictures if kind == "pictures" else decode_recordings
    times: dict[str, list[float]] = {"plain": [], "least": [], "built": [], "seen": []}
    for _ in range(repetitions + 1):
        times["plain"].append(cpu_seconds(lambda: decode(paths, samples)))
        if kind == "recordings":
            times["least"].append(cpu_seconds(lambda: store_recordings_plainly(paths, samples, folder / "plain.bin")))
        times["built"].append(cpu_seconds(lambda: build(kind, raw, folder / "cache")))
        federation = build(kind, raw, folder / "cache")  # which only opens it
        times["seen"].append(cpu_seconds(lambda federation=federation: read(federation)))
        del federation
        shutil.rmtree(folder / "cache")
    plain, least, built, seen = (statistics.median(found[1:]) if found else math.nan for found in times.values())
    facts = {
        "samples": samples,
        "decoded_per_second": samples / plain,
        "built_per_second": samples / built,
        "read_per_second": samples / seen,
        "building_beside_decoding": built / plain,
    }
    if kind == "recordings":
        facts["stored_plainly_per_second"] = samples / least
        facts["building_beside_storing_plainly"] = built / least
    title = f"{TITLES[kind]}: reading the store beside decoding"
    return Measurement(title, seen / plain, 1 / LEAST_SPEED, "times"), facts


def convert(kind: str, folder: Path) -> dict[str, Any]:
    """Builds a federation of very many samples in a process that did nothing else."""
    options = {"folder": str(folder), **({"seconds": 0.02} if kind == "recordings" else {})}
    start = time.perf_counter()
    federation = load_federation(SMALL[kind], options)
    return {
        "seconds": time.perf_counter() - start,
        "clients": federation.num_clients,
        "samples": federation.num_samples,
        "peak_megabytes": peak_resident_bytes() / 1e6,
    }


def measure_memory(kind: str, folder: Path, samples: int) -> tuple[Measurement, dict[str, Any]]:
    raw = folder / "raw"
    if kind == "pictures":
        write_pictures(raw, samples, 28, "PNG")
    else:
        write_recordings(raw, samples, RATE // 50)
    command = [sys.executable, __file__, "--convert", kind, str(raw)]
    variables = {**os.environ, CACHE_VARIABLE: str(folder / "cache")}
    finished = subprocess.run(command, capture_output=True, text=True, env=variables)
    if finished.returncode:
        raise SystemExit(finished.stderr)
    facts: dict[str, Any] = json.loads(finished.stdout)
    title = f"{facts['samples']:,} {kind}: peak resident memory"
    return Measurement(title, facts["peak_megabytes"], MOST_MEGABYTES, "MB"), facts


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pictures", type=int, default=4_000, help="JPEGs that are built and decoded in turns")
    parser.add_argument("--recordings", type=int, default=20_000, help="WAV files that are built and decoded in turns")
    parser.add_argument("--samples", type=int, default=1_000_000, help="small samples of each kind; 0: none")
    parser.add_argument("--repetitions", type=int, default=REPETITIONS)
    parser.add_argument("--folder", type=Path, help="where to put the files; default: the folder for temporary files")
    parser.add_argument("--output", type=Path, help="write the numbers, hardware and versions to this JSON file")
    parser.add_argument("--convert", nargs=2, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.convert:
        print(json.dumps(convert(arguments.convert[0], Path(arguments.convert[1]))))
        return 0
    os.environ[LIMIT_VARIABLE] = "0"  # nothing that was decoded before is used again
    targets: list[Measurement] = []
    facts: dict[str, Any] = {}
    remarks = []
    for kind, samples in (("pictures", arguments.pictures), ("recordings", arguments.recordings)):
        with tempfile.TemporaryDirectory(prefix="fedarena-media-", dir=arguments.folder) as folder:
            target, found = measure_speed(kind, Path(folder), samples, arguments.repetitions)
        targets.append(target)
        facts[kind] = found
        beside = "decoding" if kind == "pictures" else "storing plainly"  # pictures stay compressed
        building = found[f"building_beside_{beside.replace(' ', '_')}"]
        targets.append(Measurement(f"{TITLES[kind]}: building beside {beside}", building, 1 / LEAST_SPEED, "times"))
        plainly = found.get("stored_plainly_per_second")
        remarks.append(
            f"{TITLES[kind]}: of {kind}, {found['decoded_per_second']:,.0f} a second are decoded alone, "
            f"{'' if plainly is None else f'{plainly:,.0f} decoded, summed up and written to a file, '}"
            f"{found['built_per_second']:,.0f} read from files and written to a store, {found['read_per_second']:,.0f} "
            "read from it."
        )
        if arguments.samples:
            with tempfile.TemporaryDirectory(prefix="fedarena-media-", dir=arguments.folder) as folder:
                target, found = measure_memory(kind, Path(folder), arguments.samples)
            targets.append(target)
            facts[f"many_{kind}"] = found
    show_targets("Published pictures and recordings", targets, "\n".join(remarks))
    return conclude(targets, facts, environment(), arguments.output)


if __name__ == "__main__":
    sys.exit(main())
