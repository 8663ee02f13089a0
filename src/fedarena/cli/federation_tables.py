"""Federations on the screen: one of them in full, several as rows of LEAF's Table 1."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rich import box
from rich.table import Table

from fedarena.core.console import as_markup, titled_table
from fedarena.data.statistics.describe import FederationStatistics
from fedarena.data.statistics.label_statistics import LabelStatistics
from fedarena.data.statistics.table1 import counting_note, published_sizes
from fedarena.data.store.schema import SourceSpec
from fedarena.display.drawing.units import ABSENT, count, significant
from fedarena.display.federations.frequencies import RARE
from fedarena.display.fleets.picture import percent

_MOST_NAMES = 12  # of inputs that are listed


def statistics_table(statistics: FederationStatistics, source: SourceSpec) -> Table:
    """Who is in a federation."""
    table = Table(box=box.SIMPLE_HEAD, show_header=False)
    table.add_column(style="bold")
    table.add_column()
    sizes, labels = statistics.sizes, statistics.labels
    table.add_row("federation", as_markup(f"{statistics.name} ({statistics.task.replace('_', ' ')})"))
    clients = _by_group(statistics.num_clients, statistics.clients_by_group)
    if untested := statistics.clients_without_test:
        clients += f", of whom {untested:,} {'has' if untested == 1 else 'have'} no test samples"
    table.add_row("clients", clients)
    parts: dict[str, int] = {}
    for by_part in statistics.samples_by_group_and_part.values():
        for part, samples in by_part.items():
            parts[part] = parts.get(part, 0) + samples
    table.add_row("samples", _by_group(statistics.num_samples, parts))
    table.add_row(
        "samples per client",
        f"mean {sizes.mean:,.1f} ± {sizes.std:,.1f}, median {sizes.median:,.0f}, "
        f"from {sizes.min:,} to {sizes.max:,}, skewness {sizes.skewness:.2f}",
    )
    table.add_row("", ", ".join(f"p{p} {sizes.percentiles[p]:,.0f}" for p in (10, 25, 75, 90, 99)))
    table.add_row("", f"the largest {percent(sizes.half_share)} of the clients have half of the samples")
    if (published := published_sizes(source)) is not None:
        table.add_row(
            f"in {published.paper}'s {published.table}",
            f"{count(published.clients, 'client')}, {published.samples:,} {published.counted}, "
            + (f"mean {published.mean:,} ± {published.std:,}, " if published.mean is not None else "")
            + f"of {published.scope}",
        )
    if (difference := counting_note(source)) is not None:
        table.add_row("", as_markup(difference))
    for name, column in statistics.columns.items():
        shape = f" of shape {list(column.shape)}" if column.shape else ""
        kept = f", stored as {column.encoding.upper()} files" if column.encoding else ""
        names = column.names or ()
        listed = f" ({', '.join(names[:_MOST_NAMES])}{', …' if len(names) > _MOST_NAMES else ''})" if names else ""
        table.add_row("column", as_markup(f"{name}: {column.dtype}{shape}{kept}{listed}"))
    _add_labels(table, labels, statistics.task == "multi_label")
    if (pixels := statistics.pixels) is not None:
        label = label_text(labels.names, pixels.label)
        table.add_row(
            "pixels",
            f"{pixels.distances.mean:.4f} mean earth mover's distance of a client's pixels to all "
            f"({pixels.distances_by_chance.mean:.4f} would be chance)",
        )
        table.add_row(
            "", as_markup(f"in {count(pixels.images, 'picture')} of label {label} of {count(pixels.clients, 'client')}")
        )
    for name, attribute in statistics.attributes.items():
        common = ", ".join(f"{value} ({number:,})" for value, number in attribute.most_common[:3])
        table.add_row("attribute", as_markup(f"{name}: {count(attribute.distinct, 'value')}, most common {common}"))
    return table


def _add_labels(table: Table, labels: LabelStatistics, multi_label: bool) -> None:
    order = sorted(range(len(labels.counts)), key=lambda label: -labels.counts[label])
    total = max(1, int(labels.counts.sum()))
    top = [f"{label_text(labels.names, label)} {labels.counts[label] / total:.1%}" for label in order[:6]]
    table.add_row("labels", as_markup(f"{len(labels.counts)}, most frequent: {', '.join(top)}"))
    if multi_label and labels.samples:
        _add_frequencies(table, labels, order)
    table.add_row(
        "label skew",
        f"{labels.mean_distance:.3f} mean total-variation distance of a client's labels to all clients' "
        f"({labels.mean_distance_by_chance:.3f} would be chance)",
    )
    if (pairs := labels.pairs) is not None:
        table.add_row(
            "",
            f"{pairs.distances.mean:.3f} mean Jensen–Shannon distance of two clients' labels "
            f"({pairs.distances_by_chance.mean:.3f} would be chance)",
        )
        table.add_row("", f"in {count(pairs.pairs, 'pair')} of {count(pairs.clients, 'client')}")


def _add_frequencies(table: Table, labels: LabelStatistics, order: Sequence[int]) -> None:
    """How many samples and clients have the most and the least common label, as FLAIR's paper says it."""
    for name, label in (("most common", order[0]), ("least common", order[-1])):
        table.add_row(
            "label frequency" if label == order[0] else "",
            as_markup(
                f"{name}: {label_text(labels.names, label)}, in {percent(labels.counts[label] / labels.samples)} of "
                f"the samples and at {percent(labels.clients_with[label] / labels.clients)} of the clients"
            ),
        )
    if rare := int((labels.clients_with < RARE * labels.clients).sum()):
        table.add_row("", f"{rare:,} of {count(len(order), 'label')} at fewer than {RARE:.1%} of the clients")


