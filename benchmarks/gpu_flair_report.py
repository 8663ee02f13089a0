"""Writes what gpu_flair.py and gpu_flair_decoding.py measured into docs/flair.md.

    python benchmarks/gpu_flair_report.py

Reads docs/benchmarks/gpu_flair.json, gpu_fedscale.json and gpu_fedscale_bf16.json (FedScale's rounds in both
precisions), and gpu_flair_decoding.json, and replaces what is between the two marks.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

DOCS = Path(__file__).parent.parent / "docs"
PAGE = DOCS / "flair.md"
BEGIN, END = "<!-- Written by benchmarks/gpu_flair_report.py; do not edit. -->", "<!-- End of what was measured. -->"


def flair_lines(flair: dict[str, Any]) -> list[str]:
    """FLAIR's round beside others."""
    speeds, gibibytes = flair["samples_per_second"], flair["peak_bytes"] / 2**30
    lines = [
        f"A round of {flair['users']} users with as many photos as FLAIR's, {flair['samples']:,} in 2 epochs, in "
        "batches of 16; ResNet-18 with GroupNorm at 224 pixels, random crops and flips, gradients clipped:",
        "",
        "| | samples per second | |",
        "| --- | ---: | --- |",
        f"| FedArena | {speeds['ours']:,.0f} | {flair['engine']['lanes']} clients beside each other; {gibibytes:.1f} "
        f"GiB of the GPU's memory; the first round takes {flair['first_round_seconds']:.0f} s |",
    ]
    if "pfl" in speeds:
        lines.append(
            f"| pfl-research 0.6.0, its FLAIR training | {speeds['pfl']:,.0f} | FedArena is {flair['times_pfl']:.1f} "
            "times as fast; the same network and pictures, which are on the GPU already |"
        )
    if "central" in speeds:
        lines.append(
            f"| central training in batches of 512, plain torch | {speeds['central']:,.0f} | FedArena reaches "
            f"{flair['of_central']:.0%} of it |"
        )
    return lines


def fedscale_lines(measured_rows: list[dict[str, Any]]) -> list[str]:
    """FedScale's rounds in some precisions, and what the largest ones would take."""
    columns = " | ".join(f"minutes, one GPU here, {row['precision']}" for row in measured_rows)
    lines = [
        "Rounds like those of FedScale's Table 6: MobileNet-V2, 20 steps of 32 pictures for each participant, as its "
        "appendix says. How large pictures are the paper does not say (its code of today resizes iNaturalist's to 299 "
        "pixels); here they have 224:",
        "",
        f"| participants of a round | {columns} | minutes, FedScale on 20 GPUs |",
        "| ---: |" + " ---: |" * len(measured_rows) + " ---: |",
    ]
    for text, theirs in measured_rows[0]["fedscale"]["fedscale_minutes"].items():
        minutes = " | ".join(minutes_of_round(row["fedscale"], int(text)) for row in measured_rows)
        lines.append(f"| {int(text):,} | {minutes} | {theirs} |")
    lines += ["", *(speed_line(row) for row in measured_rows)]
    lines.append(
        "With `engine.precision=bf16` what goes from layer to layer has 8 bits of precision, as inputs of products "
        "have; parameters, their gradients, normalization, the optimizer and updates are in float32."
    )
    return lines


def minutes_of_round(fedscale: dict[str, Any], users: int) -> str:
    """How long a round takes, or would take judging from the largest that was measured."""
    rounds = {int(text): row for text, row in fedscale["rounds"].items()}
    if users in rounds:
        return f"{rounds[users]['minutes']:.2f}"
    largest = max(rounds)
    return f"{rounds[largest]['minutes'] * users / largest:.2f} (extrapolated from {largest:,})"


