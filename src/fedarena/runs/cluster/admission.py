"""Who may work for a run: what a worker must have in common with the driver, or results would depend on who works."""

from __future__ import annotations

from fedarena.core.installation import what_differs
from fedarena.runs.building import Experiment
from fedarena.runs.cluster.messages import Message
from fedarena.runs.cluster.probe import fingerprint_of_bits


def built(experiment: Experiment) -> Message:
    """What came of building a run here."""
    engine = experiment.simulation.engine
    return {
        "federation": experiment.federation.fingerprint,
        "weights": experiment.weights_fingerprint,
        "device": engine.choices["device"],
        "bits": fingerprint_of_bits(experiment.simulation),
    }


def why_refused(answer: Message, mine: Message, mixed_hardware: bool = False) -> str | None:
    """Why a worker cannot be used, if so: what is not as it is here, and what would be right."""
    node = answer["node"]
    if (otherwise := what_differs(answer, mine)) is not None:
        return otherwise
    if "refused" in answer:  # which may be for want of what was checked before
        return f"A worker on {node} cannot build the run: {answer['refused'].strip()}"
    if answer["federation"] != mine["federation"]:
        return (
            f"The federation on {node} is another one (fingerprint {answer['federation']} instead of "
            f"{mine['federation']}); copy the store from this machine, or remove it there to have it made again"
        )
    if answer["weights"] != mine["weights"]:
        return f"The file of weights on {node} is another one; copy it from this machine"
    if answer["device"] != mine["device"]:
        return (
            f"The worker on {node} computes on {answer['device']}, and this machine on {mine['device']}; choose "
            "engine.device for both"
        )
    if answer["bits"] != mine["bits"] and not mixed_hardware:
        return (
            f"{node} does not compute the same bits as this machine, so results would depend on who computed "
            "them; use machines of one kind, or engine.mixed_hardware=true, and no two runs will be the same"
        )
    return None
