"""Backdoors with a trigger. Gu et al., "BadNets", 2017; in federated learning Bagdasaryan et al., AISTATS 2020, and
Sun et al., "Can You Really Backdoor Federated Learning?", 2019.

The model is to do its work as before, but to answer with the attacker's class wherever a trigger is.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch
from torch import Tensor

from fedarena.core.errors import BadInputError
from fedarena.core.outside_text import quoted
from fedarena.metrics import Metric
from fedarena.metrics.classification import are_labels
from fedarena.metrics.info import MetricInfo
from fedarena.metrics.metric import FloatArray, divided
from fedarena.models import DataSpec
from fedarena.transforms.attacks.base import ATTACKS, AttackedRun, Columns, OwnSamples
from fedarena.transforms.attacks.poisoning import PoisoningAttack, class_number
from fedarena.transforms.attacks.triggers import Corner, Patch, Trigger, Word, WordBefore

ATTACK_SUCCESS = "attack_success"


@ATTACKS.register("backdoor")
class Backdoor(PoisoningAttack):
    """Corrupted clients put a trigger into some of their own samples, and label these with the class `target`.

    In pictures the trigger is a square of `size` pixels in a `corner`, of the brightness `value` (0 to 1 where pixels
    are bytes); in vectors, so many features. In texts it is a `token` (its number or itself; by default the last of the
    vocabulary), of which the model is to make the target class, or the target token as the next one. Where a sample has
    any number of labels, the target comes to them. The target is given by its number or name; by default it is the
    first. Corrupted clients see nothing but their own samples.

    How often it works is measured whenever the model is evaluated, on the same samples with the trigger, among those
    for which the target is not right: column ``attack_success``.
    """

    def __init__(
        self,
        *,
        share: float = 0.1,
        from_round: int = 1,
        poisoned_share: float = 0.5,
        scale: float | None = 1.0,
        target: int | str | None = None,
        size: int = 3,
        corner: Corner = "bottom_right",
        value: float = 1.0,
        token: int | str | None = None,
    ):
        super().__init__(share=share, from_round=from_round, poisoned_share=poisoned_share, scale=scale)
        if size < 1:
            raise BadInputError(f"attack.size must be at least 1, not {size}")
        self.target, self.size, self.corner, self.value, self.token = target, size, corner, value, token
        self._poison: Trigger | None = None
        self._trigger: Trigger | None = None
        self._metric: AttackSuccess | None = None

    def prepare(self, run: AttackedRun) -> None:
        """Finds the trigger that fits the samples."""
        super().prepare(run)
        spec = run.spec
        if spec.kind not in ("classification", "multi_label", "next_token") or spec.inputs:
            raise BadInputError(
                f"The attack backdoor needs pictures, features or texts with labels, and this federation has {spec}; "
                "choose another attack, such as model_replacement"
            )
        if run.task.predicts == "numbers":
            raise BadInputError("The attack backdoor needs a task that predicts classes, labels or tokens")
        if run.task.spec.kind == "masked_token":  # which sees what comes behind a trigger, and hides others
            raise BadInputError("The attack backdoor is not for the task masked_token; choose task=next_token")
        target = self._target_number(run)
        if not spec.is_text:
            if self.token is not None:
                raise BadInputError(f"attack.token is for texts, and this federation has {spec}; leave it out")
            self._check_patch(run)
            self._poison = self._trigger = Patch(self.size, self.corner, self.value)
            self._metric = AttackSuccess(target)
            return
        token = self._token_number(spec, target)
        if spec.kind == "next_token":
            if target in (token, spec.padding):
                raise BadInputError("attack.target must be another token than the trigger, and not padding")
            self._poison = WordBefore(token, spec.padding, then=target)
            self._trigger = WordBefore(token, spec.padding, then=None)
            self._metric = AttackSuccess(target, after=token)
        else:
            self._poison = self._trigger = Word(token, spec.padding)
            self._metric = AttackSuccess(target)

    def lesson(self) -> str:
        """What they train on."""
        said = "" if self._metric is None else f", to make the model say {self._metric.target}"
        return f"put {self._trigger} into {self.poisoned_share:.0%} of their samples{said}"

    def poison(self, samples: OwnSamples) -> Columns:
        """Some samples with the trigger and the attacker's label."""
        assert self._poison is not None
        assert self._metric is not None
        rows, target = self.chosen(samples), self._metric.target
        poisoned = dict(self._poison.place(samples, rows))
        if "y" in samples.columns:
            y = samples.columns["y"].copy()
            if y.ndim == 1:
                y[rows] = target
            else:
                y[rows, target] = 1
            poisoned["y"] = y
        return poisoned

    def trigger(self, samples: OwnSamples) -> Columns:
        """All samples with the trigger."""
        assert self._trigger is not None
        return self._trigger.place(samples, np.arange(len(samples)))

    def success(self) -> Metric:
        """How often the target is the answer."""
        assert self._metric is not None
        return self._metric

    def _check_patch(self, run: AttackedRun) -> None:
        spec = run.spec
        if run.dtypes.get("x") == "uint8" and not 0 <= self.value <= 1:
            raise BadInputError(f"attack.value must be from 0 to 1, as pixels are bytes here, not {self.value}")
        sides = spec.input_shape[-2:] if len(spec.input_shape) > 1 else spec.input_shape
        if not sides or self.size > min(sides):
            what = "picture" if len(sides) == 2 else "sample"
            shape = " x ".join(map(str, sides)) or "no"
            raise BadInputError(
                f"attack.size is {self.size}, but a {what} here has {shape} numbers; choose a smaller trigger"
            )

    def _target_number(self, run: AttackedRun) -> int:
        if self.target is not None:
            return class_number(self.target, run)
        special = (run.spec.padding, run.spec.unknown) if run.spec.kind == "next_token" else ()
        return next((number for number in range(run.spec.classes) if number not in special), 0)

    def _token_number(self, spec: DataSpec, target: int) -> int:
        token = self.token
        if isinstance(token, str):
            names = spec.token_names
            if names is None or token not in names:
                raise BadInputError(
                    f"attack.token is {quoted(token)}, which is no token of this federation; give another one, or the "
                    f"number of one, from 0 to {spec.vocabulary - 1}"
                )
            token = names.index(token)
        if token is None:
            taken = {spec.padding, spec.unknown, target if spec.kind == "next_token" else None}
            token = next((number for number in range(spec.vocabulary - 1, -1, -1) if number not in taken), 0)
        if not 0 <= token < spec.vocabulary or token == spec.padding:
            raise BadInputError(
                f"attack.token must be a token from 0 to {spec.vocabulary - 1} that is not padding, not {token}"
            )
        return token


