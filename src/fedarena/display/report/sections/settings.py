"""What the runs were started with and on what, and how to get their numbers again."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from typing import Any, Final

from fedarena.analysis.distinct import seed_of
from fedarena.display.drawing.html import Html, join, tag
from fedarena.display.drawing.units import ABSENT, BYTES, quantity
from fedarena.display.report.compare_settings import as_text, as_yaml, differing_keys, in_common
from fedarena.display.report.methods import methods_of
from fedarena.display.report.sections.elements import swatches, table
from fedarena.storage.run_data import RunData, flatten_settings

_MAX_VALUES: Final = 5


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
