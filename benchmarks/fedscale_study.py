"""FedScale's experiments with one command: suites on the data at hand, and what federations and fleets look like.

    python benchmarks/fedscale_study.py --data FOLDER --output docs/benchmarks/fedscale_study.json [--only image,speech]

FOLDER holds pieces of published datasets, each in a folder of its own (`real_pieces.py` knows their names); an
experiment whose data is not there is left out. Runs that are finished are kept, so a second call goes on where the
first was stopped. What was found is added to what is in the output; `fedscale_study_report.py` makes a page of it.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from fedarena.core import streams
from fedarena.fleet import describe_fleet, load_fleet
from fedarena.runs.suite import SUITE_FILE
from fedarena.storage.run_data import RunData, load_runs
from fedscale_clients import PERCENTS, SIZE_EDGES, look_at_clients
from real_pieces import folder_of, is_there
from store import environment

TIMELINE = 5  # participants whose time is drawn, as in Fig. 15
FLEET_CLIENTS = 20_000


@dataclass(frozen=True)
class Experiment:
    """A suite on some data."""

    suite: str
    piece: str | None = None  # the data at hand; None: it comes with the installation
    settings: tuple[str, ...] = ()
    variant: str = ""  # a folder of its own, where a suite is run twice

    def words(self, folder: Path | str) -> list[str]:
        """What is said to `fedarena`."""
        where = [f"federation.folder={folder}"] if self.piece else []
        name = [word for word in self.settings if word.startswith("federation=")]
        return ["suite", self.suite, *name, *where, *(word for word in self.settings if word not in name)]

    @property
    def command(self) -> str:
        """The same for the reader."""
        return " ".join(["fedarena", *self.words("FOLDER")])


EXPERIMENTS = {
    "image": Experiment("fedscale-image", "mnist_by_writer"),
    "two digits": Experiment(
        "fedscale-image",
        settings=(
            *("federation=digits", "federation.partition=shards", "federation.partition.clients=200"),
            "federation.partition.shards_per_client=2",
        ),
        variant="two-digits",
    ),
    "reviews": Experiment("fedscale-reviews", "amazon_reviews"),
    "words": Experiment("fedscale-words", "reddit_comments"),
    "speech": Experiment("fedscale-speech", "spoken_digits", ("federation.sample_rate=8000",)),
    "participants": Experiment("fedscale-participants"),
    "selection": Experiment("fedscale-selection"),
}
SCALE = "fedscale-scale"
PARTICIPANTS = (10, 100, 1_000, 10_000)
LARGE = 1_000  # participants


@dataclass
class Study:
    """What is known so far, and where everything is."""

    data: Path
    runs: Path
    work: Path  # where pieces are written that are not there as they were published
    output: Path | None = None
    found: dict[str, Any] = field(default_factory=dict)

    def save(self) -> None:
        """Writes what is known so far."""
        self.found |= {"environment": environment(), "percents": PERCENTS, "size_edges": SIZE_EDGES}
        if self.output:
            self.output.write_text(json.dumps(self.found, indent=1) + "\n", encoding="utf-8")

    def folder(self, piece: str) -> Path:
        return folder_of(piece, self.data, self.work)

    def run_suite(self, name: str, settings: Sequence[str]) -> None:
        """Runs a suite, or what is left of it."""
        experiment = EXPERIMENTS[name]
        if experiment.piece and not is_there(experiment.piece, self.data):
            print(f"{name} is left out: there is no {experiment.piece} in {self.data}", flush=True)
            return
        place = self.runs / experiment.variant
        words = experiment.words(self.folder(experiment.piece) if experiment.piece else "")
        fedarena([*words, *settings, "--runs", str(place)])
        finished = in_order(load_runs([place / experiment.suite]), place / experiment.suite)
        self.found.setdefault("suites", {})[name] = {
            "command": " ".join([experiment.command, *settings]),
            **what_came_out(finished),
        }
        if name == "image":
            self.found["timeline"] = timeline([run for run in finished if run.label == "FedAvg"])
            self.found["spread"] = {name: spread(finished)}

    def look_at_the_fleet(self) -> None:
        """Fig. 4 and 5: how fast phones are, when they are there, and for how long."""
        clients = np.arange(FLEET_CLIENTS)
        phones = load_fleet("fedscale", FLEET_CLIENTS).match(clients, None, seed=0)
        told = describe_fleet(phones, clients, seed=0)
        speeds = {
            name: np.percentile(told["speeds"][name], PERCENTS).tolist()
            for name in ("seconds_per_sample", "download_bits_per_second")
        }
        self.found["fleet"] = {
            "clients": FLEET_CLIENTS,
            "speeds": speeds,
            "slot_seconds": told["slots"]["seconds"],
            "available_share": told["shares"]["mean"],
            "available_in_a_week": {"least": min(told["week"]["shares"]), "most": max(told["week"]["shares"])},
        }

    def measure_rounds(self, participants: Sequence[int]) -> None:
        """Table 6: how long a round takes, and how much memory its process, for so many participants."""
        known = self.found.setdefault("scale", {})
        if participants:  # builds the store, whose memory is not that of a round
            fedarena([*("suite", SCALE, "cohort=[1]", "rounds=1"), "--runs", str(self.runs / "store")])
        for number in participants:
            place = self.runs / f"scale-{number}"
            shutil.rmtree(place, ignore_errors=True)  # a run that goes on in a second process is none to measure
            # Programs are recorded in the first round; of very many participants, that does not count.
            rounds = ["rounds=1", "evaluation.every=1"] if number > LARGE else []
            peak = fedarena(["suite", SCALE, f"cohort=[{number}]", *rounds, "--runs", str(place)])
            (run,) = load_runs([place / SCALE])
            timings = zip(run.timings["round"].to_pylist(), run.timings["train_seconds"].to_pylist(), strict=True)
            known[str(number)] = {
                "seconds": max(timings)[1],
                "peak_gigabytes": peak,
                "samples": run.rounds["samples"].to_pylist()[-1],
            }
            self.save()


def fedarena(words: Sequence[str]) -> float:
    """Runs a command in a process of its own; the most memory that it had, in gigabytes."""
    process = subprocess.Popen([sys.executable, "-m", "fedarena", *words])
    _, status, used = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise SystemExit(f"fedarena {' '.join(words)} ended with exit code {process.returncode}")
    return used.ru_maxrss * 1024 / 1e9


def in_order(runs: Sequence[RunData], folder: Path) -> list[RunData]:
    """The runs in the order of the suite's plan."""
    names = list(json.loads((folder / SUITE_FILE).read_text(encoding="utf-8"))["runs"])
    return sorted(runs, key=lambda run: names.index(run.name))


