"""What a reader must know before comparing runs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from fedarena.analysis.distinct import left_out_lines, seed_of
from fedarena.analysis.leading_metric import leading_metrics
from fedarena.display.drawing.html import Html, join, tag
from fedarena.display.drawing.units import count, listing
from fedarena.display.report.cautions import BROKEN, cautions
from fedarena.display.report.compare_settings import differing_keys
from fedarena.storage.run_data import RunData

_VERDICTS: Final = {"running": "is still running", "interrupted": "was interrupted"}


def left_out(runs: Sequence[RunData]) -> Html:
    """Says which runs the report does not show because it has another one of the same method and seed."""
    return join(tag("div", line, class_="notice unfinished") for line in left_out_lines(runs))


def notices(runs: Sequence[RunData]) -> Html:
    """What a reader must know before comparing: runs that broke or are not finished, unequal conditions."""
    found = []
    for run in runs:
        if run.status == "finished":
            continue
        severity = "broken" if run.status in BROKEN else "unfinished"
        done = run.summary.get("rounds_done")
        where = "" if done is None else f" after {count(int(done), 'round')}"
        verdict = _VERDICTS.get(run.status, run.status)
        head = tag("strong", f"{run.name} (seed {seed_of(run)}) {verdict}{where}.")
        found.append(tag("div", head, f" {run.summary.get('message') or ''}", class_=f"notice {severity}"))
    found += [tag("div", text, class_="notice unfinished") for text in cautions(runs)]
    for key, meaning in (("federation", "federations"), ("rounds", "numbers of rounds")):
        if differing_keys([{key: run.config.get(key)} for run in runs]) and not (key == "rounds" and _by_clock(runs)):
            text = f"The runs have different {meaning}; their results cannot be compared directly."
            found.append(tag("div", text, class_="notice unfinished"))
    if len(leading := leading_metrics(runs)) > 1:
        labels = listing([metric.label for metric in leading])
        text = f"The runs lead with different metrics: {labels}. Each is compared among the runs that have it."
        found.append(tag("div", text, class_="notice unfinished"))
    return join(found)


def _by_clock(runs: Sequence[RunData]) -> bool:
    """Whether all runs end after the same virtual time, however many rounds fit into it."""
    hours = {(run.config.get("clock") or {}).get("hours") for run in runs}
    return len(hours) == 1 and None not in hours
