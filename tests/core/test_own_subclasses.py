"""A part of one's own that changes nothing about a built-in one is not refused, and its runs are the same."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from small_texts import write_texts

import fedarena
from fedarena.algorithms import ALGORITHMS
from fedarena.core.registry import Registry
from fedarena.models.adaptation import ADAPTATIONS
from fedarena.models.augmentation import AUGMENTATIONS
from fedarena.models.tasks import TASKS
from fedarena.privacy import MECHANISMS
from fedarena.simulate.edges import EDGES
from fedarena.simulate.policies import POLICIES
from fedarena.simulate.protocols import PROTOCOLS
from fedarena.simulate.schedules import SCHEDULES
from fedarena.simulate.selectors import SELECTORS
from fedarena.transforms import TRANSFORMS
from fedarena.transforms.aggregators import AGGREGATORS
from fedarena.transforms.attacks import ATTACKS

PARTS: dict[str, Registry[Any]] = {
    "adaptation": ADAPTATIONS,
    "aggregator": AGGREGATORS,
    "algorithm": ALGORITHMS,
    "attack": ATTACKS,
    "augmentation": AUGMENTATIONS,
    "client_lr_schedule": SCHEDULES,
    "edges": EDGES,
    "policy": POLICIES,
    "privacy": MECHANISMS,
    "protocol": PROTOCOLS,
    "selector": SELECTORS,
    "task": TASKS,
    "transforms": TRANSFORMS,
}
DIGITS = {"name": "digits", "partition": {"name": "iid", "clients": 12}}
TEXTS = "texts"  # a small federation that a test writes
SMALL_TRANSFORMER = {"width": 8, "heads": 2, "layers": 1}
BASE: dict[str, Any] = {
    "federation": DIGITS,
    "model": {"name": "mlp", "hidden": [8]},
    "rounds": 3,
    "cohort": 6,
    "local": {"steps": 3, "batch_size": 8},
    "fleet": "fedscale",
    "engine": {"name": "cohort", "dtype": "float64"},
}
# What parts need to be of use in a run so small: of all of a kind, or of some; None: they are not for such runs.
OF_KIND: dict[str, dict[str, Any]] = {
    "adaptation": {"federation": TEXTS, "model": {"name": "transformer", **SMALL_TRANSFORMER}},
    "augmentation": {"federation": "shapes", "model": "cnn"},
    "policy": {"federation": DIGITS | {"train_fraction": 0.6, "validation_fraction": 0.2}},
}
OF_PART: dict[tuple[str, str], dict[str, Any] | None] = {
    ("aggregator", "bulyan"): {"aggregator.share": 0.1, "cohort": 12, "fleet": "ideal"},
    ("aggregator", "mixing"): {"protocol": "asynchronous"},
    ("attack", "none"): None,
    ("edges", "by_attribute"): None,
    ("edges", "none"): None,
    ("policy", "none"): None,
    ("privacy", "correlated_gaussian"): {"privacy.noise_multiplier": 0.5, "selector": {"name": "cyclic", "groups": 2}},
    ("privacy", "distributed_gaussian"): None,
    ("privacy", "dp_sgd"): {"privacy.noise_multiplier": 0.5, "selector": "poisson"},
    ("privacy", "gaussian"): {"privacy.noise_multiplier": 0.5, "selector": "poisson"},
    ("privacy", "local_gaussian"): {"privacy.epsilon": 200.0},
    ("privacy", "local_laplace"): {"privacy.epsilon": 200.0},
    ("privacy", "nbafl"): {"privacy.epsilon": 50.0},
    ("privacy", "none"): None,
    ("privacy", "privunit"): {"privacy.epsilon": 200.0},
    ("selector", "cyclic"): {"selector.groups": 2},
    ("task", "binary"): None,
    ("task", "click"): None,
    ("task", "masked_token"): {"federation": TEXTS, "model": {"name": "albert", **SMALL_TRANSFORMER}},
    ("task", "multi_label"): {"federation": "shapes_tags", "model": "logistic_regression"},
    ("task", "next_token"): {"federation": TEXTS, "model": "char_mlp"},
    ("task", "node_classification"): None,
    ("task", "rating"): None,
    ("task", "regression"): {"federation": "diabetes", "model": "linear"},
    ("task", "transcription"): None,
    ("task", "translation"): None,
}
CASES = [(kind, name) for kind, parts in PARTS.items() for name in parts.names()]
CASES = [case for case in CASES if isinstance(PARTS[case[0]].get(case[1]), type) and OF_PART.get(case, {}) is not None]


def own(kind: type) -> type:
    """A class of this file, as somebody would write it."""
    made = type(f"Own{kind.__name__}", (kind,), {"__module__": __name__})
    setattr(sys.modules[__name__], made.__name__, made)
    return made


def assert_alike(usual: pa.Table, same: pa.Table) -> None:
    """But for the last digits, since steps may be computed together in one way and by themselves in the other."""
    assert usual.schema == same.schema
    for name, one, other in zip(usual.column_names, usual.columns, same.columns, strict=True):
        if pa.types.is_floating(one.type):
            np.testing.assert_allclose(one.to_numpy(), other.to_numpy(), rtol=1e-9, atol=1e-12, err_msg=name)
        else:
            assert one.to_pylist() == other.to_pylist(), name


@pytest.mark.filterwarnings("ignore")
@pytest.mark.sampled(13)
@pytest.mark.parametrize(("kind", "name"), CASES, ids=["-".join(case) for case in CASES])
def test_subclasses_that_change_nothing(tmp_path: Path, kind: str, name: str) -> None:
    needed = OF_KIND.get(kind, {}) | (OF_PART.get((kind, name)) or {})
    options = {key.partition(".")[2]: value for key, value in needed.items() if key.startswith(f"{kind}.")}
    settings = BASE | {key: value for key, value in needed.items() if not key.startswith(f"{kind}.")}
    if kind == "attack":
        options["share"] = 0.3
    if settings["federation"] == TEXTS:
        settings["federation"] = write_texts(tmp_path / "texts")
    found = []
    for number, part in enumerate((name, own(PARTS[kind].get(name)))):
        chosen = {"name": part, **options} if options else part
        given = settings | {kind: [chosen] if kind == "transforms" else chosen}
        run = fedarena.run(given, runs_folder=tmp_path / str(number), progress=False)
        found.append([run.rounds, run.clients, run.jobs])
    for usual, same in zip(*found, strict=True):
        assert_alike(usual, same)
