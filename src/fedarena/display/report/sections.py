"""The parts of the report's page, from the headline to the settings. Figures come in through `plot`."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import plotly.graph_objects as go
import pyarrow.compute as pc

from fedarena.display.drawing.html import Html, join, swatch_colour, tag
from fedarena.display.drawing.style import styles
from fedarena.display.drawing.units import ABSENT, BYTES, FLOPS, JOULES, SECONDS, count, listing, quantity
from fedarena.display.report import figures
from fedarena.display.report.methods import baselines, distinct_runs, has_clock, methods_of, seed_of
from fedarena.display.report.settings import as_text, as_yaml, differing_keys, in_common
from fedarena.display.report.tables import FINAL_COLUMNS, Reach, columns_for, comparable, final_table, reach_table
from fedarena.storage.run_data import RunData, flatten_settings

Plot = Callable[[go.Figure, str], Html]
Cell = str

_ACCURACY, _PERSONAL = (
    next(column for column in FINAL_COLUMNS if column.title == title) for title in ("accuracy", "personal")
)
# Below the labels, and in the section about virtual time.
_SHOWN_ELSEWHERE = ("seeds", "status", "failed", "wasted", "energy")
_MAX_VALUES = 5
_VERDICTS = {"running": "is still running", "interrupted": "was interrupted"}


def default_title(runs: Sequence[RunData]) -> str:
    """What the report is about: the run's name, or the methods and their federation."""
    if len(runs) == 1:
        return runs[0].name
    labels = [method.label for method in methods_of(runs)]
    subject = listing(labels) if len(labels) <= 4 else f"{len(labels)} methods"
    return f"{subject} on {listing(_federations(runs))}"


def headline(runs: Sequence[RunData]) -> str:
    """The result in one sentence, computed from the tables."""
    means = [(row.accuracy.mean, row) for row in comparable(final_table(runs)) if row.accuracy is not None]
    if not means:
        return "No run has a finite evaluation yet."
    best = max(means, key=lambda pair: pair[0])[1]
    seeds = f" over {count(len(best.seeds), 'seed')}" if len(best.seeds) > 1 else ""
    winner = next(method for method in methods_of(runs) if method.label == best.label)
    split = winner.runs[0].config.get("evaluation", {}).get("split", "test")
    sentence = (
        f"{best.label} reached {_ACCURACY.text(best)} accuracy{seeds} "
        f"on the {split} data of {count(best.eval_clients or 0, 'client')} "
        f"after {count(best.round or 0, 'round')}"
        + ("" if best.hours is None else f" and {quantity(3600 * best.hours.mean, SECONDS)} of virtual time")
    )
    for accuracy, rule in baselines(winner.runs).items():
        sentence += f"; the baseline ({rule}) gives {accuracy:.3f}"
    return f"{sentence}.{_personal_headline(runs)}"


def _personal_headline(runs: Sequence[RunData]) -> str:
    rows = comparable(final_table(runs))
    means = [(row.personal_accuracy.mean, row) for row in rows if row.personal_accuracy is not None]
    if not means:
        return ""
    best = max(means, key=lambda pair: pair[0])[1]
    return f" With a model for every client, {best.label} reached {_PERSONAL.text(best)}."


def facts(runs: Sequence[RunData]) -> str:
    """The frame of the comparison in a few words: how many methods and runs, which federation, how long."""
    federations = _federations(runs)
    noun = "federation" if len(federations) == 1 else "federations"
    varied = len(federations) == 1 and differing_keys([{"federation": run.config.get("federation")} for run in runs])
    federated = [run for run in runs if run.config.get("training") != "centralized"]
    parts = [
        count(len(methods_of(runs)), "method"),
        count(len(runs), "run"),
        f"{noun} {listing(federations)}" + (" in several settings" if varied else ""),
        _count_or_range(runs, "rounds", "round"),
        f"{_clients_a_round(federated)} a round" if federated else "trained at the server",
    ]
    if timed := [run for run in runs if has_clock(run)]:
        parts += [_named_parts(timed, "fleet"), _named_parts(timed, "protocol")]
    return " · ".join(parts)


