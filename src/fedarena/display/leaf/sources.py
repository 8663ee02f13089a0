"""What to draw of LEAF's metrics: files, folders of files and runs; what belongs together is joined by its name."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from fedarena.analysis.leaf_metrics import LeafTable, accuracies_of_run, costs_of_run, read_leaf_metrics
from fedarena.core.errors import BadInputError
from fedarena.storage.run_data import NothingRecordedError, find_runs, load_run
from fedarena.storage.run_files import CONFIG_FILE

# As LEAF's baselines are called (stat_metrics_k_10.csv), and as its released code calls its files (metrics_stat.csv).
_METRICS_FILE = re.compile(r"(?!\.).*(_metrics.*|_stat|_sys)\.csv(\.gz)?")


@dataclass(frozen=True)
class LeafResult:
    """The two tables of one experiment, or the one that is there."""

    name: str
    accuracies: LeafTable | None
    costs: LeafTable | None


def load_leaf_results(paths: Iterable[Path], skipped: Callable[[str], None]) -> list[LeafResult]:
    """Reads files and folders; runs without a finished round are left out, and `skipped` is told so."""
    tables: list[LeafTable] = []
    empty: list[NothingRecordedError] = []
    every = [found for path in paths for found in _files_and_runs(path)]
    for path in {os.path.realpath(found): found for found in every}.values():
        if path.is_dir():
            try:
                run = load_run(path)
            except NothingRecordedError as error:
                empty.append(error)
                continue
            tables += [table for table in (accuracies_of_run(run), costs_of_run(run)) if len(table.is_training)]
        else:
            tables.append(read_leaf_metrics(path))
    if empty and not tables:
        raise empty[0]
    for reason in empty:
        skipped(str(reason))
    return join_tables(tables)


def _files_and_runs(path: Path) -> list[Path]:
    """The metrics files in a folder, otherwise the runs in it; a file stands for itself."""
    if not path.is_dir() or (path / CONFIG_FILE).exists():
        return [path]
    files = sorted(file for file in path.iterdir() if _METRICS_FILE.fullmatch(file.name) and file.is_file())
    if files:
        return files
    try:
        return find_runs([path])
    except BadInputError:
        raise BadInputError(
            f"{path} holds neither metrics files (*_metrics*.csv, *_stat.csv or *_sys.csv, also with .gz) "
            f"nor runs (folders with {CONFIG_FILE})"
        ) from None


def join_tables(tables: Sequence[LeafTable]) -> list[LeafResult]:
    """Accuracies and costs of one name; in different folders only if there are no others of that name."""
    pairs: list[dict[bool, LeafTable]] = []
    for table in tables:
        is_alone = sum(other.name == table.name for other in tables) <= 2
        for pair in pairs:
            (partner, *more) = pair.values()
            fits = partner.name == table.name and (is_alone or partner.folder == table.folder)
            if fits and not more and table.is_statistical not in pair:
                pair[table.is_statistical] = table
                break
        else:
            pairs.append({table.is_statistical: table})
    results: dict[str, LeafResult] = {}
    for pair in pairs:
        shared = next(iter(pair.values())).name
        name, number = shared, 1
        while name in results:  # a number tells those apart that are called alike
            number += 1
            name = f"{shared} ({number})"
        results[name] = LeafResult(name, pair.get(True), pair.get(False))
    return list(results.values())
