"""Writes what gpu_flair.py and gpu_flair_decoding.py measured into docs/flair.md.

    python benchmarks/gpu_flair_report.py

Reads docs/benchmarks/gpu_flair.json, gpu_flair_bf16.json (FedScale's rounds with --precision bf16) and
gpu_flair_decoding.json, and replaces what is between the two marks.
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


def fedscale_lines(found: dict[str, Any], rounded: dict[str, Any] | None) -> list[str]:
    """FedScale's rounds, and what the largest one would take; beside it, the same with more rounding."""
    measured_rows = [row for row in (found, rounded) if row is not None]
    precisions = [row["precision"] for row in measured_rows]
    lines = [
        "Rounds like those of FedScale's Table 6: MobileNet-V2, 20 steps of 32 pictures for each participant, as its "
        "appendix says. How large pictures are the paper does not say; here they have 224 pixels:",
        "",
        f"| participants of a round | {' | '.join(f'minutes, one GPU here, {name}' for name in precisions)} | minutes, "
        "FedScale on 20 GPUs |",
        "| ---: |" + " ---: |" * len(precisions) + " ---: |",
    ]
    for text, theirs in found["fedscale"]["fedscale_minutes"].items():
        minutes = " | ".join(minutes_of_round(row["fedscale"], int(text)) for row in measured_rows)
        lines.append(f"| {int(text):,} | {minutes} | {theirs} |")
    lines += ["", *(speed_line(row["fedscale"], row["precision"]) for row in measured_rows)]
    if rounded is not None:
        lines.append(
            "With `engine.precision=bf16` what goes from layer to layer has 8 bits of precision, as inputs of products "
            "have; parameters, their gradients, normalization, the optimizer and updates are in float32 "
            f"(`{rounded['command']}`, [numbers](benchmarks/gpu_flair_bf16.json))."
        )
    return lines


def minutes_of_round(fedscale: dict[str, Any], users: int) -> str:
    """How long a round takes, or would take judging from the largest that was measured."""
    rounds = {int(text): row for text, row in fedscale["rounds"].items()}
    if users in rounds:
        return f"{rounds[users]['minutes']:.2f}"
    largest = max(rounds)
    return f"{rounds[largest]['minutes'] * users / largest:.1f} (extrapolated from {largest:,})"


def speed_line(fedscale: dict[str, Any], precision: str) -> str:
    """Samples per second of the largest round, beside central training."""
    rounds = {int(users): row for users, row in fedscale["rounds"].items()}
    speed, gibibytes = rounds[max(rounds)]["samples_per_second"], fedscale["peak_bytes"] / 2**30
    line = f"In {precision} that is {speed:,.0f} samples a second, in {gibibytes:.1f} GiB"
    if "of_central" in fedscale:
        line += (
            "; central training of the same network in batches of 512 with plain torch makes "
            f"{fedscale['central_samples_per_second']:,.0f} ({fedscale['of_central']:.0%} of it are reached)"
        )
    return f"{line}."


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


def section(found: dict[str, Any], rounded: dict[str, Any] | None, decoding: dict[str, Any] | None) -> str:
    """What is between the marks."""
    lines = [
        f"Measured on {found['date']} with `{found['command']}` on one {found['gpu']}, torch "
        f"{found['versions']['torch']}, products in {found['precision']} ([numbers](benchmarks/gpu_flair.json)). "
        "Pictures are random numbers.",
    ]
    if "flair" in found:
        lines += ["", *flair_lines(found["flair"])]
    if "fedscale" in found:
        lines += ["", *fedscale_lines(found, rounded)]
    if decoding is not None:
        lines += ["", *decoding_lines(decoding)]
    return "\n".join(lines)


def measured(name: str) -> dict[str, Any] | None:
    """The content of a file of numbers, if it is there."""
    path = DOCS / "benchmarks" / name
    content: dict[str, Any] | None = json.loads(path.read_text(encoding="utf-8")) if path.exists() else None
    return content


def main() -> None:
    """Replaces what is between the marks."""
    found = measured("gpu_flair.json")
    if found is None:
        raise SystemExit("There is no docs/benchmarks/gpu_flair.json; gpu_flair.py --output writes it")
    before, rest = PAGE.read_text(encoding="utf-8").split(BEGIN)
    after = rest.split(END)[1]
    text = section(found, measured("gpu_flair_bf16.json"), measured("gpu_flair_decoding.json"))
    PAGE.write_text(f"{before}{BEGIN}\n\n{text}\n\n{END}{after}", encoding="utf-8")


if __name__ == "__main__":
    main()
