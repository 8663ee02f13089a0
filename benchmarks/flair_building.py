"""Building FLAIR's store: how fast beside reading and checking the files alone, in how much memory, and after a kill?

    python benchmarks/flair_building.py [--output result.json] [--photos 429078 --side 32] [--large 20000 256]

Writes files in the form of FLAIR's: all 429,078 photos at a small size, and 20,000 of 256 x 256 pixels. Beside the
build stands the least that anybody must do: read the metadata, read every photo, and decode it once to see that it can
be, by as many threads. Everything is measured in processes of its own, checking before and after building, with the
files in the page cache. Then a build is killed half way (SIGKILL) and started again; it must give the same store.
The exit code is 1 if a target is missed.
"""

from __future__ import annotations

import argparse
import io
import json
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from PIL import Image

import flair_generator
from killed_builds import build, in_fresh_process, say
from protocol import available_cores
from store import environment
from targets import Measurement, conclude, show_targets

KILL_AT = 0.5
LEAST_SHARE = 0.8  # of the speed of reading and checking alone
MOST_MEGABYTES = 1000
PHOTOS_PER_TASK = 64


def check(folder: Path) -> dict[str, Any]:
    """Reads and checks all files, and does nothing else."""

    def look_at(names: list[str]) -> int:
        size = 0
        for name in names:
            with open(f"{folder}/small_images/{name}.jpg", "rb", buffering=0) as file:
                content = file.read()
            with Image.open(io.BytesIO(content), formats=("JPEG",)) as picture:
                picture.load()
            size += len(content)
        return size

    start = time.perf_counter()
    with open(folder / "labels_and_metadata.json", encoding="utf-8") as file:
        names = [entry["image_id"] for entry in json.load(file)]
    pieces = [names[begin : begin + PHOTOS_PER_TASK] for begin in range(0, len(names), PHOTOS_PER_TASK)]
    with ThreadPoolExecutor(available_cores()) as pool:
        read_bytes = sum(pool.map(look_at, pieces))
    return {"seconds": time.perf_counter() - start, "photos": len(names), "megabytes": read_bytes / 1e6}


def measure(title: str, photos: int, side: int, folder: Path) -> tuple[list[Measurement], dict[str, Any]]:
    raw = folder / "raw"
    say(f"{title}: writing files")
    flair_generator.write_flair(raw, photos, side)
    found: dict[str, Any] = {}
    steps = ("check", "build", "check again", "killed", "resumed")
    for step in steps:
        say(f"{title}: {step}")
        cache = folder / ("killed" if step in ("killed", "resumed") else "cache")
        kill_at = KILL_AT if step == "killed" else None
        what = "check" if step.startswith("check") else "build"
        found[step] = in_fresh_process([__file__, "--do", what, str(raw)], cache, kill_at)
    built, resumed = found["build"], found["resumed"]
    if found["killed"] is not None or resumed["fingerprint"] != built["fingerprint"]:
        raise SystemExit(f"{title}: a build that was killed and started again gave another federation")
    checked_seconds = (found["check"]["seconds"] + found["check again"]["seconds"]) / 2
    facts = {
        **built,
        "photos": built["stored_samples"],
        "side": side,
        "raw_megabytes": found["check"]["megabytes"],
        "check_seconds": checked_seconds,
        "share_of_checking_speed": checked_seconds / built["seconds"],
        "photos_per_second": photos / built["seconds"],
        "killed_at": KILL_AT,
        "resumed_seconds": resumed["seconds"],
    }
    slower = 1 / LEAST_SHARE
    return [
        Measurement(f"{title}: building, of reading and checking", built["seconds"] / checked_seconds, slower, "x"),
        Measurement(f"{title}: peak resident memory", built["peak_megabytes"], MOST_MEGABYTES, "MB"),
        Measurement(f"{title}: the same after being killed", resumed["peak_megabytes"], MOST_MEGABYTES, "MB"),
        Measurement(f"{title}: store, of the files", built["store_megabytes"] / facts["raw_megabytes"], 1.1, "x"),
    ], facts


def remark(title: str, facts: dict[str, Any]) -> str:
    return (
        f"{title}: {facts['photos']:,} photos of {facts['clients']:,} users, {facts['raw_megabytes']:,.0f} MB, in "
        f"{facts['seconds']:.1f} s ({facts['photos_per_second']:,.0f} a second); reading and checking alone "
        f"{facts['check_seconds']:.1f} s, {facts['share_of_checking_speed']:.0%}; {facts['resumed_seconds']:.1f} s "
        f"after being killed at {facts['killed_at']:.0%}, with the same fingerprint."
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--photos", type=int, default=flair_generator.PHOTOS, help="of the small size; 0: none")
    parser.add_argument("--side", type=int, default=32, help="their width and height in pixels")
    parser.add_argument("--large", type=int, nargs=2, default=(20_000, 256), help="number and side of larger ones")
    parser.add_argument("--folder", type=Path, help="where to put the files; default: the folder for temporary files")
    parser.add_argument("--output", type=Path, help="write the numbers, hardware and versions to this JSON file")
    parser.add_argument("--do", nargs=2, help=argparse.SUPPRESS)
    parser.add_argument("--kill-at", type=float, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.do:
        what, folder = arguments.do[0], Path(arguments.do[1])
        options = {"folder": str(folder), "max_samples": None}
        print(json.dumps(check(folder) if what == "check" else build("flair", options, arguments.kill_at)))
        return 0
    targets: list[Measurement] = []
    facts: dict[str, Any] = {}
    for photos, side in ((arguments.photos, arguments.side), arguments.large):
        if photos:
            title = f"{side} x {side}"
            with tempfile.TemporaryDirectory(prefix="fedarena-flair-", dir=arguments.folder) as place:
                more, facts[title] = measure(title, photos, side, Path(place))
            targets += more
    show_targets("Building FLAIR", targets, "\n".join(remark(title, found) for title, found in facts.items()))
    return conclude(targets, facts, environment(), arguments.output)


if __name__ == "__main__":
    sys.exit(main())
