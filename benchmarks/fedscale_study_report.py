"""Writes the documentation's page about FedScale's experiments from what ``benchmarks/fedscale_study.py`` found.

    python benchmarks/fedscale_study_report.py

Everything of ours is computed from docs/benchmarks/fedscale_study.json; what the paper has is below.
"""

from __future__ import annotations

import json
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import fedscale_study_verdicts as verdicts
from fedarena.display import write_picture
from fedscale_study_pictures import clients_picture, curves_picture, timeline_picture
from fedscale_study_verdicts import runs_of

DOCS = Path(__file__).parent.parent / "docs"
MEASURED = DOCS / "benchmarks" / "fedscale_study.json"
PAGE = DOCS / "fedscale_experiments.md"
TEMPLATE = Path(__file__).parent / "fedscale_study_page.md"
METHODS = ("IID", "FedAvg", "FedProx", "FedYogi")
# Table 4: task, dataset and model, and the scores of the four methods.
PAPER_TABLE_4 = {
    "image": (
        ("FEMNIST, ResNet-18", ("86.40", "78.50", "78.40", "76.30")),
        ("OpenImage, ShuffleNet-V2", ("81.37", "70.27", "69.54", "74.04")),
        ("OpenImage, MobileNet-V2", ("80.83", "70.09", "70.34", "75.25")),
    ),
    "reviews": (("Amazon Review, logistic regression", ("66.10", "65.80", "65.10", "65.30")),),
    "words": (("Reddit, ALBERT, perplexity", ("73.5", "77.3", "76.6", "81.6")),),
    "speech": (("Google Speech, ResNet-34", ("72.58", "63.37", "63.25", "62.67")),),
}
TASKS = {
    "image": "image classification",
    "reviews": "text classification",
    "words": "language modelling",
    "speech": "speech recognition",
}
OURS = {
    "image": "MNIST by writer, a small CNN",
    "two digits": "`digits` dealt by class, one or two a client, the same CNN",
    "reviews": "reviews of three categories, logistic regression",
    "words": "7,000 comments, `char_mlp`, perplexity",
    "speech": "AudioMNIST, 60 speakers, a small CNN",
}
SHORT = {
    "image": "MNIST by writer",
    "two digits": "digits dealt by class",
    "reviews": "reviews",
    "words": "comments",
    "speech": "spoken digits",
}
WITH_CURVES = ("image", "two digits", "speech")
# Minutes of a round on 20 GPUs (Table 6), by participants.
PAPER_TABLE_6 = {
    10: ("0.03", "0.58", "0.05"),
    100: ("0.16", "4.4", "0.23"),
    1_000: ("1.14", "fails", "2.4"),
    10_000: ("10.9", "fails", "fails"),
}
LEVELS = (0.8, 0.85)  # accuracies that selectors are to reach
Found = dict[str, Any]


def table(heading: Sequence[str], rows: Sequence[Sequence[str]], left: int = 1) -> str:
    """In Markdown; all but the first columns are numbers."""
    bars = ["---" if place < left else "---:" for place in range(len(heading))]
    return "\n".join(f"| {' | '.join(line)} |" for line in (heading, bars, *rows))


def labels(suite: Found) -> list[str]:
    return list(dict.fromkeys(run["label"] for run in suite["runs"]))


def score_text(suite: Found, label: str, name: str | None = None) -> str:
    """Mean ± standard deviation over seeds, in percent unless it is a perplexity."""
    values = [run["scores"][name or suite["metric"]] for run in runs_of(suite, label)]
    if not values:
        return "–"
    share = 1 if suite["metric"] == "perplexity" and name is None else 100
    spread = f" ± {share * statistics.stdev(values):.1f}" if len(values) > 1 else ""
    return f"{share * statistics.fmean(values):.1f}{spread}"


def in_seeds(suite: Found, better: str, worse: str) -> str:
    """In how many seeds one method is ahead of another."""
    won, of = verdicts.seeds_ahead(suite, better, worse)
    return f"{won} of {of}"


def reached(run: Found, level: float, higher: bool, column: int) -> float | None:
    """The first value of a curve's column (1: hours, 3: gigabytes) at which a level is reached."""
    return next((point[column] for point in run["curve"] if (point[2] >= level) == higher or point[2] == level), None)


def all_reached(suite: Found, label: str, level: float, column: int) -> list[float | None]:
    """The same of every seed."""
    return [reached(run, level, suite["higher_is_better"], column) for run in runs_of(suite, label)]


def mean_reached(suite: Found, label: str, level: float, column: int) -> float | None:
    """The mean over seeds; None unless all of them get there."""
    found = all_reached(suite, label, level, column)
    return None if None in found else statistics.fmean(value for value in found if value is not None)


def reached_text(suite: Found, label: str, level: float, column: int) -> str:
    found = all_reached(suite, label, level, column)
    known = [value for value in found if value is not None]
    if not known:
        return "not reached"
    missed = f" ({len(found) - len(known)} of {len(found)} seeds not)" if len(known) < len(found) else ""
    return f"{statistics.fmean(known):.3g}{missed}"


