"""Reading published files of very many users: how fast, in how much memory, and does it go on after being killed?

    python benchmarks/data.py [--output result.json] [--tweeters 660120] [--commenters 1660820 --comments 4 --words 15]

Writes files in the form of Sentiment140 and of LEAF's Reddit, with as many users as LEAF's Table 1 has (and as many
tweets; of comments fewer, unless `--comments 34` is given, which needs 60 GB of disk), and builds federations from them
in processes of their own: once as a whole, once killed half way and started again, and once when it is already there.
The exit code is 1 if a target is missed.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from pathlib import Path
from typing import Any

import data_files
from killed_builds import build, in_fresh_process, say
from store import environment
from targets import Measurement, conclude, show_targets

KILL_AT = 0.5  # of the build
TITLES = {"sent140": "Sentiment140", "reddit": "Reddit"}


def convert(name: str, folder: Path, kill_at: float | None) -> dict[str, Any]:
    """Builds a federation, or finds it built."""
    return build(name, {"folder": str(folder), **({"verify": False} if name == "sent140" else {})}, kill_at)


def measure(name: str, folder: Path, samples: int) -> tuple[list[Measurement], dict[str, Any]]:
    """Targets and facts of one federation, whose files are in `folder` / raw."""
    raw = folder / "raw"
    command = [__file__, "--convert", name, str(raw)]
    say(f"{TITLES[name]}: building")
    built = in_fresh_process(command, folder / "cache")
    again = in_fresh_process(command, folder / "cache")
    say(f"{TITLES[name]}: building again, killed half way")
    killed = in_fresh_process(command, folder / "killed", KILL_AT)
    say(f"{TITLES[name]}: going on")
    resumed = in_fresh_process(command, folder / "killed")
    assert built is not None
    assert again is not None
    assert resumed is not None
    if killed is not None or resumed["fingerprint"] != built["fingerprint"]:
        raise SystemExit(f"{name}: a build that was killed and started again gave another federation")
    title = TITLES[name]
    targets = [
        Measurement(f"{title}: peak resident memory", built["peak_megabytes"], 1000, "MB"),
        Measurement(f"{title}: the same after being killed", resumed["peak_megabytes"], 1000, "MB"),
        Measurement(f"{title}: second call", again["seconds"], 1, "s"),
    ]
    facts = {
        **built,
        "samples": samples,
        "raw_megabytes": sum(file.stat().st_size for file in raw.rglob("*") if file.is_file()) / 1e6,
        "samples_per_second": samples / built["seconds"],
        "second_call_seconds": again["seconds"],
        "killed_at": KILL_AT,
        "resumed_seconds": resumed["seconds"],
    }
    return targets, facts


def remark(name: str, facts: dict[str, Any]) -> str:
    return (
        f"{TITLES[name]}: {facts['clients']:,} users, {facts['samples']:,} samples, {facts['raw_megabytes']:,.0f} MB "
        f"in {facts['seconds']:.1f} s: {facts['samples_per_second']:,.0f} samples a second, "
        f"{facts['raw_megabytes'] / facts['seconds']:.0f} MB a second; {facts['resumed_seconds']:.1f} s after being "
        f"killed at {facts['killed_at']:.0%}, with the same fingerprint."
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tweeters", type=int, default=data_files.SENT140[0], help="users of Sentiment140; 0: none")
    parser.add_argument("--commenters", type=int, default=data_files.REDDIT[0], help="users of Reddit; 0: none")
    parser.add_argument("--comments", type=float, default=4.0, help="of each user, on average; LEAF: 34.07")
    parser.add_argument("--words", type=float, default=15.0, help="of each comment, on average")
    parser.add_argument("--folder", type=Path, help="where to put the files; default: the folder for temporary files")
    parser.add_argument("--output", type=Path, help="write the numbers, hardware and versions to this JSON file")
    parser.add_argument("--convert", nargs=2, help=argparse.SUPPRESS)
    parser.add_argument("--kill-at", type=float, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.convert:
        print(json.dumps(convert(arguments.convert[0], Path(arguments.convert[1]), arguments.kill_at)))
        return 0
    targets: list[Measurement] = []
    facts: dict[str, Any] = {}
    for name, users in (("sent140", arguments.tweeters), ("reddit", arguments.commenters)):
        if not users:
            continue
        with tempfile.TemporaryDirectory(prefix="fedarena-data-", dir=arguments.folder) as folder:
            raw = Path(folder) / "raw"
            say(f"{TITLES[name]}: writing files of {users:,} users")
            if name == "sent140":
                samples = data_files.write_tweets(raw, users, *data_files.SENT140[1:])
            else:
                samples = data_files.write_comments(raw, users, arguments.comments, arguments.words)
            more, facts[name] = measure(name, Path(folder), samples)
            targets += more
    show_targets("Published files", targets, "\n".join(remark(name, found) for name, found in facts.items()))
    return conclude(targets, facts, environment(), arguments.output)


if __name__ == "__main__":
    sys.exit(main())
