"""What a run says about its corrupted clients."""

from __future__ import annotations

from typing import Any

from fedarena.core.errors import BadInputError
from fedarena.core.words import counted
from fedarena.data import Federation
from fedarena.models import DataSpec
from fedarena.simulate import Simulation
from fedarena.train.own_code import seeded_if_own
from fedarena.transforms import Attack
from fedarena.transforms.attacks import AttackedRun, NoAttack


def prepare_attack(simulation: Simulation, spec: DataSpec, federation: Federation) -> list[str]:
    """Tells the attack what it is about, and gives what the user should know.

    `spec` is the form of the federation's samples.
    """
    attack, clients = simulation.attack, len(simulation.training_clients)
    if isinstance(attack, NoAttack):
        return []
    corrupted = len(simulation.corrupted_clients)
    per_step = simulation.protocol.updates_per_step or simulation.cohort
    dtypes = {name: column.dtype for name, column in federation.columns.items()}
    names = federation.task.label_names
    run = AttackedRun(spec, simulation.task, clients, corrupted, per_step, simulation.seed, dtypes, names)
    with seeded_if_own(attack, simulation.seed, "own attack"):
        attack.prepare(run)
    if attack.has_trigger:
        attack.success()
    if corrupted == 0 and attack.share > 0:
        return [
            f"attack.share={attack.share:g} of {counted(clients, 'client')} is nobody, so nobody attacks; "
            f"from {0.5 / clients:.2g} on, somebody does"
        ]
    if corrupted and attack.from_round > simulation.rounds:
        return [f"attack.from_round={attack.from_round} is after the last round, {simulation.rounds}: nobody attacks"]
    return []


def check_attackable(attack: Attack, training: str) -> None:
    """Refuses an attack where there are no clients."""
    if training == "centralized" and not isinstance(attack, NoAttack):
        raise BadInputError(
            "training=centralized has no clients who could be corrupted; leave attack out, or choose training=natural"
        )


def describe_attack(simulation: Simulation) -> dict[str, Any] | None:
    """Who is corrupted, what they do and what they see; None where everybody is honest."""
    attack, corrupted = simulation.attack, len(simulation.corrupted_clients)
    if not corrupted:
        return None
    return {
        "corrupted_clients": corrupted,
        "clients": len(simulation.training_clients),
        "from_round": attack.from_round,
        "they": attack.deed(),
        "they_see": attack.sight(),
    }


def attack_sentence(simulation: Simulation) -> str | None:
    """The same in a sentence."""
    told = describe_attack(simulation)
    if told is None:
        return None
    begin = "" if told["from_round"] == 1 else f"From round {told['from_round']} on, "
    are = "are" if told["corrupted_clients"] > 1 else "is"
    return (
        f"Attack: {begin}{told['corrupted_clients']:,} of {counted(told['clients'], 'client')} {are} corrupted; "
        f"they {told['they']}; they see {told['they_see']}"
    )
