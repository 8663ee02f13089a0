"""Tables in UTF-16, as spreadsheets save "Unicode text": read if it is said, and named if it is not."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from fedarena.cli import main


@pytest.mark.parametrize("command", [["import", "--label", "y"], ["import-text", "--text", "t", "--label", "y"]])
@pytest.mark.parametrize("encoding", ["utf-16", "utf-16-le", "utf-32", "unmarked"])
def test_utf16_is_named(tmp_path: Path, command: list[str], encoding: str) -> None:
    rows = ["c,t,y", *(f"a{row % 3},some {row % 4},{row % 2}" for row in range(30))]
    mark = "\ufeff" if encoding == "utf-16-le" else ""
    name_of = {"utf-32": "utf32", "unmarked": "utf-16-le"}.get(encoding, "utf16")
    written = "utf-16-le" if encoding == "unmarked" else encoding
    (tmp_path / "table.csv").write_text(mark + "\n".join(rows), encoding=written)
    name, *options = command
    arguments = [
        "data",
        name,
        str(tmp_path / "table.csv"),
        "--client",
        "c",
        "--output",
        str(tmp_path / "store"),
        *options,
    ]
    refused = CliRunner().invoke(main, arguments)
    assert refused.exit_code == 2
    told = " ".join(refused.output.split())
    assert f"table.csv is text in UTF-{32 if encoding == 'utf-32' else 16}" in told
    assert f"(encoding: {name_of})" in told
    said = ["--encoding", name_of] if name == "import" else [f"encoding={name_of}"]
    assert CliRunner().invoke(main, [*arguments, *said]).exit_code == 0


def test_other_encodings_are_named(tmp_path: Path) -> None:
    rows = ["c,t,y", *(f"a{row % 3},caf\xe9 {row % 4},{row % 2}" for row in range(30))]
    (tmp_path / "table.csv").write_bytes("\n".join(rows).encode("latin1"))
    arguments = ["data", "import-text", str(tmp_path / "table.csv"), "--client", "c", "--text", "t", "--label", "y"]
    refused = CliRunner().invoke(main, [*arguments, "--output", str(tmp_path / "store")])
    assert refused.exit_code == 2
    assert "is not text in utf8; say which encoding it has" in " ".join(refused.output.split())
