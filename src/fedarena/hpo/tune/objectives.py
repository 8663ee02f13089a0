"""What trials are judged by: metrics, how they are spread over clients, and what training costs."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from fedarena.core.errors import BadInputError
from fedarena.core.outside_text import quoted
from fedarena.core.registry import nearest
from fedarena.metrics import PERSONAL, elapsed_hours, summary_names
from fedarena.metrics.info import MetricInfo
from fedarena.storage.tables import sent_bytes

Kind = Literal["metric", "spread", "cost"]
# What training costs until its end; less is better.
COSTS: Mapping[str, MetricInfo] = {
    "epsilon": MetricInfo("epsilon", "privacy spent (ε)", higher_is_better=False, low=0.0, decimals=3),
    "virtual_hours": MetricInfo("virtual_hours", "virtual hours", higher_is_better=False, low=0.0, decimals=3),
    "bytes_up": MetricInfo("bytes_up", "bytes uploaded", higher_is_better=False, low=0.0, decimals=0),
    "bytes_down": MetricInfo("bytes_down", "bytes downloaded", higher_is_better=False, low=0.0, decimals=0),
    "flops": MetricInfo("flops", "FLOPs of clients", higher_is_better=False, low=0.0, decimals=0),
}
_SPREADS = {"variance": "variance over clients", "std": "standard deviation over clients"}
_SHORT = ("worst_decile", *_SPREADS)  # of the metric that the task leads with
_CONSTRAINT = re.compile(r"\s*(\w+)\s*(<=|>=)\s*([^\s<>=]+)\s*")


@dataclass(frozen=True)
class Objective:
    """A number of a run that shall be small, or large."""

    info: MetricInfo  # its name, how people read it, its direction
    kind: Kind
    metric: str = ""  # the column of clients' values that a spread is of

    @property
    def name(self) -> str:
        """As it is asked for."""
        return self.info.name

    @property
    def maximize(self) -> bool:
        """Whether larger values are better."""
        return self.info.higher_is_better

    def to_json(self) -> dict[str, Any]:
        """Plain values, for the file of the study."""
        return asdict(self)

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> Objective:
        """The inverse of `to_json`."""
        return cls(MetricInfo.from_json(values["info"]), values["kind"], values["metric"])


@dataclass(frozen=True)
class Constraint:
    """What a trial must keep to be the best one."""

    objective: Objective
    at_most: bool
    limit: float

    def excess(self, value: float) -> float:
        """By how much it is broken; 0 or less where it is kept."""
        return value - self.limit if self.at_most else self.limit - value

    def __str__(self) -> str:
        limit = repr(self.limit).removesuffix(".0")  # all digits: a study is read back from this text
        return f"{self.objective.name} {'<=' if self.at_most else '>='} {limit}"


def parse_objective(name: str, metrics: Sequence[MetricInfo], lead: MetricInfo, personal: bool) -> Objective:
    """The objective of that name, in runs with these metrics; `personal` if clients have models of their own."""
    if name in COSTS:
        return Objective(COSTS[name], "cost")
    full = f"{lead.name}_{name}" if name in _SHORT else name
    known: dict[str, Objective] = {}
    for metric in metrics:
        for prefix in ("", PERSONAL) if personal else ("",):
            column, label = prefix + metric.name, f"{prefix.rstrip('_')} {metric.label}".strip()
            for found in summary_names(column):
                info = replace(metric, name=found, label=f"{label}{_aspect(found.removeprefix(column))}")
                known[found] = Objective(info, "metric")
            for spread, words in _SPREADS.items():
                info = MetricInfo(f"{column}_{spread}", f"{words} of {label}", False, 0.0, decimals=6)
                known[info.name] = Objective(info, "spread", column)
    if full not in known:
        plain = [*(metric.name for metric in metrics), *_SHORT, *COSTS]
        raise BadInputError(
            f"There is no objective {quoted(name)}; {nearest(name, [*plain, *known])}"
            f"{'' if name in plain else '. There are: ' + ', '.join(plain)}"
        )
    return known[full]


def parse_constraint(text: str, parse: Callable[[str], Objective]) -> Constraint:
    """A constraint such as ``epsilon <= 8``."""
    match = _CONSTRAINT.fullmatch(text) if isinstance(text, str) else None
    try:
        limit = float(match[3]) if match else math.nan
    except ValueError:
        limit = math.nan
    if match is None or not math.isfinite(limit):
        raise BadInputError(f"A constraint is written like 'epsilon <= 8' or 'accuracy >= 0.9', not {quoted(text)}")
    return Constraint(parse(match[1]), match[2] == "<=", limit)


def measure(
    objective: Objective, rounds: pa.Table, clients: Callable[[], pa.Table], at_round: int, until: int
) -> float | None:
    """An objective of a run: of the evaluation after `at_round`, and for costs all `until` a round; None if unknown."""
    if objective.kind == "cost":
        return _cost(objective.name, rounds.filter(pc.less_equal(rounds["round"], until)))
    if objective.kind == "metric":
        if objective.name not in rounds.column_names:
            return None
        found = rounds.filter(pc.equal(rounds["round"], at_round))[objective.name].to_pylist()
        return None if not found or found[0] is None else float(found[0])
    table = clients()
    if objective.metric not in table.column_names:
        return None
    values = _floats(table.filter(pc.equal(table["round"], at_round))[objective.metric])
    values = values[np.isfinite(values)]
    if not len(values):
        return None
    return float(values.std() if objective.name.endswith("_std") else values.var())


def evaluated_rounds(rounds: pa.Table) -> list[int]:
    """After which rounds the model was evaluated, the untrained one left out."""
    numbers: list[int] = rounds.filter(pc.is_valid(rounds["eval_clients"]))["round"].to_pylist()
    return [number for number in numbers if number > 0]


def _cost(name: str, rounds: pa.Table) -> float | None:
    if not len(rounds):
        return None
    if name == "epsilon":
        spent = rounds["epsilon"][-1].as_py()
        return None if spent is None else float(spent)
    if name == "virtual_hours":
        return float(elapsed_hours(_floats(rounds["end_seconds"]))[-1])
    amounts = sent_bytes(rounds, name) if name in ("bytes_up", "bytes_down") else rounds[name]
    return float(pc.sum(amounts).as_py() or 0)


def _aspect(ending: str) -> str:
    """What a column says about clients, from the end of its name."""
    if ending == "_worst_decile":
        return " of the worst decile of clients"
    if ending == "_by_client":
        return ", mean over clients"
    return f", percentile {ending.removeprefix('_p')} of clients" if ending else ""


def _floats(column: pa.ChunkedArray) -> npt.NDArray[np.float64]:
    return np.asarray(pc.fill_null(column, math.nan).to_numpy(), dtype=np.float64)