def sizes_table(found: Sequence[tuple[str, SourceSpec, FederationStatistics]]) -> Table:
    """LEAF's Table 1 for federations, each given with its title and its source; below is what LEAF's paper says."""
    rows = [(title, statistics, published_sizes(source)) for title, source, statistics in found]
    captions = ["half: this share of the clients, the largest first, have half of the samples"]
    scopes = {published.paper: published.scope for _, _, published in rows if published is not None}
    captions += [f"{paper}'s paper: {scope}" for paper, scope in scopes.items()]
    captions += dict.fromkeys(difference for _, source, _ in found if (difference := counting_note(source)) is not None)
    columns = ("federation", "clients", "samples", "mean", "stdev", "skew", "half")
    table = _titled("Samples per client", "\n".join(captions), columns)
    for title, statistics, published in rows:
        sizes = statistics.sizes
        table.add_row(
            as_markup(title),
            f"{statistics.num_clients:,}",
            f"{statistics.num_samples:,}",
            f"{sizes.mean:,.2f}",
            f"{sizes.std:,.2f}",
            f"{sizes.skewness:.2f}",
            percent(sizes.half_share),
        )
        if published is not None:
            means = (ABSENT if value is None else f"{value:,}" for value in (published.mean, published.std))
            numbers = (f"{published.clients:,}", f"{published.samples:,}", *means)
            table.add_row(f"  {published.paper}'s paper, {published.counted}", *numbers, ABSENT, ABSENT, style="dim")
    return table


def differences_table(found: Mapping[str, FederationStatistics]) -> Table:
    """How much clients differ in their labels and pictures, for federations by their titles."""
    table = _titled(
        "How clients differ",
        "labels of two clients: mean Jensen–Shannon distance, at most 1\n"
        "pixels: mean earth mover's distance of a client's to all, at most 1",
        ("federation", "labels", "by chance", "pixels", "by chance"),
    )
    for title, statistics in found.items():
        pairs, pixels = statistics.labels.pairs, statistics.pixels
        cells = []
        for one in (pairs, pixels):
            means = (None, None) if one is None else (one.distances.mean, one.distances_by_chance.mean)
            cells += [significant(mean) for mean in means]
        table.add_row(as_markup(title), *cells)
    return table


def _titled(title: str, caption: str, columns: Sequence[str]) -> Table:
    table = titled_table(title, caption)
    table.add_column(columns[0], style="bold", overflow="fold")
    for column in columns[1:]:
        table.add_column(column, justify="right", no_wrap=True)
    return table


def label_text(names: Sequence[str] | None, label: int) -> str:
    """A label as text that can be seen."""
    return repr(names[label]) if names else str(label)


def _by_group(total: int, groups: dict[Any, int]) -> str:
    detail = ", ".join(f"{number:,} {as_markup(str(group))}" for group, number in groups.items() if number)
    return f"{total:,} ({detail})"
