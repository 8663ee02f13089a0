"""What may be said about a search, under ``tune:`` in the configuration or as options of the command."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, ValidationError

from fedarena.core.errors import BadInputError
from fedarena.core.limits import Limits
from fedarena.core.options import explain, refuse_booleans
from fedarena.core.outside_text import quoted
from fedarena.core.registry import nearest

Sampler = Literal["tpe", "random", "gp", "cmaes", "nsga2"]
Pruner = Literal["none", "median", "hyperband", "asha"]
MOST_TRIALS = 100_000
MOST_SEEDS = 1_000
# What may be another when a study goes on: how long, how many at once. All else makes it another study.
_NOT_DECISIVE = ("trials", "hours", "jobs")
_LEARN_FROM_PRUNED = ("tpe", "random")
# With fewer trials than that in a generation, the best of it say little.
_FEWEST_IN_GENERATION, _USUAL_GENERATION = 8, 50

EXAMPLE = "search: {local.lr: {from: 0.01, to: 1.0, log: true}, algorithm: [fedavg, fedprox]}"


def _as_list(value: Any) -> Any:
    return [value] if isinstance(value, str) else list(value) if isinstance(value, tuple) else value


def _check_seeds(value: Any) -> Any:
    if isinstance(value, list | tuple) and (not value or len({str(one) for one in value}) < len(value)):
        raise ValueError(f"there must be one or several seeds, all different, not {quoted(value)}")
    return list(value) if isinstance(value, tuple) else value


class TuneOptions(BaseModel):
    """How a configuration is searched."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    trials: Annotated[int, Limits(least=1, most=MOST_TRIALS)] = 50  # that the study has in the end
    objective: Annotated[list[str], BeforeValidator(_as_list)] = ["loss"]  # several: what trades off against each other
    constraints: Annotated[list[str], BeforeValidator(_as_list)] = []  # such as "epsilon <= 8"
    part: Literal["validation", "train", "test"] = "validation"  # of clients' samples, on which metrics are measured
    score: Literal["last", "best"] = "last"  # of the evaluations of a run
    sampler: Sampler | None = None  # tpe, or for several objectives nsga2
    pruner: Pruner | None = None  # median, or none for several objectives and samplers that learn nothing from it
    seed: Annotated[int, Limits(least=0)] = 0  # of the search; runs have their own
    # Every trial is run with each of them, or with so many from that of the configuration on, and judged by the mean.
    seeds: Annotated[
        Annotated[int, Limits(least=1, most=MOST_SEEDS)] | list[Annotated[int, Limits(least=0)]],
        BeforeValidator(_check_seeds),
    ] = 1
    hold_out: Annotated[float, Limits(above=0, below=1)] = 0.1  # of all samples, where there are none for validation
    population: Annotated[int, Limits(least=4)] | None = None  # trials of a generation, of nsga2 and cmaes
    storage: str | None = None  # sqlite:///… instead of the journal in the study's folder
    hours: Annotated[float, Limits(above=0)] | None = None  # of real time, after which trials are paused
    jobs: Annotated[int, Limits(least=1)] = 1  # trials at the same time, each in a process of its own

    @property
    def several(self) -> bool:
        """Whether there is more than one objective."""
        return len(self.objective) > 1

    def decisive(self) -> dict[str, Any]:
        """All that makes a study this study."""
        return {key: value for key, value in self.model_dump().items() if key not in _NOT_DECISIVE}


def parse_options(*given: Mapping[str, Any] | None) -> TuneOptions:
    """The options in one or several mappings, of which later ones count more; automatic choices are made."""
    together: dict[str, Any] = {}
    for one in given:
        if one is not None and not isinstance(one, Mapping):
            raise BadInputError(f"tune: must hold options such as trials: 50, not {quoted(one)}")
        together |= dict(one or {})
    for key in together:
        if key not in TuneOptions.model_fields:
            raise BadInputError(
                f"tune: there is no option {quoted(key)}; {nearest(str(key), TuneOptions.model_fields)}"
            )
    try:
        options = TuneOptions(**together)
    except ValidationError as error:
        raise BadInputError(explain(error, "tune")) from None
    refuse_booleans(together, options.model_dump(), "tune")
    if not options.objective or len(set(options.objective)) < len(options.objective):
        raise BadInputError(f"tune.objective must name one objective or several, each once, not {options.objective}")
    if options.storage is not None and not options.storage.startswith("sqlite:///"):
        raise BadInputError(
            f"tune.storage must be the address of an SQLite file, such as sqlite:///study.db, not "
            f"{quoted(options.storage)}; without it, the trials are kept in a journal in the study's folder"
        )
    return _with_choices(options)


def _with_choices(options: TuneOptions) -> TuneOptions:
    if options.several and options.sampler == "cmaes":
        raise BadInputError("tune.sampler=cmaes is for one objective; for several, choose nsga2, tpe, gp or random")
    if options.several and options.pruner not in (None, "none"):
        raise BadInputError(
            f"tune.pruner={options.pruner} is for one objective: of several, none says alone which trial is worse; "
            "leave it out"
        )
    chosen: dict[str, Any] = {
        "sampler": options.sampler or ("nsga2" if options.several else "tpe"),
    }
    # The others learn from complete trials alone.
    chosen["pruner"] = options.pruner or ("median" if chosen["sampler"] in _LEARN_FROM_PRUNED else "none")
    if options.several:
        chosen["pruner"] = "none"
    return options.model_copy(update=chosen)


def usual_population(options: TuneOptions) -> int | None:
    """How many trials a generation of nsga2 has unless it is said: so many that there are some generations."""
    if options.sampler != "nsga2":
        return None
    return min(max(math.ceil(options.trials / 4), _FEWEST_IN_GENERATION), _USUAL_GENERATION)
