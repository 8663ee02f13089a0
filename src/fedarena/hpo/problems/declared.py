"""The catalogue: every problem of FedHPO-Bench's Table 1, with the spaces and bins of its Table 8.

A family of problems is a small YAML file beside this one. A problem is called ``family@dataset``, and with another
algorithm than FedAvg ``family@dataset-algorithm``: ``lr@31``, ``mlp@53-fedopt``, ``gnn@cora-fedprox``. A user's own
problem is a configuration file with ``search:``, which says what may be varied.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any

from fedarena.core.errors import BadInputError
from fedarena.core.outside_text import quoted
from fedarena.core.registry import nearest
from fedarena.core.yaml_files import parse_yaml
from fedarena.hpo.space import Space
from fedarena.runs.config import read_run_file
from fedarena.runs.merging import merge

# FedOpt is FedAvg with a learning rate and momentum at the server, here called fedavgm; FedProx is that of H.3.1.
ALGORITHMS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "fedavg": ({"algorithm": "fedavg"}, {}),
    "fedopt": (
        {"algorithm": "fedavgm"},
        {
            "algorithm.beta": {"from": 0.0, "to": 0.9, "bins": 2},
            "algorithm.server_lr": {"from": 0.1, "to": 1.0, "bins": 3},
        },
    ),
    "fedprox": ({"algorithm": "fedprox"}, {"algorithm.mu": [0.1, 1.0, 5.0]}),
}
SEARCH = "search"  # the key of a configuration file
_SUITS_THE_MACHINE = ("engine", "label", "name", "track", "client_states_ram_bytes")
OWN_ROUNDS = 60


@dataclass(frozen=True)
class Declared:
    """A problem as it is declared, before anybody asks it anything."""

    name: str
    title: str
    settings: dict[str, Any]  # of its runs, nested, without what is searched
    space: Space
    rounds: int
    table_rounds: int  # so many a table has, unless it is told otherwise
    sample_rates: tuple[float, ...]  # empty: as the cohort of the settings says
    budget_s: float | None = None
    scenario: str = "cross-silo"
    algorithm: str = "fedavg"
    is_own: bool = False
    options: dict[str, Any] = field(default_factory=dict)  # in which it differs from the catalogue, for sentences

    @property
    def fingerprint(self) -> str:
        """What tells the problem from others: all that decides what a course comes to."""
        return settings_digest({"settings": decisive(self.settings), "space": self.space.described()})

    def with_settings(self, changes: Mapping[str, Any]) -> Declared:
        """The same problem with other settings than its own."""
        for key in merge({}, changes):
            if key in ("rounds", "seed", "cohort"):
                instead = {"rounds": "rounds=…", "seed": "a query's seed", "cohort": "a fidelity's client_sample_rate"}
                raise BadInputError(f"The setting {key} of a problem follows from {instead[key]}; leave it out")
        for name in self.space.names:
            if name in changes:
                raise BadInputError(f"{name} is searched in {self.name}, so it cannot be set")
        return replace(self, settings=merge(self.settings, changes), options={**self.options, **changes})


def decisive(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Settings without what only says where files are, or suits a machine."""
    kept = {key: value for key, value in merge({}, settings).items() if key not in _SUITS_THE_MACHINE}
    if isinstance(kept.get("federation"), Mapping):
        kept["federation"] = {key: value for key, value in kept["federation"].items() if key != "folder"}
    return kept


def settings_digest(value: Any) -> str:
    """A short name for settings."""
    text = json.dumps(value, sort_keys=True, default=str)
    return hashlib.blake2b(text.encode(), digest_size=8).hexdigest()


def declared_names() -> list[str]:
    """All problems of the catalogue, in its order."""
    return [
        _full_name(family, dataset, algorithm)
        for family, content in _families()
        for dataset in content["datasets"]
        for algorithm in content["algorithms"]
    ]


def find_declared(name: str | Path | Mapping[str, Any], algorithm: str | None = None) -> Declared:
    """A problem of the catalogue by its name; or one's own, by the file or the settings of its runs."""
    if isinstance(name, Mapping):
        return declare_own(name, "own")
    if isinstance(name, Path) or name.endswith((".yaml", ".yml")) or "/" in name:
        if algorithm is not None:
            raise BadInputError(f"The algorithm of {name} is the one in the file; leave algorithm out")
        return declare_own(read_run_file(str(name)), Path(name).stem)
    base, _, suffix = name.partition("-")
    if suffix and algorithm is not None and algorithm != suffix:
        raise BadInputError(f"{name} is with {suffix}, so its algorithm cannot be {algorithm}")
    algorithm = algorithm or suffix or "fedavg"
    for family, content in _families():
        for dataset in content["datasets"]:
            if base != _full_name(family, dataset, "fedavg"):
                continue
            if algorithm not in content["algorithms"]:
                raise BadInputError(f"{base} is declared with {', '.join(content['algorithms'])}, not with {algorithm}")
            return _declare(family, content, dataset, algorithm)
    raise BadInputError(f"There is no problem called {quoted(name)}; {nearest(name, declared_names())}")


def declare_own(content: Mapping[str, Any], name: str) -> Declared:
    """A user's own problem: settings of a run, and under ``search`` what may be varied in them."""
    settings = dict(content)
    if SEARCH not in settings:
        raise BadInputError(
            f"{name} says nothing to search; add what may be varied, for example "
            "search: {local.lr: {from: 0.01, to: 1.0, log: true}}"
        )
    space = Space.parse(settings.pop(SEARCH))
    settings.pop("tune", None)  # how it is searched, for the command tune
    settings = merge({}, settings)
    rounds = settings.pop("rounds", OWN_ROUNDS)
    for key in ("seed", "name"):
        settings.pop(key, None)
    return Declared(name, f"the runs of {name}", settings, space, rounds, rounds, (), is_own=True)


def _declare(family: str, content: Mapping[str, Any], dataset: str, algorithm: str) -> Declared:
    about = content["datasets"][dataset] or {}
    base, searched = ALGORITHMS[algorithm]
    settings = merge(merge(merge({}, content["base"]), about.get("settings", {})), content.get("averaging", base))
    rounds = content["rounds"]
    return Declared(
        name=_full_name(family, dataset, algorithm),
        title=content["title"].format(dataset=about["title"]),
        settings=settings,
        space=Space.parse({**content["search"], **searched}),
        rounds=rounds,
        table_rounds=content.get("table_rounds", rounds),
        sample_rates=tuple(about.get("sample_rates", content["sample_rates"])),
        budget_s=content.get("budget_s"),
        scenario=content.get("scenario", "cross-silo"),
        algorithm=algorithm,
    )


def _full_name(family: str, dataset: str, algorithm: str) -> str:
    name = f"{family}@{dataset}" if dataset else family
    return name if algorithm == "fedavg" else f"{name}-{algorithm}"


@cache
def _families() -> list[tuple[str, dict[str, Any]]]:
    order = ("cnn", "bert", "gnn", "hetero", "lr", "mlp", "mf", "twitter")  # that of Table 1
    found = []
    for file in order:
        text = (resources.files("fedarena") / "hpo" / "problems" / f"{file}.yaml").read_text(encoding="utf-8")
        content: dict[str, Any] = parse_yaml(text, f"{file}.yaml")
        found.append((content.get("family", file), content))
    return found