def left_out(runs: Sequence[RunData]) -> Html:
    """Says which runs the report does not show because it has another one of the same method and seed."""
    kept = {run.path.resolve() for run in distinct_runs(runs)}
    again = {path: run for run in runs if (path := run.path.resolve()) not in kept}
    return join(
        tag(
            "div",
            f"{run.name} ({run.path}) is left out: there is another run of {run.label} with seed {seed_of(run)}.",
            class_="notice unfinished",
        )
        for run in again.values()
    )


def notices(runs: Sequence[RunData]) -> Html:
    """What a reader must know before comparing: runs that broke or are not finished, unequal conditions."""
    found = []
    for run in runs:
        if run.status == "finished":
            continue
        severity = "broken" if run.status in ("diverged", "failed") else "unfinished"
        done = run.summary.get("rounds_done")
        where = "" if done is None else f" after {count(int(done), 'round')}"
        verdict = _VERDICTS.get(run.status, run.status)
        head = tag("strong", f"{run.name} (seed {seed_of(run)}) {verdict}{where}.")
        found.append(tag("div", head, f" {run.summary.get('message') or ''}", class_=f"notice {severity}"))
    for key, meaning in (("federation", "federations"), ("rounds", "numbers of rounds")):
        if differing_keys([{key: run.config.get(key)} for run in runs]):
            text = f"The runs have different {meaning}; their results cannot be compared directly."
            found.append(tag("div", text, class_="notice unfinished"))
    return join(found)


def results(runs: Sequence[RunData]) -> Html:
    """The final table."""
    rows, marks = final_table(runs), swatches(runs)
    columns = [column for column in columns_for(rows) if column.title not in _SHOWN_ELSEWHERE]
    best = [column.best(rows) for column in columns]
    body = []
    for row in rows:
        state = count(len(row.seeds), "seed") if row.status == "finished" else row.status
        cells = [join([marks[row.label], tag("span", state, class_="below quiet")])]
        for column, winners in zip(columns, best, strict=True):
            mean, _, deviation = column.text(row).partition(" ± ")
            cell = tag("strong", mean) if row.label in winners else mean
            below = tag("span", f" ± {deviation}", class_="below quiet") if deviation else ""
            cells.append(join([cell, below]))
        body.append(cells)
    heads = ["method", *(tag("abbr", column.title, title=column.explanation) for column in columns)]
    notes = ["Last evaluation of each run."]
    if any(len(row.seeds) > 1 for row in rows):
        notes.append("± is the standard deviation over seeds.")
    if len(rows) > 1:
        notes.append("The best value is bold.")
    if any(row.status != "finished" for row in rows):
        notes.append("Runs that did not finish count only where a method has no finished run.")
    return join(
        [
            table(heads, body, "results"),
            tag("p", " ".join(notes), class_="note"),
            explanations({column.title: column.explanation for column in columns}),
        ]
    )


def learning(runs: Sequence[RunData], plot: Plot) -> Html:
    """Accuracy and loss over rounds, also of personal models."""
    methods = methods_of(runs)
    band = "The band spans the clients from the 10th to the 90th percentile. "
    several = "Thin lines are single seeds, thick lines their mean. "
    caption = (
        "Lines weigh clients by their samples. "
        + (band if len(methods) <= figures.MAX_BANDS else "")
        + (several if any(len(method.runs) > 1 for method in methods) else "")
    )
    rules = [f"Dashed baseline: {rule} ({accuracy:.3f})." for accuracy, rule in baselines(runs).items()]
    personal, fit = figures.personal_accuracy_figure(runs), figures.training_set_figure(runs)
    about = "Every client with its own model, for the methods that give clients one. "
    return join(
        [
            plot(figures.accuracy_figure(runs), caption + " ".join(rules)),
            *([] if personal is None else [plot(personal, about + caption.strip())]),
            plot(figures.loss_figure(runs), caption.strip()),
            *(
                []
                if fit is None
                else [plot(fit, "The model as the server has it, on the samples that it is trained on.")]
            ),
        ]
    )


