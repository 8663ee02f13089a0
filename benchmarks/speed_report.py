"""What the speed benchmark tells: everything here is computed from the measured file and from nothing else."""

from __future__ import annotations

import statistics
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import plotly.graph_objects as go

from fedarena.display.drawing.style import SERIES_LIGHT, empty_figure
from tools import FLOWER, OURS, PEERS, TOOLS
from workloads import EQUAL_OF_RAGGED

Results = dict[str, Any]  # the content of speed.json
RAGGED = "ragged"
RAGGED_TARGET = 0.7
# How far a tool's progress in the loss may be from ours, when only the order of samples differs.
LOSS_TOLERANCE = 0.1

_INTRODUCTION = """# Speed

<!-- Written by benchmarks/speed.py from docs/benchmarks/speed.json; do not edit. -->

`make bench-speed` runs the same work with FedArena and with three other simulators on this machine's CPU cores, in
turn, and compares how many clients they train in a second. Each peer has an environment of its own with pinned
versions.

All 50 clients take part in every round: 50 samples each, batches of 10, one epoch of plain SGD, then federated
averaging weighted by samples. *Ragged* clients have log-normal sizes (sigma 2, 50 samples on average): the largest has
{largest_share:.0%} of all samples. Everybody starts from the same parameters. The first three rounds, which compile and
start workers, are not measured; the loss on all training samples after them shows that everybody did the same work.

Each peer is used through its public interface, at the fastest setting found:

- **pfl-research**: `SimulatedBackend`, one process with one thread per core, no evaluation; clients are not shared out
  by size. It does not shuffle a client's samples.
- **FedJAX**: `federated_averaging` with the backend `jit`, which compiles a step and uses all cores for one client, and
  with the backend `pmap`, where every core trains clients of its own; that one needs an older jax. The last batch of a
  client is filled up with further samples, which do not count.
- **Flower**: `run_simulation` with `FedAvg`, on Ray with one worker and one thread per core.
- **FedArena**: the simulation loop on a federation, with the default engine; *one client at a time* is its reference
  engine.
"""


_MEMORY = """What each tool takes at its peak, with all processes that it starts, in a run of its own that is not timed.
Libraries that several of these processes use are counted once."""


def introduction(largest_share: float) -> str:
    """What is measured and how."""
    return _INTRODUCTION.format(largest_share=largest_share)


def values_of(results: Results, workload: str, tool: str, key: str) -> list[float]:
    """What every repetition measured."""
    return [run[key] for run in results["runs"] if (run["workload"], run["peer"]) == (workload, tool)]


def median_of(results: Results, workload: str, tool: str, key: str) -> float | None:
    """The median over the repetitions; None if the tool did not run."""
    values = values_of(results, workload, tool, key)
    return statistics.median(values) if values else None


def workloads_of(results: Results) -> list[str]:
    """Those that were measured, in their usual order."""
    return [name for name in results["workloads"] if any(run["workload"] == name for run in results["runs"])]


def tools_of(results: Results) -> list[str]:
    """Those that were measured, in their usual order."""
    return [name for name in TOOLS if any(run["peer"] == name for run in results["runs"])]


def ratio(results: Results, workload: str, others: Iterable[str]) -> float | None:
    """How many times as fast as the fastest of others FedArena is."""
    ours = median_of(results, workload, OURS, "clients_per_second")
    speeds = [median_of(results, workload, tool, "clients_per_second") for tool in others]
    measured = [speed for speed in speeds if speed is not None]
    return ours / max(measured) if ours is not None and measured else None


def speed_table(results: Results) -> list[list[str]]:
    """Clients per second, and how many times as fast FedArena is; the first row is the heading."""
    tools = tools_of(results)
    heading = [
        "clients per second",
        *(TOOLS[tool].label for tool in tools),
        "FedArena / best peer",
        "FedArena / Flower",
    ]
    rows = [
        [
            workload,
            *(_number(median_of(results, workload, tool, "clients_per_second")) for tool in tools),
            _times(ratio(results, workload, PEERS)),
            _times(ratio(results, workload, [FLOWER])),
        ]
        for workload in workloads_of(results)
    ]
    return [heading, *rows]


