"""LEAF's Table 1 stands beside what can be compared with it, and says what it counts."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path

import pytest
from rich.console import Console
from rich.table import Table
from store_oracle import PlainFederation

from fedarena.cli.federation_tables import sizes_table, statistics_table
from fedarena.cli.federations import write_statistics
from fedarena.data import Federation, describe
from fedarena.data.statistics.table1 import published_sizes
from fedarena.data.store.schema import SourceSpec

# As the paper prints it: devices, samples, mean and standard deviation of samples per device.
PAPER = """
FEMNIST 3,550 805,263 226.83 88.94
Sent140 660,120 1,600,498 2.42 4.71
Shakespeare 1,129 4,226,158 3,743.28 6,212.26
CelebA 9,343 200,288 21.44 7.63
Reddit 1,660,820 56,587,343 34.07 62.95
"""
COUNTED = {
    "femnist": "pictures",
    "sent140": "tweets",
    "shakespeare": "windows",
    "celeba": "pictures",
    "reddit": "comments",
}
WINDOWS = {"samples": "windows"}


@pytest.fixture
def federation(plain: PlainFederation, tmp_path: Path) -> Federation:
    plain.write(tmp_path / "store")
    return Federation.open(tmp_path / "store")


def printed(table: Table) -> list[str]:
    console = Console(width=300)
    with console.capture() as capture:
        console.print(table)
    return [" ".join(line.split()) for line in capture.get().splitlines()]


@pytest.mark.parametrize("row", PAPER.strip().splitlines())
def test_rows_are_those_of_the_paper(row: str, federation: Federation) -> None:
    name, clients, samples, mean, std = row.lower().split()
    source = SourceSpec(name=name, options=WINDOWS)
    statistics = describe(federation)
    lines = printed(sizes_table([("this", source, statistics)]))
    assert f"LEAF's paper, {COUNTED[name]} {clients} {samples} {mean} {std} – –" in lines
    assert "LEAF's paper: all of the data, before it was sampled or divided" in lines
    sentence = (
        f"in LEAF's Table 1 {clients} clients, {samples} {COUNTED[name]}, mean {mean} ± {std}, of all of the data"
    )
    assert any(line.startswith(sentence) for line in printed(statistics_table(statistics, source)))
    note = "LEAF's paper counts comments; here, a long comment is several samples"
    assert (note in lines) == (name == "reddit")


def test_windows_are_not_compared_with_sequences(federation: Federation, tmp_path: Path) -> None:
    statistics = describe(federation)
    found = {}
    for samples in ("sequences", "windows"):
        source = SourceSpec(name="shakespeare", options={"samples": samples})
        row = published_sizes(source)
        tables = sizes_table([("this", source, statistics)]), statistics_table(statistics, source)
        said = ["4,226,158" in " ".join(printed(table)) for table in tables]
        advised = ["as shakespeare samples=windows does" in " ".join(printed(table)) for table in tables]
        assert said == [row is not None] * 2
        assert advised == [row is None] * 2
        federation.manifest = federation.manifest.model_copy(update={"source": source})
        write_statistics([(federation, statistics)], tmp_path / "a.json")
        (entry,) = json.loads((tmp_path / "a.json").read_text())
        assert entry["leaf_table_1"] == (None if row is None else asdict(row))
        found[samples] = entry["leaf_table_1"]
    assert found["sequences"] is None
    assert found["windows"]["counted"] == "windows"
    assert found["windows"]["scope"] == "all of the data, before it was sampled or divided"


def test_federations_that_leaf_does_not_have_have_no_row(federation: Federation) -> None:
    lines = printed(sizes_table([("this", SourceSpec(name="digits"), describe(federation))]))
    assert not any("LEAF" in line for line in lines)