def clients(runs: Sequence[RunData], plot: Plot) -> Html:
    """How the accuracy is spread over clients, and how it depends on their size."""
    return join(
        [
            plot(
                figures.client_accuracy_figure(runs),
                "Box: the middle half of the clients with their median; dashed line: their mean; whiskers: "
                "10th to 90th percentile; dots: clients. Percentiles are averaged over seeds.",
            ),
            plot(
                figures.client_size_figure(runs),
                "Faint dots are clients. A point of a line averages clients of similar size; "
                "those with few samples, at the left, hardly show in an average over samples.",
            ),
        ]
    )


def costs(runs: Sequence[RunData], plot: Plot, levels: Sequence[float] | None = None) -> Html:
    """Accuracy against bytes and operations, and what it took to reach given accuracies, in time and energy, too."""
    caption = "Means over seeds. Up and to the left is better."
    pair = tag(
        "div",
        plot(figures.traffic_figure(runs), caption),
        plot(figures.compute_figure(runs), caption),
        class_="pair",
    )
    reached = reach_table(methods_of(runs), levels)
    if not reached or not reached[0]:
        return pair
    marks = swatches(runs)
    heads = ["to reach accuracy", *(f"{reach.level:g}" for reach in reached[0])]
    body = [[marks[row[0].label], *(_reach_cell(reach) for reach in row)] for row in reached]
    costs = [name for name, known in _known_costs(reached).items() if known]
    note = f"First evaluated round at or above the level: {', '.join(costs)}. Means over seeds."
    return join([pair, table(heads, body, "reach"), tag("p", note, class_="note")])


def speed(runs: Sequence[RunData], plot: Plot) -> Html:
    """How fast the runs were executed."""
    return plot(
        figures.speed_figure(runs),
        "Times depend on the machine and its load; they are the only numbers here that are not reproducible.",
    )


def settings(runs: Sequence[RunData]) -> Html:
    """What differs between the methods, and what is the same."""
    configs = [run.config for run in runs]
    if len(runs) == 1:
        return _yaml("All settings, resolved", configs[0], open_=True)
    parts: list[Html] = []
    if keys := [key for key in differing_keys(configs) if key != "name"]:
        methods, marks = methods_of(runs), swatches(runs)
        flattened = [[flatten_settings(run.config) for run in method.runs] for method in methods]
        heads = ["setting", *(marks[method.label] for method in methods)]
        body = [[tag("code", key), *(_distinct(flat, key) for flat in flattened)] for key in keys]
        parts.append(table(heads, body, "settings"))
    parts.append(_yaml("What all runs share", in_common(configs)))
    each = join(_yaml(f"{run.name} (seed {seed_of(run)})", run.config) for run in runs)
    parts.append(tag("details", tag("summary", "All settings of every run"), tag("div", each, class_="inner")))
    return join(parts)


def environment(runs: Sequence[RunData]) -> Html:
    """Versions and hardware; where runs differ, all values."""
    flat = [flatten_settings(run.environment) for run in runs]
    keys = dict.fromkeys(key for found in flat for key in found)
    body = [[tag("code", key), _distinct(flat, key)] for key in keys if key != "seed"]
    seeds = ", ".join(dict.fromkeys(str(seed_of(run)) for run in runs))
    return table(["what", "value"], [[tag("code", "seed"), seeds], *body], "environment")


def reproduction(runs: Sequence[RunData]) -> Html:
    """The command that repeats a run, and the runs this report is made of."""
    body = [[run.name, str(seed_of(run)), run.status, tag("code", str(run.path))] for run in runs]
    return join(
        [
            tag(
                "p",
                "Every run's folder holds its resolved configuration, which gives the same numbers again:",
            ),
            tag("pre", "fedarena run config.yaml"),
            table(["run", "seed", "status", "folder"], body, "runs"),
        ]
    )


def table(heads: Sequence[Cell], body: Sequence[Sequence[Cell]], name: str) -> Html:
    """A table whose first column names the rows; it scrolls inside its own box on narrow screens."""
    head = tag("tr", *(tag("th", cell, scope="col") for cell in heads))
    rows = join(tag("tr", tag("th", row[0], scope="row"), *(tag("td", cell) for cell in row[1:])) for row in body)
    return tag(
        "div",
        tag("table", tag("thead", head), tag("tbody", rows), class_=name),
        class_="scroll",
        tabindex="0",
    )


