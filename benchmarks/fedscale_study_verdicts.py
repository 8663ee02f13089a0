"""What agrees with FedScale's paper and what does not, in sentences that follow from the numbers."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

Found = Mapping[str, Any]
CHANCE = 0.03  # a mean distance so close to that by chance is the same
FEDERATED = ("FedAvg", "FedProx", "FedYogi")


def runs_of(suite: Found, label: str) -> list[Found]:
    """The runs of a method, one of every seed."""
    return [run for run in suite["runs"] if run["label"] == label]


def mean_score(suite: Found, label: str) -> float:
    """The mean over seeds of the leading metric."""
    return statistics.fmean(run["score"] for run in runs_of(suite, label))


def seeds_ahead(suite: Found, better: str, worse: str) -> tuple[int, int]:
    """In how many seeds one method is ahead of another, and how many both have."""
    sign = 1 if suite["higher_is_better"] else -1
    first, second = ({run["seed"]: run["score"] for run in runs_of(suite, label)} for label in (better, worse))
    shared = first.keys() & second.keys()
    return sum(sign * (first[seed] - second[seed]) > 0 for seed in shared), len(shared)


def clear_gap(suite: Found, method: str, other: str) -> float:
    """How far a method is ahead of another in the mean, if that is more than both spread over seeds; else 0."""
    sign = 1 if suite["higher_is_better"] else -1
    gap = sign * (mean_score(suite, method) - mean_score(suite, other))
    spread = sum(statistics.stdev(run["score"] for run in runs_of(suite, label)) for label in (method, other))
    return gap if abs(gap) > spread else 0.0


def best_federated(suite: Found) -> str:
    """The federated method with the best mean."""
    sign = 1 if suite["higher_is_better"] else -1
    return max(FEDERATED, key=lambda label: sign * mean_score(suite, label))


def _listed(names: Sequence[str]) -> str:
    return ", ".join(names[:-1]) + (" and " if len(names) > 1 else "") + names[-1] if names else "none of them"


def on_table_4(suites: Found, titles: Mapping[str, str]) -> str:
    """Whether IID data is easier, and which method suits which task."""
    known = {name: title for name, title in titles.items() if name in suites}
    ahead = {title: seeds_ahead(suites[name], "IID", "FedAvg") for name, title in known.items()}
    always = [title for title, (won, of) in ahead.items() if won == of]
    others = [f"{title} ({won} of {of})" for title, (won, of) in ahead.items() if won < of]
    apart = [
        f"{method} is {'ahead' if gap > 0 else 'behind'} on {title}"
        for name, title in known.items()
        for method in FEDERATED[1:]
        if (gap := clear_gap(suites[name], method, "FedAvg"))
    ]
    lines = [
        f"- *IID data is easier*, which the paper finds for every task: in every seed on {_listed(always)}"
        + (f"; not in every seed on {_listed(others)}." if others else "."),
        "- *Which federated method is best depends on the task* in the paper (FedYogi on OpenImage, FedAvg on FEMNIST, "
        "Amazon Review and Google Speech, FedProx on Reddit). Here, "
        + (f"{_listed(apart)} by more than both spread over seeds, and no other method" if apart else "no method")
        + " is told apart from FedAvg: that takes more rounds, and more seeds.",
    ]
    if "reviews" in suites:
        suite = suites["reviews"]
        recall = max(
            statistics.fmean(run["scores"]["macro_recall"] for run in runs_of(suite, label))
            for label in ("IID", *FEDERATED)
        )
        lines.append(
            f"- *Reviews*: {suite['baseline']:.1%} of those tested have five stars, so that always saying so is right "
            f"as often, with a mean recall of 20 % over the five classes. The best method here has {recall:.1%}: "
            + (
                "hardly anything else was learned from so few reviews. "
                if recall < 0.25
                else "more than that is learned. "
            )
            + "The paper's methods, too, are within one point of each other."
        )
    return "\n".join(lines)


def on_clients(federations: Found) -> str:
    """Which clients differ in what they have by more than chance, and how uneven their sizes are."""
    gaps = {
        name.partition(",")[0]: found["distance"] - found["distance_by_chance"]
        for name, found in federations.items()
        if found["distance"] is not None
    }
    groups = {
        "farther apart than by chance": [f"`{name}`" for name, gap in gaps.items() if gap > CHANCE],
        "as far apart as by chance": [f"`{name}`" for name, gap in gaps.items() if abs(gap) <= CHANCE],
        "closer than by chance": [f"`{name}`" for name, gap in gaps.items() if gap < -CHANCE],
    }
    told = "; ".join(f"{what} are clients of {_listed(names)}" for what, names in groups.items() if names)
    shares = [found["half_share"] for found in federations.values()]
    return (
        f"- *Sizes differ*, as in Fig. 3a: {min(shares):.0%} to {max(shares):.0%} of the clients have half of all "
        "samples, depending on the dataset.\n"
        "- *Distances need the column beside them.* Clients with few samples differ by chance alone, so a distance "
        "says what people prefer only where it is larger than with labels drawn from those of everybody (by more than "
        f"{CHANCE}): {told}. Labels are closer where somebody dealt them out, as to writers who were to write every "
        "digit. So what Fig. 3b shows of Google Speech is for the most part how few words a speaker recorded."
    )


def on_participants(suite: Found, cohorts: Sequence[int]) -> str:
    """Whether more participants help."""
    lines = []
    for method in ("FedAvg", "FedYogi"):
        scores = [100 * mean_score(suite, f"{method} cohort={cohort}") for cohort in cohorts]
        rises = all(later > earlier for earlier, later in pairwise(scores))
        lines.append(
            f"{method} {'gains' if rises else 'does not gain'} with every step: {scores[-1] - scores[-2]:+.1f} points "
            f"from {cohorts[-2]} to {cohorts[-1]} participants"
        )
    return (
        f"{'; '.join(lines)}. So whoever cannot have many participants under-reports a method, as the paper says; how "
        "much depends on how little a single client knows."
    )


def on_traffic(levels: Mapping[str, Mapping[str, float | None]]) -> str:
    """Which method sends least until a level; of every federation the gigabytes of every method."""
    least = {}
    for title, sent in levels.items():
        known = {label: value for label, value in sent.items() if value is not None and label != "IID"}
        if known:
            least[title] = _listed([label for label, value in known.items() if value == min(known.values())])
    told = "; ".join(f"{label} on {title}" for title, label in least.items())
    return (
        "All methods send as much in a round, so this is how many rounds they take; evaluation is every third round, "
        f"which is how exact it is. Least of the federated methods: {told}."
    )


def on_timeline(seconds: Mapping[str, float]) -> str:
    """Whether one resource alone helps."""
    now, transfers, training, both = seconds.values()
    alone = {"transfers": now - transfers, "training": now - training}
    better = max(alone, key=lambda name: alone[name])
    share = alone[better] / (now - both)
    return (
        f"Faster {better} alone bring {share:.0%} of what both bring, and the other "
        f"{min(alone.values()) / (now - both):.0%}. "
        + (
            "That the slowest participant may wait for the other resource, so that one alone helps little, is the "
            "paper's point."
            if share < 0.75
            else f"The paper's point, that one alone helps little because the slowest participant may wait for the "
            f"other, is weaker here: {better} are what slow phones wait for in most rounds."
        )
        + " Participants who are late or have left are not counted, so the real stragglers are longer."
    )


def on_spread(spread: Mapping[str, Mapping[str, Sequence[float]]], percents: Sequence[int], titles: Found) -> str:
    """How far clients are apart."""
    at = {percent: place for place, percent in enumerate(percents)}
    told = [
        f"on {titles[name]}, a tenth of the clients have at most {100 * methods['FedAvg'][at[10]]:.0f} % under FedAvg, "
        f"where the median has {100 * methods['FedAvg'][at[50]]:.0f} %"
        for name, methods in spread.items()
    ]
    return f"As in the paper, one accuracy says little about single clients: {'; '.join(told)}."


def on_selection(suite: Found, hours: Mapping[str, float | None]) -> str:
    """Whether Oort is faster than chance; `hours` are those to the highest level."""
    won, of = seeds_ahead(suite, "Oort", "uniform")
    to_level = (
        ""
        if hours["Oort"] is None or hours["uniform"] is None
        else f" It takes {hours['Oort'] / hours['uniform']:.2f} times as long as chance to the higher accuracy."
    )
    points = 100 * (mean_score(suite, "Oort") - mean_score(suite, "uniform"))
    return (
        f"After the same hours Oort is ahead of chance in {won} of {of} seeds, with {points:+.1f} points in the mean."
        f"{to_level} Oort was made for large models on many thousands of phones, where slow ones cost most; its "
        "options are the defaults here."
    )


def on_scale(scale: Found) -> str:
    """How time and memory grow."""
    numbers = sorted(map(int, scale))
    few, fewer, many = (scale[str(number)] for number in (numbers[0], numbers[-2], numbers[-1]))
    return (
        f"{numbers[-1]:,} participants take {many['seconds'] / fewer['seconds']:.1f} times as long as "
        f"{numbers[-2]:,}, and {many['peak_gigabytes'] - few['peak_gigabytes']:.2f} GB more than {numbers[0]}: clients "
        "train in lanes, a few at a time, and their updates are added up on the way."
    )