def what_came_out(runs: Sequence[RunData]) -> dict[str, Any]:
    """Of every run its last score, its hours, what was sent, and the curve of the leading metric."""
    metric = runs[0].summary["primary_metric"]
    (about,) = (found for found in runs[0].summary["metrics"] if found["name"] == metric)
    return {
        "metric": metric,
        "higher_is_better": about["higher_is_better"],
        "baseline": (runs[0].summary.get("baseline") or {}).get(metric),
        "runs": [one_run(run, metric) for run in runs],
    }


def one_run(run: RunData, metric: str) -> dict[str, Any]:
    rounds = run.rounds
    both_ways = zip(*_columns(rounds, "bytes_down", "bytes_up"), strict=True)
    sent = np.cumsum([(down or 0) + (up or 0) for down, up in both_ways]) / 1e9
    begin = run.config["clock"]["start_hour"]
    curve = [
        [number, None if seconds is None else round(seconds / 3600 - begin, 5), round(score, 5), round(float(total), 5)]
        for number, seconds, score, total in zip(*_columns(rounds, "round", "end_seconds", metric), sent, strict=True)
        if score is not None
    ]
    final = run.summary["final"]
    others = {about["name"]: final[about["name"]] for about in run.summary["metrics"] if about["name"] != "loss"}
    return {
        "label": run.label,
        "seed": run.summary["seed"],
        "settings": {"cohort": run.config["cohort"]},
        "score": final[metric],
        "scores": others,
        "rounds": run.summary["rounds_done"],
        "hours": run.summary.get("virtual_hours"),
        "gigabytes": float(sent[-1]),
        "wall_seconds": run.summary["timing"]["wall_seconds"],
        "never_used": run.summary["participation"]["never_used_share"],
        "curve": curve,
    }