def table_4(suites: Found) -> str:
    rows = []
    for task, papers in PAPER_TABLE_4.items():
        rows += [[f"{TASKS[task]}, paper" if not n else "", name, *scores] for n, (name, scores) in enumerate(papers)]
        for ours in (task, *(["two digits"] if task == "image" else [])):
            if ours in suites:
                rows.append(["**here**", OURS[ours], *(score_text(suites[ours], label) for label in METHODS)])
        if task == "reviews" and task in suites:
            recalls = (score_text(suites[task], label, "macro_recall") for label in METHODS)
            rows.append(["", "the same, mean recall of the five classes", *recalls])
    return table(["task", "data and model", *METHODS], rows, left=2)


def seeds_table(suites: Found) -> str:
    rows = [
        [
            OURS[name],
            in_seeds(suites[name], "IID", "FedAvg"),
            in_seeds(suites[name], "FedYogi", "FedAvg"),
            in_seeds(suites[name], "FedProx", "FedAvg"),
            verdicts.best_federated(suites[name]),
        ]
        for name in OURS
        if name in suites
    ]
    heading = ["data", "IID ahead of FedAvg", "FedYogi ahead of FedAvg", "FedProx ahead of FedAvg", "best but for IID"]
    return table(heading, rows)


def cohorts_of(suite: Found) -> list[int]:
    return sorted({run["settings"]["cohort"] for run in suite["runs"]})


def participants_table(suite: Found) -> str:
    cohorts = cohorts_of(suite)
    rows = []
    for method in ("FedAvg", "FedYogi"):
        of_method = [next(x for x in labels(suite) if x.startswith(method) and x.endswith(f"={n}")) for n in cohorts]
        rows.append([method, *(score_text(suite, label) for label in of_method)])
    return table(["accuracy, %", *(f"{cohort} participants" for cohort in cohorts)], rows)


def traffic_table(suites: Found) -> str:
    """Fig. 12c: what was sent until a level that FedAvg reaches."""
    rows = []
    for name in WITH_CURVES:
        if name in suites:
            suite = suites[name]
            level = level_of(suite)
            sent = [reached_text(suite, label, level, 3) for label in METHODS]
            rows.append([f"{OURS[name]}, to {100 * level:.0f} %", *sent])
    return table(["gigabytes, down and up", *METHODS], rows)


def traffic(suites: Found) -> dict[str, dict[str, float | None]]:
    """The same as numbers, None where not all seeds get there."""
    return {
        SHORT[name]: {label: mean_reached(suites[name], label, level_of(suites[name]), 3) for label in METHODS}
        for name in WITH_CURVES
        if name in suites
    }


def level_of(suite: Found) -> float:
    """A round number a little below what FedAvg reaches in the mean."""
    mean = statistics.fmean(run["score"] for run in runs_of(suite, "FedAvg"))
    return int(20 * mean - 0.2) / 20


def timeline_table(timeline: Found) -> str:
    now = timeline["round_seconds"]["as it is"]
    names = {"as it is": "the speed they have"}
    rows = [
        [names.get(what, what), f"{value:.0f}", f"{1 - value / now:.0%}"]
        for what, value in timeline["round_seconds"].items()
    ]
    return table(["if phones had", "seconds", "saved"], rows)


def spread_table(spread: Found, percents: Sequence[int]) -> str:
    rows = [
        [OURS[data], method, *(f"{100 * value:.0f}" for value in values)]
        for data, methods in spread.items()
        for method, values in methods.items()
    ]
    names = {0: "worst client", 50: "median", 100: "best"}
    return table(["data", "method", *(names.get(p, f"{p} %") for p in percents)], rows, left=2)


def selection_table(suite: Found) -> str:
    rows = [
        [
            label,
            *(reached_text(suite, label, level, 1) for level in LEVELS),
            score_text(suite, label),
            f"{statistics.fmean(run['rounds'] for run in runs_of(suite, label)):.0f}",
            f"{statistics.fmean(run['never_used'] for run in runs_of(suite, label)):.0%}",
        ]
        for label in labels(suite)
    ]
    hours = [f"hours to {100 * level:.0f} %" for level in LEVELS]
    return table(["selector", *hours, "accuracy after 6 h, %", "rounds", "clients never used"], rows)


def scale_table(scale: Found) -> str:
    rows = [
        [
            f"{number:,}",
            f"{scale[str(number)]['seconds']:.3g}" if str(number) in scale else "–",
            f"{scale[str(number)]['peak_gigabytes']:.2f}" if str(number) in scale else "–",
            *minutes,
        ]
        for number, minutes in PAPER_TABLE_6.items()
    ]
    theirs = [f"minutes of {tool}" for tool in ("FedScale", "FedML", "Flower")]
    return table(["participants", "seconds of a round here", "most memory, GB", *theirs], rows, left=0)