def loss_table(results: Results) -> list[list[str]]:
    """The training losses after the same number of rounds, and whether they show the same work."""
    tools = tools_of(results)
    rows = []
    for workload in workloads_of(results):
        runs = [run for run in results["runs"] if run["workload"] == workload]
        losses = [median_of(results, workload, tool, "final_loss") for tool in tools]
        verdict = "yes" if losses_agree(results, workload) else "NO"
        shown = ["–" if loss is None else f"{loss:.4f}" for loss in losses]
        rows.append([workload, f"{runs[0]['initial_loss']:.4f}", *shown, verdict])
    return [["training loss", "at the start", *(TOOLS[tool].label for tool in tools), "agree"], *rows]


def losses_agree(results: Results, workload: str) -> bool:
    """Whether all tools started alike and came about as far."""
    runs = [run for run in results["runs"] if run["workload"] == workload]
    starts = [run["initial_loss"] for run in runs]
    progress = [run["initial_loss"] - run["final_loss"] for run in runs]
    usual = statistics.median(progress)
    same_start = max(starts) - min(starts) <= 1e-3 * abs(starts[0])
    return same_start and usual > 0 and all(abs(p - usual) <= LOSS_TOLERANCE * usual for p in progress)


def ragged_table(results: Results) -> list[list[str]]:
    """Samples per second with clients of equal and of very different sizes."""
    rows = []
    for tool in tools_of(results):
        equal, ragged = (median_of(results, name, tool, "samples_per_second") for name in (EQUAL_OF_RAGGED, RAGGED))
        share = "–" if equal is None or ragged is None else f"{ragged / equal:.0%}"
        rows.append([TOOLS[tool].label, _number(equal), _number(ragged), share])
    return [["samples per second", "equal sizes", "ragged sizes", "kept"], *rows]


def memory_table(results: Results) -> list[list[str]]:
    """What tools and all their processes took at their peak, in GiB."""
    tools, peaks = tools_of(results), results["peak_bytes"]
    rows = []
    for workload in workloads_of(results):
        found = [peaks.get(workload, {}).get(tool) for tool in tools]
        rows.append([workload, *("–" if peak is None else f"{peak / 2**30:.2f}" for peak in found)])
    return [["GiB at the peak", *(TOOLS[tool].label for tool in tools)], *rows]


def ragged_share(results: Results) -> float | None:
    """The part of FedArena's samples per second that ragged clients leave."""
    equal, ragged = (median_of(results, name, OURS, "samples_per_second") for name in (EQUAL_OF_RAGGED, RAGGED))
    return None if equal is None or ragged is None else ragged / equal


def spread(results: Results) -> float:
    """The largest relative difference between repetitions of the same measurement."""
    widest = 0.0
    for workload in workloads_of(results):
        for tool in tools_of(results):
            speeds = [
                r["clients_per_second"] for r in results["runs"] if (r["workload"], r["peer"]) == (workload, tool)
            ]
            if speeds:
                widest = max(widest, (max(speeds) - min(speeds)) / statistics.median(speeds))
    return widest


