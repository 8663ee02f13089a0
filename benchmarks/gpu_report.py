"""Writes the documentation's page about speed on a GPU from what ``benchmarks/gpu_speed.py`` measured.

    python benchmarks/gpu_report.py

Everything is computed from docs/benchmarks/gpu_speed.json and from nothing else.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import plotly.graph_objects as go

from fedarena.display.drawing.style import SERIES_LIGHT, empty_figure

DOCS = Path(__file__).parent.parent / "docs"
MEASURED = DOCS / "benchmarks" / "gpu_speed.json"
LABELS = {"ours": "FedArena", "one_at_a_time": "one client at a time", "pfl": "pfl-research", "limit": "central limit"}


def render_page(results: dict[str, Any]) -> str:
    """The page, as Markdown."""
    return f"""# Speed on a GPU

<!-- Written by benchmarks/gpu_report.py from docs/benchmarks/gpu_speed.json; do not edit. -->

Many clients train as rows of stacked tensors, one captured and compiled graph per step, with their samples on the GPU.
Beside it, in the same run: plain torch training *one client at a time*; pfl-research, which does the same with its own
loop; and a *limit*, the same model trained centrally on as many samples in batches of 1,024 or 4,096 with plain torch.
On small models the limit waits for Python and is no limit at all. "5 x 10" is the work of a client: 5 steps of 10
samples; "ragged" is as much on average, in clients of log-normal sizes (sigma 2). Both plain torch baselines use
cuDNN's LSTM.

Measured on {results["date"]} with `{results["command"]}` on one {results["gpu"]}, torch {results["versions"]["torch"]};
{results["unit"]}. All numbers: [gpu_speed.json](benchmarks/gpu_speed.json).

![Clients per second on a GPU](images/gpu_speed.svg)

{_table(results["rows"])}
{_other_runs(results["rows"])}"""


def _other_runs(rows: list[dict[str, Any]]) -> str:
    """What the rows that are marked were measured with."""
    others = {
        mark: f"{mark} Measured on {date} with `{command}`." for mark, date, command in map(_own_run, rows) if mark
    }
    return "\n" + "\n".join(others.values()) + "\n" if others else ""


def _own_run(row: dict[str, Any]) -> tuple[str, str, str]:
    """The mark of a row that has a date and a command of its own, and both."""
    return (row["mark"], row["date"], row["command"]) if "mark" in row else ("", "", "")


def _table(rows: list[dict[str, Any]]) -> str:
    heading = ["clients per second", "cohort", *LABELS.values(), "of the limit", "times one at a time", "times pfl"]
    lines = [heading, ["---", *("---:" for _ in heading[1:])]]
    for row in rows:
        ours = row["ours"]
        speeds = [f"{row[key]:,.0f}" if key in row else "–" for key in LABELS]
        times = [f"{ours / row[key]:.0f}x" if key in row else "–" for key in ("one_at_a_time", "pfl")]
        name = f"{row['case']} {_own_run(row)[0]}".strip()
        lines.append([name, f"{row['cohort']:,}", *speeds, f"{ours / row['limit']:.0%}", *times])
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def draw(results: dict[str, Any]) -> go.Figure:
    """Clients per second of everybody on every case, on a logarithmic axis."""
    figure = empty_figure("Clients trained per second on one GPU", "", "clients per second (logarithmic)")
    for (key, label), colour in zip(LABELS.items(), SERIES_LIGHT, strict=False):
        rows = [row for row in results["rows"] if key in row]
        figure.add_bar(x=[row["case"] for row in rows], y=[row[key] for row in rows], name=label, marker_color=colour)
    figure.update_yaxes(type="log", dtick=1)
    figure.update_layout(barmode="group", bargroupgap=0.05)
    return figure


def main() -> None:
    """Writes the page and the picture."""
    results = json.loads(MEASURED.read_text(encoding="utf-8"))
    (DOCS / "speed_gpu.md").write_text(render_page(results), encoding="utf-8")
    draw(results).write_image(DOCS / "images" / "gpu_speed.svg", width=1000, height=480)


if __name__ == "__main__":
    main()
