"""What a user should know about settings that fit together, but may not do what he thinks."""

from __future__ import annotations

import numpy as np

from fedarena.core.own import is_own
from fedarena.models import ADAPTATIONS, MODELS, Task, trainable_parameters
from fedarena.models.adaptation import called_instead_of_last
from fedarena.privacy import RunFacts
from fedarena.runs.config import RunConfig
from fedarena.simulate.selectors import BySize, PowerOfChoice
from fedarena.train import Work


def adaptation_notes(config: RunConfig, task: Task) -> list[str]:
    """How much of the model is trained, where that is not all, and whether the rest knows anything."""
    name = config.adaptation["name"]
    kind = ADAPTATIONS.get(name)
    trained, all_ = (
        sum(p.numel() for p in ps) for ps in (trainable_parameters(task.module).values(), task.module.parameters())
    )
    notes = (
        []
        if name == "all"
        else [f"adaptation={name} trains {trained:,} of the model's {all_:,} parameters, and only these are sent"]
    )
    if kind.expects_weights and config.weights is None:
        notes.append(
            f"adaptation={name} is for pretrained models, and this one starts from scratch, so what is not trained "
            "knows nothing; weights=… names a file or a run to start from"
        )
    return notes


def last_layer_notes(config: RunConfig, task: Task) -> list[str]:
    """Says so where a model of somebody's own may have another last layer than the one that is taken for it."""
    if not is_own(MODELS.get(config.model["name"])):
        return []
    asked = {}
    if config.adaptation["name"] != "all" and not is_own(ADAPTATIONS.get(config.adaptation["name"])):
        asked[f"adaptation={config.adaptation['name']}"] = [name for name, _ in task.module.named_parameters()]
    if config.algorithm["name"] == "local_head" and config.algorithm.get("head_layers") is None:
        asked["local_head"] = list(trainable_parameters(task.module))
    found = {part: called_instead_of_last(task, names) for part, names in asked.items()}
    return [
        f"{part} takes {layers[0]} for the last layer, as the model declares it last, but it calls {layers[1]} after "
        "it; if that makes its outputs, declare it last in the model"
        for part, layers in found.items()
        if layers is not None
    ]


def size_notes(config: RunConfig, facts: RunFacts) -> list[str]:
    """Says so where large clients are drawn more often and then count more, too."""
    aggregator = facts.aggregator
    weighs = not aggregator.takes_one_update and (not aggregator.needs_rows or getattr(aggregator, "weighted", False))
    if not (weighs and facts.selector.chooses_as(BySize, PowerOfChoice)):
        return []
    some = np.arange(1, 3)
    few, many = np.broadcast_to(facts.algorithm.client_weight(Work(some, some, some, some)), 2)
    if not many > few:
        return []
    return [
        f"selector={config.selector['name']} draws clients by how many samples they have, and updates of "
        f"{config.algorithm['name']} are weighted by that once more; the selector's paper has the plain mean of those "
        "who are drawn, as algorithms do whose client_weight is 1"
    ]
