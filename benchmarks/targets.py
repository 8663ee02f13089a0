"""Targets of a benchmark: what was measured, whether it is good enough, a table of it, and a file."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class Measurement:
    """Something that should be below a target."""

    what: str
    measured: float
    target: float
    unit: str

    @property
    def ok(self) -> bool:
        return self.measured < self.target


def show_targets(title: str, targets: list[Measurement], remark: str) -> None:
    """Prints a table, and a remark below it."""
    try:
        from rich.console import Console  # not at the top: measured processes should hold nothing they do not need
        from rich.table import Table
    except ImportError:  # on a machine that has torch and numpy alone
        for row in targets:
            print(f"{row.what}: {row.measured:.4g} {row.unit} (< {row.target:g}): {'yes' if row.ok else 'no'}")
        print(remark)
        return

    table = Table(title=title)
    for heading in ("what", "target", "measured", "ok"):
        table.add_column(heading, justify="left" if heading == "what" else "right")
    for row in targets:
        verdict = "[green]yes[/]" if row.ok else "[red]no[/]"
        table.add_row(row.what, f"< {row.target:g} {row.unit}", f"{row.measured:.4g} {row.unit}", verdict)
    console = Console()
    console.print(table)
    console.print(remark)


def conclude(
    targets: list[Measurement], facts: dict[str, Any], environment: dict[str, Any], output: Path | None
) -> int:
    """Writes everything to `output`, if it is given; the exit code of the benchmark."""
    if output:
        rows = [{**asdict(row), "ok": row.ok} for row in targets]
        content = {"targets": rows, "facts": facts, "environment": environment}
        output.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
    return 0 if all(row.ok for row in targets) else 1