def speed_line(found: dict[str, Any]) -> str:
    """Samples per second of the largest round, and by which command."""
    fedscale, name = found["fedscale"], "_bf16" if found["precision"] == "bf16" else ""
    rounds = {int(users): row for users, row in fedscale["rounds"].items()}
    speed, gibibytes = rounds[max(rounds)]["samples_per_second"], fedscale["peak_bytes"] / 2**30
    line = (
        f"In {found['precision']} that is {speed:,.0f} samples a second, in {gibibytes:.1f} GiB "
        f"(`{found['command']}`, {found['date']}, [numbers](benchmarks/gpu_fedscale{name}.json))."
    )
    others = {users: row for users, row in rounds.items() if "command" in row}  # of another day
    for command, date in dict.fromkeys((row["command"], row["date"]) for row in others.values()):
        of_it = [f"{users:,}" for users, row in others.items() if (row["command"], row["date"]) == (command, date)]
        line += f" Rounds of {' and '.join(of_it)} are of a version before (`{command}`, {date})."
    return line


def central_line(fedscale: dict[str, Any]) -> str:
    """The same work beside central training, which was measured with FLAIR's rounds."""
    rounds = {int(users): row for users, row in fedscale["rounds"].items()}
    return (
        f"Before filters of single channels had kernels of their own, {max(rounds):,} participants made "
        f"{rounds[max(rounds)]['samples_per_second']:,.0f} samples a second in tf32; central training of the same "
        f"network in batches of 512 with plain torch, in the same run, {fedscale['central_samples_per_second']:,.0f}, "
        f"of which that is {fedscale['of_central']:.0%}."
    )


def decoding_lines(found: dict[str, Any]) -> list[str]:
    """How long the GPU waits."""
    facts, most = found["facts"], found["targets"][0]["measured"]
    pictures = facts["pictures_of_cohorts"]
    first = facts.get("share_waiting_first_round")  # of which nobody could read ahead, if the others were read ahead
    what = "those of the next round" if first is not None else "photos that are needed later"
    of_first = "" if first is None else f"; {first:.0%} of the first one"
    return [
        f"*Decoding.* Cohorts of {facts['users_of_a_cohort']} users ({min(pictures):,} to {max(pictures):,} JPEGs of "
        f"256 pixels) train while {what} are still decoded, by {facts['decoding_threads']} threads: the GPU waits "
        f"{max(0.0, facts['median_share_waiting']):.0%} of a round (median; at most {most:.0%}{of_first}) for pictures "
        "that it sees for the first time, and not for those that are still in its memory "
        "(`python benchmarks/gpu_flair_decoding.py`, [numbers](benchmarks/gpu_flair_decoding.json)).",
    ]


def section(found: dict[str, Any], fedscale: list[dict[str, Any]], decoding: dict[str, Any] | None) -> str:
    """What is between the marks."""
    lines = [
        f"Measured on {found['date']} with `{found['command']}` on one {found['gpu']}, torch "
        f"{found['versions']['torch']}, products in {found['precision']} ([numbers](benchmarks/gpu_flair.json)). "
        "Pictures are random numbers.",
    ]
    if "flair" in found:
        lines += ["", *flair_lines(found["flair"])]
    if fedscale:
        lines += ["", *fedscale_lines(fedscale)]
    if "of_central" in found.get("fedscale", {}):
        lines.append(central_line(found["fedscale"]))
    if decoding is not None:
        lines += ["", *decoding_lines(decoding)]
    return "\n".join(lines)


def measured(name: str) -> dict[str, Any] | None:
    """The content of a file of numbers, if it is there."""
    path = DOCS / "benchmarks" / name
    content: dict[str, Any] | None = json.loads(path.read_text(encoding="utf-8")) if path.exists() else None
    return content


def measured_of_fedscale() -> list[dict[str, Any]]:
    """What there is of FedScale's rounds, by precision."""
    found = (measured(name) for name in ("gpu_fedscale.json", "gpu_fedscale_bf16.json"))
    return [row for row in found if row is not None]


def main() -> None:
    """Replaces what is between the marks."""
    found = measured("gpu_flair.json")
    if found is None:
        raise SystemExit("There is no docs/benchmarks/gpu_flair.json; gpu_flair.py --output writes it")
    before, rest = PAGE.read_text(encoding="utf-8").split(BEGIN)
    after = rest.split(END)[1]
    text = section(found, measured_of_fedscale(), measured("gpu_flair_decoding.json"))
    PAGE.write_text(f"{before}{BEGIN}\n\n{text}\n\n{END}{after}", encoding="utf-8")


if __name__ == "__main__":
    main()