def _columns(table: Any, *names: str) -> list[list[Any]]:
    return [table[name].to_pylist() for name in names]


def spread(runs: Sequence[RunData]) -> dict[str, list[float]]:
    """Fig. 16: of every method the percentiles of clients' accuracies, all seeds together."""
    accuracies: dict[str, list[float]] = {}
    for run in runs:
        last = run.summary["final"]["round"]
        rows = zip(*_columns(run.clients, "round", "accuracy"), strict=True)
        accuracies.setdefault(run.label, []).extend(value for number, value in rows if number == last and value >= 0)
    return {label: np.percentile(values, PERCENTS).tolist() for label, values in accuracies.items()}


def timeline(runs: Sequence[RunData]) -> dict[str, Any]:
    """Fig. 15: where the time of participants goes, and what a round would take if one part of it were faster."""
    jobs = [job for run in runs for job in run.jobs.to_pylist() if job["uploaded_seconds"] is not None]
    parts = np.array(
        [
            (
                job["downloaded_seconds"] - job["begin_seconds"],
                job["trained_seconds"] - job["downloaded_seconds"],
                job["uploaded_seconds"] - job["trained_seconds"],
            )
            for job in jobs
        ]
    )
    rounds = np.array([job["round"] for job in jobs]) + 10_000 * np.cumsum(
        [place > 0 and job["round"] < jobs[place - 1]["round"] for place, job in enumerate(jobs)]
    )
    first = np.flatnonzero(rounds == rounds[0])
    chosen = np.sort(streams.generator(0, "fedscale/timeline").permutation(first)[:TIMELINE])

    def round_seconds(transfers: float, computing: float) -> float:
        """The mean over rounds of the slowest participant, if both took such a share of their time."""
        seconds = parts @ np.array([transfers, computing, transfers])
        return float(np.mean([seconds[rounds == number].max() for number in np.unique(rounds)]))

    return {
        "participants": [
            dict(zip(("download", "train", "upload"), row, strict=True)) for row in parts[chosen].tolist()
        ],
        "mean_seconds": {"transfers": float(parts[:, [0, 2]].sum(1).mean()), "training": float(parts[:, 1].mean())},
        "round_seconds": {
            "as it is": round_seconds(1, 1),
            "transfers twice as fast": round_seconds(0.5, 1),
            "training twice as fast": round_seconds(1, 0.5),
            "both twice as fast": round_seconds(0.5, 0.5),
        },
    }


def main() -> None:
    parts = [*EXPERIMENTS, "federations", "fleet", "scale"]
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("settings", nargs="*", metavar="KEY=VALUE", help="settings of all suites")
    parser.add_argument("--data", type=Path, required=True, help="the folder with the pieces of published datasets")
    parser.add_argument("--runs", type=Path, default=Path("runs/fedscale-study"), help="where runs go")
    parser.add_argument("--work", type=Path, help="where pieces go that have to be written; default: where runs go")
    parser.add_argument("--only", default=",".join(parts), help=f"some of: {', '.join(parts)}")
    parser.add_argument("--participants", help="of rounds that are measured, also again; default: those not known yet")
    parser.add_argument("--output", type=Path, help="a JSON file, to which what is found is added")
    given = parser.parse_intermixed_args()
    wanted = given.only.split(",")
    if unknown := set(wanted) - set(parts):
        parser.error(f"there is no {', '.join(sorted(unknown))}; choose among {', '.join(parts)}")
    study = Study(given.data, given.runs, given.work or given.runs, given.output)
    if given.output and given.output.exists():
        study.found = json.loads(given.output.read_text(encoding="utf-8"))
    for part in wanted:
        if part in EXPERIMENTS:
            study.run_suite(part, given.settings)
        elif part == "scale":
            again = [int(number) for number in (given.participants or "").split(",") if number]
            known = study.found.get("scale", {})
            study.measure_rounds(again or [number for number in PARTICIPANTS if str(number) not in known])
        elif part == "federations":
            study.found["federations"] = look_at_clients(study.data, study.work)
        else:
            study.look_at_the_fleet()
        study.save()


if __name__ == "__main__":
    main()
