"""Reference results: every dataset with the models that suit it, some seeds each, short runs on two cores.

    python benchmarks/zoo.py --data FOLDER --output docs/benchmarks/zoo.json [--only digits,taxi]

`zoo.yaml` has the rows. FOLDER holds pieces of published datasets (`real_pieces.py`). Runs that are finished are kept,
and every row is written as soon as it is there, so that a second call goes on where the first was stopped.
`zoo_report.py` makes the documentation's page of it.
"""

from __future__ import annotations

import argparse
import json
import statistics
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

import fedarena
from real_pieces import folder_of, is_there
from store import environment

HERE = Path(__file__).parent
ROWS = HERE / "zoo.yaml"


@dataclass(frozen=True)
class Row:
    """A dataset with a model."""

    federation: str
    settings: Mapping[str, Any]  # dotted, without those that all rows have
    piece: str | None = None
    of: str | None = None  # what part of the dataset is at hand
    missing: bool = False

    @property
    def key(self) -> str:
        """What it is called in the file of results; a row that cannot be run may have a model that another has."""
        return f"{self.federation} {self.settings['model']}" + (" missing" if self.missing else "")

    def words(self, common: Mapping[str, Any]) -> list[str]:
        """The settings as they are given to `fedarena run`."""
        from_files = {"federation.folder": "FOLDER"} if self.piece or self.missing else {}
        given = {"federation": self.federation, **from_files, **common, **self.settings}
        return [f"{key}={as_word(value)}" for key, value in given.items()]


def as_word(value: Any) -> str:
    """A value as it is written on the command line."""
    return json.dumps(value, separators=(",", ":")) if isinstance(value, list) else f"{value}"


def read_rows(path: Path = ROWS) -> tuple[dict[str, Any], list[int], list[Row]]:
    """What all rows have in common, the seeds, and the rows."""
    content = yaml.safe_load(path.read_text(encoding="utf-8"))
    return content["common"], content["seeds"], [Row(**row) for row in content["rows"]]


def run_row(row: Row, common: Mapping[str, Any], seeds: list[int], data: Path, runs: Path) -> dict[str, Any]:
    """Runs all seeds, or what is left of them."""
    where = {} if row.piece is None else {"federation.folder": str(folder_of(row.piece, data, runs))}
    base = {"federation": row.federation, **where, **common, **row.settings}
    name = row.key.replace(" ", "-")
    found = fedarena.suite(name=name, base=base, matrix={}, seeds=seeds, runs_folder=runs, progress=False)
    first = found[0]
    metric = first.summary["primary_metric"]
    scores = [run.summary["final"][metric] for run in found]
    return {
        "metric": metric,
        "scores": scores,
        "untrained": [run.rounds[metric].to_pylist()[0] for run in found],
        "baseline": (first.summary.get("baseline") or {}).get(metric),
        "hours": statistics.fmean(run.summary["virtual_hours"] for run in found),
        "clients": first.summary["participation"]["clients"],
        "parameters": sum(p.numel() for p in first.model().parameters()),
        "seconds": statistics.fmean(run.summary["timing"]["wall_seconds"] for run in found),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, help="the folder with the pieces of published datasets")
    parser.add_argument("--runs", type=Path, default=Path("runs/zoo"), help="where runs go")
    parser.add_argument("--only", help="federations, with commas between them")
    parser.add_argument("--output", type=Path, default=HERE.parent / "docs" / "benchmarks" / "zoo.json")
    given = parser.parse_args()
    common, seeds, rows = read_rows()
    found = json.loads(given.output.read_text(encoding="utf-8")) if given.output.exists() else {"rows": {}}
    for row in rows:
        if row.missing or (given.only and row.federation not in given.only.split(",")):
            continue
        if row.piece and not is_there(row.piece, given.data):
            print(f"{row.key} is left out: there is no {row.piece} in {given.data}", flush=True)
            continue
        found["rows"][row.key] = run_row(row, common, seeds, given.data, given.runs)
        found["environment"] = environment()
        print(f"{row.key}: {found['rows'][row.key]}", flush=True)
        given.output.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
