"""The command that measures how hard a fleet makes training."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from fedarena.cli.base import NumbersFile, Output, check_numbers_path, command, screen, write_numbers
from fedarena.cli.federations import progress_bar
from fedarena.cli.fleets import Clients, FleetName, FleetSettings, open_fleet
from fedarena.core.errors import BadInputError
from fedarena.core.outside_text import as_file_name

if TYPE_CHECKING:
    from fedarena.fleet import ClientFleet, Fleet
    from fedarena.fleet.heterogeneity import HeterogeneityOptions

# The paper's; so many are made up unless somebody asks for more.
DEFAULT_DEVICES = 100
CONSTANTS = "Constants (of --like)"
DRAWN = "drawn"


def _constant(help: str, metavar: str | None = None) -> Any:
    return typer.Option(help=help, metavar=metavar, rich_help_panel=CONSTANTS, show_default=False)


@command
def heterogeneity(
    name: FleetName,
    settings: FleetSettings = None,
    clients: Clients = None,
    like: Annotated[
        Literal["paper", "code"], typer.Option("--like", help="Constants of the paper, or of its published code.")
    ] = "paper",
    repetitions: Annotated[
        int | None, typer.Option("--repetitions", help="How often everything is simulated. [5; like the code 1]")
    ] = None,
    confidence: Annotated[float | None, typer.Option("--confidence", help="Of the intervals. [0.95]")] = None,
    seed: Annotated[int | None, typer.Option("--seed", help="Of the simulations. [0; like the code 42]")] = None,
    deadline_seconds: Annotated[float | None, _constant("The deadline of rounds (ddl).")] = None,
    rounds: Annotated[int | None, _constant("Rounds simulated for metrics that end in -R.")] = None,
    trips: Annotated[int | None, _constant("Participations simulated for metrics that end in -T.")] = None,
    cohort: Annotated[int | None, _constant("Clients invited in a round (k).")] = None,
    break_seconds: Annotated[float | None, _constant("Time between rounds (t_break).")] = None,
    model_bytes: Annotated[int | None, _constant("Size of the model that is sent both ways.")] = None,
    samples: Annotated[float | None, _constant("Samples that a client trains on in a round (|D|).")] = None,
    flops_per_sample: Annotated[
        float | None, _constant("Operations for a sample, for devices whose operations per second are known.")
    ] = None,
    ready_share: Annotated[float | None, _constant("The share of clients that -T waits for (pr).")] = None,
    cost_draws: Annotated[int | None, _constant("How many times are drawn that all clients take (StatMC).")] = None,
    deadline_cost_step_seconds: Annotated[
        str | None, _constant("Instead, times of StatMC-R in such steps up to the deadline.", "NUMBER|drawn")
    ] = None,
    readiness_costs_seconds: Annotated[
        str | None, _constant("Instead, these times of StatMC-T.", "NUMBER,…|drawn")
    ] = None,
    inclusive_deadline: Annotated[
        bool | None,
        typer.Option(
            "--inclusive-deadline/--exclusive-deadline",
            help="Whether a client that takes exactly as long as the deadline is in time.",
            rich_help_panel=CONSTANTS,
            show_default=False,
        ),
    ] = None,
    whole_seconds: Annotated[
        bool | None,
        typer.Option(
            "--whole-seconds/--any-seconds",
            help="Whether work that can be interrupted is rounded up to whole seconds.",
            rich_help_panel=CONSTANTS,
            show_default=False,
        ),
    ] = None,
    random_numbers: Annotated[
        Literal["keyed", "published"] | None, _constant("Ours, or those that the published code draws.")
    ] = None,
    output: Output = None,
    json: NumbersFile = None,
) -> None:
    """Measure how hard a fleet makes training: FLHetBench's six metrics with intervals, and how much clients differ."""
    import numpy as np

    from fedarena.display import check_picture_path, heterogeneity_figure, write_picture
    from fedarena.display.terminal import heterogeneity_tables
    from fedarena.fleet.heterogeneity import CODE_OPTIONS, PAPER_OPTIONS, measure_heterogeneity

    if output is not None:
        check_picture_path(output)
    check_numbers_path(json)
    given = {
        "deadline_seconds": deadline_seconds,
        "rounds": rounds,
        "trips": trips,
        "cohort": cohort,
        "break_seconds": break_seconds,
        "model_bytes": model_bytes,
        "samples": samples,
        "flops_per_sample": flops_per_sample,
        "ready_share": ready_share,
        "cost_draws": cost_draws,
        "inclusive_deadline": inclusive_deadline,
        "whole_seconds": whole_seconds,
        "random_numbers": random_numbers,
        "repetitions": repetitions,
        "confidence": confidence,
        "seed": seed,
    }
    changed: dict[str, Any] = {option: value for option, value in given.items() if value is not None}
    if deadline_cost_step_seconds is not None:
        steps = _numbers("--deadline-cost-step-seconds", deadline_cost_step_seconds)
        if steps is not None and len(steps) > 1:
            raise BadInputError(f"--deadline-cost-step-seconds must be one number, not {deadline_cost_step_seconds!r}")
        changed["deadline_cost_step_seconds"] = None if steps is None else steps[0]
    if readiness_costs_seconds is not None:
        changed["readiness_costs_seconds"] = _numbers("--readiness-costs-seconds", readiness_costs_seconds)
    options: HeterogeneityOptions = replace(CODE_OPTIONS if like == "code" else PAPER_OPTIONS, **changed)
    fleet = open_fleet(name, settings, clients or DEFAULT_DEVICES)
    everybody = np.arange(clients or max(len(fleet.devices), len(fleet.availability)))
    with progress_bar() as advance:
        phones = _phones(fleet, len(everybody))
        found = measure_heterogeneity(
            phones, everybody, options, lambda share: advance(share, 1.0, f"Measuring {name}")
        )
    for table in heterogeneity_tables(fleet.name, found):
        screen.print(table)
    if json is not None:
        write_numbers(json, {"fleet": {"name": fleet.name, "fingerprint": fleet.fingerprint}, **found.as_dict()})
    figure = heterogeneity_figure(fleet.name, found)
    path = write_picture(figure, output or Path(f"{as_file_name(fleet.name)}-heterogeneity.html"))
    screen.say(f"Picture: {path}")


def _phones(fleet: Fleet, clients: int) -> ClientFleet:
    """Client i has phone i where that is possible, so that the order of a file is kept."""
    import numpy as np

    from fedarena.fleet.heterogeneity import in_order

    if fleet.paired and len(fleet.devices) == clients:
        return in_order(fleet)
    return fleet.match(np.arange(clients), None, seed=0)


def _numbers(option: str, text: str) -> tuple[float, ...] | None:
    """Numbers with commas in between; None for `drawn`."""
    if text == DRAWN:
        return None
    try:
        return tuple(float(word) for word in text.split(","))
    except ValueError:
        raise BadInputError(f"{option} must be a number or {DRAWN!r}, not {text!r}") from None
