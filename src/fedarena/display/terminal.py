"""Tables for the terminal."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from rich import box
from rich.table import Table

from fedarena.analysis.distinct import distinct_runs, left_out_lines
from fedarena.analysis.leading_metric import baseline_of, leading_metrics
from fedarena.core.console import as_markup, titled_table
from fedarena.core.registry import Registry
from fedarena.display import FinalTable, final_table
from fedarena.display.drawing.metrics import as_title, score_text
from fedarena.display.drawing.units import ABSENT, BITS_PER_SECOND, SECONDS, Scale, count, fitting_unit, significant
from fedarena.display.fleets.heterogeneity import confidence_text, estimate_text
from fedarena.display.fleets.picture import compute_column, distribution_of, network_columns, percent, phones_text
from fedarena.display.report.cautions import cautions
from fedarena.display.report.classes.section import shown_classes
from fedarena.display.report.classes.table import ClassTable, class_tables
from fedarena.display.report.policy.told import policy_sentence
from fedarena.display.report.tables.differences import differences_of, short_lines
from fedarena.display.report.tables.few_clients import NamedClients, named_clients
from fedarena.display.report.tables.final_columns import OTHER
from fedarena.display.report.tables.reach import in_order
from fedarena.fleet.heterogeneity import Heterogeneity
from fedarena.metrics.class_strata import STRATA
from fedarena.storage.run_data import RunData

# Columns of the table of scores, in the order in which they get room on a narrow screen.
_BY_IMPORTANCE = (
    *(
        "score",
        "status",
        "epsilon",
        "attack_success",
        "personal",
        "time_to",
        "virtual_time",
        "failed",
        "by_client",
        "worst_decile",
    ),
    *(
        "wasted",
        "loss",
        OTHER,
        "time",
        "traffic",
        "real_traffic",
        "energy",
        "compute",
        "personal_by_client",
        "personal_worst_decile",
    ),
    *("p10", "p90", "over_baseline", "seeds", "clients_per_second"),
)
_SHORTEST_LABEL = 8
_LONGEST_CLASS = 30
_COUNT_WIDTH = 11  # of a column with numbers of samples
# With fewer invitations of each client, chance alone keeps metrics of participation below 1.
FEW_PARTICIPATIONS = 10


def scores_tables(results: Sequence[RunData], width: int, levels: Sequence[float] | None = None) -> list[Table]:
    """The final scores, a table for every metric that runs lead with; `levels` are of the first of them."""
    leading = leading_metrics(results)
    levels = None if levels is None else in_order(levels, leading[0])
    return [
        scores_table(final_table(results, metric, levels if number == 0 else None), width)
        for number, metric in enumerate(leading)
    ]


def scores_table(found: FinalTable, width: int) -> Table:
    """The final scores, one method per row, with as many columns as fit into `width` characters."""
    rows, known = found.rows, found.columns
    cells = [[column.text(row) for row in rows] for column in known]
    titles = [column.title.replace(" to ", "\nto ") for column in known]
    widths = [max(map(len, [*title.split("\n"), *texts])) + 3 for title, texts in zip(titles, cells, strict=True)]
    all_finished = all(row.status == "finished" for row in rows)
    needed = {"score"} if all_finished else {"score", "status"}
    room_for_labels = width - 4 - sum(size for column, size in zip(known, widths, strict=True) if column.key in needed)
    labels = [_shortened(row.label, max(_SHORTEST_LABEL, room_for_labels)) for row in rows]
    room = width - 4 - max(map(len, labels))
    shown = []
    for place in sorted(range(len(known)), key=lambda place: _BY_IMPORTANCE.index(known[place].key)):
        if known[place].key == "status" and all_finished:
            continue
        room -= widths[place]
        if room < 0 and known[place].key not in needed:
            break
        shown.append(place)
    table = Table(box=box.SIMPLE_HEAD)
    table.add_column("method", style="bold", no_wrap=True)
    for place in sorted(shown):
        table.add_column("\n".join(map(as_markup, titles[place].split("\n"))), justify="right", no_wrap=True)
    for number, row in enumerate(rows):
        texts = []
        for place in sorted(shown):
            text = as_markup(cells[place][number])
            texts.append(f"[bold green]{text}[/]" if row.label in known[place].best(rows) else text)
        table.add_row(as_markup(labels[number]), *texts)
    return table


def clients_tables(results: Sequence[RunData], width: int) -> list[Table]:
    """Every client by its name and who is worst, where they are few; a table for every metric that runs lead with."""
    return [
        _clients_table(found, width)
        for metric in leading_metrics(results)
        if (found := named_clients(results, metric)) is not None
    ]


def _clients_table(found: NamedClients, width: int) -> Table:
    metric = found.metric
    table = titled_table(f"{as_title(metric)} of every client")
    room = max(_SHORTEST_LABEL, (width - 30) // len(found.labels) - 3)
    table.add_column("client", style="bold", overflow="fold")
    table.add_column("samples", justify="right", no_wrap=True)
    for label in found.labels:
        table.add_column(as_markup(_shortened(label, room)), justify="right", overflow="fold")
    worst = {label: found.worst(label) for label in found.labels}
    for client in found.clients:
        cells = []
        for label in found.labels:
            score = client.scores[label]
            text = ABSENT if score is None else score_text(metric, score.mean, score.std)
            cells.append(f"[bold red]{text}[/]" if client is worst[label] else text)
        table.add_row(as_markup(client.name), f"{client.samples:,}", *cells)
    names = [ABSENT if client is None else as_markup(client.name) for client in worst.values()]
    table.add_row("worst client", "", *names, style="bold")
    return table


def class_tables_of(
    results: Sequence[RunData], width: int, metric: str | None = None, most: int | None = None
) -> list[Table]:
    """A score of every class under every method, the most frequent class first; of many, both ends."""
    return [_class_table(found, width, most) for found in class_tables(results, metric)]


def _class_table(found: ClassTable, width: int, most: int | None) -> Table:
    number = len(found.names)
    places = shown_classes(number, most or number)
    thirds = {"all": found.everything} | {stratum: found.stratum(stratum) for stratum in STRATA}
    means = {f"{title}: mean of {int(chosen.sum()):,}": chosen for title, chosen in thirds.items()}
    names = max(map(len, [*means, *(found.names[place] for place in places)]))
    room = width - min(names, _LONGEST_CLASS) - 4
    label_room = max(_SHORTEST_LABEL, room // max(len(found.methods), 1) - 3)
    labels = [_shortened(label, label_room) for label in found.methods]
    room -= sum(max(len(label), _SHORTEST_LABEL) + 3 for label in labels)
    counts: dict[str, Sequence[int | None]] = {
        "training": found.train_samples,
        "clients": found.clients,
        "samples": found.samples,
    }
    counts = dict(list(counts.items())[: max(0, room // _COUNT_WIDTH)])  # as many as there is room for
    table = titled_table(f"{as_title(found.metric)} of every class, the most frequent first")
    table.add_column("class", style="bold", overflow="fold", max_width=_LONGEST_CLASS)
    for title in (*counts, *map(as_markup, labels)):
        table.add_column(title, justify="right", no_wrap=True)
    scores = [method.means for method in found.methods.values()]
    before = -1
    for place in places:
        if place != before + 1:
            table.add_row(f"… {place - before - 1:,} more", style="dim")
        before = place
        sizes = [ABSENT if (size := column[place]) is None else f"{size:,}" for column in counts.values()]
        values = [score_text(found.metric, float(each[place])) for each in scores]
        table.add_row(as_markup(found.names[place]), *sizes, *values)
    table.add_section()
    for title, chosen in means.items():
        spreads = [method.spread(chosen) for method in found.methods.values()]
        values = [ABSENT if spread is None else score_text(found.metric, spread.mean) for spread in spreads]
        table.add_row(title, *[""] * len(counts), *values, style="bold")
    return table


def caution_lines(results: Sequence[RunData]) -> list[str]:
    """What changes the meaning of the results, and which of them are left out."""
    return [*cautions(distinct_runs(results)), *left_out_lines(results)]


def difference_lines(results: Sequence[RunData]) -> list[str]:
    """Which methods are told apart, in a line for each metric that runs lead with."""
    return [
        line
        for metric in leading_metrics(results)
        for found in differences_of(results, metric)
        for line in short_lines(found)
    ]


def baselines(results: Sequence[RunData]) -> list[str]:
    """What knowing nothing would score, one line per federation; where it differs, with the methods it is for."""
    lines: dict[str, dict[str, None]] = {}
    for metric in leading_metrics(results):
        for result in results:
            if (baseline := baseline_of(result, metric)) is not None:
                score, rule = baseline
                line = f"Baseline, {rule}: {metric.label} {score_text(metric, score)}"
                lines.setdefault(line, {})[result.label] = None
    if len(lines) < 2:
        return list(lines)
    return [f"{line} ({', '.join(labels)})" for line, labels in lines.items()]


def policy_lines(results: Sequence[RunData]) -> list[str]:
    """What policies found to be the best hyperparameters, a line for each run that has one."""
    told = [(run, sentence) for run in results if (sentence := policy_sentence(run)) is not None]
    return [sentence if len(results) == 1 else f"{run.name}: {sentence}" for run, sentence in told]


def fleet_table(fleet: Mapping[str, Any]) -> Table:
    """How fast the phones of a fleet are and when they are available, from what `describe_fleet` found."""
    slots, speeds = fleet["slots"], fleet["speeds"]
    table = titled_table(
        as_markup(f"{fleet['name']}: {count(fleet['clients'], 'client')} with {phones_text(fleet)}"),
        f"{percent(slots['never_available_share'])} of the clients are never available, "
        f"{percent(slots['always_available_share'])} always",
    )
    table.add_column("", style="bold", no_wrap=True)
    for title in ("mean", "p10", "median", "p90", "p90/p10"):
        table.add_column(title, justify="right", no_wrap=True)

    def add(name: str, distribution: Mapping[str, Any], scale: Scale | None = None) -> None:
        values = [distribution["mean"], *(distribution["percentiles"][p] for p in ("10", "50", "90"))]
        factor, unit = (1.0, "") if scale is None or values[2] is None else fitting_unit(values[2], scale)
        numbers = [ABSENT if value is None else significant(value / factor) for value in values]
        low, high = values[1], values[3]
        ratio = significant(high / low) if low and high else ABSENT
        table.add_row(f"{name} ({unit})" if unit else name, *numbers, ratio)

    add("time available", fleet["shares"], ((0.01, "%"),))
    if sum(slots["histogram"]["counts"]):
        add("slots a day", slots["per_day"])
        add("slot length", slots["seconds"], SECONDS)
    compute, what, scale = compute_column(speeds)
    add(what, distribution_of(compute), scale)
    for name, column in network_columns(speeds).items():
        add(name, distribution_of(column), BITS_PER_SECOND)
    return table


def heterogeneity_tables(name: str, found: Heterogeneity) -> list[Table]:
    """How hard a fleet is: the six metrics, and apart from them how slow and absent clients are, and how different."""
    options, devices, states = found.options, found.devices, found.states
    metrics = _described(
        as_markup(f"{name}: heterogeneity for {count(found.clients, 'client')}"),
        f"-R: how often and evenly clients meet a deadline of {options.deadline_seconds:g} s, 1 is ideal\n"
        f"-T: time for {options.trips:,} updates, in multiples of the breaks of {options.break_seconds:g} s\n"
        + count(options.repetitions, "repetition")
        + (f", ± for {confidence_text(found)} confidence" if options.repetitions > 1 else ""),
        ("metric", "value", "harder is", "simulated with"),
    )
    simulated = {"DevMC": "devices alone", "StatMC": "availability alone", "InterMC": "devices and availability"}
    for ending, harder in (("R", "lower"), ("T", "higher")):
        for kind, what in simulated.items():
            estimate = found.metrics[f"{kind}-{ending}"]
            metrics.add_row(f"{kind}-{ending}", estimate_text(estimate), harder, what)
    if found.ideal_participation < FEW_PARTICIPATIONS:
        metrics.caption = (
            f"{metrics.caption}\nA client is invited {significant(found.ideal_participation)} times on average: "
            "too few rounds for metrics that end in -R, which stay below 1 even where all clients are alike."
        )
    spread = _described(
        "How slow and absent clients are, and how different", "", ("", "on average", "differences", "what that is")
    )
    spread.add_row(
        "time for a round",
        f"{significant(devices.mean_seconds)} s",
        f"± {percent(devices.variation)}",
        f"{significant(devices.to_deadline)} times the deadline; p90/p10 {significant(devices.p90_to_p10)}; "
        f"one client from round to round ± {percent(devices.variation_within)}",
    )
    spread.add_row(
        "time available",
        percent(states.mean_share),
        f"Gini {significant(states.gini_share)}",
        f"{percent(states.never_share)} of the clients are never available",
    )
    spread.add_row(
        "single-state metric",
        significant(states.mean_metric),
        f"Gini {significant(states.gini_metric)}",
        "of the ideal participation, at most 1 (ST-Client-Ratio)",
    )
    return [metrics, spread]


def _described(title: str, caption: str, columns: Sequence[str]) -> Table:
    table = titled_table(title, caption)
    for number, column in enumerate(columns):
        table.add_column(column, style="bold" if number == 0 else None, no_wrap=number < 2)
    return table


def parts_table(kind: str, registry: Registry[Any], told: Mapping[str, str] | None = None) -> Table:
    """The parts of one kind with their options and defaults, and what else is `told` of them."""
    rows = []
    for name in registry.names():
        part = registry.get(name)
        summary = (inspect.getdoc(part) or "").partition("\n\n")[0].replace("\n", " ")
        more = (told or {}).get(name, "")
        rows.append((name, summary, "\n".join(line for line in (_options(part), more) if line)))
    return names_table(kind, rows)


def names_table(kind: str, rows: Sequence[tuple[str, str, str]]) -> Table:
    """Names, what they are, and (dimmed) a line of detail."""
    table = Table(
        title=kind, title_justify="left", title_style="bold", show_header=False, box=None, padding=(0, 2, 0, 0)
    )
    for name, summary, detail in rows:
        lines = [as_markup(summary), *(f"[dim]{as_markup(line)}[/]" for line in detail.splitlines())]
        table.add_row(f"  [bold cyan]{as_markup(name)}[/]", "\n".join(lines))
    return table


def _options(part: Callable[..., Any]) -> str:
    options = [p for p in inspect.signature(part).parameters.values() if p.kind is p.KEYWORD_ONLY]
    return "  ".join(p.name if p.default is p.empty else f"{p.name}={_value(p.default)}" for p in options)


def _value(default: Any) -> Any:
    return default["name"] if isinstance(default, dict) and "name" in default else default


def _shortened(label: str, length: int) -> str:
    """A label without its middle, where it is too long: labels start with the algorithm and end with what differs."""
    if len(label) <= length:
        return label
    tail = (length - 1) // 2
    return f"{label[: length - 1 - tail]}…{label[len(label) - tail :]}"