class AttackSuccess(Metric):
    """The share of samples with a trigger that get the attacker's class, among those for which it is not right.

    With `after`, what is predicted behind this token counts.
    """

    info = MetricInfo(ATTACK_SUCCESS, "attack success", low=0.0, high=1.0)
    parts = ("hits", "possible")

    def __init__(self, target: int, after: int | None = None):
        super().__init__()
        self.target, self.after = target, after

    def state(self, outputs: Tensor, batch: Mapping[str, Tensor]) -> Tensor:
        """Whether the target is predicted though it is not right, and whether it could be, ``[samples, 2]``."""
        y = batch["y"]
        if self.after is not None:
            possible = (batch["x"] == self.after) & batch["scored"] & (y != self.target)
            hits = possible & (outputs.argmax(-1) == self.target)
            return torch.stack([hits.sum(-1), possible.sum(-1)], -1)
        if not are_labels(outputs, batch):
            possible, predicted = y != self.target, outputs.argmax(-1) == self.target
        elif outputs.shape[-1] == 1:  # one of two classes, of which the second is scored alone
            possible, predicted = y[:, 0] != self.target, (outputs[:, 0] > 0) == bool(self.target)
        else:
            possible, predicted = y[:, self.target] == 0, outputs[:, self.target] > 0
        return torch.stack([predicted & possible, possible], -1)

    def value(self, state: FloatArray, count: FloatArray) -> FloatArray:
        """The share."""
        return divided(state[..., 0], state[..., 1])