def render_page(results: Results | None, largest_share: float, picture: bool) -> str:
    """The page of the documentation, as Markdown."""
    page = introduction(largest_share)
    if results is None:
        return page + "\nNo measurement is part of this version.\n"
    environment = results["environment"]
    hardware = environment["hardware"]
    memory = hardware["memory_bytes"]
    in_memory = f", {memory / 2**30:.0f} GiB of memory" if memory else ""
    page += f"""
## Results

Measured on {environment["started"][:10]} with `{results["command"]}`
on {hardware["cores"]} cores of {hardware["processor"]}{in_memory}; medians of {results["repetitions"]} repetitions,
which differ by at most {spread(results):.0%}. All numbers: [speed.json](benchmarks/speed.json).
"""
    for failure in results["failures"]:
        page += f"\n{TOOLS[failure['peer']].label} failed in one repetition of *{failure['workload']}*.\n"
    if remark := results.get("remark"):  # by whoever looked at the numbers
        page += f"\n{remark}\n"
    if picture:
        page += "\n![Clients per second of every tool on every workload](images/speed.svg)\n"
    page += f"\n{_markdown(speed_table(results))}\n"
    described = [f"- *{name}*: {results['workloads'][name]}" for name in workloads_of(results)]
    page += "\n" + "\n".join(described) + "\n"
    if ragged_share(results) is not None:
        page += f"\n## Clients of very different sizes\n\n{_markdown(ragged_table(results))}\n"
    if results.get("peak_bytes"):
        page += f"\n## Memory\n\n{_MEMORY}\n\n{_markdown(memory_table(results))}\n"
    page += f"\n## Did everybody do the same work?\n\n{_markdown(loss_table(results))}\n"
    page += f"\n## Versions\n\n{_markdown(version_table(results))}\n"
    return page


def version_table(results: Results) -> list[list[str]]:
    """The tools with their versions and settings."""
    environment = results["environment"]["versions"]
    rows = []
    for tool in tools_of(results):
        run = next(run for run in results["runs"] if run["peer"] == tool)
        setting = run.get("setting") or f"torch {environment['torch']}, Python {environment['python']}"
        rows.append([TOOLS[tool].label, str(run["version"]), setting])
    return [["tool", "version", "with"], *rows]


def draw(results: Results) -> go.Figure:
    """Clients per second of every tool on every workload, on a logarithmic axis."""
    figure = empty_figure("Clients trained per second", "", "clients per second (logarithmic)")
    workloads = workloads_of(results)
    for tool, colour in zip([name for name in TOOLS if name in tools_of(results)], SERIES_LIGHT, strict=False):
        speeds = [median_of(results, workload, tool, "clients_per_second") for workload in workloads]
        figure.add_bar(
            x=workloads, y=speeds, name=TOOLS[tool].label, marker_color=colour, text=[_number(s) for s in speeds]
        )
    figure.update_traces(textposition="outside", textfont={"size": 10}, cliponaxis=False)
    figure.update_yaxes(type="log", dtick=1)
    figure.update_layout(barmode="group", bargroupgap=0.05)
    return figure


def show(results: Results) -> None:
    """Prints the tables."""
    from rich.console import Console
    from rich.table import Table

    console = Console()
    if not console.is_terminal:
        console = Console(width=140)  # a file has room for the headings
    tables = [speed_table(results), loss_table(results)]
    if ragged_share(results) is not None:
        tables.insert(1, ragged_table(results))
    if results.get("peak_bytes"):
        tables.append(memory_table(results))
    for heading, *rows in tables:
        table = Table()
        for position, column in enumerate(heading):
            table.add_column(column, justify="right" if position else "left")
        for row in rows:
            table.add_row(*row)
        console.print(table)
    share = ragged_share(results)
    if share is not None:
        verdict = "reached" if share >= RAGGED_TARGET else "missed"
        console.print(
            f"FedArena keeps {share:.0%} with ragged clients; the target of {RAGGED_TARGET:.0%} is {verdict}."
        )
    for failure in results["failures"]:
        console.print(
            f"{TOOLS[failure['peer']].label} failed on {failure['workload']}: {failure['reason']}", markup=False
        )


def _number(value: float | None) -> str:
    if value is None:
        return "–"
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def _times(value: float | None) -> str:
    return "–" if value is None else f"{value:.2f}x" if value < 10 else f"{value:.0f}x"


def _markdown(table: list[list[str]]) -> str:
    heading, *rows = table
    rule = ["---", *("---:" for _ in heading[1:])]
    return "\n".join(f"| {' | '.join(row)} |" for row in [heading, rule, *rows])


def picture_path(docs: Path) -> Path:
    """Where the picture of a documentation folder belongs."""
    return docs / "images" / "speed.svg"
