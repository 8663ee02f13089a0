"""Federations on the screen: one of them in full, several as rows of LEAF's Table 1."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rich import box
from rich.table import Table

from fedarena.core.console import as_markup
from fedarena.data.statistics.describe import FederationStatistics
from fedarena.data.statistics.label_statistics import LabelStatistics
from fedarena.data.statistics.table1 import SCOPE, counting_note, published_sizes
from fedarena.data.store.schema import SourceSpec
from fedarena.display.drawing.units import ABSENT, count, significant
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
            "in LEAF's Table 1",
            f"{count(published.clients, 'client')}, {published.samples:,} {published.counted}, "
            f"mean {published.mean:,} ± {published.std:,}, of {published.scope}",
        )
    if (difference := counting_note(source)) is not None:
        table.add_row("", as_markup(difference))
    for name, column in statistics.columns.items():
        shape = f" of shape {list(column.shape)}" if column.shape else ""
        kept = f", stored as {column.encoding.upper()} files" if column.encoding else ""
        names = column.names or ()
        listed = f" ({', '.join(names[:_MOST_NAMES])}{', …' if len(names) > _MOST_NAMES else ''})" if names else ""
        table.add_row("column", as_markup(f"{name}: {column.dtype}{shape}{kept}{listed}"))
    _add_labels(table, labels)
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


def _add_labels(table: Table, labels: LabelStatistics) -> None:
    order = sorted(range(len(labels.counts)), key=lambda label: -labels.counts[label])
    total = max(1, int(labels.counts.sum()))
    top = [f"{label_text(labels.names, label)} {labels.counts[label] / total:.1%}" for label in order[:6]]
    table.add_row("labels", as_markup(f"{len(labels.counts)}, most frequent: {', '.join(top)}"))
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


def sizes_table(found: Sequence[tuple[str, SourceSpec, FederationStatistics]]) -> Table:
    """LEAF's Table 1 for federations, each given with its title and its source; below is what LEAF's paper says."""
    rows = [(title, statistics, published_sizes(source)) for title, source, statistics in found]
    captions = ["half: this share of the clients, the largest first, have half of the samples"]
    if any(published is not None for _, _, published in rows):
        captions.append(f"LEAF's paper: {SCOPE}")
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
            numbers = (f"{published.clients:,}", f"{published.samples:,}", f"{published.mean:,}", f"{published.std:,}")
            table.add_row(f"  LEAF's paper, {published.counted}", *numbers, ABSENT, ABSENT, style="dim")
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
    table = Table(
        title=title,
        title_justify="left",
        title_style="bold",
        box=box.SIMPLE_HEAD,
        caption=caption,
        caption_justify="left",
    )
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
