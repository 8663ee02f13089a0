"""Targets of a benchmark: what was measured, whether it is good enough, and a table of it."""

from __future__ import annotations

from dataclasses import dataclass


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
    from rich.console import Console  # not at the top: measured processes should hold nothing they do not need
    from rich.table import Table

    table = Table(title=title)
    for heading in ("what", "target", "measured", "ok"):
        table.add_column(heading, justify="left" if heading == "what" else "right")
    for row in targets:
        verdict = "[green]yes[/]" if row.ok else "[red]no[/]"
        table.add_row(row.what, f"< {row.target:g} {row.unit}", f"{row.measured:.4g} {row.unit}", verdict)
    console = Console()
    console.print(table)
    console.print(remark)