def clients_table(federations: Found) -> str:
    rows = []
    for name, found in federations.items():
        _, p10, _, median, _, p90, most = found["size_percentiles"]
        apart = ["–" if found[key] is None else f"{found[key]:.2f}" for key in ("distance", "distance_by_chance")]
        sizes = f"{p10:,.0f}, {median:,.0f}, {p90:,.0f}, {most:,.0f}"
        counts = [f"{found['clients']:,}", f"{found['samples']:,}", sizes, f"{found['half_share']:.0%}"]
        code, _, rest = name.partition(", ")
        rows.append([f"`{code}`" + (f", {rest}" if rest else ""), *counts, *apart])
    heading = ["federation", "clients", "samples", "samples of a client: 10 %, median, 90 %, most"]
    return table([*heading, "clients with half of all samples", "distance of two", "the same by chance"], rows)


def fleet_table(fleet: Found, percents: Sequence[int]) -> str:
    at = {percent: place for place, percent in enumerate(percents)}

    def spread_of(values: Sequence[float], scale: float) -> list[str]:
        picked = [scale * values[at[percent]] for percent in (0, 10, 50, 90, 100)]
        return [*(f"{value:,.3g}" for value in picked), f"{picked[3] / picked[1]:.0f}"]

    slots = fleet["slot_seconds"]["percentiles"]
    stays = [float(slots[str(p)]) / 60 for p in (10, 50, 90)]
    rows = [
        ["training on a sample, ms", *spread_of(fleet["speeds"]["seconds_per_sample"], 1e3)],
        ["bandwidth, Mbit/s", *spread_of(fleet["speeds"]["download_bits_per_second"], 1e-6)],
        ["a stay, minutes", "–", *(f"{value:.3g}" for value in stays), "–", f"{stays[2] / stays[0]:,.0f}"],
    ]
    return table(["", "least", "10 %", "median", "90 %", "most", "90 % / 10 %"], rows)


def command(suite: Found) -> str:
    return f"```text\n{suite['command']}\n```"


def page(found: Found) -> str:
    """The page, as Markdown."""
    suites, environment = found["suites"], found["environment"]
    week = found["fleet"]["available_in_a_week"]
    mean = found["timeline"]["mean_seconds"]
    speeds = found["fleet"]["speeds"]
    commands = "\n".join(suites[name]["command"] for name in OURS if name in suites)
    return TEMPLATE.read_text(encoding="utf-8").format(
        table_4=table_4(suites),
        seeds_table=seeds_table(suites),
        commands=commands,
        clients_table=clients_table(found["federations"]),
        fleet_table=fleet_table(found["fleet"], found["percents"]),
        least_available=f"{week['least']:.0%}",
        most_available=f"{week['most']:.0%}",
        verdict_clients=verdicts.on_clients(found["federations"]),
        slowest_computing=f"{speeds['seconds_per_sample'][-1] / speeds['seconds_per_sample'][0]:.0f}",
        slowest_transfers=f"{speeds['download_bits_per_second'][-1] / speeds['download_bits_per_second'][0]:.0f}",
        median_stay=f"{found['fleet']['slot_seconds']['percentiles']['50'] / 60:.0f}",
        participants_command=command(suites["participants"]),
        participants_table=participants_table(suites["participants"]),
        traffic_table=traffic_table(suites),
        transfer_seconds=f"{mean['transfers']:.0f}",
        training_seconds=f"{mean['training']:.0f}",
        timeline_table=timeline_table(found["timeline"]),
        spread_table=spread_table(found["spread"], found["percents"]),
        selection_command=command(suites["selection"]),
        selection_table=selection_table(suites["selection"]),
        scale_table=scale_table(found["scale"]),
        verdict_table_4=verdicts.on_table_4(suites, SHORT),
        verdict_participants=verdicts.on_participants(suites["participants"], cohorts_of(suites["participants"])),
        verdict_traffic=verdicts.on_traffic(traffic(suites)),
        verdict_timeline=verdicts.on_timeline(found["timeline"]["round_seconds"]),
        verdict_spread=verdicts.on_spread(found["spread"], found["percents"], SHORT),
        verdict_selection=verdicts.on_selection(
            suites["selection"],
            {label: mean_reached(suites["selection"], label, max(LEVELS), 1) for label in labels(suites["selection"])},
        ),
        verdict_scale=verdicts.on_scale(found["scale"]),
        samples_each=round(found["scale"]["1000"]["samples"] / 1000),
        cores=environment["cores"],
        memory=f"{environment['memory_gigabytes']:.0f}",
    )


def main() -> None:
    found = json.loads(MEASURED.read_text(encoding="utf-8"))
    PAGE.write_text(page(found), encoding="utf-8")
    images = DOCS / "images"
    panels = {SHORT[name]: found["suites"][name] for name in WITH_CURVES if name in found["suites"]}
    write_picture(curves_picture(panels, METHODS), images / "fedscale-curves.svg")
    write_picture(clients_picture(found["federations"], found["size_edges"]), images / "fedscale-clients.svg")
    write_picture(timeline_picture(found["timeline"]), images / "fedscale-timeline.svg")


if __name__ == "__main__":
    main()
