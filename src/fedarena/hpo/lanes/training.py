"""The training of many trials as lanes of one computation; it needs torch and numpy alone.

Trials of one seed and cohort size that have batches of one size train on the same samples, so these are multiplied with
the weights of all trials at once. Local steps, begin and end of a round, and scores are recorded once for all blocks of
trials of the same form, and then run without Python.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence

import numpy as np
import torch

from fedarena.core.errors import BadInputError
from fedarena.core.own import is_own
from fedarena.hpo.lanes.arrangement import Block, Trial, arrange
from fedarena.hpo.lanes.block import BlockTraining, example_update
from fedarena.hpo.lanes.curves import IntArray, TrialCurves
from fedarena.hpo.lanes.planning import Draws, Scene, TrainingSamples, steps_of
from fedarena.hpo.lanes.programs import NotLanesError, Programs
from fedarena.hpo.lanes.scoring import check_measurable
from fedarena.models import Task, Tensors
from fedarena.models.probes import counts_padding
from fedarena.simulate.selectors import Selector
from fedarena.train import COVERAGE
from fedarena.train.drawing import batch_width
from fedarena.train.engine import Part
from fedarena.train.execution import available_cores, in_order
from fedarena.train.hardware import Hardware
from fedarena.train.layers import count_output_bytes
from fedarena.train.own_hooks import check_own_hooks
from fedarena.train.tensors import column_tensor

Progress = Callable[[int, int], None]  # rounds of trials that are done, and of all

_TENSORS_PER_OUTPUT = 4
_CACHE_BYTES = 1 << 23  # on a CPU, for the trials of one client
_MOST_GPU_BYTES = 1 << 34
_GPU_SHARE = 1 / 6  # of its free memory, for all lanes of a block
_COPIES_OF_PARAMS = 4


class LaneTrainer:
    """Trains trials in blocks, `workers` of them at the same time on a CPU (all cores, if not given).

    With `together`, as is usual on a GPU, blocks have trials of several seeds and cohort sizes, and all their clients
    take a step at once. Scores are noted after `note_rounds`: those of the models of then or, with `best`, of the best
    models so far.
    """

    def __init__(
        self,
        scene: Scene,
        trials: Sequence[Trial],
        hardware: Hardware,
        note_rounds: IntArray,
        best: bool = False,
        workers: int | None = None,
        together: bool | None = None,
    ):
        self.scene, self.trials, self.hardware = scene, tuple(trials), hardware
        self.together = hardware.is_gpu if together is None else together
        self.note_rounds, self.best = note_rounds, best
        self.workers = 1 if hardware.is_gpu else workers or available_cores()
        if best and "validation" not in scene.scored:
            raise BadInputError(
                "The best round is the one with the smallest validation loss, and nobody has such samples"
            )
        self._starts: dict[int, Tensors] = {}
        check_selector(scene)
        hardware.set_up()
        self.sample_bytes: dict[int, int] = {}  # by task: what layers put out for a sample, of each trial's own
        for task in {id(trial.task): trial.task for trial in trials}.values():
            task.module.to(hardware.device, hardware.dtype)
            check_task(task)
            self.sample_bytes[id(task)] = _sample_bytes(task)
        for trial in {(type(trial.algorithm), id(trial.task)): trial for trial in trials}.values():
            self._check(trial)
        self.samples = TrainingSamples(scene, hardware.device)
        self.parts: dict[Part, Tensors] = {}
        for part, clients in scene.scored.items():
            columns = scene.data.samples(clients, part).columns
            self.parts[part] = {name: column_tensor(values).to(hardware.device) for name, values in columns.items()}
        steps = {trial.number: steps_of(trial, self.samples.counts) for trial in trials}
        self.draws = Draws(scene, self.samples, trials, steps)
        self.programs = Programs()
        self.blocks = arrange(trials, steps, self._most_lanes, self.together)

    def run(self, progress: Progress | None = None) -> Iterator[tuple[list[int], TrialCurves]]:
        """Finished blocks: the numbers of their trials, and what came of them."""
        total, done, lock = len(self.trials) * self.scene.rounds, 0, threading.Lock()

        def advanced(rounds: int) -> None:
            nonlocal done
            if progress is not None:
                with lock:
                    done += rounds
                    progress(done, total)

        def train(block: Block) -> tuple[list[int], TrialCurves]:
            self.hardware.set_up()
            try:
                with torch.no_grad():
                    return [trial.number for trial in block.trials], BlockTraining(self, block).run(advanced)
            except NotLanesError as error:
                names = f"{type(block.first.algorithm).__name__} and {type(block.first.task.module).__name__}"
                raise BadInputError(
                    f"Trials of {names} cannot be lanes of one computation ({error}); run them one by one"
                ) from error

        yield from in_order(train, self.blocks, self.workers)

    def start(self, trial: Trial) -> Tensors:
        """The untrained model of a trial where it is trained; many share it."""
        key = id(trial.start)
        if key not in self._starts:
            self._starts[key] = {
                name: p.to(self.hardware.device, self.hardware.dtype) for name, p in trial.start.items()
            }
        return self._starts[key]

    def _most_lanes(self, trial: Trial) -> int:
        """How many lanes like a trial's fit into a cache, or keep a GPU busy."""
        width = batch_width(trial.local.batch_size, int(self.samples.counts.max()))
        params = sum(p.numel() for p in trial.start.values()) * torch.finfo(self.hardware.dtype).bits // 8
        per_lane = _COPIES_OF_PARAMS * params + _TENSORS_PER_OUTPUT * width * self.sample_bytes[id(trial.task)]
        bytes_for_lanes: float = _CACHE_BYTES
        if self.hardware.is_gpu:
            bytes_for_lanes = min(_MOST_GPU_BYTES, _GPU_SHARE * self.hardware.free_bytes())
        return int(max(1, bytes_for_lanes // per_lane))

    def _check(self, trial: Trial) -> None:
        """Refuses methods that lanes cannot compute."""
        algorithm = trial.algorithm
        name = type(algorithm).__name__
        check_own_hooks(algorithm, trial.task)
        broadcast = algorithm.broadcast(algorithm.server_init(self.start(trial)))
        obstacle = None
        if algorithm.trains_freely:
            obstacle = "it has a training loop of its own"
        elif algorithm.personalizes:
            obstacle = "its clients have models of their own"
        elif algorithm.client_init(broadcast):
            obstacle = "its clients keep something between their rounds"
        elif algorithm.needs_start_loss:
            obstacle = "it needs the loss of every client before training"
        elif COVERAGE in example_update(trial, broadcast):
            obstacle = "its clients may train a part of the model"
        if obstacle is not None:
            raise BadInputError(f"Trials of {name} cannot be lanes of one computation: {obstacle}; run them one by one")


def check_task(task: Task) -> None:
    """Refuses models and metrics that lanes cannot compute."""
    check_measurable(task)
    if counts_padding(task):
        raise BadInputError(
            "Trials with this model cannot be lanes of one computation: its loss depends on samples that only fill up "
            "a batch; run them one by one"
        )


def check_selector(scene: Scene) -> None:
    """Refuses selectors whose choice depends on what happened before."""
    kind = type(scene.selector)
    if is_own(kind) or kind.observe is not Selector.observe or scene.selector.varies:
        raise BadInputError(
            f"Trials with the selector {kind.__name__} cannot be lanes of one computation, because whom it invites "
            "depends on more than round and seed; choose another, such as uniform, or run them one by one"
        )


def _sample_bytes(task: Task) -> int:
    device = next(task.module.parameters()).device
    batch = task.batch({name: t.to(device) for name, t in task.example(1).items()})
    return count_output_bytes(task.module, *task.model_inputs(batch), trained=True)


def all_rounds(rounds: int) -> IntArray:
    """Every round, from the first on."""
    return np.arange(1, rounds + 1, dtype=np.int64)
