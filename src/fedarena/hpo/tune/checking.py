"""Making a study of what a user gave; whatever cannot work is refused before the first trial."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from fedarena.core import streams
from fedarena.core.errors import BadInputError
from fedarena.core.outside_text import quoted
from fedarena.hpo.space import Configuration, Hyperparameter, Space
from fedarena.hpo.tune.objectives import Constraint, Objective, parse_constraint, parse_objective
from fedarena.hpo.tune.options import EXAMPLE, TuneOptions, parse_options
from fedarena.hpo.tune.plan import TuningPlan, only_applying
from fedarena.runs.building import Experiment, prepare
from fedarena.runs.config import SECTIONS, check_name, resolve
from fedarena.runs.identity import data_fingerprints
from fedarena.runs.merging import leaves_of, merge
from fedarena.runs.observer import Observer
from fedarena.runs.opening import open_federation
from fedarena.runs.own_source import own_source
from fedarena.runs.parts import NAMED_PARTS

# Settings that are no hyperparameters, and why.
_NOT_SEARCHED = {
    "seed": "a seed is no hyperparameter; tune.seeds=3 judges every trial by the mean over three",
    "name": "trials are named by their numbers",
    "label": "trials are named by their numbers",
    "track": "it changes nothing about a run",
    "evaluation": "trials can only be compared if they are evaluated alike",
    "federation": "trials can only be compared on the same samples",
    "client_states_ram_bytes": "it changes nothing about a run",
}
_TRIES = 20  # configurations that are drawn where settings may not fit each other
_DIVISIONS = ("by_client", "within_client")


def make_plan(
    content: Mapping[str, Any],
    runs_folder: Path,
    observer: Observer,
    overrides: Mapping[str, Any] | None = None,
    options: Mapping[str, Any] | None = None,
    name: str | None = None,
) -> TuningPlan:
    """The study that a configuration with ``search:`` describes, in ``runs_folder/<name>``.

    `overrides` are settings (also ``tune.…``) and `options` those of the search that count more than the content's.
    """
    content, given = dict(content), dict(overrides or {})
    search, tune = content.pop("search", None), content.pop("tune", None)
    search = given.pop("search", search)
    ranges = {key.removeprefix("search."): given.pop(key) for key in list(given) if key.startswith("search.")}
    if ranges:
        search = {**(search if isinstance(search, Mapping) else {}), **ranges}
    if search is None:
        raise BadInputError(
            f"There is nothing to search: the configuration has no search:; add what to try, such as {EXAMPLE}"
        )
    space = Space.parse(_flat(search))
    said = {key.removeprefix("tune."): given.pop(key) for key in list(given) if key.startswith("tune.")}
    chosen = parse_options(tune, given.pop("tune", None), said, options)
    settings = merge(merge({}, content), given)
    study = check_name(name or settings.pop("name", None) or "tune", "name")
    settings.pop("name", None)
    set_for_all = {
        ".".join(path) for key, value in given.items() for path, _ in leaves_of(tuple(key.split(".")), value)
    }
    for one in space:
        _check_searched(one)
        if content and one.name.removesuffix(".name") in set_for_all:  # without content, they are the configuration
            raise BadInputError(
                f"{one.name} is searched, so it cannot be set for all trials; leave it out, or give search.{one.name}=…"
            )
    candidates = _check_space(space, settings)
    held_out = _hold_out(merge(settings, candidates[0]), chosen, observer)
    experiment = _some_experiment(candidates, merge(settings, held_out), chosen, observer)
    objectives, constraints = _check_objectives(chosen, experiment, space)
    seed = experiment.config.seed
    seeds = range(seed, seed + chosen.seeds) if isinstance(chosen.seeds, int) else chosen.seeds
    return TuningPlan(
        name=study,
        folder=runs_folder / study,
        settings=settings,
        space=space,
        options=chosen,
        objectives=objectives,
        constraints=constraints,
        seeds=tuple(seeds),
        held_out=held_out,
        own_source=_own_source(candidates, settings),
        data=data_fingerprints(experiment),
    )


def _flat(search: Any) -> Any:
    """Ranges by dotted names, also of those that are nested as settings may be: ``local: {lr: [0.1, 1.0]}``."""
    if not isinstance(search, Mapping):
        return search
    flat: dict[str, Any] = {}
    for name, given in search.items():
        is_section = name in SECTIONS or name in NAMED_PARTS
        if is_section and isinstance(given, Mapping) and not {"from", "to"} & set(given):
            flat |= {f"{name}.{inner}": value for inner, value in given.items()}
        else:
            flat[name] = given
    return flat


def _check_searched(one: Hyperparameter) -> None:
    setting = one.name.partition(".")[0]
    if setting in _NOT_SEARCHED:
        raise BadInputError(f"search: {one.name} cannot be searched: {_NOT_SEARCHED[setting]}")


def _check_space(space: Space, settings: Mapping[str, Any]) -> list[Configuration]:
    """Refuses values that no run could have; gives configurations with every choice among them."""
    drawn = [space.at(np.zeros(len(space)))]
    generator = streams.generator(0, "tune/check")
    drawn += [space.sample(generator) for _ in range(_TRIES)]
    possible: list[Configuration] = []
    for one in space:
        has_meaning = False
        for value in one.choices if one.kind == "choice" else _ends(one):
            problem: BadInputError | None = None
            for others in _with_each_part(one, space, drawn):
                try:
                    chosen = only_applying(space, settings, {**others, one.name: value})
                    if one.name not in chosen:
                        continue
                    has_meaning = True
                    resolve(merge(settings, chosen))
                except BadInputError as error:
                    problem = problem or error
                else:
                    problem = None
                    possible.append(chosen)
                    break
            if problem is not None:
                if str(problem) == _problem_of(settings):  # it has nothing to do with what is searched
                    raise problem
                raise BadInputError(f"search: {one.name} = {quoted(value)} does not work: {problem}")
        if not has_meaning:
            part, _, option = one.name.partition(".")
            raise BadInputError(
                f"search: {one.name} means nothing: no {part} that is searched has an option {option!r}"
            )
    return possible


def _ends(one: Hyperparameter) -> tuple[Any, Any]:
    return (int(one.low), int(one.high)) if one.kind == "int" else (one.low, one.high)


def _problem_of(settings: Mapping[str, Any]) -> str | None:
    """What is wrong with a configuration as it is, without what is searched; None if nothing is."""
    try:
        resolve(settings)
    except BadInputError as error:
        return str(error)
    return None


def _with_each_part(one: Hyperparameter, space: Space, drawn: list[Configuration]) -> Iterator[Configuration]:
    """Configurations to try a value in: with every part that the hyperparameter may be an option of."""
    part = one.name.partition(".")[0]
    for name in {part, f"{part}.name"} & set(space.names) - {one.name}:
        yield from ({**drawn[0], name: choice} for choice in space[name].choices)
    yield from drawn


def _hold_out(settings: Mapping[str, Any], options: TuneOptions, observer: Observer) -> dict[str, Any]:
    """Settings under which the federation has samples for validation; none where it has some, or none are needed."""
    if options.part != "validation":
        return {}
    config = resolve({**settings, "name": None})
    federation, _ = open_federation(config, observer)
    if federation.counts(federation.clients("all"), "validation").sum() > 0:
        return {}
    division, train = config.federation.get("split"), config.federation.get("train_fraction")
    nothing = f"The federation {federation.name!r} has no validation samples to judge trials by"
    otherwise = "or say tune.part=train or tune.part=test to judge by other samples"
    if division not in _DIVISIONS or train is None or "validation_fraction" not in config.federation:
        advice = (
            "choose federation.split=within_client and federation.validation_fraction=0.1"
            if "validation_fraction" in config.federation
            else "make it with some"
        )
        raise BadInputError(f"{nothing}; {advice}, {otherwise}")
    left = round(train - options.hold_out, 12)
    if left <= 0:
        raise BadInputError(
            f"{nothing}, and tune.hold_out={options.hold_out:g} of all samples cannot be taken from the "
            f"{train:g} for training; choose a smaller tune.hold_out, {otherwise}"
        )
    return {"federation.train_fraction": left, "federation.validation_fraction": options.hold_out}


def _some_experiment(
    candidates: list[Configuration], settings: Mapping[str, Any], options: TuneOptions, observer: Observer
) -> Experiment:
    """A run of the study, put together; refuses where none of a few can be."""
    problem: BadInputError | None = None
    for chosen in candidates[:_TRIES]:
        try:
            return prepare(resolve(merge(merge(settings, chosen), {"evaluation.part": options.part})), observer)
        except BadInputError as error:
            problem = problem or error
    assert problem is not None
    raise problem


def _check_objectives(
    options: TuneOptions, experiment: Experiment, space: Space
) -> tuple[tuple[Objective, ...], tuple[Constraint, ...]]:
    simulation = experiment.simulation
    metrics = [metric.info for metric in simulation.task.metrics]
    personal = simulation.algorithm.personalizes or any(name.partition(".")[0] == "algorithm" for name in space.names)

    def parse(name: str) -> Objective:
        objective = parse_objective(name, metrics, simulation.leading_metric, personal)
        searched = {one.partition(".")[0] for one in space.names}
        if name == "epsilon" and simulation.epsilon(0) is None and "privacy" not in searched:
            raise BadInputError("epsilon is known of private runs alone; choose privacy=…, or another objective")
        if name == "virtual_hours" and simulation.fleet is None and not {"fleet", "protocol"} & searched:
            raise BadInputError("virtual_hours pass where there is a fleet; choose fleet=…, or another objective")
        return objective

    objectives = tuple(map(parse, options.objective))
    constraints = tuple(parse_constraint(text, parse) for text in options.constraints)
    for one in constraints:
        bound = one.objective.info.low if one.at_most else one.objective.info.high
        if bound is not None and (one.limit < bound if one.at_most else one.limit > bound):
            raise BadInputError(
                f"No trial can keep the constraint {one}: {one.objective.name} is never "
                f"{'below' if one.at_most else 'above'} {bound:g}"
            )
    return objectives, constraints


def _own_source(candidates: list[Configuration], settings: Mapping[str, Any]) -> dict[str, Any]:
    """Fingerprints of all parts of somebody's own that a trial may have."""
    together: dict[str, Any] = {"files": {}, "fingerprints": {}, "unknown": []}
    for chosen in candidates:
        found = own_source(resolve(merge(settings, chosen))).to_json()
        together["files"] |= found["files"]
        together["fingerprints"] |= found["fingerprints"]
        together["unknown"] = sorted({*together["unknown"], *found["unknown"]})
    return together
