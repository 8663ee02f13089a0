"""The parts of which a run is made: the settings that name one, and where those that can be named are registered."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fedarena.algorithms import ALGORITHMS
from fedarena.core.registry import Registry
from fedarena.data import FEDERATIONS
from fedarena.fleet import FLEETS
from fedarena.models import ADAPTATIONS, AUGMENTATIONS, MODELS, TASKS
from fedarena.privacy import MECHANISMS
from fedarena.runs.callbacks import CALLBACKS
from fedarena.simulate import PROTOCOLS, SELECTORS
from fedarena.simulate.edges import EDGES
from fedarena.simulate.policies import POLICIES
from fedarena.simulate.schedules import SCHEDULES
from fedarena.simulate.secure_aggregation import SECURE_AGGREGATIONS
from fedarena.track import TRACKERS
from fedarena.train import ENGINES
from fedarena.transforms import AGGREGATORS, ATTACKS, DOWNLOADS, TRANSFORMS

NAMED_PARTS: dict[str, Registry[Any]] = {
    "federation": FEDERATIONS,
    "model": MODELS,
    "task": TASKS,
    "augmentation": AUGMENTATIONS,
    "adaptation": ADAPTATIONS,
    "algorithm": ALGORITHMS,
    "fleet": FLEETS,
    "protocol": PROTOCOLS,
    "aggregator": AGGREGATORS,
    "attack": ATTACKS,
    "privacy": MECHANISMS,
    "download": DOWNLOADS,
    "selector": SELECTORS,
    "policy": POLICIES,
    "edges": EDGES,
    "secure_aggregation": SECURE_AGGREGATIONS,
    "client_lr_schedule": SCHEDULES,
    "server_lr_schedule": SCHEDULES,
    "engine": ENGINES,
}
LISTED_PARTS: dict[str, Registry[Any]] = {"transforms": TRANSFORMS, "callbacks": CALLBACKS, "track": TRACKERS}


def usual_aggregator(protocol: Mapping[str, Any]) -> str:
    """What adds up the updates of a protocol unless the user chooses another."""
    name: str = getattr(PROTOCOLS.get(protocol["name"]), "aggregator", "mean")
    return name
