"""Writes the zoo, a page of reference results, from what ``benchmarks/zoo.py`` found.

    python benchmarks/zoo_report.py

Rows are those of benchmarks/zoo.yaml, results those of docs/benchmarks/zoo.json; which files a dataset needs says the
catalogue of federations.
"""

from __future__ import annotations

import json
import shlex
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from fedarena.data.raw.files import raw_files_of
from zoo import ROWS, Row, read_rows

DOCS = Path(__file__).parent.parent / "docs"
MEASURED = DOCS / "benchmarks" / "zoo.json"
PAGE = DOCS / "zoo.md"
PERCENT = ("accuracy", "average_precision", "auc")
MOST_FILES = 3  # in a cell


def command(row: Row, common: Mapping[str, Any]) -> str:
    """What runs it, with seed 0."""
    return " ".join(["fedarena", "run", *(shlex.quote(word) for word in row.words(common))])


def files_needed(federation: str) -> str:
    """The names of the files that a federation is made from."""
    files = raw_files_of(federation)
    if files is None:
        return "files of yours"
    names = [f"`{file.name}`" for file in files.files.values()]
    more = f" and {len(names) - MOST_FILES} more" if len(names) > MOST_FILES else ""
    either = " or " if files.one_is_enough else ", "
    return either.join(names[:MOST_FILES]) + more


def value_text(value: float | None, metric: str) -> str:
    if value is None:
        return "–"
    if metric in PERCENT:
        return f"{100 * value:.1f} %"
    return f"{value:,.0f}" if value >= 1000 else f"{value:.3g}"


def score_text(scores: Sequence[float], metric: str) -> str:
    """Mean ± standard deviation over seeds."""
    mean, spread = statistics.fmean(scores), statistics.stdev(scores)
    return f"{100 * mean:.1f} ± {100 * spread:.1f} %" if metric in PERCENT else f"{mean:.3g} ± {spread:.2g}"


def results_table(rows: Sequence[Row], results: Mapping[str, Any]) -> str:
    heading = [
        "dataset",
        "model",
        "parameters",
        "metric",
        "result",
        "without training",
        "virtual hours",
        "clients",
    ]
    lines = [heading, ["---", "---", "---:", "---", *["---:"] * 4]]
    for row in rows:
        found = results[row.key]
        metric, constant = found["metric"], found["baseline"]
        before = statistics.fmean(found["untrained"]) if constant is None else constant
        lines.append(
            [
                f"`{row.federation}`" + (f" ({row.of})" if row.of else ""),
                f"`{row.settings['model']}`",
                f"{found['parameters']:,}",
                metric.replace("_", " "),
                score_text(found["scores"], metric),
                value_text(before, metric),
                f"{found['hours']:.2f}",
                f"{found['clients']:,}",
            ]
        )
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def missing_table(rows: Sequence[Row]) -> str:
    lines = [["dataset", "model", "files needed"], ["---"] * 3]
    lines += [[f"`{row.federation}`", f"`{row.settings['model']}`", files_needed(row.federation)] for row in rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def commands_of(rows: Sequence[Row], common: Mapping[str, Any]) -> str:
    return "\n".join(command(row, common) for row in rows)


def page(measured: Mapping[str, Any], path: Path = ROWS) -> str:
    """The page, as Markdown."""
    common, seeds, rows = read_rows(path)
    there = [row for row in rows if row.key in measured["rows"]]
    missing = [row for row in rows if row.key not in measured["rows"]]
    environment = measured["environment"]
    return f"""# Zoo

<!-- Written by benchmarks/zoo_report.py from benchmarks/zoo.yaml and docs/benchmarks/zoo.json; do not edit. -->

Reference results: datasets with models that suit them, to compare a run of yours with. **They are short runs**, to be
repeated at once on two cores, and say where training begins rather than where it can get: {common["rounds"]}
rounds of {common["cohort"]} clients, {common["local.steps"]} steps of {common["local.batch_size"]} samples each, FedAvg
unless a command says otherwise, and usual learning rates; a few (blogs, Reddit, Puffer, DLRM) are those of a second try
after a look at the results of the first. Phones are those of the fleet
`{common["fleet"]}`, which are waited for (`protocol={common["protocol"]}`); virtual hours are theirs. A run
takes some seconds, or half a minute. Of many datasets only a piece was at hand, which the first column names: numbers
are for this piece.

A result is the mean over seeds {", ".join(map(str, seeds))} ± standard deviation, on test samples. *Without training*
is what the best constant answer has, or, where there is no such, the untrained model. Pieces of some hundred samples
(`taobao`) are tested on so few that their results say nothing but that it runs; the speakers of `common_voice` that are
at hand read the same few words, which is why they are so well foretold.

{results_table(there, measured["rows"])}

```text
{commands_of(there, common)}
```

Each command is for seed 0; `seed=1` and `seed=2` give the others. FOLDER is where the files are. All numbers:
[zoo.json](benchmarks/zoo.json), made on {environment["cores"]} cores with `python benchmarks/zoo.py --data FOLDER`.

## Without data

For these the files were not at hand, so there is no result. The commands are there to make one, with a GPU for large
models; [`fedarena data list`](data.md) says where files are looked for and where they come from.

{missing_table(missing)}

```text
{commands_of(missing, common)}
```
"""


def main() -> None:
    PAGE.write_text(page(json.loads(MEASURED.read_text(encoding="utf-8"))), encoding="utf-8")


if __name__ == "__main__":
    main()