def _known_costs(reached: Sequence[Sequence[Reach]]) -> dict[str, bool]:
    """What the cells of the table to reach accuracies show, in order, and whether anything of it is known."""
    cells = [reach for row in reached for reach in row]
    return {
        "virtual time": any(reach.hours is not None for reach in cells),
        "traffic": True,
        "compute": True,
        "energy": any(reach.joules is not None for reach in cells),
        "round": True,
    }


def _reach_cell(reach: Reach) -> Html:
    if reach.bytes is None:
        return tag("span", reach.partly, class_="quiet")
    texts = [
        *([] if reach.hours is None else [quantity(3600 * reach.hours, SECONDS)]),
        quantity(reach.bytes, BYTES),
        quantity(reach.flops, FLOPS),
        *([] if reach.joules is None else [quantity(reach.joules, JOULES)]),
        f"round {_round_number(reach)}",
    ]
    first, *others = texts
    return join([first, *(tag("span", f" {text}", class_="below quiet") for text in others)])


def _round_number(reach: Reach) -> str:
    return f"{reach.round:.1f}".removesuffix(".0")


def explanations(columns: Mapping[str, str]) -> Html:
    """What the columns of a table mean, to be unfolded."""
    legend = join(join([tag("dt", title), tag("dd", meaning)]) for title, meaning in columns.items())
    return tag("details", tag("summary", "What the columns mean"), tag("dl", legend, class_="legend"))


def swatches(runs: Sequence[RunData]) -> dict[str, Html]:
    """The labels of methods with their colours."""
    methods = methods_of(runs)
    look = styles(methods)
    return {
        method.label: join(
            [
                tag("span", class_="swatch", **swatch_colour(look[method.label].colour)),
                tag("span", method.label, class_="label"),
            ]
        )
        for method in methods
    }


def _distinct(all_settings: Sequence[dict[str, Any]], key: str) -> str:
    """The different values of one setting; of very many (starting times, say) the first and the last."""
    texts = [_value(key, found[key]) if key in found else ABSENT for found in all_settings]
    values = list(dict.fromkeys(texts))
    return ", ".join(values) if len(values) <= _MAX_VALUES else f"{values[0]} … {values[-1]}"


def _value(key: str, value: Any) -> str:
    if key == "command" and isinstance(value, list):
        return shlex.join(map(str, value))
    return quantity(value, BYTES) if key.endswith("_bytes") else as_text(value)


def _yaml(title: str, config: dict[str, Any], open_: bool = False) -> Html:
    attributes = {"open": "open"} if open_ else {}
    return tag("details", tag("summary", title), tag("pre", as_yaml(config)), **attributes)


def _federations(runs: Sequence[RunData]) -> list[str]:
    names = (str(run.config.get("federation", {}).get("name", "an unnamed federation")) for run in runs)
    return list(dict.fromkeys(names))


def _named_parts(runs: Sequence[RunData], kind: str) -> str:
    """The parts of one kind that runs have: "fleet fedscale", "protocols deadline and buffered"."""
    names = list(dict.fromkeys(str((run.config.get(kind) or {}).get("name", ABSENT)) for run in runs))
    return f"{kind if len(names) == 1 else f'{kind}s'} {listing(names)}"


def _clients_a_round(runs: Sequence[RunData]) -> str:
    """How many clients' updates a round uses; on phones, on average, because they may be fewer than were wanted."""
    return _range([_used_clients(run) if has_clock(run) else int(run.config["cohort"]) for run in runs], "client")


def _used_clients(run: RunData) -> int:
    used: int = pc.sum(run.rounds["clients"]).as_py() or 0
    rounds: int = max(1, run.rounds.num_rows - 1)
    return round(used / rounds)


def _count_or_range(runs: Sequence[RunData], setting: str, noun: str) -> str:
    """A setting that counts something: "60 rounds", or "30 to 60 rounds" where runs differ."""
    return _range([int(run.config[setting]) for run in runs], noun)


def _range(numbers: Sequence[int], noun: str) -> str:
    low, high = min(numbers), max(numbers)
    return count(high, noun) if low == high else f"{low:,} to {count(high, noun)}"
